package providers

import (
	"fmt"
	"time"

	"spillway.dev/spillway/quota/money"
)

// MeterEvent is a moment in a machine's life at which a cloud's meter starts
// or stops.
type MeterEvent string

// The events that clouds meter by.
const (
	MeterCreated MeterEvent = "created" // the request was accepted
	MeterStarted MeterEvent = "started" // the machine ran for the first time
	MeterDeleted MeterEvent = "deleted" // nothing of it was left
)

// MeterRule is how a cloud turns the life of a machine into billed time. The
// zero rule bills from the first moment to the last, by the second.
type MeterRule struct {
	Start MeterEvent `json:"start"` // MeterCreated (also when empty) or MeterStarted
	Stop  MeterEvent `json:"stop"`  // MeterDeleted (also when empty)

	Granularity time.Duration `json:"granularity"` // billed in whole units of this; zero is one second
	Minimum     time.Duration `json:"minimum"`     // least time billed once the meter has started

	ClockAligned      bool `json:"clockAligned"`      // every clock unit (UTC) that is touched counts in full
	BilledWhenStopped bool `json:"billedWhenStopped"` // powering off does not stop the bill
}

// Validate says what is wrong with a rule that came from a person.
func (m MeterRule) Validate() error {
	switch {
	case m.Granularity < 0 || m.Minimum < 0:
		return fmt.Errorf("meter rule: granularity %s and minimum %s must not be negative", m.Granularity, m.Minimum)
	case m.Start != "" && m.Start != MeterCreated && m.Start != MeterStarted:
		return fmt.Errorf("meter rule: start %q: use %q or %q", m.Start, MeterCreated, MeterStarted)
	case m.Stop != "" && m.Stop != MeterDeleted:
		return fmt.Errorf("meter rule: stop %q: use %q", m.Stop, MeterDeleted)
	case m.ClockAligned && m.Granularity > 24*time.Hour:
		return fmt.Errorf("meter rule: clock-aligned granularity %s: at most 24h", m.Granularity)
	}
	return nil
}

// Window returns the moments between which the cloud's meter runs for a
// machine. For a machine that still costs money, end is now. Both are zero
// when the meter has not started. A machine that was powered off counts to its
// deletion: this contract knows no time of stopping, and never understates.
func (m MeterRule) Window(mach Machine, now time.Time) (start, end time.Time) {
	start = mach.Created
	if m.Start == MeterStarted {
		start = mach.Started
	}
	if start.IsZero() {
		return time.Time{}, time.Time{}
	}
	end = mach.Deleted
	if end.IsZero() {
		end = now
	}
	return start, end
}

// Billed returns what the cloud bills for a meter that ran from start to end.
// A zero start bills nothing; an end before its start (two clocks that
// disagree) counts as an end at the start, which still costs the minimum.
func (m MeterRule) Billed(start, end time.Time) time.Duration {
	if start.IsZero() {
		return 0
	}
	return m.Arithmetic().Billed(start, end)
}

// Worst returns the most that the cloud can bill for a meter that runs for d,
// wherever the clock stands when it starts. It is the bound that a reservation
// is made for: Billed(t, t.Add(d)) <= Worst(d) for every t, and for some t
// they are equal.
func (m MeterRule) Worst(d time.Duration) time.Duration { return m.Arithmetic().Worst(d) }

// Arithmetic is m without the events: how a time is billed once it is known.
func (m MeterRule) Arithmetic() money.Meter {
	return money.Meter{Unit: m.Granularity, Minimum: m.Minimum, Aligned: m.ClockAligned}
}
