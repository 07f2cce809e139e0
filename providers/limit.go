package providers

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Clock is the time that layers live in. Both functions must be set.
type Clock struct {
	Now func() time.Time
	// Wait returns nil after d, or the error of ctx when that ends before.
	Wait func(ctx context.Context, d time.Duration) error
}

// Limiter holds the calls to one account back to a rate, so that a fleet that
// starts or ends at once doesn't run into the cloud's own limit, which is shared
// by all of them. It is a bucket: Burst calls at once, then one every Every, in
// the order in which they came. Its fields are set before the first call; all
// drivers of one account share one.
type Limiter struct {
	Clock Clock
	Every time.Duration
	Burst int

	mu   sync.Mutex
	full time.Time // when the bucket is full again
}

// Layer implements [Layer]. A call whose turn does not come before its context
// ends is Throttled: the cloud was not asked.
func (l *Limiter) Layer(ctx context.Context, call *Call, next func(context.Context) error) error {
	wait, err := l.turn(ctx)
	if err == nil && wait > 0 {
		err = l.Clock.Wait(ctx, wait)
	}
	if err != nil {
		return &Error{
			Kind: Throttled, Scope: ScopeAccount, Op: call.Op, RetryAfter: wait,
			Err: fmt.Errorf("our own limit of one call every %s: the turn comes in %s: %w", l.Every, wait, err),
		}
	}
	return next(ctx)
}

// turn takes the next turn and returns how far off it is. Who can't wait for so
// long takes none.
func (l *Limiter) turn(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Clock.Now()
	full := l.full
	if full.Before(now) {
		full = now
	}
	full = full.Add(l.Every)
	wait := full.Add(-l.Every * time.Duration(l.Burst)).Sub(now)
	if end, bounded := ctx.Deadline(); bounded && wait > 0 && now.Add(wait).After(end) {
		return wait, context.DeadlineExceeded
	}
	l.full = full
	return wait, nil
}
