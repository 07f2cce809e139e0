package stories

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers/fake"
)

// gang: pods that must start together get their machines together, or none at
// all: what was bought of a gang that can't be whole is given back.
// cases: F4 kubernetes/autoscaler#8783, F5 skypilot#509, skypilot PR#661.
func (s *stage) gang(t *testing.T) {
	t.Run("two members on two machines of one burst", func(t *testing.T) {
		s := s.on(t)
		s.submit("whole", 1, gangOf(2))
		s.until(patience, "both members to finish", func() bool { return s.succeeded("whole", 2) && s.finished("whole") })
		bursts := s.bursts("whole")
		if len(bursts) != 1 || bursts[0].Spec.Machines != 2 || !bursts[0].Spec.Gang.Together {
			t.Fatalf("%+v, want one burst of two machines for a gang", bursts)
		}
		nodes := map[string]bool{}
		for _, p := range bursts[0].Status.Placed {
			nodes[p.Node] = true
			if p.Logs == "" {
				t.Errorf("the logs of %s did not come home", p.Name)
			}
		}
		if len(nodes) != 2 {
			t.Errorf("the members ran on %v, want each on a machine of its own", nodes)
		}
		if got := s.count("whole"); got.machines != 2 || got.billing != 0 || got.charges != 1 || got.certificates != 1 || got.result == "" {
			t.Errorf("%+v, want two machines, none left, one charge, one certificate and the result", got)
		}
	})

	t.Run("one of two is sold out: the other is given back, and another cloud takes both", func(t *testing.T) {
		s := s.on(t)
		s.forgive()
		s.Clouds["rhein"].Script(fake.Fault{Op: "create", Effect: fake.Slow}, fake.Fault{Op: "create", Effect: fake.SoldOut})
		s.submit("parted", 1, gangOf(2))
		s.until(patience, "both members to finish elsewhere", func() bool { return s.succeeded("parted", 2) && s.finished("parted") })
		bursts := s.bursts("parted")
		if len(bursts) != 2 {
			t.Fatalf("%d bursts, want one that could not be whole and one that ran", len(bursts))
		}
		for _, b := range bursts {
			switch b.Spec.Offer.Provider {
			case "rhein":
				if len(b.Status.Placed) > 0 || b.Status.Cost.Spent != "0.00 EUR" {
					t.Errorf("the parted burst placed %v and cost %s, want nothing", b.Status.Placed, b.Status.Cost.Spent)
				}
			case "seine":
				if len(b.Status.Placed) != 2 {
					t.Errorf("%d members ran at the second cloud, want 2", len(b.Status.Placed))
				}
			}
		}
		if got := s.count("parted"); got.billing != 0 || got.charges != 1 || got.certificates != 2 || got.result == "" {
			t.Errorf("%+v, want nothing left, one charge, a certificate each and the result", got)
		}
	})
}

// gangOf makes a Job of n pods that start together.
func gangOf(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Annotations = map[string]string{v1alpha1.GangAnnotation: "true"}
		j.Spec.Parallelism, j.Spec.Completions = &n, &n
	}
}

// succeeded reports whether n pods of a Job have succeeded.
func (s *stage) succeeded(job string, n int32) bool {
	s.t.Helper()
	j := &batchv1.Job{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: tenantNS, Name: job}, j); err != nil {
		s.t.Fatal(err)
	}
	return j.Status.Succeeded == n
}
