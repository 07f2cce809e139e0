package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Book is the state of all budgets: what the journal adds up to. It can be
// copied to JSON and back, so a captured state decides like the live one.
//
// The methods that propose ([Book.Reserve], [Book.Extend], [Book.Shrink],
// [Book.Permit], [Book.Settle], [Book.SetBudgets], [Book.Accept], [Book.Close],
// [Book.Correct]) change nothing and return an [Event]; [Book.Apply] takes an event in. [Book.Try] is
// both at once, for a planner on its own [Book.Clone]. The fields are there to
// be read; only the methods keep them consistent. A Book is not safe for
// concurrent use, and a plain assignment shares its maps.
type Book struct {
	Budgets map[string]Budget               `json:"budgets"`          // by id, retired ones included
	Windows map[string]map[string]Balance   `json:"windows"`          // by budget id and window id
	Open    map[string]Account              `json:"open"`             // accounts not settled, by burst
	Overrun map[money.Currency]money.Amount `json:"overrun"`          // open on the operator's account
	Epoch   Epoch                           `json:"epoch,omitempty"`  // newest leader
	Closes  []Closed                        `json:"closes,omitempty"` // months that are closed, in order
}

// Balance is what one window of one budget holds.
type Balance struct {
	Start    time.Time    `json:"start"` // bounds of the window, [Start, End) in UTC
	End      time.Time    `json:"end"`
	Spent    money.Amount `json:"spent"`
	Reserved money.Amount `json:"reserved"` // promised and not settled yet
}

// Standing is one budget in the window of one moment, for people.
type Standing struct {
	Budget   Budget       `json:"budget"`
	Window   Period       `json:"window"`
	Spent    money.Amount `json:"spent"`
	Reserved money.Amount `json:"reserved"`
	Free     money.Amount `json:"free"` // limit less both; negative after a lowered limit
}

// NewBook returns a book with these budgets and nothing booked.
func NewBook(budgets ...Budget) (Book, error) {
	var b Book
	ev, changed, err := b.SetBudgets(budgets)
	if err != nil || !changed {
		return b, err
	}
	_, err = b.Apply(ev)
	return b, err
}

// Clone returns a copy that shares nothing with b that either may change.
func (b *Book) Clone() Book {
	c := *b
	c.Budgets, c.Open, c.Overrun = maps.Clone(b.Budgets), maps.Clone(b.Open), maps.Clone(b.Overrun)
	c.Windows = make(map[string]map[string]Balance, len(b.Windows))
	for id, windows := range b.Windows {
		c.Windows[id] = maps.Clone(windows)
	}
	return c
}

// Try books r into b, or returns why it may not be reserved and leaves b alone.
// It is the ledger's own check, so what it says holds until somebody else books.
// A plan has no burst UID yet: leave r.Burst empty and b invents one.
func (b *Book) Try(r Reservation) error {
	for n := len(b.Open) + 1; r.Burst == ""; n++ {
		if id := fmt.Sprintf("plan-%d", n); b.Open[id].State == "" {
			r.Burst = id
		}
	}
	ev, err := b.Reserve(r)
	if err != nil {
		return err
	}
	_, err = b.Apply(ev)
	return err
}

// Reserve proposes r. It fails with a [*ShortError] (one for each window that
// is short), [ErrNoBudget], [ErrOverrun], [ErrConflict], [ErrInvalid] or an
// error of package money.
func (b *Book) Reserve(r Reservation) (Event, error) {
	r = r.Normal()
	if err := r.Validate(); err != nil {
		return Event{}, err
	}
	if _, ok := b.Open[r.Burst]; ok {
		return Event{}, fmt.Errorf("reserve for burst %q: it has a reservation already: %w", r.Burst, ErrConflict)
	}
	for _, c := range slices.Sorted(maps.Keys(b.Overrun)) {
		return Event{}, fmt.Errorf("reserve for burst %q: %w by %v: find the machines that were not deleted in time, then accept the overrun", r.Burst, ErrOverrun, b.Overrun[c])
	}
	path, err := b.Path(r)
	if err != nil {
		return Event{}, fmt.Errorf("reserve for burst %q: %w", r.Burst, err)
	}
	var m moves
	m.add(BurstAccount(r.Burst), CommittedAccount(r.Tenant), r.Amount)
	asked := make([]claim, 0, len(path))
	for _, id := range path {
		periods, err := b.periods(id, r.From, r.Until)
		if err != nil {
			return Event{}, fmt.Errorf("reserve for burst %q: %w", r.Burst, err)
		}
		for _, p := range periods {
			share, err := r.Share(p, r.Until, r.Amount)
			if err != nil {
				return Event{}, fmt.Errorf("reserve for burst %q: %w", r.Burst, err)
			}
			asked = append(asked, claim{Hold{Budget: id, Period: p.ID}, share})
		}
	}
	if err := b.admit(&m, asked); err != nil {
		return Event{}, fmt.Errorf("reserve %v for burst %q: %w", r.Amount, r.Burst, err)
	}
	return Event{Kind: KindReserve, Burst: r.Burst, Intent: Intent{Reserve: &r}, Entries: m}, nil
}

// Path returns the ids of the budgets that r is checked against, sorted: those
// that it names and those whose subject it falls under. A name without a living
// budget, and an empty path, are [ErrNoBudget]: nobody has allowed this money.
func (b *Book) Path(r Reservation) ([]string, error) {
	path := slices.Clone(r.Budgets)
	for _, id := range r.Budgets {
		if found, ok := b.Budgets[id]; !ok || found.Retired {
			return nil, fmt.Errorf("%w: budget %q does not exist or was removed; no new burst may use it", ErrNoBudget, id)
		}
	}
	for id, budget := range b.Budgets {
		if !budget.Retired && budget.covers(r) {
			path = append(path, id)
		}
	}
	if len(path) == 0 {
		return nil, fmt.Errorf("%w on the path of tenant %q, project %q, provider %q: set one", ErrNoBudget, r.Tenant, r.Project, r.Provider)
	}
	slices.Sort(path)
	return slices.Compact(path), nil
}

// periods is [Budget.Periods], without the time zone when a window that is in
// use already holds all of the time.
func (b *Book) periods(id string, from, until time.Time) ([]Period, error) {
	budget := b.Budgets[id]
	for window, held := range b.Windows[id] {
		if budget.Window != WindowFixed && !from.Before(held.Start) && !until.After(held.End) && from.Before(until) {
			return []Period{{ID: window, Start: held.Start, End: held.End}}, nil
		}
	}
	return budget.Periods(from, until)
}

// covers reports whether r falls under the subject of the budget.
func (b Budget) covers(r Reservation) bool {
	switch b.Scope {
	case ScopeGlobal:
		return true
	case ScopeProject:
		return b.Subject != "" && b.Subject == r.Project
	case ScopeTenant:
		return b.Subject != "" && b.Subject == r.Tenant
	case ScopeProvider:
		return b.Subject != "" && b.Subject == r.Provider
	}
	return false
}

// claim is an amount that is to be promised out of one window.
type claim struct {
	Hold
	amount money.Amount
}

// admit is the one place that says yes or no to money: it adds the entries for
// all claims to m, or returns every window that is short.
func (b *Book) admit(m *moves, claims []claim) error {
	var short shortErrors
	for _, c := range claims {
		missing, err := b.missing(c)
		if err != nil {
			return err
		}
		if missing != nil {
			short = append(short, missing)
		}
		m.add(windowAccount(c.Hold, sideReserved), windowAccount(c.Hold, sideOpen), c.amount)
	}
	return short.err()
}

// missing returns by how much c does not fit; nil when it does, or when the
// budget is soft. Sums that overflow and other currencies are errors in both.
func (b *Book) missing(c claim) (*ShortError, error) {
	budget := b.Budgets[c.Budget]
	held := b.Windows[c.Budget][c.Period]
	total, err := sum(money.Zero(budget.Limit.Currency), held.Spent, held.Reserved, c.amount)
	if err != nil {
		return nil, fmt.Errorf("budget %q: %w", c.Budget, err)
	}
	over, err := total.Sub(budget.Limit)
	if err != nil {
		return nil, fmt.Errorf("budget %q: %w", c.Budget, err)
	}
	if !budget.Hard || over.Sign() <= 0 {
		return nil, nil
	}
	zero := money.Zero(budget.Limit.Currency)
	return &ShortError{
		Budget: c.Budget, Window: c.Period, Limit: budget.Limit,
		Spent: cmp.Or(held.Spent, zero), Reserved: cmp.Or(held.Reserved, zero), Asked: c.amount, Missing: over,
	}, nil
}

// Standings returns every living budget in the window that holds at, by id.
// Fixed budgets whose window does not hold at are left out.
func (b *Book) Standings(at time.Time) ([]Standing, error) {
	var all []Standing
	for _, id := range slices.Sorted(maps.Keys(b.Budgets)) {
		budget := b.Budgets[id]
		if budget.Retired || budget.Window == WindowFixed && (at.Before(budget.Start) || !at.Before(budget.End)) {
			continue
		}
		periods, err := b.periods(id, at, at.Add(1))
		if err != nil {
			return nil, err
		}
		zero := money.Zero(budget.Limit.Currency)
		held := b.Windows[id][periods[0].ID]
		used, err := sum(zero, held.Spent, held.Reserved)
		if err != nil {
			return nil, fmt.Errorf("budget %q: %w", id, err)
		}
		free, err := budget.Limit.Sub(used)
		if err != nil {
			return nil, fmt.Errorf("budget %q: %w", id, err)
		}
		all = append(all, Standing{
			Budget: budget, Window: periods[0],
			Spent: cmp.Or(held.Spent, zero), Reserved: cmp.Or(held.Reserved, zero), Free: free,
		})
	}
	return all, nil
}

func sum(amounts ...money.Amount) (money.Amount, error) {
	var total money.Amount
	for _, a := range amounts {
		var err error
		if total, err = total.Add(a); err != nil {
			return money.Amount{}, err
		}
	}
	return total, nil
}
