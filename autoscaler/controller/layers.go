package controller

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"spillway.dev/spillway/providers"
)

// An account's calls, from all parts of this process together: 40 at once, 20 a
// second. Clouds refill their buckets at about that rate or faster for reads;
// what is slower (EC2's RunInstances: 2 a second, docs.aws.amazon.com,
// "Request throttling for the Amazon EC2 API") says so by Throttled.
const (
	callsEvery = time.Second / 20
	callsBurst = 40
)

// accounts are what the layers around drivers need to know of a provider for
// longer than one credential lives.
type accounts struct {
	log    *slog.Logger
	meters *meters
	clock  providers.Clock
	limits map[string]*providers.Limiter // by provider
}

func newAccounts(log *slog.Logger, m *meters) *accounts {
	return &accounts{log: log, meters: m, clock: providers.Clock{Now: time.Now, Wait: wait}, limits: map[string]*providers.Limiter{}}
}

// wait returns nil after d, or the error of ctx when that ends before.
func wait(ctx context.Context, d time.Duration) error {
	turn := time.NewTimer(d)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// around lays all layers around a driver: retry, then rate limit, then what
// counts and writes down each attempt.
func (a *accounts) around(provider string, d providers.Driver) providers.Driver {
	limit, ok := a.limits[provider]
	if !ok {
		limit = &providers.Limiter{Clock: a.clock, Every: callsEvery, Burst: callsBurst}
		a.limits[provider] = limit
	}
	retry := &providers.Retry{Clock: a.clock, Attempts: 3, Pause: 500 * time.Millisecond, Longest: 5 * time.Second, Random: rand.Int64N}
	return providers.Wrap(d, retry.Layer, limit.Layer, counted(provider, a.meters, a.clock.Now), audited(provider, a.log))
}

// counted measures every call that goes out.
func counted(provider string, m *meters, now func() time.Time) providers.Layer {
	return func(ctx context.Context, c *providers.Call, next func(context.Context) error) error {
		began := now()
		err := next(ctx)
		m.calls.WithLabelValues(provider, c.Op, outcome(err)).Inc()
		m.callSeconds.With(prometheus.Labels{"provider": provider, "op": c.Op}).Observe(now().Sub(began).Seconds())
		return err
	}
}

// outcome is the word for how a call ended.
func outcome(err error) string {
	if err == nil {
		return "done"
	}
	return providers.KindOf(err).String()
}

// audited writes down every call that asks a cloud for a change: before it goes
// out, as nobody may be left to write down its answer, and again with that.
func audited(provider string, log *slog.Logger) providers.Layer {
	return func(ctx context.Context, c *providers.Call, next func(context.Context) error) error {
		if !c.Changes() {
			return next(ctx)
		}
		log := log.With("provider", provider, "op", c.Op)
		for _, about := range []struct{ name, value string }{{"token", c.Token}, {"offer", c.Offer}, {"instance", c.ID}} {
			if about.value != "" {
				log = log.With(about.name, about.value)
			}
		}
		if !c.Until.IsZero() {
			log = log.With("until", c.Until)
		}
		log.InfoContext(ctx, "cloud is asked for a change")
		asked := c.ID
		err := next(ctx)
		if c.ID != asked {
			log = log.With("instance", c.ID)
		}
		if err != nil {
			log.WarnContext(ctx, "cloud has answered a change", "outcome", outcome(err), "error", err)
			return err
		}
		log.InfoContext(ctx, "cloud has answered a change", "outcome", outcome(nil))
		return nil
	}
}
