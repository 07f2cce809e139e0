package observe

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
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
	offers  []providers.Offer
	asked   time.Time
	told    time.Time
	problem string
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
		if o.Now().Sub(a.told) <= o.Stale {
			all = append(all, a.offers...)
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
		last.offers, last.told, last.problem = offers, now, ""
	} else if last.problem != err.Error() {
		last.problem = err.Error()
		o.Log.Warn("cloud does not tell its offers", "provider", cloud, "error", err)
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
