package quota

import (
	"fmt"
	"slices"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Apply takes a committed event into b and returns the account of its burst
// right behind it (the zero Account for events on no burst, and for
// corrections: see [Account.Corrected]). It trusts the entries and decides nothing, so that a journal always adds up to what it
// added up to when it was written. After an error b is not usable any more:
// the event doesn't belong to this journal.
func (b *Book) Apply(ev Event) (Account, error) {
	for _, e := range ev.Entries {
		if err := b.post(e); err != nil {
			return Account{}, fmt.Errorf("apply %s: %w", ev.Kind, err)
		}
	}
	in := ev.Intent
	switch {
	case ev.Kind == KindBudgets && in.Budgets != nil:
		b.replaceBudgets(in.Budgets.Budgets)
		return Account{}, nil
	case ev.Kind == KindEpoch && in.Epoch != nil:
		b.Epoch = *in.Epoch
		return Account{}, nil
	case ev.Kind == KindClose && in.Close != nil:
		b.Closes = append(slices.Clip(b.Closes), Closed{Closing: *in.Close, At: ev.At})
		return Account{}, nil
	case ev.Kind == KindAccept || ev.Kind == KindUsage || ev.Kind == KindCorrect:
		return Account{}, nil
	}
	a, err := b.applyToBurst(ev)
	if err != nil {
		return Account{}, fmt.Errorf("apply %s of burst %q: %w", ev.Kind, ev.Burst, err)
	}
	if a.State == Settled {
		delete(b.Open, ev.Burst)
		return a, nil
	}
	if b.Open == nil {
		b.Open = make(map[string]Account)
	}
	b.Open[ev.Burst] = a
	return a, nil
}

// applyToBurst returns the account of a burst behind ev.
func (b *Book) applyToBurst(ev Event) (Account, error) {
	a, known := b.Open[ev.Burst]
	in := ev.Intent
	if known == (ev.Kind == KindReserve) {
		return Account{}, fmt.Errorf("%w: a reserve comes first, and once", ErrInvalid)
	}
	a.ChangedAt = ev.At
	switch {
	case ev.Kind == KindReserve && in.Reserve != nil:
		zero := money.Zero(in.Reserve.Amount.Currency)
		a = Account{
			Reservation: *in.Reserve, State: Reserved, Until: in.Reserve.Until, ReservedAt: ev.At, ChangedAt: ev.At,
			Reserved: zero, Pending: zero, Spent: zero, Waived: zero, Released: zero, Overrun: zero,
		}
	case ev.Kind == KindExtend && in.Extend != nil:
		a.Extensions++
		if in.Extend.Until.After(a.Until) {
			a.Until = in.Extend.Until
		}
	case ev.Kind == KindShrink && in.Shrink != nil:
		a.Reductions++
		a.State = Draining
	case ev.Kind == KindPermit && in.Permit != nil:
		a.Permits = append(slices.Clip(a.Permits), *in.Permit)
	case ev.Kind == KindSettle && in.Settle != nil:
		a.State, a.SettledAt, a.Settlement, a.OpenSince = Settled, ev.At, *in.Settle, b.OpenSince(ev.At)
	default:
		return Account{}, fmt.Errorf("%w: kind and intent do not match", ErrInvalid)
	}
	if err := a.post(ev); err != nil {
		return Account{}, err
	}
	if a.State == Settled {
		a.Holds = nil
	}
	return a, nil
}

// post adds the entries of ev to the sums of a.
func (a *Account) post(ev Event) error {
	burst := BurstAccount(ev.Burst)
	given := money.Zero(a.Reserved.Currency) // taken out of Pending and charged to nobody
	a.Holds = slices.Clone(a.Holds)
	for _, e := range ev.Entries {
		var err error
		switch {
		case e.Debit == burst:
			err = firstError(add(&a.Reserved, e.Amount), add(&a.Pending, e.Amount))
		case e.Credit == burst:
			err = firstError(sub(&a.Pending, e.Amount), add(&given, e.Amount))
		case e.Debit == SpendAccount(a.Reservation.Tenant):
			err = firstError(add(&a.Spent, e.Amount), sub(&given, e.Amount))
		case e.Debit == AccountFault:
			err = firstError(add(&a.Waived, e.Amount), sub(&given, e.Amount))
		case e.Debit == AccountOverrun:
			err = add(&a.Overrun, e.Amount)
		default:
			err = firstError(a.move(e.Debit, e.Amount, add), a.move(e.Credit, e.Amount, sub))
		}
		if err != nil {
			return err
		}
	}
	return add(&a.Released, given)
}

// move changes what a window holds for a, or has spent of it, if the account is
// that of a window.
func (a *Account) move(account AccountName, amount money.Amount, op func(*money.Amount, money.Amount) error) error {
	h, side, ok := account.Window()
	list := &a.Holds
	switch {
	case !ok || side == sideOpen:
		return nil
	case side == sideSpent:
		list = &a.SpentIn
	}
	i := slices.IndexFunc(*list, func(held Held) bool { return held.Hold == h })
	if i < 0 {
		i = len(*list)
		*list = append(*list, Held{Hold: h, Amount: money.Zero(amount.Currency)})
	}
	return op(&(*list)[i].Amount, amount)
}

// Corrected is a behind a correction; since is the start of the first month that
// was open then ([Book.OpenSince]).
func (a Account) Corrected(ev Event, since time.Time) (Account, error) {
	if ev.Kind != KindCorrect || ev.Intent.Correct == nil || a.State != Settled {
		return Account{}, fmt.Errorf("apply %s of burst %q: %w: a correction follows a settlement", ev.Kind, ev.Burst, ErrInvalid)
	}
	zero := money.Zero(a.Reserved.Currency)
	p := Posting{At: ev.At, Spent: zero, Waived: zero, Overrun: zero, Since: since}
	a.SpentIn = slices.Clone(a.SpentIn)
	for _, e := range ev.Entries {
		err := firstError(p.take(e.Debit, a, e.Amount, add), p.take(e.Credit, a, e.Amount, sub), a.move(e.Debit, e.Amount, add), a.move(e.Credit, e.Amount, sub))
		if err != nil {
			return Account{}, fmt.Errorf("apply correction of burst %q: %w", ev.Burst, err)
		}
	}
	a.ChangedAt, a.Corrections = ev.At, append(slices.Clip(a.Corrections), p)
	err := firstError(add(&a.Spent, p.Spent), add(&a.Waived, p.Waived), add(&a.Overrun, p.Overrun), sub(&a.Released, p.Spent), sub(&a.Released, p.Waived))
	if err != nil {
		return Account{}, fmt.Errorf("apply correction of burst %q: %w", ev.Burst, err)
	}
	return a, nil
}

// take adds one side of an entry to the sum that it belongs to.
func (p *Posting) take(account AccountName, a Account, amount money.Amount, op func(*money.Amount, money.Amount) error) error {
	switch account {
	case SpendAccount(a.Reservation.Tenant):
		return op(&p.Spent, amount)
	case AccountFault:
		return op(&p.Waived, amount)
	case AccountAccepted:
		return op(&p.Overrun, amount)
	}
	return nil
}

// post adds one entry to the windows and to the overrun.
func (b *Book) post(e Entry) error {
	if err := e.check(); err != nil {
		return err
	}
	if err := b.postSide(e.Debit, e.Amount, add); err != nil {
		return err
	}
	return b.postSide(e.Credit, e.Amount, sub)
}

func (b *Book) postSide(account AccountName, amount money.Amount, op func(*money.Amount, money.Amount) error) error {
	if account == AccountOverrun {
		return b.postOverrun(amount, op)
	}
	h, side, ok := account.Window()
	if !ok || side == sideOpen {
		return nil
	}
	if b.Windows == nil {
		b.Windows = make(map[string]map[string]Balance)
	}
	if b.Windows[h.Budget] == nil {
		b.Windows[h.Budget] = make(map[string]Balance)
	}
	held, ok := b.Windows[h.Budget][h.Period]
	if !ok {
		held = b.emptyWindow(h, amount.Currency)
	}
	target := &held.Reserved
	if side == sideSpent {
		target = &held.Spent
	}
	if err := op(target, amount); err != nil {
		return fmt.Errorf("%s: %w", account, err)
	}
	if target.Nano < 0 {
		return fmt.Errorf("%s: %w: balance %v", account, ErrInvalid, *target)
	}
	b.Windows[h.Budget][h.Period] = held
	return nil
}

// emptyWindow is a window that nothing was booked on. Where the budget is not
// known (a book made from one burst's events) it has no bounds.
func (b *Book) emptyWindow(h Hold, c money.Currency) Balance {
	held := Balance{Spent: money.Zero(c), Reserved: money.Zero(c)}
	if budget, ok := b.Budgets[h.Budget]; ok {
		if p, err := budget.period(h.Period); err == nil {
			held.Start, held.End = p.Start, p.End
		}
	}
	return held
}

func (b *Book) postOverrun(amount money.Amount, op func(*money.Amount, money.Amount) error) error {
	if b.Overrun == nil {
		b.Overrun = make(map[money.Currency]money.Amount)
	}
	open := b.Overrun[amount.Currency]
	if err := op(&open, amount); err != nil {
		return fmt.Errorf("%s: %w", AccountOverrun, err)
	}
	b.Overrun[amount.Currency] = open
	if open.IsZero() {
		delete(b.Overrun, amount.Currency)
	}
	return nil
}

func (b *Book) replaceBudgets(set []Budget) {
	next := b.retired()
	for _, budget := range set {
		next[budget.ID] = budget
	}
	b.Budgets = next
}

func add(to *money.Amount, a money.Amount) error {
	total, err := to.Add(a)
	if err == nil {
		*to = total
	}
	return err
}

func sub(from *money.Amount, a money.Amount) error {
	left, err := from.Sub(a)
	if err == nil {
		*from = left
	}
	return err
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
