package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota/money"
)

// Observation sums up what would have been bought for a tenant.
type Observation struct {
	Tenant string `json:"tenant"`
	Mode   string `json:"mode"`
	// Bursts is how many pieces of work would have burst.
	Bursts int `json:"bursts"`
	// Expected and Ceilings are their bills, as planned and at most, one sum a
	// currency.
	Expected []money.Amount `json:"expected"`
	Ceilings []money.Amount `json:"ceilings"`
	// SavedWaiting is how much earlier they would have begun in all, of those
	// for which that is known. Unknown is the number of the others.
	SavedWaiting time.Duration `json:"savedWaiting"`
	Unknown      int           `json:"unknown"`
	// Full says that the record holds no more: earlier ones are missing.
	Full bool `json:"full"`
}

// Observations sums up the records of mode Observe since a time, tenant by
// tenant; an unreadable amount in a record is an error that names it.
func Observations(tenants []v1alpha1.BurstTenant, since time.Time) ([]Observation, error) {
	all := make([]Observation, 0, len(tenants))
	for i := range tenants {
		t := &tenants[i]
		o := Observation{
			Tenant: t.Name, Mode: t.Spec.Burst.Mode, Full: len(t.Status.Observed) >= v1alpha1.ObservedKept,
			Expected: []money.Amount{}, Ceilings: []money.Amount{},
		}
		for _, seen := range t.Status.Observed {
			if seen.At.Time.Before(since) {
				o.Full = false // the record reaches back far enough
				continue
			}
			if err := o.count(seen); err != nil {
				return nil, fmt.Errorf("tenant %s, record of %s: %w", t.Name, seen.Owner, err)
			}
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b Observation) int { return cmp.Compare(a.Tenant, b.Tenant) })
	return all, nil
}

func (o *Observation) count(seen v1alpha1.ObservedBurst) (err error) {
	o.Bursts++
	if seen.SavedWaiting == nil {
		o.Unknown++
	} else {
		o.SavedWaiting += seen.SavedWaiting.Duration
	}
	if seen.Expected != "" {
		if o.Expected, err = addTo(o.Expected, seen.Expected); err != nil {
			return err
		}
	}
	o.Ceilings, err = addTo(o.Ceilings, seen.Ceiling)
	return err
}

// addTo adds an amount to the sum of its currency. The sums are in the order of
// their currencies.
func addTo(sums []money.Amount, text v1alpha1.Money) ([]money.Amount, error) {
	amount, err := money.Parse(string(text))
	if err != nil {
		return nil, err
	}
	at, known := slices.BinarySearchFunc(sums, amount.Currency, func(a money.Amount, currency money.Currency) int {
		return cmp.Compare(a.Currency, currency)
	})
	if !known {
		return slices.Insert(sums, at, amount), nil
	}
	sums[at], err = sums[at].Add(amount)
	return sums, err
}
