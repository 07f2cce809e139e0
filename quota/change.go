package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"spillway.dev/spillway/quota/money"
)

// account returns the open account of a burst, or ErrUnknownBurst.
func (b *Book) account(burst string) (Account, error) {
	a, ok := b.Open[burst]
	if !ok {
		return Account{}, ErrUnknownBurst
	}
	return a, nil
}

// Extend proposes more money or more time for an open reservation, checked
// against the budgets that it was reserved on. Windows that the new end touches
// for the first time are asked for the whole reservation. It fails as
// [Book.Reserve] does, and with [ErrUnknownBurst].
func (b *Book) Extend(x Extension) (Event, error) {
	x = x.Normal()
	if err := x.Validate(); err != nil {
		return Event{}, err
	}
	a, err := b.account(x.Burst)
	if err != nil {
		return Event{}, fmt.Errorf("extend burst %q: %w", x.Burst, err)
	}
	if !x.Until.IsZero() && x.Until.Before(a.Until) {
		return Event{}, fmt.Errorf("extend burst %q: %w: new end %s is before the old one, %s", x.Burst, ErrInvalid, stamp(x.Until), stamp(a.Until))
	}
	whole, err := a.Pending.Add(x.More)
	if err != nil {
		return Event{}, fmt.Errorf("extend burst %q: %w", x.Burst, err)
	}
	if err := firstError(a.belowCeiling(x.More), a.slice(x)); err != nil {
		return Event{}, fmt.Errorf("extend burst %q: %w", x.Burst, err)
	}
	var m moves
	m.add(BurstAccount(x.Burst), CommittedAccount(a.Reservation.Tenant), x.More)
	asked, err := b.extensionClaims(a, x, whole)
	if err != nil {
		return Event{}, fmt.Errorf("extend burst %q: %w", x.Burst, err)
	}
	if err := b.admit(&m, asked); err != nil {
		return Event{}, fmt.Errorf("extend burst %q by %v: %w", x.Burst, x.More, err)
	}
	return Event{Kind: KindExtend, Burst: x.Burst, Key: x.Key, Intent: Intent{Extend: &x}, Entries: m}, nil
}

func (a Account) belowCeiling(more money.Amount) error {
	ceiling := a.Reservation.Ceiling
	if ceiling == (money.Amount{}) {
		return nil
	}
	total, err := a.Reserved.Add(more)
	if err != nil {
		return err
	}
	if total.Nano > ceiling.Nano {
		return fmt.Errorf("%w: %v in all would pass the burst's ceiling of %v; stop it in time", ErrInvalid, total, ceiling)
	}
	return nil
}

// extensionClaims lists what an extension asks of each window that the time up
// to its end touches: its share of the whole, less what it holds already.
func (b *Book) extensionClaims(a Account, x Extension, whole money.Amount) ([]claim, error) {
	until := a.Until
	if !x.Until.IsZero() {
		until = x.Until
	}
	var asked []claim
	for _, id := range a.budgets() {
		if b.Budgets[id].Retired {
			return nil, fmt.Errorf("%w: budget %q was removed; the burst may end, not grow", ErrNoBudget, id)
		}
		periods, err := b.periods(id, a.Reservation.From, until)
		if err != nil {
			return nil, err
		}
		for _, p := range periods {
			c := claim{Hold: Hold{Budget: id, Period: p.ID}}
			if c.amount, err = a.Reservation.Share(p, until, whole); err == nil {
				err = sub(&c.amount, heldIn(a.Holds, c.Hold))
			}
			if err != nil {
				return nil, err
			}
			if c.amount.Sign() > 0 {
				asked = append(asked, c)
			}
		}
	}
	return asked, nil
}

// budgets returns the ids of the budgets that hold a's money, in order.
func (a Account) budgets() []string {
	var ids []string
	for _, h := range a.Holds {
		if !slices.Contains(ids, h.Budget) {
			ids = append(ids, h.Budget)
		}
	}
	return ids
}

// Shrink proposes to release what can't be charged any more. From then on the
// burst gets no create permits. It never raises a reservation.
func (b *Book) Shrink(d Reduction) (Event, error) {
	d = d.Normal()
	if err := d.Validate(); err != nil {
		return Event{}, err
	}
	a, err := b.account(d.Burst)
	if err != nil {
		return Event{}, fmt.Errorf("shrink burst %q: %w", d.Burst, err)
	}
	released, err := a.Pending.Sub(d.To)
	if err != nil {
		return Event{}, fmt.Errorf("shrink burst %q: %w", d.Burst, err)
	}
	if released.Sign() < 0 {
		return Event{}, fmt.Errorf("shrink burst %q: %w: %v is more than the %v reserved; extend it instead", d.Burst, ErrInvalid, d.To, a.Pending)
	}
	var m moves
	m.add(CommittedAccount(a.Reservation.Tenant), BurstAccount(d.Burst), released)
	for _, h := range a.Holds {
		free, err := h.Amount.Sub(d.To)
		if err != nil {
			return Event{}, fmt.Errorf("shrink burst %q: %w", d.Burst, err)
		}
		if free.Sign() > 0 {
			m.add(windowAccount(h.Hold, sideOpen), windowAccount(h.Hold, sideReserved), free)
		}
	}
	key := strconv.Itoa(a.Reductions + 1)
	return Event{Kind: KindShrink, Burst: d.Burst, Key: key, Intent: Intent{Shrink: &d}, Entries: m}, nil
}

// Permit proposes to allow one create call. It fails with [ErrPermitUsed],
// [ErrDraining] or [ErrUnknownBurst].
func (b *Book) Permit(p Permit) (Event, error) {
	name := fmt.Sprintf("permit machine %d of burst %q", p.Ordinal, p.Burst)
	a, err := b.account(p.Burst)
	switch {
	case err != nil:
		return Event{}, fmt.Errorf("%s: %w", name, err)
	case p.Ordinal < 0:
		return Event{}, fmt.Errorf("%s: %w: numbers start at 0", name, ErrInvalid)
	case a.State != Reserved:
		return Event{}, fmt.Errorf("%s: %w", name, ErrDraining)
	case a.Permitted(p):
		return Event{}, fmt.Errorf("%s in epoch %d: %w; look for the machine in the cloud's list", name, p.Epoch, ErrPermitUsed)
	}
	key := fmt.Sprintf("%d/%d", p.Ordinal, p.Epoch)
	return Event{Kind: KindPermit, Burst: p.Burst, Key: key, Intent: Intent{Permit: &p}}, nil
}

// Settle proposes to close an account: the actual cost, up to what is reserved,
// goes to the tenant (to the operator for [CauseProviderFault]), cost beyond
// that to the operator's overrun account, and the rest is released.
func (b *Book) Settle(s Settlement) (Event, error) {
	s = s.Normal()
	if err := s.Validate(); err != nil {
		return Event{}, err
	}
	a, err := b.account(s.Burst)
	if err != nil {
		return Event{}, fmt.Errorf("settle burst %q: %w", s.Burst, err)
	}
	posted, beyond, err := a.split(s.Actual)
	if err != nil {
		return Event{}, fmt.Errorf("settle burst %q: %w", s.Burst, err)
	}
	r := a.Reservation
	var m moves
	if s.Cause == CauseProviderFault {
		m.add(AccountFault, AccruedAccount(r.Provider), posted)
	} else {
		m.add(SpendAccount(r.Tenant), AccruedAccount(r.Provider), posted)
	}
	m.add(AccountOverrun, AccruedAccount(r.Provider), beyond)
	m.add(CommittedAccount(r.Tenant), BurstAccount(s.Burst), a.Pending)
	if err := b.settleWindows(&m, a, s, posted); err != nil {
		return Event{}, fmt.Errorf("settle burst %q: %w", s.Burst, err)
	}
	return Event{Kind: KindSettle, Burst: s.Burst, Intent: Intent{Settle: &s}, Entries: m}, nil
}

// settleWindows moves the spent part of each window from reserved to spent and
// frees the rest. What the operator pays is not spent out of any budget.
func (b *Book) settleWindows(m *moves, a Account, s Settlement, posted money.Amount) error {
	if s.Cause == CauseProviderFault {
		posted = money.Zero(posted.Currency)
	}
	for _, id := range a.budgets() {
		holds := a.holdsOf(id)
		parts, err := b.partsOf(holds, s, posted)
		if err != nil {
			return err
		}
		for i, h := range holds {
			free, err := h.Amount.Sub(parts[i])
			if err != nil {
				return err
			}
			m.add(windowAccount(h.Hold, sideSpent), windowAccount(h.Hold, sideReserved), parts[i])
			m.add(windowAccount(h.Hold, sideOpen), windowAccount(h.Hold, sideReserved), free)
		}
	}
	return nil
}

// holdsOf are the windows of one budget that hold a's money.
func (a Account) holdsOf(budget string) []Held {
	var holds []Held
	for _, h := range a.Holds {
		if h.Budget == budget {
			holds = append(holds, h)
		}
	}
	return holds
}

// partsOf cuts what is spent of one budget over its windows.
func (b *Book) partsOf(holds []Held, s Settlement, posted money.Amount) ([]money.Amount, error) {
	parts, err := b.splitByTime(holds, s.MachineStart, s.MachineEnd, posted)
	if err == nil {
		err = keepPromises(parts, holds)
	}
	if err != nil {
		return nil, fmt.Errorf("budget %q: %w", holds[0].Budget, err)
	}
	return parts, nil
}

// keepPromises moves what a window is to pay beyond what it has promised (its
// burst ran on past the end of its money) to the other windows of the budget,
// the latest first. Together they have promised the whole.
func keepPromises(parts []money.Amount, holds []Held) error {
	var over int64
	for i := range parts {
		if more := parts[i].Nano - holds[i].Amount.Nano; more > 0 {
			parts[i].Nano -= more
			over += more
		}
	}
	for i := len(parts) - 1; i >= 0; i-- {
		take := min(over, holds[i].Amount.Nano-parts[i].Nano)
		parts[i].Nano += take
		over -= take
	}
	if over > 0 {
		return fmt.Errorf("%w: its windows hold %d nano-units less than is spent", ErrInvalid, over)
	}
	return nil
}

// splitByTime cuts an amount over windows of one budget, in proportion to the
// seconds that [start, end) has in each. Time outside of them counts for the
// nearest, so that nothing is ever spent from a window that did not promise it.
func (b *Book) splitByTime(holds []Held, start, end time.Time, a money.Amount) ([]money.Amount, error) {
	weights := make([]int64, len(holds))
	budget := b.Budgets[holds[0].Budget]
	for i, h := range holds {
		p, err := budget.period(h.Period)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			p.Start = time.Time{}
		}
		if i == len(holds)-1 {
			p.End = end
		}
		weights[i] = p.seconds(start, end)
	}
	if total := slices.Max(weights); total == 0 {
		weights[0] = 1
	}
	return a.Split(weights...)
}

// SetBudgets proposes that exactly these budgets exist. Budgets that are no
// longer named are retired: bursts that run on them finish and are billed, new
// ones are refused. Limits may change at any time; what the windows mean may
// not ([ErrConflict]): use a new id. changed is false when all is so already.
func (b *Book) SetBudgets(budgets []Budget) (ev Event, changed bool, err error) {
	next := b.retired()
	set := make([]Budget, 0, len(budgets))
	for _, budget := range budgets {
		budget = budget.normal()
		if err := budget.Validate(); err != nil {
			return Event{}, false, err
		}
		if budget.Retired || slices.ContainsFunc(set, func(o Budget) bool { return o.ID == budget.ID }) {
			return Event{}, false, fmt.Errorf("budget %q: %w: it is named twice, or given as retired", budget.ID, ErrInvalid)
		}
		if old, ok := b.Budgets[budget.ID]; ok && !old.sameWindows(budget) {
			return Event{}, false, fmt.Errorf("budget %q: %w: scope, subject, window, zone and currency of a budget never change; use a new id", budget.ID, ErrConflict)
		}
		next[budget.ID] = budget
		set = append(set, budget)
	}
	if maps.Equal(next, b.Budgets) {
		return Event{}, false, nil
	}
	slices.SortFunc(set, func(x, y Budget) int { return cmp.Compare(x.ID, y.ID) })
	return Event{Kind: KindBudgets, Intent: Intent{Budgets: &BudgetSet{Budgets: set}}}, true, nil
}

// retired returns all budgets as they are when none of them is named any more.
func (b *Book) retired() map[string]Budget {
	all := make(map[string]Budget, len(b.Budgets))
	for id, budget := range b.Budgets {
		budget.Retired = true
		all[id] = budget
	}
	return all
}

// Begin proposes the term of the next leader.
func (b *Book) Begin(holder string) (Event, error) {
	if err := validIDs("holder", holder); err != nil {
		return Event{}, fmt.Errorf("begin a leader epoch: %w", err)
	}
	next := Epoch{Number: b.Epoch.Number + 1, Holder: holder}
	return Event{Kind: KindEpoch, Key: strconv.FormatInt(next.Number, 10), Intent: Intent{Epoch: &next}}, nil
}

// Accept proposes to take the open overrun in a currency off the operator's
// account, by a person and for a reason, so that bursts may start again.
func (b *Book) Accept(c money.Currency, by, reason string) (Event, error) {
	open, ok := b.Overrun[c]
	if !ok {
		return Event{}, fmt.Errorf("accept overrun in %q: %w: none is open", c, ErrInvalid)
	}
	if err := validIDs("person", by, "reason", reason); err != nil {
		return Event{}, fmt.Errorf("accept overrun of %v: %w", open, err)
	}
	var m moves
	m.add(AccountAccepted, AccountOverrun, open)
	return Event{Kind: KindAccept, Intent: Intent{Accept: &Acceptance{Amount: open, By: by, Reason: reason}}, Entries: m}, nil
}
