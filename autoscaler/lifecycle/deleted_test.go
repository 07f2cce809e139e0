package lifecycle

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// TestDeletedAtAnyMoment deletes the Burst, its pods, or both as with their
// namespace, right behind every fact, and lets another controller go on. In the
// end nothing is left: no machine, no open money, no key, no Burst.
//
// cases: H-21 kubernetes-sigs/kueue#14811, H-27 kubernetes-sigs/karpenter#3176
// (created and deleted at once), B-2 kubernetes-sigs/cluster-api#3872
func TestDeletedAtAnyMoment(t *testing.T) {
	facts := []string{
		"", v1alpha1.Reserved, v1alpha1.StagingStarted, v1alpha1.MachineRequested, v1alpha1.MachineBought, v1alpha1.NodeJoined,
		v1alpha1.KeyReleased, v1alpha1.PodsAdmitted, v1alpha1.WorkDone, v1alpha1.ResultsHome, v1alpha1.Wiped, v1alpha1.KeyDestroyed, v1alpha1.MachineGone,
	}
	for _, what := range []string{"the Burst", "the pods", "the namespace"} {
		for _, fact := range facts {
			t.Run(what+" behind "+fact, func(t *testing.T) {
				b := newBench(t, 1, 2)
				b.vault.unstaged = fact == v1alpha1.StagingStarted
				b.serve()
				b.stopAt(fact)
				running := len(b.burst().Status.Placed) > 0
				if what != "the Burst" {
					b.deletePods()
				}
				if what != "the pods" {
					b.delete()
				}
				b.restart()
				var end string
				b.r.Noted = func(fact, _ string) { end = fact }
				b.vault.unstaged = false
				deleted := b.now
				b.untilOver()
				if took := b.now.Sub(deleted); took > 5*time.Minute {
					t.Errorf("it took %s", took)
				}
				b.wantNothingLeft(running)
				if done := slices.Contains(facts[8:], fact); done && end != v1alpha1.Complete {
					t.Errorf("the work had succeeded before, and the burst ended as %s", end)
				}
			})
		}
	}
}

// stopAt lets the controller be killed right behind the record of a fact.
func (b *bench) stopAt(fact string) {
	b.t.Helper()
	if fact == "" {
		return
	}
	killed, kill := context.WithCancel(b.t.Context())
	defer kill()
	b.r.Noted = func(f, _ string) {
		if f == fact {
			kill()
		}
	}
	b.r.Client = mortal{b.client, killed}
	b.r.Reader = b.r.Client
	b.live(fact)
}

// mortal is the API server as a controller reaches it that can be killed.
type mortal struct {
	client.Client
	killed context.Context
}

func (m mortal) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := m.killed.Err(); err != nil {
		return err
	}
	return m.Client.Get(ctx, key, o, opts...)
}

func (m mortal) Status() client.SubResourceWriter {
	if m.killed.Err() != nil {
		return deaf{}
	}
	return m.Client.Status()
}

// deaf writes nothing.
type deaf struct{ client.SubResourceWriter }

func (deaf) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return context.Canceled
}

func (b *bench) deletePods() {
	b.t.Helper()
	b.timers = nil
	for _, ref := range b.burst().Spec.Gang.Pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: ref.Name}}
		if err := b.client.Delete(b.t.Context(), pod); err != nil {
			b.t.Fatal(err)
		}
	}
	b.work.logs = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "pod")
	b.work.onAdmit = nil
}

// untilOver lives until the Burst is gone or has said how it ended.
func (b *bench) untilOver() {
	b.t.Helper()
	for end := b.now.Add(6 * time.Hour); b.now.Before(end); b.step() {
		burst := &v1alpha1.Burst{}
		err := b.client.Get(b.t.Context(), types.NamespacedName{Namespace: team, Name: "b"}, burst)
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			b.t.Fatal(err)
		}
		if len(burst.Finalizers) == 0 {
			return
		}
	}
	b.t.Fatalf("6 hours went by; facts %v, last error %v", b.facts(), b.last)
}

func (b *bench) wantNothingLeft(collected bool) {
	b.t.Helper()
	for _, v := range b.yard.views {
		if v.Gone.IsZero() {
			b.t.Errorf("machine %s is left", v.Name)
		}
	}
	if b.books.reserved && !b.books.settled {
		b.t.Error("its money is not settled")
	}
	if b.books.reserved && !b.vault.erased {
		b.t.Error("its key is not destroyed")
	}
	if collected && b.vault.collected == 0 {
		b.t.Error("pods ran, and nobody looked for their results")
	}
}
