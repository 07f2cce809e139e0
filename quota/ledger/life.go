package ledger

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// life is what the verifier knows of an open burst.
type life struct {
	reservation quota.Reservation
	pending     int64
	reserved    int64 // all that was ever reserved
	until       time.Time
	draining    bool
	extensions  int
	reductions  int
	holds       []quota.Held
	permits     map[quota.Permit]bool
}

// held is what a window holds for the burst.
func (b *life) held(h quota.Hold) int64 {
	for _, held := range b.holds {
		if held.Hold == h {
			return held.Amount.Nano
		}
	}
	return 0
}

// hold takes in what a row moved in the windows.
func (b *life) hold(m moved) {
	for _, h := range m.windowsTouched {
		w := m.windows[h]
		i := slices.IndexFunc(b.holds, func(held quota.Held) bool { return held.Hold == h })
		if i < 0 {
			i = len(b.holds)
			b.holds = append(b.holds, quota.Held{Hold: h, Amount: money.Zero(b.reservation.Amount.Currency)})
		}
		b.holds[i].Amount.Nano += w.in - w.free - w.spent
	}
}

// moved is what the entries of one row move, by what it means.
type moved struct {
	in, out               int64 // promised to the burst, and taken off it
	spend, fault, overrun int64 // charged, to whom
	windows               map[quota.Hold]*windowMove
	windowsTouched        []quota.Hold // in the order of the entries
}

type windowMove struct{ in, free, spent int64 }

// sortEntries puts the entries of a row about a burst into their places. An entry that
// has no place in such a row is the error.
func sortEntries(ev quota.Event, r quota.Reservation) (moved, error) {
	m := moved{windows: make(map[quota.Hold]*windowMove)}
	burst, committed := quota.BurstAccount(ev.Burst), quota.CommittedAccount(r.Tenant)
	spend, accrued := quota.SpendAccount(r.Tenant), quota.AccruedAccount(r.Provider)
	for _, e := range ev.Entries {
		if e.Amount.Currency != r.Amount.Currency {
			return m, fmt.Errorf("it moves %v for a burst in %s", e.Amount, r.Amount.Currency)
		}
		n := e.Amount.Nano
		switch {
		case e.Debit == burst && e.Credit == committed:
			m.in += n
		case e.Debit == committed && e.Credit == burst:
			m.out += n
		case e.Debit == spend && e.Credit == accrued:
			m.spend += n
		case e.Debit == quota.AccountFault && e.Credit == accrued:
			m.fault += n
		case e.Debit == quota.AccountOverrun && e.Credit == accrued:
			m.overrun += n
		case !m.window(e):
			return m, fmt.Errorf("it moves %v from %s to %s, which no %s may", e.Amount, e.Credit, e.Debit, ev.Kind)
		}
	}
	return m, nil
}

// window takes in e if it moves money within one window of a budget.
func (m *moved) window(e quota.Entry) bool {
	h, to, ok := e.Debit.Window()
	from, side, also := e.Credit.Window()
	if !ok || !also || h != from {
		return false
	}
	w := m.windows[h]
	if w == nil {
		w = &windowMove{}
		m.windows[h] = w
		m.windowsTouched = append(m.windowsTouched, h)
	}
	switch side + ">" + to {
	case "open>reserved":
		w.in += e.Amount.Nano
	case "reserved>open":
		w.free += e.Amount.Nano
	case "reserved>spent":
		w.spent += e.Amount.Nano
	default:
		return false
	}
	return true
}

// burst checks one row about a burst against its life so far.
func (v *verifier) burst(seq int64, ev quota.Event) {
	b, known := v.bursts[ev.Burst]
	switch {
	case ev.Kind == quota.KindReserve && known:
		v.found(seq, "burst %q is reserved a second time", ev.Burst)
		return
	case ev.Kind == quota.KindReserve && ev.Intent.Reserve != nil:
		b = &life{reservation: *ev.Intent.Reserve, until: ev.Intent.Reserve.Until, permits: make(map[quota.Permit]bool)}
		v.bursts[ev.Burst] = b
	case !known:
		v.found(seq, "%s of burst %q, which was never reserved", ev.Kind, ev.Burst)
		return
	case b == nil:
		v.found(seq, "%s of burst %q after its settlement", ev.Kind, ev.Burst)
		return
	}
	m, err := sortEntries(ev, b.reservation)
	if err != nil {
		v.found(seq, "%v", err)
		return
	}
	if problem := v.step(seq, b, ev, m); problem != "" {
		v.found(seq, "%s of burst %q: %s", ev.Kind, ev.Burst, problem)
	}
	key, err := b.asked(ev.Intent)
	if err != nil {
		v.found(seq, "%v", err)
	}
	if key != ev.Key {
		v.found(seq, "%s of burst %q stands under %q, its key is %q", ev.Kind, ev.Burst, ev.Key, key)
	}
	b.pending += m.in - m.out
	b.reserved += m.in
	b.hold(m)
	balance := v.balances[account{quota.BurstAccount(ev.Burst), b.reservation.Amount.Currency}]
	if balance != b.pending || balance < 0 {
		v.found(seq, "the account of burst %q does not add up", ev.Burst)
	}
	if ev.Kind == quota.KindSettle {
		if b.pending != 0 {
			v.found(seq, "settle of burst %q: it leaves money reserved", ev.Burst)
		}
		v.bursts[ev.Burst] = nil
	}
}

// asked returns the key under which an intent has to stand, and why it could
// never have been asked for.
func (b *life) asked(in quota.Intent) (key string, err error) {
	switch {
	case in.Reserve != nil:
		err = in.Reserve.Validate()
	case in.Extend != nil:
		b.extensions++
		key, err = in.Extend.Key, in.Extend.Validate()
		if next := strconv.Itoa(b.extensions); !b.reservation.Terms.IsZero() && key != next {
			err = fmt.Errorf("slice %q of burst %q is booked where slice %q is the next", key, b.reservation.Burst, next)
		}
	case in.Shrink != nil:
		b.reductions++
		key, err = strconv.Itoa(b.reductions), in.Shrink.Validate()
	case in.Permit != nil:
		if key = fmt.Sprintf("%d/%d", in.Permit.Ordinal, in.Permit.Epoch); in.Permit.Ordinal < 0 {
			err = fmt.Errorf("permit of machine %d: numbers start at 0", in.Permit.Ordinal)
		}
	case in.Settle != nil:
		err = in.Settle.Validate()
	}
	return key, err
}

// step checks one step of a life and returns what is wrong with it.
func (v *verifier) step(seq int64, b *life, ev quota.Event, m moved) string {
	in := ev.Intent
	switch {
	case ev.Kind == quota.KindReserve && in.Reserve != nil && in.Reserve.Burst == ev.Burst:
		return v.reserve(seq, b, m)
	case ev.Kind == quota.KindExtend && in.Extend != nil && in.Extend.Burst == ev.Burst:
		return v.extend(seq, b, *in.Extend, m)
	case ev.Kind == quota.KindShrink && in.Shrink != nil && in.Shrink.Burst == ev.Burst:
		b.draining = true
		leaves := func(held int64) int64 { return max(0, held-in.Shrink.To.Nano) }
		if m.in+m.spend+m.fault+m.overrun != 0 || b.pending-m.out != in.Shrink.To.Nano || !b.frees(m, leaves, 0) {
			return "it does not release what it says"
		}
	case ev.Kind == quota.KindPermit && in.Permit != nil && in.Permit.Burst == ev.Burst:
		p := *in.Permit
		used := b.permits[p]
		b.permits[p] = true
		switch {
		case used:
			return fmt.Sprintf("machine %d is permitted a second time in epoch %d", p.Ordinal, p.Epoch)
		case b.draining || p.Epoch != v.epoch || len(ev.Entries) > 0 || b.pending <= 0:
			return "it permits a machine that nothing is reserved for"
		}
	case ev.Kind == quota.KindSettle && in.Settle != nil && in.Settle.Burst == ev.Burst:
		return b.settle(*in.Settle, m)
	default:
		return "kind and content do not belong together"
	}
	return ""
}

// reserve checks that the whole amount was booked on every budget on the path,
// in every window that the time touches, and that all of them had room.
func (v *verifier) reserve(seq int64, b *life, m moved) string {
	r := b.reservation
	if m.in != r.Amount.Nano || m.in <= 0 || m.out+m.spend+m.fault+m.overrun != 0 {
		return "it does not book what was asked for"
	}
	for _, open := range v.overruns {
		if open {
			return "it was taken while an overrun was open"
		}
	}
	path, err := v.budgets.Path(r)
	if err != nil {
		return err.Error()
	}
	return v.promise(seq, path, b, m, r.Until, m.in)
}

// extend checks an extension: each window gets what its share has grown by, and
// a slice pays for all that the machines can cost until its end.
func (v *verifier) extend(seq int64, b *life, x quota.Extension, m moved) string {
	if m.in != x.More.Nano || m.out+m.spend+m.fault+m.overrun != 0 {
		return "it does not book what was asked for"
	}
	if c := b.reservation.Ceiling.Nano; c > 0 && b.reserved+m.in > c {
		return fmt.Sprintf("it passes the ceiling of %v", b.reservation.Ceiling)
	}
	if !x.Until.IsZero() {
		if x.Until.Before(b.until) {
			return "it moves the end of the reservation forward"
		}
		b.until = x.Until
	}
	if problem := b.paid(m.in); problem != "" {
		return problem
	}
	var path []string
	for _, h := range b.holds {
		path = append(path, h.Budget)
	}
	slices.Sort(path)
	return v.promise(seq, slices.Compact(path), b, m, b.until, b.pending+m.in)
}

// paid checks that slices add up to what the machines can cost until their end.
func (b *life) paid(more int64) string {
	r := b.reservation
	if r.Terms.IsZero() {
		return ""
	}
	worst, err := r.Worst(b.until)
	if err != nil {
		return err.Error()
	}
	if have := b.reserved + more; have != worst.Nano || b.draining {
		return fmt.Sprintf("its slices add up to %v, and until %s its machines can cost %v",
			money.Amount{Nano: have, Currency: worst.Currency}, b.until.Format(time.RFC3339), worst)
	}
	return ""
}

// promise checks the windows of a reserve or an extension.
func (v *verifier) promise(seq int64, path []string, b *life, m moved, until time.Time, whole int64) string {
	want := 0
	for _, id := range path {
		periods, err := v.periods(id, b.reservation.From, until)
		if err != nil {
			return err.Error()
		}
		for _, p := range periods {
			h := quota.Hold{Budget: id, Period: p.ID}
			share, err := b.reservation.Share(p, until, money.Amount{Nano: whole, Currency: b.reservation.Amount.Currency})
			if err != nil {
				return err.Error()
			}
			asked := share.Nano - b.held(h)
			if asked <= 0 {
				continue
			}
			want++
			if w := m.windows[h]; w == nil || w.in != asked || w.free+w.spent != 0 {
				return fmt.Sprintf("budget %q does not hold %v in %s", id, money.Amount{Nano: asked, Currency: b.reservation.Amount.Currency}, p.ID)
			}
			v.withinLimit(seq, h)
		}
	}
	if want != len(m.windows) {
		return "it books on budgets that are not on its path"
	}
	return ""
}

// periods is [quota.Budget.Periods] with each time zone loaded once, and the
// last window of each budget kept: journals go through time in order.
func (v *verifier) periods(budget string, from, until time.Time) ([]quota.Period, error) {
	if last, ok := v.lastPeriod[budget]; ok && !from.Before(last.Start) && !until.After(last.End) && from.Before(until) {
		return []quota.Period{last}, nil
	}
	b := v.budgets.Budgets[budget]
	loc := v.zones[b.Zone]
	if loc == nil {
		var err error
		if loc, err = b.Location(); err != nil {
			return nil, fmt.Errorf("budget %q: %w", budget, err)
		}
		v.zones[b.Zone] = loc
	}
	periods, err := b.PeriodsIn(loc, from, until)
	if err == nil && b.Window != quota.WindowFixed { // the bounds of a fixed one may change
		v.lastPeriod[budget] = periods[len(periods)-1]
	}
	return periods, err
}

// settle checks the end of a life: at most what was reserved is charged, beyond
// it is overrun, each budget gets its part and the rest is free.
func (b *life) settle(s quota.Settlement, m moved) string {
	charged := m.spend + m.fault
	spent := m.spend
	switch {
	case charged > b.pending:
		return "it charges more than was reserved"
	case m.in != 0 || m.out != b.pending || charged+m.overrun != s.Actual.Nano || m.overrun > 0 && charged != b.pending:
		return "it does not post the actual cost"
	case s.Cause == quota.CauseProviderFault && m.spend > 0 || s.Cause != quota.CauseProviderFault && m.fault > 0:
		return "it charges the wrong side for its cause"
	case !b.frees(m, func(held int64) int64 { return held }, spent):
		return "the budgets do not get back what was reserved"
	}
	return ""
}

// frees reports whether every window of b gives up what out says of what it
// holds, and the windows of each budget spend exactly spent between them.
func (b *life) frees(m moved, out func(held int64) int64, spent int64) bool {
	perBudget := make(map[string]int64)
	for _, h := range b.holds {
		w := m.windows[h.Hold]
		if w == nil {
			w = &windowMove{}
		}
		if w.in != 0 || w.free+w.spent != out(h.Amount.Nano) {
			return false
		}
		perBudget[h.Budget] += w.spent
	}
	for _, n := range perBudget {
		if n != spent {
			return false
		}
	}
	return !slices.ContainsFunc(m.windowsTouched, func(h quota.Hold) bool {
		return !slices.ContainsFunc(b.holds, func(held quota.Held) bool { return held.Hold == h })
	})
}
