package plan

import (
	"fmt"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// ReservationOf is what the ledger is asked for a burst before anything is
// bought: the same for every repetition. In mode lease it is the first slice.
func ReservationOf(b *v1alpha1.Burst) (quota.Reservation, error) {
	ceiling, err := money.Parse(string(b.Spec.Ceiling))
	if err != nil {
		return quota.Reservation{}, fmt.Errorf("ceiling of burst %s: %w", b.Name, err)
	}
	price, err := money.ParseRate(string(b.Spec.Offer.PricePerHour))
	if err != nil {
		return quota.Reservation{}, fmt.Errorf("price of burst %s: %w", b.Name, err)
	}
	r := quota.Reservation{
		Burst: string(b.UID), Tenant: b.Spec.TenantID, Project: b.Spec.Project, Provider: b.Spec.Offer.Provider,
		Namespace: b.Namespace, Owner: string(b.Spec.Gang.UID), Budgets: b.Spec.Budgets, Amount: ceiling,
		From: b.CreationTimestamp.UTC(), Until: b.Spec.Until.UTC(),
		Offer: b.Spec.Offer.InstanceType, Price: price, Mode: b.Spec.Mode,
	}
	if first := b.Spec.FirstUntil; first != nil {
		m := b.Spec.Offer.Meter
		rule := providers.MeterRule{Granularity: m.Granularity.Duration, Minimum: m.Minimum.Duration, ClockAligned: m.ClockAligned}
		r.Ceiling, r.Until = ceiling, first.UTC()
		r.Terms = quota.Terms{Machines: int64(b.Spec.Machines), Meter: rule.Arithmetic(), Stop: b.Spec.Until.Sub(b.Spec.Deadline.Time)}
		if r.Amount, err = r.Worst(r.Until); err != nil {
			return quota.Reservation{}, fmt.Errorf("first slice of burst %s: %w", b.Name, err)
		}
	}
	return r, nil
}

// reservation is what the ledger will be asked for; the planner has no UID yet.
func (b Burst) reservation() quota.Reservation {
	r := quota.Reservation{
		Tenant: b.TenantID, Project: b.ProjectID, Provider: b.Offer.Provider,
		Namespace: b.Owner.Namespace, Owner: string(b.Owner.UID), Amount: b.Ceiling,
		From: b.From, Until: b.Until, Offer: b.Offer.Key(), Price: b.Offer.Price, Mode: b.Mode,
	}
	if b.Mode == quota.ModeLease {
		r.Amount, r.Ceiling, r.Until = b.First, b.Ceiling, b.FirstUntil
		r.Terms = quota.Terms{Machines: int64(b.Machines), Meter: b.Offer.Meter.Arithmetic(), Stop: b.Until.Sub(b.Deadline)}
	}
	return r
}
