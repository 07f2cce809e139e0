package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Exposure is the open liability at one moment: what has been promised and not
// settled, and what was paid beyond promises and nobody has answered for.
type Exposure struct {
	At     time.Time       `json:"at"`
	Totals []ExposureTotal `json:"totals"` // by tenant, provider and currency
	Bursts []ExposedBurst  `json:"bursts"` // not settled, the soonest end first
}

// ExposureTotal is the open liability of one tenant at one provider.
type ExposureTotal struct {
	Tenant   string       `json:"tenant"`
	Provider string       `json:"provider"`
	Bursts   int          `json:"bursts"`  // not settled
	Pending  money.Amount `json:"pending"` // what they can still cost as they are reserved now
	MayGrow  money.Amount `json:"mayGrow"` // what extensions up to their ceilings may add
	Overrun  money.Amount `json:"overrun"` // paid beyond reservations, and not accepted yet
	Until    time.Time    `json:"until,omitzero"`
	Late     int          `json:"late"` // of the bursts: past their end, and not proven gone
}

// ExposedBurst is one burst that is not settled.
type ExposedBurst struct {
	Burst    string       `json:"burst"`
	Tenant   string       `json:"tenant"`
	Project  string       `json:"project,omitzero"`
	Provider string       `json:"provider"`
	State    State        `json:"state"`
	Pending  money.Amount `json:"pending"`
	MayGrow  money.Amount `json:"mayGrow"`
	Until    time.Time    `json:"until"` // ends at the latest; its passing frees nothing
	Late     bool         `json:"late"`  // Until has passed: from now on the operator's overrun grows, unseen until the settlement
}

// Expose sums up what is open at a moment. Accounts are all accounts of the
// ledger; accepted says when the overrun of a currency was last accepted by a
// person, with its zero time for never.
func Expose(at time.Time, accounts []Account, accepted map[money.Currency]time.Time) (Exposure, error) {
	x := Exposure{At: at.UTC(), Totals: []ExposureTotal{}, Bursts: []ExposedBurst{}}
	totals := make(map[[3]string]*ExposureTotal)
	for _, a := range accounts {
		open := a.State != Settled
		overrun := money.Zero(a.Overrun.Currency)
		if a.SettledAt.After(accepted[a.Overrun.Currency]) {
			overrun = a.Overrun
		}
		if !open && overrun.IsZero() {
			continue
		}
		r := a.Reservation
		key := [3]string{r.Tenant, r.Provider, string(r.Amount.Currency)}
		if totals[key] == nil {
			zero := money.Zero(r.Amount.Currency)
			totals[key] = &ExposureTotal{Tenant: r.Tenant, Provider: r.Provider, Pending: zero, MayGrow: zero, Overrun: zero}
		}
		t := totals[key]
		err := add(&t.Overrun, overrun)
		if open {
			var b ExposedBurst
			b, err = a.exposed(at)
			x.Bursts = append(x.Bursts, b)
			err = firstError(err, t.take(b))
		}
		if err != nil {
			return Exposure{}, fmt.Errorf("exposure of tenant %q at %q: %w", r.Tenant, r.Provider, err)
		}
	}
	for _, t := range totals {
		x.Totals = append(x.Totals, *t)
	}
	slices.SortFunc(x.Totals, func(a, b ExposureTotal) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Pending.Currency, b.Pending.Currency))
	})
	slices.SortFunc(x.Bursts, func(a, b ExposedBurst) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Burst, b.Burst))
	})
	return x, nil
}

// exposed is the open account a for [Exposure].
func (a Account) exposed(at time.Time) (ExposedBurst, error) {
	r := a.Reservation
	grow := money.Zero(r.Amount.Currency)
	if a.State == Reserved && r.Ceiling != (money.Amount{}) {
		var err error
		if grow, err = r.Ceiling.Sub(a.Reserved); err != nil {
			return ExposedBurst{}, err
		}
	}
	return ExposedBurst{
		Burst: r.Burst, Tenant: r.Tenant, Project: r.Project, Provider: r.Provider, State: a.State,
		Pending: a.Pending, MayGrow: grow, Until: a.Until, Late: a.Until.Before(at),
	}, nil
}

// take adds one open burst.
func (t *ExposureTotal) take(b ExposedBurst) error {
	t.Bursts++
	if b.Late {
		t.Late++
	}
	if b.Until.After(t.Until) {
		t.Until = b.Until
	}
	return firstError(add(&t.Pending, b.Pending), add(&t.MayGrow, b.MayGrow))
}
