package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// Paper is one statement about a provider that the chain [Going] may ask for,
// with what proves it.
type Paper struct {
	Provider string `json:"provider"`
	// Kind is legal facts, certification or processing agreement.
	Kind     string    `json:"kind"`
	Says     string    `json:"says"`
	Link     string    `json:"link,omitempty"`
	Reviewed time.Time `json:"reviewed,omitzero"`
	Expires  time.Time `json:"expires,omitzero"`
	// Flaw is why the statement does not count now, in the words of a refusal;
	// empty when it does.
	Flaw string `json:"flaw,omitempty"`
}

// Audit returns the papers of providers, by name of the provider, as they count
// at one moment. It asks what the rules ask, so a paper without a flaw carries a
// burst that would end at that moment; one that ends later may need more.
func Audit(clouds []v1alpha1.BurstProvider, now time.Time) []Paper {
	all := []Paper{}
	byName := func(a, b v1alpha1.BurstProvider) int { return cmp.Compare(a.Name, b.Name) }
	for _, p := range slices.SortedFunc(slices.Values(clouds), byName) {
		legal := paper(p.Name, "legal facts", legalWords(p.Spec), p.Spec.Legal.Evidence, now)
		legal.Flaw = or(misstated(p.Spec.Legal), legal.Flaw)
		all = append(all, legal)
		byTitle := func(a, b v1alpha1.Certification) int { return cmp.Compare(a.Name, b.Name) }
		for _, c := range slices.SortedFunc(slices.Values(p.Spec.Certifications), byTitle) {
			all = append(all, paper(p.Name, "certification", c.Name, &c.Evidence, now))
		}
		all = append(all, paper(p.Name, "processing agreement", "GDPR Art. 28", p.Spec.ProcessingAgreement, now))
	}
	return all
}

func paper(provider, kind, says string, e *v1alpha1.Evidence, now time.Time) Paper {
	if e == nil {
		return Paper{Provider: provider, Kind: kind, Says: says, Flaw: "has no evidence"}
	}
	return Paper{
		Provider: provider, Kind: kind, Says: says, Link: e.Link,
		Reviewed: e.Reviewed.Time, Expires: e.Expires.Time, Flaw: unproven(*e, now, now),
	}
}

// legalWords says where the machines stand and whose law reaches them.
func legalWords(p v1alpha1.BurstProviderSpec) string {
	laws := "no law named"
	if len(p.Legal.SubjectTo) > 0 {
		laws = "subject to " + strings.Join(slices.Sorted(slices.Values(p.Legal.SubjectTo)), ", ")
	}
	return fmt.Sprintf("machines in %s, seat %s, owner %s (%s), %s", p.Country, p.Legal.Seat, p.Legal.Owner, p.Legal.OwnerCountry, laws)
}
