package quota

import (
	"fmt"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Usage is one interval in which one pod held a share of one GPU, or a burst
// machine was in one phase of its life. The writer numbers its records:
// (Node, Boot, Journal, Seq) is the idempotency key.
//
// Both ends are cut down to whole seconds, so that intervals that follow on one
// another still do and a run adds up to the same total however it is sliced.
type Usage struct {
	Node      string    `json:"node"`
	Boot      string    `json:"boot"`    // boot id of the node
	Journal   string    `json:"journal"` // id of the writer's journal
	Seq       int64     `json:"seq"`     // number within the journal, from 1
	Tenant    string    `json:"tenant"`
	Namespace string    `json:"namespace,omitzero"`
	PodUID    string    `json:"podUID,omitzero"`
	Owner     string    `json:"owner,omitzero"`
	Burst     string    `json:"burst,omitzero"` // empty on-prem
	GPUModel  string    `json:"gpuModel,omitzero"`
	Device    string    `json:"device,omitzero"`
	Share     int64     `json:"share"` // of the device, 1/840; 840 is the whole
	Start     time.Time `json:"start"`
	End       time.Time `json:"end"`             // exclusive
	Phase     string    `json:"phase,omitzero"`  // boot, stage, run, drain, wipe
	Source    string    `json:"source,omitzero"` // who measured: agent, provider, scheduler
}

// maxUsageSeq bounds the numbers of a writer's records.
const maxUsageSeq = 1e15

// maxUsage is the longest interval of one record. A writer that goes on for
// longer has to cut it; what has no end yet is not usage.
const maxUsage = 31 * 24 * time.Hour

// Normal returns u with both ends in UTC and cut down to whole seconds.
func (u Usage) Normal() Usage {
	u.Start, u.End = utc(u.Start).Truncate(time.Second), utc(u.End).Truncate(time.Second)
	return u
}

// Validate returns the first thing that makes u impossible, wrapped in [ErrInvalid].
func (u Usage) Validate() error {
	name := fmt.Sprintf("usage record %d of node %q", u.Seq, u.Node)
	if err := validIDs("node", u.Node, "boot", u.Boot, "journal", u.Journal, "tenant", u.Tenant); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, s := range []string{u.Namespace, u.PodUID, u.Owner, u.Burst, u.GPUModel, u.Device, u.Phase, u.Source} {
		if !validText(s) {
			return fmt.Errorf("%s: %w: %q is not printable text of at most %d bytes", name, ErrInvalid, s, maxID)
		}
	}
	switch {
	case u.Seq < 1 || u.Seq > maxUsageSeq:
		return fmt.Errorf("%s: %w: numbers run from 1 to %d", name, ErrInvalid, int64(maxUsageSeq))
	case u.Share < 1 || u.Share > money.Whole:
		return fmt.Errorf("%s: %w: share %d is not within 1 to %d", name, ErrInvalid, u.Share, money.Whole)
	case !saneTime(u.Start) || !saneTime(u.End) || u.End.Before(u.Start) || u.End.Sub(u.Start) > maxUsage:
		return fmt.Errorf("%s: %w: it lasts from %v to %v; an interval has a start, an end not before it, and at most 31 days", name, ErrInvalid, u.Start, u.End)
	}
	return nil
}

// UsageFilter selects usage; empty fields select all. From and Until must be
// whole UTC hours, the unit in which usage is summed up; the zero time is open.
type UsageFilter struct {
	Tenant, Namespace, Owner, Burst, Node string
	From, Until                           time.Time
}

// UsageTotal is the usage of one pod on one node in one phase, summed up.
type UsageTotal struct {
	Tenant       string `json:"tenant"`
	Namespace    string `json:"namespace,omitzero"`
	Owner        string `json:"owner,omitzero"`
	PodUID       string `json:"podUID,omitzero"`
	Burst        string `json:"burst,omitzero"` // empty on-prem
	Node         string `json:"node"`
	GPUModel     string `json:"gpuModel,omitzero"`
	Phase        string `json:"phase,omitzero"`
	Source       string `json:"source,omitzero"`
	ShareSeconds int64  `json:"shareSeconds"` // seconds times 1/840 GPU, exact
}

// GPUSeconds is t in seconds of whole GPUs, cut down; add up ShareSeconds first.
func (t UsageTotal) GPUSeconds() int64 { return t.ShareSeconds / money.Whole }

// UsageHour is the usage of a tenant in one UTC hour, summed up.
type UsageHour struct {
	Hour         time.Time `json:"hour"` // its start
	Namespace    string    `json:"namespace,omitzero"`
	Burst        string    `json:"burst,omitzero"` // empty on-prem
	GPUModel     string    `json:"gpuModel,omitzero"`
	ShareSeconds int64     `json:"shareSeconds"`
}
