package money

import (
	"math"
	"time"
)

// Meter is how time is billed: in whole units, and at least a minimum. The zero
// meter bills by the second. Its fields must not be negative.
type Meter struct {
	Unit    time.Duration `json:"unit,omitzero"`    // billed in whole units of this; zero is one second
	Minimum time.Duration `json:"minimum,omitzero"` // least time billed
	Aligned bool          `json:"aligned,omitzero"` // every clock unit (UTC) that is touched counts in full
}

// Billed returns what is billed from start to end. An end before its start (two
// clocks that disagree) counts as an end at the start, which still costs the
// minimum.
func (m Meter) Billed(start, end time.Time) time.Duration {
	if end.Before(start) {
		end = start
	}
	if !m.Aligned {
		return max(roundUp(end.Sub(start), m.unit()), m.Minimum)
	}
	unit := m.unit()
	first := start.Truncate(unit)
	return max(roundUp(end.Sub(first), unit), unit, m.Minimum)
}

// Worst returns the most that can be billed for d, wherever the clock stands
// when it starts: Billed(t, t.Add(d)) <= Worst(d) for every t, and for some t
// they are equal. It never falls when d rises.
func (m Meter) Worst(d time.Duration) time.Duration {
	d = max(d, 0)
	if !m.Aligned {
		return max(roundUp(d, m.unit()), m.Minimum)
	}
	unit := m.unit()
	late := d + (unit - 1) // started in the last nanosecond before a full unit
	if late < d {
		late = math.MaxInt64
	}
	return max(roundUp(late, unit), unit, m.Minimum)
}

func (m Meter) unit() time.Duration {
	if m.Unit <= 0 {
		return time.Second
	}
	return m.Unit
}

// roundUp returns the least whole multiple of unit that is not below d; where
// that overflows, the longest duration there is.
func roundUp(d, unit time.Duration) time.Duration {
	rest := d % unit
	if rest == 0 {
		return d
	}
	if up := d + (unit - rest); up > d {
		return up
	}
	return math.MaxInt64
}
