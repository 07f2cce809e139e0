package stories

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// forever is a training that no story sees the end of.
const forever = 100000

// deletion: whatever a person deletes in the middle, the machine ends, the disk
// is wiped, and the money is settled, before the Burst goes. The last one takes
// the tenant's namespace with it.
// cases: B-4 cluster-api#7237, F4 skypilot#1496, F19 aws/karpenter#2832, H-21 kubernetes-sigs/kueue#14811.
func (s *stage) deletion(t *testing.T) {
	s.forgive()
	t.Run("the Job, while its machine comes", func(t *testing.T) {
		s := s.on(t)
		s.submit("dropped", 1)
		uid := s.burstWith("dropped", v1alpha1.MachineBought)
		s.remove(&batchv1.Job{ObjectMeta: named("dropped")})
		s.accounted(uid)
		s.until(patience, "the Burst to say that it has failed", func() bool { return has(s.bursts("dropped")[0], v1alpha1.Failed) })
		if b := s.bursts("dropped")[0]; has(b, v1alpha1.PodsAdmitted) {
			t.Errorf("facts of the burst: %+v, want an end before any pod was let in", b.Status.Conditions)
		}
	})
	t.Run("the Job, while it runs", func(t *testing.T) {
		s := s.on(t)
		s.submit("cancelled", forever)
		uid := s.burstWith("cancelled", v1alpha1.PodsAdmitted)
		s.until(patience, "the Job to run", func() bool { return s.running("cancelled") })
		s.remove(&batchv1.Job{ObjectMeta: named("cancelled")})
		s.accounted(uid)
	})
	t.Run("the Burst, while its Job runs: the Job finishes all the same", func(t *testing.T) {
		s := s.on(t)
		s.submit("robbed", 3)
		uid := s.burstWith("robbed", v1alpha1.PodsAdmitted)
		s.remove(&s.bursts("robbed")[0])
		s.accounted(uid)
		s.until(patience, "the Burst to go once it is settled", func() bool { return !s.exists(uid) })
		s.until(patience, "the Job to finish on another machine, if it was not quicker than the end of this one", func() bool {
			return s.job("robbed").Status.Succeeded > 0 && (len(s.bursts("robbed")) == 0 || s.finished("robbed"))
		})
	})
	t.Run("the Node, while its Job runs: the machine does not live on", func(t *testing.T) {
		s := s.on(t)
		s.submit("unhoused", forever)
		uid := s.burstWith("unhoused", v1alpha1.PodsAdmitted)
		s.until(patience, "the Job to run", func() bool { return s.running("unhoused") })
		s.remove(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.bursts("unhoused")[0].Status.Machines[0].Name}})
		s.accounted(uid)
		s.remove(&batchv1.Job{ObjectMeta: named("unhoused")})
		for _, b := range s.bursts("unhoused") {
			s.accounted(b.UID)
		}
	})
	t.Run("the namespace, with all that is in it", func(t *testing.T) {
		s := s.on(t)
		s.submit("evicted", forever)
		uid := s.burstWith("evicted", v1alpha1.PodsAdmitted)
		s.until(patience, "the Job to run", func() bool { return s.running("evicted") })
		s.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenantNS}})
		s.accounted(uid)
		s.until(patience, "the namespace to go", func() bool {
			err := s.Client.Get(t.Context(), client.ObjectKey{Name: tenantNS}, &corev1.Namespace{})
			return apierrors.IsNotFound(err)
		})
	})
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: tenantNS, Name: name}
}

// remove deletes an object as kubectl does.
func (s *stage) remove(o client.Object) {
	s.t.Helper()
	if err := s.Client.Delete(s.t.Context(), o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		s.t.Fatal(err)
	}
}

// burstWith waits until a Job's newest burst has a fact, and returns its UID.
func (s *stage) burstWith(job, fact string) types.UID {
	s.t.Helper()
	var uid types.UID
	s.until(patience, "fact "+fact+" of Job "+job, func() bool {
		for _, b := range s.bursts(job) {
			if has(b, fact) && !has(b, v1alpha1.Ending) {
				uid = b.UID
			}
		}
		return uid != ""
	})
	return uid
}

// exists reports whether a Burst is still an object of the cluster.
func (s *stage) exists(uid types.UID) bool {
	s.t.Helper()
	list := &v1alpha1.BurstList{}
	if err := s.Client.List(s.t.Context(), list); err != nil {
		s.t.Fatal(err)
	}
	for _, b := range list.Items {
		if b.UID == uid {
			return true
		}
	}
	return false
}

// accounted waits until a burst is at its end, and looks at the disks.
func (s *stage) accounted(uid types.UID) {
	s.t.Helper()
	s.gone(uid)
	for _, m := range s.Bought() {
		if m.Burst == string(uid) && s.Machine(m.ID) != nil {
			s.wiped(m)
		}
	}
}

// gone waits until a burst is at its end by the outside's word: nothing is
// billed for it, its money is settled, its certificate is written.
func (s *stage) gone(uid types.UID) {
	s.t.Helper()
	s.until(patience, "burst "+string(uid)+" to be gone at the cloud, certified and settled", func() bool {
		for _, m := range s.Billing() {
			if m.Burst == string(uid) {
				return false
			}
		}
		_, err := os.Stat(filepath.Join(s.DataDir(), "records", string(uid), "certificate.json"))
		return err == nil && !s.account(uid).SettledAt.IsZero()
	})
}

// account reads one burst's account from the ledger file.
func (s *stage) account(uid types.UID) quota.Account {
	s.t.Helper()
	ctx := context.Background()
	l, err := ledger.Open(ctx, filepath.Join(s.DataDir(), "ledger.db"), ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a, err := l.Account(ctx, string(uid))
	if err != nil && !errors.Is(err, quota.ErrUnknownBurst) {
		s.t.Fatal(err)
	}
	return a
}
