package quota

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Correction says that a settled burst has cost something else than was posted,
// or that somebody else pays. It takes the whole of the old cost back and posts
// the new one; neither row is ever changed. What the cost is beyond what was
// reserved goes to the operator, as at a settlement, and the person who corrects
// answers for it.
type Correction struct {
	Burst  string       `json:"burst"`
	Actual money.Amount `json:"actual"`         // what the provider bills for it
	Cause  string       `json:"cause,omitzero"` // [CauseProviderFault]: the operator pays
	By     string       `json:"by"`             // id of the person
	Reason string       `json:"reason"`         // for example the provider's invoice
}

// Normal returns c as it is stored and compared.
func (c Correction) Normal() Correction {
	c.Actual = plain(c.Actual)
	return c
}

// Validate returns the first thing that makes c impossible, wrapped in [ErrInvalid].
func (c Correction) Validate() error {
	if err := validIDs("burst", c.Burst, "person", c.By, "reason", c.Reason); err != nil {
		return fmt.Errorf("correction of burst %q: %w", c.Burst, err)
	}
	if c.Actual.Nano < 0 {
		return fmt.Errorf("correction of burst %q: %w: cost %v is negative", c.Burst, ErrInvalid, c.Actual)
	}
	return nil
}

// Posting is what one settlement or correction has charged, or has taken back.
type Posting struct {
	At      time.Time    `json:"at"`      // record time
	Spent   money.Amount `json:"spent"`   // negative where more is taken back than is posted
	Waived  money.Amount `json:"waived"`  // the same of what the operator pays for a fault
	Overrun money.Amount `json:"overrun"` // the same of what was beyond the reservation
	// Since is the start of the first month that was open then; cost of the time
	// before is posted there. Zero when no month was closed.
	Since time.Time `json:"since,omitzero"`
}

// Correct proposes c for an account that is settled. It needs the account as it
// was right before its settlement, too. More is charged only where every hard
// budget that was on its path has room; it fails as [Book.Reserve] does.
func (b *Book) Correct(before, a Account, c Correction) (Event, error) {
	c = c.Normal()
	if err := c.Validate(); err != nil {
		return Event{}, err
	}
	name := fmt.Sprintf("correct burst %q", c.Burst)
	if open := b.Overrun[a.Pending.Currency]; !open.IsZero() && !a.Overrun.IsZero() {
		return Event{}, fmt.Errorf("%s: %w by %v: accept it first", name, ErrOverrun, open)
	}
	m, claims, err := b.correction(before, a, c)
	if err != nil {
		return Event{}, fmt.Errorf("%s: %w", name, err)
	}
	var short shortErrors
	for _, claim := range claims {
		missing, err := b.missing(claim)
		if err != nil {
			return Event{}, fmt.Errorf("%s: %w", name, err)
		}
		if missing != nil {
			short = append(short, missing)
		}
	}
	if err := short.err(); err != nil {
		return Event{}, fmt.Errorf("%s to %v: %w", name, c.Actual, err)
	}
	key := strconv.Itoa(len(a.Corrections) + 1)
	return Event{Kind: KindCorrect, Burst: c.Burst, Key: key, Intent: Intent{Correct: &c}, Entries: m}, nil
}

// Reposts are the entries of c, for who checks one that was booked.
func (b *Book) Reposts(before, a Account, c Correction) ([]Entry, error) {
	m, _, err := b.correction(before, a, c)
	return m, err
}

// correction lists the entries of c, the old cost backwards and then the new
// one, and what it asks of the windows of budgets on top.
func (b *Book) correction(before, a Account, c Correction) (m moves, claims []claim, err error) {
	r := a.Reservation
	accrued := AccruedAccount(r.Provider)
	m.add(accrued, SpendAccount(r.Tenant), a.Spent)
	m.add(accrued, AccountFault, a.Waived)
	m.add(accrued, AccountAccepted, a.Overrun)
	for _, h := range a.SpentIn {
		m.add(windowAccount(h.Hold, sideOpen), windowAccount(h.Hold, sideSpent), h.Amount)
	}
	s := a.Settlement
	s.Actual, s.Cause = c.Actual, c.Cause
	posted, beyond, err := before.split(s.Actual)
	if err != nil {
		return nil, nil, err
	}
	if s.Cause == CauseProviderFault {
		m.add(AccountFault, accrued, posted)
		posted = money.Zero(posted.Currency)
	} else {
		m.add(SpendAccount(r.Tenant), accrued, posted)
	}
	m.add(AccountAccepted, accrued, beyond)
	for _, id := range before.budgets() {
		holds := before.holdsOf(id)
		parts, err := b.partsOf(holds, s, posted)
		if err != nil {
			return nil, nil, err
		}
		for i, h := range holds {
			m.add(windowAccount(h.Hold, sideSpent), windowAccount(h.Hold, sideOpen), parts[i])
			more := claim{h.Hold, parts[i]}
			if err := sub(&more.amount, heldIn(a.SpentIn, h.Hold)); err != nil {
				return nil, nil, err
			}
			if more.amount.Sign() > 0 {
				claims = append(claims, more)
			}
		}
	}
	return m, claims, nil
}

// split is what of an actual cost the reservation pays, and what is beyond it.
func (a Account) split(actual money.Amount) (posted, beyond money.Amount, err error) {
	if beyond, err = actual.Sub(a.Pending); err != nil {
		return posted, beyond, err
	}
	if beyond.Sign() < 0 {
		return money.Amount{Nano: actual.Nano, Currency: a.Pending.Currency}, money.Amount{}, nil
	}
	return a.Pending, beyond, nil
}

// Postings are what was charged for a settled burst, in order; together they are
// its Spent, Waived and Overrun.
func (a Account) Postings() []Posting {
	if a.State != Settled {
		return nil
	}
	first := Posting{At: a.SettledAt, Spent: a.Spent, Waived: a.Waived, Overrun: a.Overrun, Since: a.OpenSince}
	for _, p := range a.Corrections {
		first.Spent.Nano -= p.Spent.Nano
		first.Waived.Nano -= p.Waived.Nano
		first.Overrun.Nano -= p.Overrun.Nano
	}
	return append([]Posting{first}, slices.Clone(a.Corrections)...)
}

// Laid is the time that a posting is laid over: the metered time, as far as it
// was open. What of it was closed is laid over the rest, and a second at the
// start of the first open month takes what has none.
func (a Account) Laid(p Posting) Spread {
	s := a.Metered()
	if s.From.Before(p.Since) {
		s.From = p.Since
		if !s.Until.After(s.From) {
			s.Until = s.From.Add(time.Second)
		}
	}
	return s
}
