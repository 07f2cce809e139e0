package fake

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"spillway.dev/spillway/providers"
)

// Unreliable is a layer that makes calls go wrong on the way to any driver, as
// choose says; the zero fault lets a call pass. What can be done to a call from
// outside are [LostRequest], [LostResponse], [ServerError], [ServerErrorAfter],
// [Throttle] and [Forbidden]; any other effect is a mistake of the test, and is
// answered as Rejected.
func Unreliable(choose func(*providers.Call) Fault) providers.Layer {
	return func(ctx context.Context, call *providers.Call, next func(context.Context) error) error {
		fault := choose(call)
		failed := &providers.Error{Op: call.Op, Err: fmt.Errorf("made to fail: %s", fault.Effect)}
		switch fault.Effect {
		case "":
			return next(ctx)
		case LostRequest, ServerError:
			failed.Kind = providers.OutcomeUnknown
		case LostResponse, ServerErrorAfter:
			failed.Kind = providers.OutcomeUnknown
			failed.Err = errors.Join(failed.Err, next(ctx))
		case Throttle:
			failed.Kind, failed.Scope, failed.RetryAfter = providers.Throttled, providers.ScopeAccount, fault.RetryAfter
		case Forbidden:
			failed.Kind, failed.Scope = providers.Unauthorized, providers.ScopeAccount
		default:
			failed.Kind = providers.Rejected
		}
		return failed
	}
}

// Scripted chooses faults for [Unreliable] as [Cloud.Script] does: each call
// meets the first one that is scripted for its operation, and they wear off in
// order.
func Scripted(faults ...Fault) func(*providers.Call) Fault {
	var mu sync.Mutex
	script := slices.Clone(faults)
	return func(call *providers.Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		return take(&script, call.Op)
	}
}

// ByChance chooses faults for [Unreliable] at random: one call in so many meets
// one of them, of whatever operation they are. A seeded source makes the same
// choices again for the same calls.
func ByChance(random *rand.Rand, oneIn int, faults ...Fault) func(*providers.Call) Fault {
	var mu sync.Mutex
	return func(*providers.Call) Fault {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(oneIn) > 0 {
			return Fault{}
		}
		return faults[random.IntN(len(faults))]
	}
}
