package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// CloseAfter is how long a month waits for bursts that are not settled before
// it may be closed without them.
const CloseAfter = 72 * time.Hour

// Closing ends a billing month. What was posted to it stays as it is: a
// settlement, a correction or a usage record that comes later is posted to the
// first month that is still open. A month that is closed closes all time before
// it as well.
type Closing struct {
	Month string    `json:"month"` // "2026-11", local in Zone
	Zone  string    `json:"zone"`
	Start time.Time `json:"start"` // [Start, End) in UTC
	End   time.Time `json:"end"`
	By    string    `json:"by"` // id of the person who closes it
	// Pending are the bursts that were not settled. What they had reserved is
	// the estimate of what will follow.
	Pending []string `json:"pending,omitempty"`
}

// Closed is a closing that was booked.
type Closed struct {
	Closing
	At time.Time `json:"at"` // record time
}

// Close proposes to end a month at a moment: when it is over, and nothing in it
// is pending or [CloseAfter] has passed since. Months are closed in their order
// and in one time zone.
func (b *Book) Close(month, zone, by string, now time.Time) (Event, error) {
	p, err := Month(zone, month)
	if err == nil {
		err = validIDs("person", by)
	}
	if err != nil {
		return Event{}, fmt.Errorf("close: %w", err)
	}
	c := Closing{Month: p.ID, Zone: cmp.Or(zone, DefaultZone), Start: p.Start, End: p.End, By: by, Pending: b.pendingIn(p)}
	if err := b.closable(c, now); err != nil {
		return Event{}, fmt.Errorf("close %s: %w", month, err)
	}
	return Event{Kind: KindClose, Intent: Intent{Close: &c}}, nil
}

// pendingIn lists the bursts that may still cost something in p, sorted.
func (b *Book) pendingIn(p Period) []string {
	var open []string
	for uid, a := range b.Open {
		if a.Reservation.From.Before(p.End) {
			open = append(open, uid)
		}
	}
	slices.Sort(open)
	return open
}

// closable returns why c can't be closed at a moment.
func (b *Book) closable(c Closing, now time.Time) error {
	p := Period{Start: c.Start, End: c.End}
	switch last := b.lastClosed(); {
	case !p.WholeHours():
		return fmt.Errorf("%w: it does not start and end on whole UTC hours, in which usage is summed up; choose another zone", ErrInvalid)
	case last.Month != "" && last.Zone != c.Zone:
		return fmt.Errorf("%w: months of this ledger are those of %s", ErrInvalid, last.Zone)
	case !c.End.After(last.End):
		return fmt.Errorf("%w: it is closed since %s", ErrConflict, stamp(last.At))
	case now.Before(c.End):
		return fmt.Errorf("%w: it ends at %s", ErrInvalid, stamp(c.End))
	case len(c.Pending) > 0 && now.Before(c.End.Add(CloseAfter)):
		return fmt.Errorf("%w: %d bursts are not settled, the first of them %s: wait for them, or close it after %s with what they have reserved as the estimate",
			ErrInvalid, len(c.Pending), c.Pending[0], stamp(c.End.Add(CloseAfter)))
	}
	return nil
}

func (b *Book) lastClosed() Closed {
	if len(b.Closes) == 0 {
		return Closed{}
	}
	return b.Closes[len(b.Closes)-1]
}

// OpenSince is the start of the first month that was open at a moment; the zero
// time when none was closed before.
func (b *Book) OpenSince(at time.Time) time.Time {
	var since time.Time
	for _, c := range b.Closes {
		if c.At.Before(at) {
			since = c.End
		}
	}
	return since
}

// ClosedUntil is the end of the last month that was closed; the zero time when
// none was.
func (b *Book) ClosedUntil() time.Time { return b.lastClosed().End }

// ClosedMonth returns the closing of a month, if it has one.
func (b *Book) ClosedMonth(month, zone string) (Closed, bool) {
	i := slices.IndexFunc(b.Closes, func(c Closed) bool { return c.Month == month && c.Zone == cmp.Or(zone, DefaultZone) })
	if i < 0 {
		return Closed{}, false
	}
	return b.Closes[i], true
}
