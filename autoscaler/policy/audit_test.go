package policy_test

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/policy"
)

// drawEvidence is evidence with any of its parts missing or out of date, or none.
func drawEvidence(t *rapid.T, name string) *v1alpha1.Evidence {
	if rapid.Bool().Draw(t, name+" is there") {
		dates := []metav1.Time{{}, day(1), day(2), day(30)}
		return &v1alpha1.Evidence{
			Link:     rapid.SampledFrom([]string{"https://example.org/paper", ""}).Draw(t, name+" link"),
			Reviewed: rapid.SampledFrom(dates).Draw(t, name+" reviewed"),
			Expires:  rapid.SampledFrom(dates).Draw(t, name+" expires"),
		}
	}
	return nil
}

// TestAuditSaysWhatTheRulesSay: what the audit finds no flaw in is what a trip
// that ends now is let through with, for every class, and nothing else.
func TestAuditSaysWhatTheRulesSay(t *testing.T) {
	rules := map[string]string{"legal facts": "law", "certification": "certifications", "processing agreement": "processing agreement"}
	rapid.Check(t, func(rt *rapid.T) {
		class := rapid.SampledFrom(policy.Classes()).Draw(rt, "class")
		forbidden := rapid.SampledFrom([][]string{nil, {"us-cloud-act"}}).Draw(rt, "forbidden")
		countries := rapid.SampledFrom([]string{"", "FR", "US"})
		facts := trip(rule(func(r *v1alpha1.DataRule) { r.Class, r.ForbiddenLaws = string(class), forbidden }), spec(func(p *v1alpha1.BurstProviderSpec) {
			p.Legal = v1alpha1.LegalFacts{Seat: countries.Draw(rt, "seat"), Owner: "OVH", OwnerCountry: countries.Draw(rt, "owner"), Evidence: drawEvidence(rt, "legal")}
			p.Certifications = nil
			if c5 := drawEvidence(rt, "C5"); c5 != nil {
				p.Certifications = []v1alpha1.Certification{{Name: "C5", Evidence: *c5}}
			}
			p.ProcessingAgreement = drawEvidence(rt, "agreement")
		}))
		facts.Class, facts.Until = class, facts.Now
		refusals := policy.Going().Evaluate(facts)
		for _, p := range policy.Audit([]v1alpha1.BurstProvider{*facts.Provider}, facts.Now) {
			needed := class != policy.Public || p.Kind == "certification" || p.Kind == "legal facts" && forbidden != nil
			refused := slices.ContainsFunc(refusals, func(r policy.Refusal) bool { return r.Rule == rules[p.Kind] })
			if want := needed && p.Flaw != ""; refused != want {
				rt.Errorf("%s: %s data refused: %v; the audit says %q", p.Kind, class, refused, p.Flaw)
			}
		}
	})
}
