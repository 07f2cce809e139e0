package demo

import (
	"context"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// Summary is summary.json.
type Summary struct {
	Burst *BurstSummary `json:"burst"`

	burst *v1alpha1.Burst
}

// BurstSummary is the burst of Job b.
type BurstSummary struct {
	Provider string `json:"provider"`
}

func (s *story) account(context.Context) error { return nil }
func (s *story) verdict() error                { return nil }
