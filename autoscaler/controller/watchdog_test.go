package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
)

// cases: H-21 kubernetes-sigs/kueue#14811: a watchdog lists reservations
// without a live Burst.
func TestReservationsWithoutABurstAreNamed(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	account := func(burst string, state quota.State, age time.Duration) quota.Account {
		return quota.Account{Reservation: quota.Reservation{Burst: burst}, State: state, ChangedAt: now.Add(-age)}
	}
	accounts := []quota.Account{
		account("z-lost", quota.Reserved, time.Hour), account("a-lost", quota.Reserved, time.Hour), account("young", quota.Reserved, time.Minute),
		account("settled", quota.Settled, time.Hour), account("live", quota.Reserved, time.Hour),
	}
	bursts := []v1alpha1.Burst{{ObjectMeta: metav1.ObjectMeta{UID: types.UID("live")}}}
	if diff := cmp.Diff([]string{"a-lost", "z-lost"}, unowned(accounts, bursts, now)); diff != "" {
		t.Errorf("unowned (-want +got):\n%s", diff)
	}
}

// TestBurstsAreKeptForAWhile, and those that still owe something for ever.
func TestBurstsAreKeptForAWhile(t *testing.T) {
	now, keep := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), 24*time.Hour
	burst := func(name, fact string, age time.Duration, finalizers ...string) v1alpha1.Burst {
		b := v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: finalizers}}
		b.Status.Conditions = []metav1.Condition{{Type: fact, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(-age))}}
		return b
	}
	var got []string
	for _, b := range outlived([]v1alpha1.Burst{
		burst("old", v1alpha1.Complete, 2*keep), burst("old failure", v1alpha1.Failed, 2*keep), burst("young", v1alpha1.Complete, keep/2),
		burst("open", v1alpha1.Settled, 2*keep), burst("held", v1alpha1.Complete, 2*keep, v1alpha1.BurstFinalizer),
		{},
	}, now, keep) {
		got = append(got, b.Name)
	}
	if diff := cmp.Diff([]string{"old", "old failure"}, got); diff != "" {
		t.Errorf("outlived (-want +got):\n%s", diff)
	}
}
