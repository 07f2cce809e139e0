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
