package plan

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// Object returns the Burst object of the decision to buy d.Burst, nil when the
// decision has none. Creating it is the whole of applying the decision.
//
// It has no owner reference: a Burst outlives its workload as the record of
// what was paid, and ends on its own when the pods are gone.
func (d Decision) Object() *v1alpha1.Burst {
	b := d.Burst
	if b == nil {
		return nil
	}
	pods := make([]v1alpha1.PodReference, 0, len(b.Pods))
	for _, p := range b.Pods {
		pods = append(pods, v1alpha1.PodReference{Name: p.Name, UID: p.UID})
	}
	object := &v1alpha1.Burst{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "Burst"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Owner.Namespace, Name: b.Name,
			Labels:     map[string]string{v1alpha1.OwnerUIDLabel: string(b.Owner.UID)},
			Finalizers: []string{v1alpha1.BurstFinalizer},
		},
		Spec: v1alpha1.BurstSpec{
			Tenant: b.Tenant, TenantID: b.TenantID, Project: b.ProjectID, Attempt: b.Attempt,
			Gang: v1alpha1.GangReference{
				APIVersion: b.Owner.APIVersion, Kind: b.Owner.Kind, Name: b.Owner.Name, UID: b.Owner.UID,
				Together: b.Together, Pods: pods,
			},
			Offer: b.offerReference(), Machines: b.Machines,
			Ceiling: v1alpha1.Money(b.Ceiling.String()), Budgets: b.Budgets, Mode: b.Mode,
			MaxRunTime: metav1.Duration{Duration: b.MaxRun}, Deadline: metav1.NewTime(b.Deadline), Data: b.Data,
		},
	}
	for _, f := range d.Refusals {
		object.Spec.Refused = append(object.Spec.Refused, v1alpha1.RefusedOffer{
			Provider: f.Provider, Offer: f.Offer, Code: string(f.Code), Message: f.Message,
		})
	}
	return object
}

func (b Burst) offerReference() v1alpha1.OfferReference {
	o, m := b.Offer, b.Offer.Meter
	price := money.Amount{Nano: o.Price.NanoPerHour, Currency: o.Price.Currency}
	return v1alpha1.OfferReference{
		Provider: o.Provider, Region: o.Region, Zone: o.Zone, InstanceType: o.InstanceType, CapacityType: o.CapacityType,
		Country: o.Country, GPUModel: o.GPUModel, GPUResource: o.GPUResource, GPUs: int32(o.GPUs),
		PricePerHour: v1alpha1.Money(price.String()),
		Meter: v1alpha1.MeterRule{
			Start: string(cmp.Or(m.Start, providers.MeterCreated)), Granularity: metav1.Duration{Duration: m.Granularity}, Minimum: metav1.Duration{Duration: m.Minimum},
			ClockAligned: m.ClockAligned, BilledWhenStopped: m.BilledWhenStopped,
		},
	}
}

// Observed returns the record of a purchase that was only observed.
func (d Decision) Observed() (v1alpha1.ObservedBurst, bool) {
	if d.Verdict != WouldBuy || d.Burst == nil {
		return v1alpha1.ObservedBurst{}, false
	}
	hourly := money.Amount{Nano: d.Burst.Hourly.NanoPerHour, Currency: d.Burst.Hourly.Currency}
	return v1alpha1.ObservedBurst{
		Owner: d.Owner.String(), Offer: d.Burst.Offer.Key(), PricePerHour: v1alpha1.Money(hourly.String()),
		Ceiling: v1alpha1.Money(d.Burst.Ceiling.String()), Message: d.Message, At: metav1.NewTime(d.Burst.From),
	}, true
}
