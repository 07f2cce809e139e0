package lifecycle

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// TestABurstTakesItsTenSteps is the control of the tests beside it: without a
// fault the burst completes, its one machine is paid for and gone.
func TestABurstTakesItsTenSteps(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.PodsAdmitted)
	b.place("pod-0", 0, corev1.PodRunning)
	b.now = b.now.Add(time.Minute)
	b.place("pod-0", 0, corev1.PodSucceeded)
	b.live(v1alpha1.Complete)
	if !b.books.settled || b.books.settlement.Seconds == 0 || b.yard.views[0].Gone.IsZero() || !b.vault.erased {
		t.Errorf("books %+v, machines %+v, vault %+v", b.books, b.yard.views, b.vault)
	}
	if got := b.fact(v1alpha1.Wiped); !strings.Contains(got, "complete proof") {
		t.Errorf("Wiped = %s, %s, %v", got, b.fact(v1alpha1.WipeUnproven), b.facts())
	}
	if b.vault.collected == 0 {
		t.Error("nobody collected the results")
	}
}
