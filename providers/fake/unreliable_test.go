package fake_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/conformance"
	"spillway.dev/spillway/providers/fake"
)

func wallClock() providers.Clock {
	return providers.Clock{Now: time.Now, Wait: func(ctx context.Context, d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// TestDecoratedConformance: all layers together keep every promise of the driver
// that is inside.
func TestDecoratedConformance(t *testing.T) {
	const attempts = 3
	conformance.Run(t, conformance.Suite{New: func(t testing.TB) conformance.World {
		w := newWorld(t, http.DefaultTransport)
		retry := &providers.Retry{
			Clock: wallClock(), Attempts: attempts, Pause: time.Millisecond, Longest: time.Second, Random: func(int64) int64 { return 0 },
		}
		limit := &providers.Limiter{Clock: wallClock(), Every: time.Millisecond, Burst: 5}
		calls := new(atomic.Int64)
		count := func(ctx context.Context, _ *providers.Call, next func(context.Context) error) error {
			calls.Add(1)
			return next(ctx)
		}
		t.Cleanup(func() {
			if calls.Load() == 0 {
				t.Error("no call has passed the layers")
			}
		})
		w.Driver = providers.Wrap(w.Driver, count, retry.Layer, limit.Layer, fake.Unreliable(fake.Scripted()))
		trouble := w.Make
		w.Make = func(what conformance.Trouble) error {
			if what != conformance.ListBroken {
				return trouble(what)
			}
			for range attempts { // a list that is broken once is asked for again
				if err := trouble(what); err != nil {
					return err
				}
			}
			return nil
		}
		return w.World
	}})
}

// Each effect of the layer is what its name says, to its caller and at the cloud.
func TestUnreliable(t *testing.T) {
	tests := map[fake.Effect]struct {
		kind providers.Kind
		made int
	}{
		fake.LostRequest:      {providers.OutcomeUnknown, 0},
		fake.ServerError:      {providers.OutcomeUnknown, 0},
		fake.LostResponse:     {providers.OutcomeUnknown, 1},
		fake.ServerErrorAfter: {providers.OutcomeUnknown, 1},
		fake.Throttle:         {providers.Throttled, 0},
		fake.Forbidden:        {providers.Unauthorized, 0},
		fake.StuckDelete:      {providers.Rejected, 0},
	}
	for effect, tt := range tests {
		t.Run(string(effect), func(t *testing.T) {
			w := newWorld(t, http.DefaultTransport)
			script := fake.Scripted(fake.Fault{Op: "create", Effect: effect, RetryAfter: time.Minute})
			d := providers.Wrap(w.Driver, fake.Unreliable(script))
			if _, err := d.Offers(t.Context()); err != nil {
				t.Errorf("a call that no fault is scripted for: %v", err)
			}
			m, err := d.Create(t.Context(), w.Request("tok-1"))
			e, ok := errors.AsType[*providers.Error](err)
			if !ok || e.Kind != tt.kind || e.Op != "create" || m.ID != "" {
				t.Errorf("answered %+v, %v; want kind %s", m, err, tt.kind)
			}
			if effect == fake.Throttle && e.RetryAfter != time.Minute {
				t.Errorf("retry after %s, want 1m", e.RetryAfter)
			}
			if n := len(w.cloud.Billing()); n != tt.made {
				t.Errorf("%d machines were made, want %d", n, tt.made)
			}
			if _, err := d.Create(t.Context(), w.Request("tok-1")); err != nil {
				t.Errorf("the fault has not worn off: %v", err)
			}
		})
	}
}

// One seed makes one schedule; another makes another, at about the odds.
func TestByChance(t *testing.T) {
	draw := func(seed uint64) (effects []fake.Effect) {
		choose := fake.ByChance(rand.New(rand.NewPCG(seed, 0)), 4, fake.Fault{Effect: fake.Throttle}, fake.Fault{Effect: fake.LostResponse})
		for range 400 {
			effects = append(effects, choose(&providers.Call{Op: "list"}).Effect)
		}
		return effects
	}
	first := draw(1)
	if !slices.Equal(first, draw(1)) || slices.Equal(first, draw(2)) {
		t.Error("the schedule does not follow its seed")
	}
	count := map[fake.Effect]int{}
	for _, e := range first {
		count[e]++
	}
	if count[""] < 250 || count[""] > 350 || count[fake.Throttle] < 20 || count[fake.LostResponse] < 20 || len(count) != 3 {
		t.Error(fmt.Sprint("drawn: ", count))
	}
}
