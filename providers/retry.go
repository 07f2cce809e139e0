package providers

import (
	"context"
	"time"
)

// Retry repeats what the kind of a failure allows: what changes nothing after an
// unknown outcome, and any call that was throttled for a short time. A create, an
// extend or a delete of unknown outcome is never repeated here: its caller has to
// look first.
type Retry struct {
	Clock    Clock
	Attempts int           // in all
	Pause    time.Duration // before the second attempt, doubled before each further one
	Longest  time.Duration // a cloud that asks for a longer silence is not waited for here
	// Random returns a number in [0, n): each pause is shortened by up to half,
	// so that callers that failed together don't come back together.
	Random func(n int64) int64
}

// Layer implements [Layer]. It returns the last attempt's error.
func (r *Retry) Layer(ctx context.Context, call *Call, next func(context.Context) error) error {
	pause := r.Pause
	for attempt := 1; ; attempt++ {
		err := next(ctx)
		if err == nil || attempt >= r.Attempts || ctx.Err() != nil || !repeatable(call, KindOf(err)) {
			return err
		}
		wait := max(pause-time.Duration(r.Random(int64(pause/2)+1)), RetryAfterOf(err))
		if wait > r.Longest || r.Clock.Wait(ctx, wait) != nil {
			return err
		}
		pause *= 2
	}
}

// repeatable says whether a call may be sent again without another look.
func repeatable(call *Call, kind Kind) bool {
	switch kind {
	case Throttled: // was not done
		return true
	case OutcomeUnknown:
		return !call.Changes()
	default: // the answer would be the same
		return false
	}
}
