package stories

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
)

// BenchmarkToMachine is the time from a pod that the scheduler finds
// unschedulable to the Machine object for it, on the real control plane, beyond
// the debounce (burstAfter is a millisecond here): observing, deciding, the
// reservation in the ledger, the Burst, and Cluster API's objects. The median
// of seven Jobs, one after the other.
func BenchmarkToMachine(b *testing.B) {
	var debounce time.Duration
	s := openStage(b, func(c *controller.Config) { debounce = c.Planning.Debounce })
	c := s.start("bench", nil)
	defer c.stop()
	var took []time.Duration
	for b.Loop() {
		for _, job := range []string{"a", "b", "c", "d", "e", "f", "g"} {
			took = append(took, s.toMachine(job)-debounce)
		}
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds(), "s-median")
}

func (s *stage) toMachine(job string) time.Duration {
	s.t.Helper()
	s.submit(job, 1)
	var refused time.Time
	for machine := false; !machine; time.Sleep(10 * time.Millisecond) {
		switch {
		case refused.IsZero() && s.unschedulable(job):
			refused = time.Now()
		case !refused.IsZero():
			machine = s.machine(job)
		}
		if !refused.IsZero() && time.Since(refused) > patience {
			s.t.Fatalf("no Machine for Job %s", job)
		}
	}
	took := time.Since(refused)
	if err := s.Client.Delete(s.t.Context(), s.job(job), client.PropagationPolicy("Background")); err != nil {
		s.t.Fatal(err)
	}
	s.until(patience, "the burst of a deleted Job to end", func() bool {
		of := s.bursts(job)
		return len(of) == 1 && (has(of[0], v1alpha1.Complete) || has(of[0], v1alpha1.Failed))
	})
	return took
}

func (s *stage) job(name string) *batchv1.Job {
	s.t.Helper()
	j := &batchv1.Job{}
	if err := s.Client.Get(s.t.Context(), types.NamespacedName{Namespace: tenantNS, Name: name}, j); err != nil {
		s.t.Fatal(err)
	}
	return j
}

func (s *stage) unschedulable(job string) bool {
	s.t.Helper()
	pods := &corev1.PodList{}
	if err := s.Client.List(s.t.Context(), pods, client.InNamespace(tenantNS), client.MatchingLabels{batchv1.JobNameLabel: job}); err != nil {
		s.t.Fatal(err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable })
	})
}

func (s *stage) machine(job string) bool {
	s.t.Helper()
	machines := &clusterv1.MachineList{}
	if err := s.Client.List(s.t.Context(), machines, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
		s.t.Fatal(err)
	}
	of := s.bursts(job)
	return slices.ContainsFunc(machines.Items, func(m clusterv1.Machine) bool {
		return slices.ContainsFunc(of, func(b v1alpha1.Burst) bool { return m.Labels[v1alpha1.BurstLabel] == string(b.UID) })
	})
}
