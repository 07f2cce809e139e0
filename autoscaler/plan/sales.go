package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// sale is an offer at the price and meter rule that count, with the provider
// that sells it; nil when nobody has stated facts about that provider.
type sale struct {
	offer    providers.Offer
	key      string
	provider *v1alpha1.BurstProvider
	stock    *placement.Stock // its machines
	family   int              // see related
	has      int              // which of the GPUs on sale one machine has
	place    int              // among the offers of a run
	closed   []Refusal        // see closed
}

// sales returns the offers, sorted by key and each once: of two with one key
// the one seen last counts, and of those the dearer one. Where that, too, leaves
// a choice, their texts decide.
func sales(state *State, known map[string]*v1alpha1.BurstProvider) []*sale {
	offers := state.Offers
	all := make([]*sale, 0, len(offers))
	for _, o := range offers {
		s := &sale{offer: o, key: o.Key(), provider: known[o.Provider]}
		if s.provider != nil {
			s.offer.Price = priceOf(o, s.provider)
			s.offer.Meter = meterOf(o, s.provider)
		}
		all = append(all, s)
	}
	related(all)
	slices.SortFunc(all, func(a, b *sale) int {
		order := cmp.Or(cmp.Compare(a.key, b.key), b.offer.Seen.Compare(a.offer.Seen),
			cmp.Compare(b.offer.Price.NanoPerHour, a.offer.Price.NanoPerHour), compareTrueFirst(a.offer.SoldOut, b.offer.SoldOut))
		if order == 0 {
			order = cmp.Compare(fmt.Sprintf("%+v", a.offer), fmt.Sprintf("%+v", b.offer)) // maps are written in order
		}
		return order
	})
	all = slices.CompactFunc(all, func(a, b *sale) bool { return a.key == b.key })
	for i, s := range all {
		s.place, s.closed = i, closed(s, state.Now)
	}
	return all
}

// variety numbers the GPUs that one machine of an offer has.
func variety(all []*sale) []gpuNeed {
	var known []gpuNeed
	for _, s := range all {
		has := gpuNeed{corev1.ResourceName(s.offer.GPUResource), int64(s.offer.GPUs)}
		if s.has = slices.Index(known, has); s.has < 0 {
			s.has = len(known)
			known = append(known, has)
		}
	}
	return known
}

func compareTrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// priceOf is the negotiated price where one is stated. One that can't be read
// is unknown: it never falls back to the list price.
// cases: H2 kubernetes-sigs/karpenter#693, D-77 SkyPilot OpenStack catalogue
func priceOf(o providers.Offer, p *v1alpha1.BurstProvider) money.Rate {
	own, stated := p.Spec.Prices[o.InstanceType]
	if !stated {
		return o.Price
	}
	rate, err := money.ParseRate(string(own))
	if err != nil {
		return money.Rate{}
	}
	return rate
}

func meterOf(o providers.Offer, p *v1alpha1.BurstProvider) providers.MeterRule {
	m := p.Spec.Meter
	if m == nil {
		return o.Meter
	}
	return providers.MeterRule{
		Start: providers.MeterEvent(m.Start), Stop: o.Meter.Stop,
		Granularity: m.Granularity.Duration, Minimum: m.Minimum.Duration,
		ClockAligned: m.ClockAligned, BilledWhenStopped: m.BilledWhenStopped,
	}
}

// closed refuses an offer that nobody can buy now: it is sold out, or on the bench.
// A block reaches its own offer and no other.
// cases: H-10 LeanerCloud/AutoSpotting#147, D-42 kubernetes-sigs/karpenter#2275
func closed(s *sale, now time.Time) []Refusal {
	var out []Refusal
	if s.offer.SoldOut {
		out = append(out, s.refuse(Reason{
			Code: Capacity, Message: "sold out", Remedy: "the next offer is taken, or wait",
		}))
	}
	if s.provider == nil {
		return out
	}
	for _, u := range s.provider.Status.Unavailable {
		if u.Offer == s.key && u.Until.After(now) {
			refusal := s.refuse(Reason{
				Code: Capacity, Message: fmt.Sprintf("refused lately (%s), asked again from %s", u.Reason, clock(u.Until.Time)), Remedy: "the next offer is taken, or wait",
			})
			refusal.Until = u.Until.Time
			out = append(out, refusal)
		}
	}
	return out
}
