package stories

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers/fake"
)

// TestOneSite: what may happen to a site under the default settings, one after
// the other, as in one long day.
func TestOneSite(t *testing.T) {
	s := newStage(t, withEC2)
	c := s.start("day", nil)
	t.Run("failover", func(t *testing.T) { s.on(t).failover(t) })
	t.Run("gang", func(t *testing.T) { s.on(t).gang(t) })
	t.Run("ec2", func(t *testing.T) { s.on(t).ec2(t) })
	t.Run("deletion", func(t *testing.T) { s.on(t).deletion(t) })
	t.Run("market", func(t *testing.T) { s.on(t).market() })
	c.stop()
	t.Run("preflight", func(t *testing.T) { s.on(t).preflight(t) })
}

// market: a provider's status says what its cloud sells, and whether it takes
// the credentials.
func (s *stage) market() {
	healthy := func(status metav1.ConditionStatus, reason string) {
		s.t.Helper()
		s.until(patience, fmt.Sprintf("provider rhein to be healthy: %s, for %s", status, reason), func() bool {
			p := &v1alpha1.BurstProvider{}
			if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: "rhein"}, p); err != nil {
				s.t.Fatal(err)
			}
			c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ProviderHealthy)
			return c != nil && c.Status == status && c.Reason == reason && len(p.Status.Offers) == 1
		})
	}
	healthy(metav1.ConditionTrue, v1alpha1.ReasonOffersTold)
	s.Clouds["rhein"].Rotate("another secret")
	healthy(metav1.ConditionFalse, v1alpha1.ReasonUnauthorized)
	s.Clouds["rhein"].Rotate("secret")
	healthy(metav1.ConditionTrue, v1alpha1.ReasonOffersTold)
}

// failover: the market refuses in every way it can, and the next cycle moves on
// to the next offer. A refusal costs nothing, and nothing is left.
// cases: F41 ray#25525, H-5 stackit PR#96, H-10 LeanerCloud/AutoSpotting#147,
// D-1 cluster-api-provider-openstack#1404.
func (s *stage) failover(t *testing.T) {
	for job, tt := range map[string]struct {
		name   string
		effect fake.Effect
	}{
		"refused": {"sold out when asked", fake.SoldOut},
		"failed":  {"accepted, then no host", fake.SoldOutLater},
		"half":    {"refused, with a port and volume left", fake.HalfMade},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.on(t)
			s.forgive()
			s.Clouds["rhein"].Script(fake.Fault{Op: "create", Effect: tt.effect})
			s.submit(job, 1)
			s.until(patience, "the Job to finish at the other cloud", func() bool { return s.finished(job) })
			bursts := s.bursts(job)
			if len(bursts) != 2 {
				t.Fatalf("%d bursts, want one that was refused and one that ran", len(bursts))
			}
			spent := map[string]string{}
			for _, b := range bursts {
				spent[b.Spec.Offer.Provider] = string(b.Status.Cost.Spent)
				if f := b.Spec.Data.Freshness; f == nil || f.Mode != v1alpha1.FreshnessLease || f.Seconds != 30 {
					t.Errorf("freshness %+v, want that of the tenant's rule", f)
				}
			}
			if spent["rhein"] != "0.00 EUR" || spent["seine"] == "" || spent["seine"] == "0.00 EUR" {
				t.Errorf("the tenant paid %v: a refusal costs nothing", spent)
			}
			if got := s.count(job); got.billing != 0 || got.charges != 1 || got.result == "" {
				t.Errorf("%+v, want nothing left, one charge and the result", got)
			}
		})
	}
}

// forgive lets every provider's offers back into plans.
func (s *stage) forgive() {
	s.t.Helper()
	list := &v1alpha1.BurstProviderList{}
	if err := s.Client.List(s.t.Context(), list); err != nil {
		s.t.Fatal(err)
	}
	for i := range list.Items {
		p := &list.Items[i]
		p.Status.Unavailable = nil
		if err := s.Client.Status().Update(s.t.Context(), p); err != nil {
			s.t.Fatal(err)
		}
	}
}
