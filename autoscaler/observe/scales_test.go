package observe

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// weighing is scales over a store that takes a minute to be listed.
type weighing struct {
	Scales
	asked, atOnce, most, woken atomic.Int64
	answer                     func() (int64, error)
}

func newWeighing(answer func() (int64, error)) *weighing {
	w := &weighing{answer: answer}
	w.Scales = Scales{
		Every: 10 * time.Minute, Again: 2 * time.Minute, Timeout: 5 * time.Minute, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Wake: func() { w.woken.Add(1) },
		Need: func(ctx context.Context, _ *v1alpha1.BurstTenant, _ []string) (int64, error) {
			w.asked.Add(1)
			w.most.Store(max(w.most.Load(), w.atOnce.Add(1)))
			defer w.atOnce.Add(-1)
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-time.After(time.Minute):
			}
			return w.answer()
		},
	}
	return w
}

func (w *weighing) weigh(inputs ...string) int64 {
	t := &v1alpha1.BurstTenant{}
	t.Name = "vision"
	if n := w.Weigh(context.Background(), t, inputs); n != nil {
		return *n
	}
	return -1
}

func (w *weighing) expect(t *testing.T, when string, bytes int64, asked int64, inputs ...string) {
	t.Helper()
	got := w.weigh(inputs...)
	synctest.Wait()
	if got != bytes || w.asked.Load() != asked {
		t.Errorf("%s: %d bytes after %d listings, want %d after %d", when, got, w.asked.Load(), bytes, asked)
	}
}

// Nobody waits for a listing: what is not known is nil, is found out meanwhile, once,
// holds for a while, and is then found out anew with the old weight at hand.
func TestScalesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		size := int64(7)
		w := newWeighing(func() (int64, error) { return size, nil })
		w.expect(t, "at first", -1, 1, "s3://data/a", "s3://data/b")
		w.expect(t, "meanwhile, in another order", -1, 1, "s3://data/b", "s3://data/a")
		time.Sleep(time.Minute + time.Second)
		if w.woken.Load() != 1 {
			t.Errorf("woken %d times, want once: something is known now", w.woken.Load())
		}
		w.expect(t, "then", 7, 1, "s3://data/a", "s3://data/b")
		time.Sleep(10 * time.Minute)
		size = 9
		w.expect(t, "when it is old", 7, 2, "s3://data/a", "s3://data/b")
		time.Sleep(time.Minute + time.Second)
		w.expect(t, "and then", 9, 2, "s3://data/a", "s3://data/b")
		w.expect(t, "of others", -1, 3, "s3://data/c")
		time.Sleep(time.Hour)
	})
}

// A store that fails is asked again, not each cycle, and the weight before stays.
func TestScalesThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err error
		w := newWeighing(func() (int64, error) { return 7, err })
		err = errors.New("403")
		w.expect(t, "at first", -1, 1, "s3://data/a")
		time.Sleep(90 * time.Second)
		w.expect(t, "soon after the failure", -1, 1, "s3://data/a")
		time.Sleep(2 * time.Minute)
		err = nil
		w.expect(t, "later", -1, 2, "s3://data/a")
		time.Sleep(90 * time.Second)
		err = errors.New("503")
		time.Sleep(10 * time.Minute)
		w.expect(t, "when it is old", 7, 3, "s3://data/a")
		time.Sleep(90 * time.Second)
		w.expect(t, "after one more failure", 7, 3, "s3://data/a")
		if w.woken.Load() != 1 {
			t.Errorf("woken %d times, want once", w.woken.Load())
		}
		time.Sleep(time.Hour)
	})
}

// Many inputs are listed few at a time, and what nobody asks for is forgotten.
func TestScalesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeighing(func() (int64, error) { return 1, nil })
		for range 40 {
			for i := range 20 {
				w.weigh("s3://data/" + string(rune('a'+i)))
			}
			synctest.Wait()
			time.Sleep(10 * time.Second)
		}
		if w.asked.Load() != 20 || w.most.Load() != atOnce {
			t.Errorf("%d listings, %d at once, want 20 and %d", w.asked.Load(), w.most.Load(), atOnce)
		}
		time.Sleep(time.Hour)
		w.weigh("s3://data/other")
		if n := len(w.known); n != 1 {
			t.Errorf("%d are kept after an hour, want the one that is asked for", n)
		}
		time.Sleep(time.Hour)
	})
}

// Gangs get the weight of what they read, from their own tenant's scales.
func TestGangsAreWeighed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWeighing(func() (int64, error) { return 5, nil })
		o := &Observer{Scales: &w.Scales}
		tenant := v1alpha1.BurstTenant{}
		tenant.Name, tenant.Spec.Namespaces = "vision", []string{"vision"}
		s := plan.State{Tenants: []v1alpha1.BurstTenant{tenant}, Gangs: []plan.Gang{
			{Owner: plan.Owner{Namespace: "vision"}, Inputs: []string{"s3://data/a"}},
			{Owner: plan.Owner{Namespace: "vision"}},
			{Owner: plan.Owner{Namespace: "nobodys"}, Inputs: []string{"s3://data/a"}},
		}}
		o.weigh(t.Context(), &s)
		time.Sleep(2 * time.Minute)
		o.weigh(t.Context(), &s)
		if n := s.Gangs[0].InputBytes; n == nil || *n != 5 {
			t.Errorf("the gang with inputs has %v bytes, want 5", n)
		}
		if s.Gangs[1].InputBytes != nil || s.Gangs[2].InputBytes != nil || w.asked.Load() != 1 {
			t.Errorf("%v and %v bytes after %d listings, want none after one", s.Gangs[1].InputBytes, s.Gangs[2].InputBytes, w.asked.Load())
		}
	})
}
