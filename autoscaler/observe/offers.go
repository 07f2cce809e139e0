package observe

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// OfferBook asks every cloud for its offers, at most once per Every, and keeps
// the last answer. A cloud that does not answer keeps its old offers until they
// are older than Stale; then it offers nothing.
type OfferBook struct {
	Drivers func(ctx context.Context, provider string) (providers.Driver, error)
	Every   time.Duration
	Stale   time.Duration
	Timeout time.Duration
	Now     func() time.Time
	Log     *slog.Logger

	mu   sync.Mutex
	seen map[string]answer
}

// answer is what one cloud said last.
type answer struct {
	Told
	asked time.Time
}

// Told is what one cloud said when it was asked for its offers.
type Told struct {
	Offers []providers.Offer
	At     time.Time // when it said so; zero: never
	// Problem is why it did not say so when it was asked last.
	Problem error
}

// Told returns what a cloud said last.
func (o *OfferBook) Told(cloud string) Told {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen[cloud].Told
}

// Offers implements [Offers]: all clouds are asked at the same time, so a slow
// one delays a decision by the timeout at most.
func (o *OfferBook) Offers(ctx context.Context, clouds []v1alpha1.BurstProvider) []providers.Offer {
	var wg sync.WaitGroup
	answers := make([]answer, len(clouds))
	for i := range clouds {
		wg.Go(func() { answers[i] = o.ask(ctx, clouds[i].Name) })
	}
	wg.Wait()
	var all []providers.Offer
	for _, a := range answers {
		if o.Now().Sub(a.At) <= o.Stale {
			all = append(all, a.Offers...)
		}
	}
	return all
}

func (o *OfferBook) ask(ctx context.Context, cloud string) answer {
	o.mu.Lock()
	last, now := o.seen[cloud], o.Now()
	o.mu.Unlock()
	if now.Sub(last.asked) < o.Every {
		return last
	}
	last.asked = now
	offers, err := o.fetch(ctx, cloud)
	if err == nil {
		last.Told = Told{Offers: offers, At: now}
	} else {
		if last.Problem == nil || last.Problem.Error() != err.Error() {
			o.Log.Warn("cloud does not tell its offers", "provider", cloud, "error", err)
		}
		last.Problem = err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = map[string]answer{}
	}
	o.seen[cloud] = last
	return last
}

func (o *OfferBook) fetch(ctx context.Context, cloud string) ([]providers.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	driver, err := o.Drivers(ctx, cloud)
	if err != nil {
		return nil, err
	}
	offers, err := driver.Offers(ctx)
	for i := range offers {
		offers[i].Provider = cloud
	}
	return offers, err
}

// Seen writes offers down for a provider's status, in the order of their keys.
func Seen(offers []providers.Offer) []v1alpha1.SeenOffer {
	offers = slices.SortedFunc(slices.Values(offers), func(a, b providers.Offer) int { return cmp.Compare(a.Key(), b.Key()) })
	seen := make([]v1alpha1.SeenOffer, 0, len(offers))
	for _, o := range offers {
		s := v1alpha1.SeenOffer{
			Zone: o.Zone, InstanceType: o.InstanceType, CapacityType: o.CapacityType, GPUModel: o.GPUModel, GPUs: int32(o.GPUs),
			GPUResource: o.GPUResource, MilliCPU: o.MilliCPU, MemoryMiB: o.MemoryMiB, DiskGiB: o.DiskGiB, SoldOut: o.SoldOut,
		}
		if !o.Price.IsZero() {
			s.PricePerHour = v1alpha1.Money(money.Amount{Nano: o.Price.NanoPerHour, Currency: o.Price.Currency}.String())
		}
		seen = append(seen, s)
	}
	return seen
}

// SeenOffers are the offers in a provider's status. What the status does not
// hold (the meter rule and the labels that the cloud states) is left empty.
func SeenOffers(p *v1alpha1.BurstProvider) ([]providers.Offer, error) {
	var offers []providers.Offer
	for _, s := range p.Status.Offers {
		o := providers.Offer{
			Provider: p.Name, Region: p.Spec.Region, Country: p.Spec.Country, Zone: s.Zone, InstanceType: s.InstanceType, CapacityType: s.CapacityType,
			GPUModel: s.GPUModel, GPUs: int(s.GPUs), GPUResource: s.GPUResource,
			MilliCPU: s.MilliCPU, MemoryMiB: s.MemoryMiB, DiskGiB: s.DiskGiB, SoldOut: s.SoldOut,
		}
		if p.Status.OffersSeen != nil {
			o.Seen = p.Status.OffersSeen.Time
		}
		if s.PricePerHour != "" {
			var err error
			if o.Price, err = money.ParseRate(string(s.PricePerHour)); err != nil {
				return nil, fmt.Errorf("BurstProvider %s: price of %s: %w", p.Name, s.InstanceType, err)
			}
		}
		offers = append(offers, o)
	}
	return offers, nil
}
