package quota

import (
	"fmt"
	"sort"
	"strconv"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Terms are how the machines of a burst are billed. A [Reservation] that has
// them is taken slice by slice: at every moment it holds exactly the worst case
// up to its end, no more and no less, and each slice moves the end and adds what
// the machines can cost until then. The money of a slice covers its whole way to
// stop, so a slice that is refused leaves time to stop in.
//
// In the windows of budgets it counts with what can fall into each of them, so
// a burst of a week does not weigh on every single day with all of its cost.
type Terms struct {
	Machines int64       `json:"machines"` // all billed by Meter at the price of the reservation
	Meter    money.Meter `json:"meter"`
	// Stop is the time from the end of a lease to the proven end of the
	// machines: results, wipe, dead-man switch, sweep and deletion.
	Stop time.Duration `json:"stop"`
}

// IsZero reports whether nothing is said: the whole is reserved at once.
func (t Terms) IsZero() bool { return t == Terms{} }

// maxMachines bounds the machines of one burst.
const maxMachines = 10_000

// validTerms returns what makes the terms of r impossible.
func (r Reservation) validTerms() error {
	t := r.Terms
	switch {
	case t.IsZero():
		return nil
	case r.Mode != ModeLease || r.Price.IsZero() || r.Ceiling.IsZero() || r.Price.Currency != r.Amount.Currency:
		return fmt.Errorf("%w: terms need mode %q, and a price and a ceiling in %s", ErrInvalid, ModeLease, r.Amount.Currency)
	case t.Machines < 1 || t.Machines > maxMachines || t.Meter.Unit < 0 || t.Meter.Minimum < 0:
		return fmt.Errorf("%w: terms %+v", ErrInvalid, t)
	case t.Stop <= 0 || r.Until.Sub(r.From) <= t.Stop:
		return fmt.Errorf("%w: the way to stop of %s needs to end within the reserved time of %s", ErrInvalid, t.Stop, r.Until.Sub(r.From))
	}
	return r.covered(r.Until, r.Amount)
}

// covered returns an error unless reserved is exactly what the machines can cost
// until then.
func (r Reservation) covered(until time.Time, reserved money.Amount) error {
	worst, err := r.Worst(until)
	if err != nil {
		return err
	}
	if worst != reserved {
		return fmt.Errorf("%w: until %s its machines can cost %v, and %v in all would be reserved", ErrInvalid, stamp(until), worst, reserved)
	}
	return nil
}

// Worst is the most that the machines of r can be billed when all of them are
// gone by then, wherever the provider's clock stands. It needs [Terms].
func (r Reservation) Worst(until time.Time) (money.Amount, error) {
	return r.cost(r.Terms.Meter.Worst(until.Sub(r.From)))
}

// cost is the price of so much billed time on every machine. A part of a second
// counts as a whole one.
func (r Reservation) cost(billed time.Duration) (money.Amount, error) {
	seconds := int64(billed / time.Second)
	if billed%time.Second != 0 {
		seconds++
	}
	one, err := r.Price.For(seconds, money.Whole)
	if err != nil {
		return money.Amount{}, err
	}
	return one.Mul(r.Terms.Machines)
}

// Share is what the window p of a budget has to hold of whole, which r has
// reserved until then. Without [Terms] that is all of it: wherever in its time
// the cost falls, there is room.
//
// With them it is the most that a settlement can lay into the window. Cost is
// laid evenly over the metered time, so a part of the time can cost more by the
// second than its own bill only by what is rounded up (a unit at either end) and
// by the minimum. The second on top is worth more than all nano-units that are
// rounded up.
func (r Reservation) Share(p Period, until time.Time, whole money.Amount) (money.Amount, error) {
	if r.Terms.IsZero() {
		return whole, nil
	}
	from := r.From
	if from.Before(p.Start) {
		from = p.Start
	}
	if until.After(p.End) {
		until = p.End
	}
	m := r.Terms.Meter
	share, err := r.cost(m.Worst(until.Sub(from) + max(m.Unit, time.Second) + time.Second))
	if err != nil {
		return money.Amount{}, err
	}
	if share.Nano > whole.Nano {
		return whole, nil
	}
	return share, nil
}

// LeaseBy is how far a lease of the burst may reach: the money that is reserved
// covers its way to stop from there. It means something for accounts with [Terms].
func (a Account) LeaseBy() time.Time { return a.Until.Add(-a.Reservation.Terms.Stop) }

// Next is the slice behind those that a has, which lets a lease reach to hard,
// or as far as the ceiling pays. ok is false when there is nothing to ask for.
// It means something for accounts with [Terms].
func (a Account) Next(hard time.Time) (x Extension, ok bool, err error) {
	r := a.Reservation
	longer := hard.Add(r.Terms.Stop).Sub(a.Until)
	seconds := sort.Search(max(0, int(longer/time.Second)), func(i int) bool {
		worst, err := r.Worst(a.Until.Add(time.Duration(i+1) * time.Second))
		return err != nil || worst.Nano > r.Ceiling.Nano
	})
	if seconds == 0 {
		return Extension{}, false, nil
	}
	x = Extension{Burst: r.Burst, Key: a.nextSlice(), Until: a.Until.Add(time.Duration(seconds) * time.Second)}
	if x.More, err = r.Worst(x.Until); err == nil {
		x.More, err = x.More.Sub(a.Reserved)
	}
	if err != nil {
		return Extension{}, false, fmt.Errorf("next slice of burst %q: %w", r.Burst, err)
	}
	return x, true, nil
}

// nextSlice is the key of the slice behind those that a has.
func (a Account) nextSlice() string { return strconv.Itoa(a.Extensions + 1) }

// slice returns why x is not the next slice of a, nil where a has no [Terms].
func (a Account) slice(x Extension) error {
	if a.Reservation.Terms.IsZero() {
		return nil
	}
	switch {
	case a.State != Reserved:
		return fmt.Errorf("%w: it may end, not grow", ErrDraining)
	case x.Key != a.nextSlice():
		return fmt.Errorf("%w: slice %q is asked for, the next one is %q", ErrInvalid, x.Key, a.nextSlice())
	case !x.Until.After(a.Until):
		return fmt.Errorf("%w: the slice ends at %s, and the money reaches to %s already", ErrInvalid, stamp(x.Until), stamp(a.Until))
	}
	total, err := a.Reserved.Add(x.More)
	if err != nil {
		return err
	}
	return a.Reservation.covered(x.Until, total)
}
