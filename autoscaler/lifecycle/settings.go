package lifecycle

import (
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// Settings are the times of a burst's life. [DefaultSettings] has the values
// of an installation that states none.
type Settings struct {
	// Installation is the tag of this cluster's machines at every cloud.
	Installation string
	// JoinDeadline and ReadyDeadline count from MachineBought; a provider may
	// state its own.
	JoinDeadline, ReadyDeadline time.Duration
	// BuyDeadline bounds how long a cloud may take to confirm a machine.
	BuyDeadline time.Duration
	// StagingPatience is how long staging may stand still, and how long a burst
	// may take to ask for its machines.
	StagingPatience time.Duration
	// LeaseTime is how far a lease reaches, LeaseEvery how often it is renewed.
	LeaseTime, LeaseEvery time.Duration
	// LeaseStop is the time between soft and hard: results are given back.
	LeaseStop time.Duration
	// DeadMan is what a node may take to wipe and power off after hard.
	DeadMan time.Duration
	// CollectDeadline and WipeDeadline bound waiting for results and proof,
	// counted from WorkDone.
	CollectDeadline, WipeDeadline time.Duration
	// Poll is how often outside systems without events are asked again.
	Poll time.Duration
	// Waived are evidence gates of the agent that may fail here, by name. An
	// installation waives none; the demo waives "swap", which is the host's.
	Waived []string
	// Bench is how long an offer stays out of plans after the market refused.
	Bench time.Duration
}

// DefaultSettings are the time constants of the design, section 9.
func DefaultSettings() Settings {
	return Settings{
		Installation:    "spillway",
		BuyDeadline:     5 * time.Minute,
		JoinDeadline:    15 * time.Minute,
		ReadyDeadline:   25 * time.Minute,
		StagingPatience: 10 * time.Minute,
		LeaseTime:       30 * time.Minute,
		LeaseEvery:      5 * time.Minute,
		LeaseStop:       5 * time.Minute,
		DeadMan:         2 * time.Minute,
		CollectDeadline: 15 * time.Minute,
		WipeDeadline:    20 * time.Minute,
		Poll:            2 * time.Second,
		Bench:           15 * time.Minute,
	}
}

// patiently is how often a neighbour that fails is asked again.
func (s Settings) patiently() time.Duration { return 15 * s.Poll }

// JoinBy is when the join token of a machine ends that was requested at a time.
func (s Settings) JoinBy(p *v1alpha1.BurstProvider, requested time.Time) time.Time {
	return s.joinBy(p, requested.Add(s.BuyDeadline))
}

// joinBy and readyBy are the deadlines of a burst's nodes: the provider's own
// when it states them.
func (s Settings) joinBy(p *v1alpha1.BurstProvider, bought time.Time) time.Time {
	return bought.Add(orDefault(p.Spec.Join.JoinDeadline.Duration, s.JoinDeadline))
}

func (s Settings) readyBy(p *v1alpha1.BurstProvider, bought time.Time) time.Time {
	return bought.Add(orDefault(p.Spec.Join.ReadyDeadline.Duration, s.ReadyDeadline))
}

func orDefault(own, fallback time.Duration) time.Duration {
	if own > 0 {
		return own
	}
	return fallback
}
