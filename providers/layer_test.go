package providers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/providers"
)

// answers is a driver that answers each call with the next of its errors, and
// with nil when they have run out.
type answers struct {
	mu    sync.Mutex
	next  []error
	calls []string
	at    []time.Time
}

func (a *answers) answer(op string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls, a.at = append(a.calls, op), append(a.at, time.Now())
	if len(a.next) == 0 {
		return nil
	}
	err := a.next[0]
	a.next = a.next[1:]
	return err
}

func (a *answers) Offers(context.Context) ([]providers.Offer, error) {
	return []providers.Offer{{InstanceType: "gpu"}}, a.answer("offers")
}

func (a *answers) Create(_ context.Context, req providers.Request) (providers.Machine, error) {
	return providers.Machine{ID: "srv-1", Token: req.Token}, a.answer("create " + req.Token)
}

func (a *answers) Extend(_ context.Context, id string, _ time.Time) error {
	return a.answer("extend " + id)
}

func (a *answers) Delete(_ context.Context, id string) error { return a.answer("delete " + id) }

func (a *answers) List(context.Context) ([]providers.Machine, error) {
	return []providers.Machine{{ID: "srv-1"}}, a.answer("list")
}

// reporting is a driver with the optional ability.
type reporting struct{ *answers }

func (r reporting) Usage(_ context.Context, token string) (providers.Machine, error) {
	return providers.Machine{Token: token}, r.answer("usage " + token)
}

// every makes each call of the contract once and returns the errors by op.
func every(ctx context.Context, d providers.Driver) map[string]error {
	_, offers := d.Offers(ctx)
	_, create := d.Create(ctx, providers.Request{Token: "tok-1", Offer: providers.Offer{Provider: "west", InstanceType: "gpu"}})
	_, list := d.List(ctx)
	errs := map[string]error{
		"offers": offers, "create": create, "list": list,
		"extend": d.Extend(ctx, "srv-1", time.Now()), "delete": d.Delete(ctx, "srv-1"),
	}
	if reporter, ok := d.(providers.UsageReporter); ok {
		_, errs["usage"] = reporter.Usage(ctx, "tok-1")
	}
	return errs
}

// clock is the bubble's.
func clock() providers.Clock {
	return providers.Clock{Now: time.Now, Wait: func(ctx context.Context, d time.Duration) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
}

// Every call of the contract, optional ones included, passes all layers in
// their order and carries what it is about.
func TestWrapPassesEveryCall(t *testing.T) {
	var seen []string
	layer := func(name string) providers.Layer {
		return func(ctx context.Context, c *providers.Call, next func(context.Context) error) error {
			seen = append(seen, fmt.Sprintf("%s: %s %s%s%s %t", name, c.Op, c.Token, c.ID, c.Offer, c.Changes()))
			err := next(ctx)
			if c.Op == "create" && c.ID != "srv-1" {
				t.Errorf("after the create the call knows the machine as %q", c.ID)
			}
			return err
		}
	}
	inner := &answers{}
	d := providers.Wrap(reporting{inner}, layer("outer"), layer("inner"))
	for op, err := range every(t.Context(), d) {
		if err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	var want []string
	for _, call := range []string{
		"offers  false", "create tok-1west///gpu/ true", "list  false", "extend srv-1 true", "delete srv-1 true", "usage tok-1 false",
	} {
		want = append(want, "outer: "+call, "inner: "+call)
	}
	if !slices.Equal(seen, want) {
		t.Errorf("the layers saw\n%q, want\n%q", seen, want)
	}
	if len(inner.calls) != 6 {
		t.Errorf("the driver was asked %q", inner.calls)
	}
	if _, ok := providers.Wrap(inner, layer("x")).(providers.UsageReporter); ok {
		t.Error("the wrapped driver claims to report usage, and the one inside can't")
	}
}

// What a cloud has answered is not passed on together with a failure.
func TestWrapAnswersNothingWithAnError(t *testing.T) {
	lose := func(ctx context.Context, c *providers.Call, next func(context.Context) error) error {
		return errors.Join(next(ctx), &providers.Error{Op: c.Op, Err: io.ErrUnexpectedEOF})
	}
	d := providers.Wrap(reporting{&answers{}}, lose)
	m, err := d.Create(t.Context(), providers.Request{Token: "tok-1"})
	list, listErr := d.List(t.Context())
	offers, offersErr := d.Offers(t.Context())
	if m.ID != "" || list != nil || offers != nil || err == nil || listErr == nil || offersErr == nil {
		t.Errorf("answered %+v %v, %+v %v, %+v %v", m, err, list, listErr, offers, offersErr)
	}
}

// A retry repeats what its kind allows, and nothing else: a create whose outcome
// is unknown is for its caller to look up.
//
// cases: D-16 cloudbase/garm#79, D-65 skypilot-org/skypilot#4392
func TestRetry(t *testing.T) {
	reads := []string{"offers", "list", "usage"}
	all := append([]string{"create", "extend", "delete"}, reads...)
	tests := map[string]struct {
		err      *providers.Error
		repeated []string
		took     time.Duration // at least, by one call that is repeated
	}{
		"unknown outcome":               {&providers.Error{Kind: providers.OutcomeUnknown}, reads, 500 * time.Millisecond},
		"throttled":                     {&providers.Error{Kind: providers.Throttled}, all, 500 * time.Millisecond},
		"throttled for a while":         {&providers.Error{Kind: providers.Throttled, RetryAfter: 4 * time.Second}, all, 4 * time.Second},
		"throttled longer than we wait": {&providers.Error{Kind: providers.Throttled, RetryAfter: 6 * time.Second}, nil, 0},
		"sold out":                      {&providers.Error{Kind: providers.SoldOut}, nil, 0},
		"unauthorized":                  {&providers.Error{Kind: providers.Unauthorized}, nil, 0},
		"not found":                     {&providers.Error{Kind: providers.NotFound}, nil, 0},
		"rejected":                      {&providers.Error{Kind: providers.Rejected}, nil, 0},
		"limit reached":                 {&providers.Error{Kind: providers.LimitReached}, nil, 0},
		"cleanup failed":                {&providers.Error{Kind: providers.CleanupFailed}, nil, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for _, op := range all {
				synctest.Test(t, func(t *testing.T) {
					inner := reporting{&answers{next: []error{tt.err}}}
					retry := &providers.Retry{Clock: clock(), Attempts: 3, Pause: time.Second, Longest: 5 * time.Second, Random: func(n int64) int64 { return n - 1 }}
					begin := time.Now()
					err := one(t.Context(), providers.Wrap(inner, retry.Layer), op)
					took := time.Since(begin)
					if slices.Contains(tt.repeated, op) {
						if err != nil || len(inner.calls) != 2 || took < tt.took || took > tt.took+time.Second {
							t.Errorf("%s: %v after %d calls and %s", op, err, len(inner.calls), took)
						}
					} else if !errors.Is(err, tt.err) || len(inner.calls) != 1 || took != 0 {
						t.Errorf("%s: %v after %d calls and %s, want the first answer at once", op, err, len(inner.calls), took)
					}
				})
			}
		})
	}
}

// one makes one call.
func one(ctx context.Context, d providers.Driver, op string) error {
	var err error
	switch op {
	case "offers":
		_, err = d.Offers(ctx)
	case "create":
		_, err = d.Create(ctx, providers.Request{Token: "tok-1"})
	case "extend":
		err = d.Extend(ctx, "srv-1", time.Now())
	case "delete":
		err = d.Delete(ctx, "srv-1")
	case "list":
		_, err = d.List(ctx)
	case "usage":
		_, err = d.(providers.UsageReporter).Usage(ctx, "tok-1")
	}
	return err
}

// A cloud that is down is asked a few times, with growing pauses, and not beyond
// the caller's own patience.
func TestRetryGivesUp(t *testing.T) {
	down := &providers.Error{Kind: providers.OutcomeUnknown, Err: io.ErrUnexpectedEOF}
	for name, tt := range map[string]struct {
		patience time.Duration
		calls    int
		took     time.Duration
	}{
		"after its attempts":       {time.Hour, 4, 7 * time.Second},
		"when its caller gives up": {2 * time.Second, 2, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inner := &answers{next: slices.Repeat([]error{down}, 9)}
				retry := &providers.Retry{Clock: clock(), Attempts: 4, Pause: time.Second, Longest: time.Minute, Random: func(int64) int64 { return 0 }}
				ctx, cancel := context.WithTimeout(t.Context(), tt.patience)
				defer cancel()
				begin := time.Now()
				_, err := providers.Wrap(inner, retry.Layer).List(ctx)
				if took := time.Since(begin); !errors.Is(err, down) || len(inner.calls) != tt.calls || took != tt.took {
					t.Errorf("%v after %d calls and %s, want %d and %s", err, len(inner.calls), took, tt.calls, tt.took)
				}
			})
		})
	}
}

// 200 calls at once reach the cloud at its rate, none is lost, and afterwards
// the bucket fills again (cases: D-47 karpenter-aws#7961).
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &answers{}
		limiter := &providers.Limiter{Clock: clock(), Every: 100 * time.Millisecond, Burst: 5}
		drivers := []providers.Driver{providers.Wrap(inner, limiter.Layer), providers.Wrap(inner, limiter.Layer)}
		begin := time.Now()
		var group sync.WaitGroup
		for i := range 200 {
			group.Go(func() {
				if err := drivers[i%2].Delete(t.Context(), "srv"); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if took := time.Since(begin); took != 19500*time.Millisecond || len(inner.calls) != 200 {
			t.Errorf("%d calls took %s, want 200 in 19.5s", len(inner.calls), took)
		}
		time.Sleep(time.Hour)
		begin = time.Now()
		for range 6 {
			if err := drivers[0].Delete(t.Context(), "srv"); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took != 100*time.Millisecond {
			t.Errorf("after a rest, 6 calls took %s, want 100ms", took)
		}
	})
}

// In no second of any pattern of calls more than the rate and the burst reach
// the cloud.
func TestLimiterHoldsItsRate(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		pauses := rapid.SliceOfN(rapid.IntRange(0, 400), 1, 60).Draw(rt, "pauses in ms")
		burst := rapid.IntRange(1, 8).Draw(rt, "burst")
		tooMany := ""
		synctest.Test(t, func(t *testing.T) {
			inner := &answers{}
			limiter := &providers.Limiter{Clock: clock(), Every: 100 * time.Millisecond, Burst: burst}
			d := providers.Wrap(inner, limiter.Layer)
			var group sync.WaitGroup
			for _, p := range pauses {
				time.Sleep(time.Duration(p) * time.Millisecond)
				group.Go(func() { _ = d.Delete(t.Context(), "srv") })
			}
			group.Wait()
			for i := range inner.at {
				if j := i + 10 + burst; j < len(inner.at) && inner.at[j].Sub(inner.at[i]) <= time.Second {
					tooMany = fmt.Sprintf("calls %d to %d are within a second", i, j)
				}
			}
		})
		if tooMany != "" {
			rt.Fatal(tooMany)
		}
	})
}

// Who can't wait for the turn is told at once how far off it is, and takes no
// turn of the others. The cloud was not asked.
func TestLimiterRefusesWhoCannotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := &answers{}
		limiter := &providers.Limiter{Clock: clock(), Every: 10 * time.Second, Burst: 1}
		d := providers.Wrap(inner, limiter.Layer)
		if err := d.Delete(t.Context(), "srv-1"); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := d.Create(ctx, providers.Request{Token: "tok-1"})
			cancel()
			if providers.KindOf(err) != providers.Throttled || providers.RetryAfterOf(err) != 10*time.Second || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, retry after %s", err, providers.RetryAfterOf(err))
			}
		}
		begin := time.Now()
		if err := d.Delete(t.Context(), "srv-2"); err != nil || time.Since(begin) != 10*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if !slices.Equal(inner.calls, []string{"delete srv-1", "delete srv-2"}) {
			t.Errorf("the cloud was asked %q", inner.calls)
		}
	})
}
