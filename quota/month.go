package quota

import (
	"fmt"
	"math/bits"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Month returns a local month of a time zone, such as "2026-11" in
// "Europe/Berlin" (an empty zone is [DefaultZone]). The bounds follow the rules
// of the zone: October 2026 has 745 hours in Berlin, March 2027 has 743.
func Month(zone, id string) (Period, error) {
	b := Budget{Window: WindowMonth, Zone: zone}
	if _, err := b.Location(); err != nil {
		return Period{}, fmt.Errorf("time zone %q: %w: %w; use an IANA name such as %s", zone, ErrInvalid, err, DefaultZone)
	}
	day, err := time.Parse("2006-01", id)
	if err != nil || !saneTime(day) {
		return Period{}, fmt.Errorf("month %q: %w: write it like 2026-11", id, ErrInvalid)
	}
	return b.period(id)
}

// Days returns the local days that p touches, in order.
func (p Period) Days(zone string) ([]Period, error) {
	return Budget{ID: p.ID, Window: WindowDay, Zone: zone}.Periods(p.Start, p.End)
}

// WholeHours reports whether p starts and ends on whole UTC hours, the unit in
// which usage is summed up.
func (p Period) WholeHours() bool {
	return p.Start.Equal(p.Start.Truncate(time.Hour)) && p.End.Equal(p.End.Truncate(time.Hour))
}

// Hours is the length of p in whole hours.
func (p Period) Hours() int64 { return int64(p.End.Sub(p.Start) / time.Hour) }

// touches reports whether p and [from, until) have time in common.
func (p Period) touches(from, until time.Time) bool {
	return from.Before(p.End) && until.After(p.Start)
}

// Spread lays something evenly over the whole seconds of [From, Until), so that
// it can be cut anywhere: the parts of neighbouring intervals always add up to
// the part of both together, and all of them to the total, however it is cut.
// Cut at month ends it gives what a settlement booked in each window.
type Spread struct {
	From, Until time.Time // Until is later by at least a second
}

// Metered is the time that the cost of a settled burst is laid over: from the
// first machine's start to the last one's end, cut to whole seconds. Where
// nothing was metered it is the second of the settlement.
func (a Account) Metered() Spread {
	from, until := a.Settlement.MachineStart, a.Settlement.MachineEnd
	if from.IsZero() {
		from, until = a.SettledAt.Truncate(time.Second), a.SettledAt
	}
	if whole := from.Truncate(time.Second); whole.Before(from) {
		from = whole.Add(time.Second)
	}
	until = until.Truncate(time.Second)
	if !until.After(from) {
		until = from.Add(time.Second)
	}
	return Spread{From: from, Until: until}
}

// Part is what falls into [from, until) of a total. It is within one unit of the
// exact share.
func (s Spread) Part(total int64, from, until time.Time) int64 {
	return s.before(total, until) - s.before(total, from)
}

// Amount is [Spread.Part] of an amount of money.
func (s Spread) Amount(total money.Amount, from, until time.Time) money.Amount {
	return money.Amount{Nano: s.Part(total.Nano, from, until), Currency: total.Currency}
}

// before is what falls before t, rounded half away from zero: the way in which an amount is
// split over two windows of a budget.
func (s Spread) before(total int64, t time.Time) int64 {
	switch {
	case total < 0: // taken back
		return -s.before(-total, t)
	case !t.After(s.From):
		return 0
	case !t.Before(s.Until):
		return total
	}
	passed, whole := uint64(t.Sub(s.From)/time.Second), uint64(s.Until.Sub(s.From)/time.Second)
	hi, lo := bits.Mul64(uint64(total), passed)
	q, r := bits.Div64(hi, lo, whole) // passed < whole, so it fits
	if r >= whole-r {
		q++
	}
	return int64(q)
}
