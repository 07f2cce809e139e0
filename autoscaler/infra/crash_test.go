package infra_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers/fake"
	"spillway.dev/spillway/quota"
)

// TestCrashAfterEveryAct kills the controller right after each of its outside
// acts, in one life after the other, and restarts it in a new epoch: in the end
// the cloud has made one machine and bills none.
//
// cases: H-1 kubernetes-sigs/karpenter#1448, F16 karpenter-provider-hetzner PR#53
func TestCrashAfterEveryAct(t *testing.T) {
	clouds := map[string]fake.Timing{
		"a quick cloud":           {BootTakes: 5 * time.Second, DeleteTakes: 8 * time.Second},
		"a cloud whose list lags": {BootTakes: 5 * time.Second, DeleteTakes: 8 * time.Second, ListLag: 50 * time.Second},
	}
	for cloudName, timing := range clouds {
		for _, act := range []string{infra.ActPermit, infra.ActCreate, infra.ActExtend, infra.ActDelete, infra.ActGone} {
			for _, times := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s, killed %d times after %s", cloudName, times, act), func(t *testing.T) {
					b := newBench(t)
					b.cloud.Tune(timing)
					kills := &killer{bench: b, act: act, left: times}
					kills.live(4 * time.Minute)
					b.wantReason(infra.Ready, "True Running")
					b.wantMade(1, 1)
					kills.renew()
					kills.live(2 * time.Minute)
					b.release()
					b.remove()
					kills.live(5 * time.Minute)
					b.wantMade(1, 0)
					if sm := b.get(); sm.Status.GoneAt == nil {
						t.Error("no time of the end is recorded")
					}
					if kills.left == times {
						t.Error("the controller was never killed: the act never came")
					}
				})
			}
		}
	}
}

// killer ends the controller after an act.
type killer struct {
	*bench
	act  string
	left int
}

// live runs the controller for so much virtual time, with its deaths.
func (k *killer) live(d time.Duration) {
	k.t.Helper()
	for end := k.clock.Now().Add(d); k.clock.Now().Before(end); {
		ctx, kill := context.WithCancel(k.t.Context())
		k.rec.Hook = func(_ context.Context, act string) {
			if act == k.act && k.left > 0 {
				k.left--
				kill()
			}
		}
		res, err := k.reconcile(ctx)
		if ctx.Err() != nil {
			if id := k.get().Status.InstanceID; k.act == infra.ActCreate && id != "" {
				k.t.Fatalf("killed right after the create, and instance %s is recorded", id)
			}
			k.restart()
		} else if err != nil {
			k.t.Fatalf("Reconcile: %v", err)
		}
		kill()
		k.clock.step(max(res.RequeueAfter, time.Second))
	}
}

// renew moves the wanted stamp.
func (k *killer) renew() {
	k.t.Helper()
	change(k.bench, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) {
		sm.Spec.Expires = metav1.NewTime(sm.Spec.Expires.Add(30 * time.Minute))
	})
}

// TestTwoControllersBuyOneMachine lets a second leader start while the first
// one stands between its permit and its create, and go on until it is done.
func TestTwoControllersBuyOneMachine(t *testing.T) {
	b := newBench(t)
	first := b.rec
	first.Hook = func(_ context.Context, act string) {
		if act != infra.ActPermit {
			return
		}
		first.Hook = nil
		b.restart() // the second leader, in a new epoch
		for range 10 {
			b.once()
			b.clock.step(time.Second)
		}
	}
	second := func() *infra.Reconciler { return b.rec }
	if _, err := first.Reconcile(t.Context(), request()); err != nil {
		t.Logf("the first leader: %v", err)
	}
	if second() == first {
		t.Fatal("the second leader never started")
	}
	b.run(3 * time.Minute)
	b.wantMade(1, 1)
	b.wantReason(infra.Ready, "True Running")
}

// A leader that has lost its epoch is refused by the ledger and buys nothing.
func TestStaleLeaderBuysNothing(t *testing.T) {
	b := newBench(t)
	stale := b.rec
	b.permits.epoch++
	for range 5 {
		if _, err := stale.Reconcile(t.Context(), request()); !errors.Is(err, quota.ErrStaleEpoch) {
			t.Fatalf("Reconcile = %v, want a stale epoch", err)
		}
	}
	b.wantMade(0, 0)
	b.restart()
	b.run(30 * time.Second)
	b.wantMade(1, 1)
}

// overtaken is a reader during whose first read somebody else acts.
type overtaken struct {
	client.Reader
	by func()
}

func (o *overtaken) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	err := o.Reader.Get(ctx, key, obj, opts...)
	if by := o.by; by != nil {
		o.by = nil
		by()
	}
	return err
}

// A controller that has read before another one bought does not write over
// what that one has recorded, even where the list lags and no epoch divides
// them.
func TestOldNewsBuysNothing(t *testing.T) {
	b := newBench(t)
	b.cloud.Tune(fake.Timing{ListLag: 50 * time.Second})
	slow := &infra.Reconciler{
		Client: b.client, Permits: b.rec.Permits, Drivers: b.rec.Drivers, Now: b.clock.Now, Log: b.rec.Log,
		Reader: &overtaken{Reader: b.client, by: func() { b.once() }},
	}
	if _, err := slow.Reconcile(t.Context(), request()); !apierrors.IsConflict(err) {
		t.Errorf("Reconcile = %v, want a conflict", err)
	}
	b.wantReason(infra.Purchased, "True Bought")
	b.wantMade(1, 1)
}
