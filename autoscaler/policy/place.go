package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// HostsNodes is the condition of a BurstProvider that says, when False, that
// its machines can't become nodes of this cluster.
const HostsNodes = "HostsNodes"

// cloudAct is the one law whose reach follows from a seat: where the facts name
// a seat in the United States and not this law, they contradict each other.
const cloudAct = "us-cloud-act"

// rule returns the tenant's rule for the class of the trip.
func (t Trip) rule() (v1alpha1.DataRule, bool) { return ruleFor(t.Tenant, t.Class) }

func ruleFor(t v1alpha1.BurstTenant, c Class) (v1alpha1.DataRule, bool) {
	for _, r := range t.Spec.Burst.DataRules {
		if c != "" && Class(r.Class) == c {
			return r, true
		}
	}
	return v1alpha1.DataRule{}, false
}

// FreshnessOf is how often burst nodes have to ask the source store about data
// of a class; nil means each time.
func FreshnessOf(t *v1alpha1.BurstTenant, c Class) *v1alpha1.Freshness {
	rule, _ := ruleFor(*t, c)
	return rule.Freshness.DeepCopy()
}

func providerKnown(t Trip) []Refusal {
	switch {
	case t.Provider == nil:
		return refuse(ProviderUnknown, fmt.Sprintf("there is no BurstProvider %q", t.Offer.Provider), "create it, with its legal facts")
	case !t.Provider.DeletionTimestamp.IsZero():
		return refuse(ProviderLeaving, fmt.Sprintf("BurstProvider %q is being removed", t.Offer.Provider), "connect another provider, or create it again once it is gone")
	}
	return nil
}

func providerAllowed(t Trip) []Refusal {
	rule, ok := t.rule()
	if !ok || len(rule.Providers) == 0 || slices.Contains(rule.Providers, t.Offer.Provider) {
		return nil
	}
	return refuse(ProviderNotAllowed,
		fmt.Sprintf("tenant %s allows %s data at %s only", t.Tenant.Name, t.Class, list(rule.Providers)),
		"add the provider to the tenant's data rule")
}

func classMayLeave(t Trip) []Refusal {
	if _, known := t.Class.level(); !known {
		return refuse(DataClassUnknown, fmt.Sprintf("data class %q is not known", t.Class), "classify the work")
	}
	if _, ok := t.rule(); ok {
		return nil
	}
	return refuse(DataClassForbidsCloud,
		fmt.Sprintf("tenant %s has no rule for %s data, so it never leaves the house", t.Tenant.Name, t.Class),
		"add a data rule for the class to the tenant, or run on-prem")
}

func country(t Trip) []Refusal {
	rule, ok := t.rule()
	if !ok || t.Provider == nil {
		return nil // refused by other rules
	}
	offered, stated := t.Offer.Country, t.Provider.Spec.Country
	switch {
	case offered == "" && stated == "":
		return refuse(JurisdictionFacts, "nobody says in which country the machine stands", "state the provider's country")
	case offered == "":
		offered = stated
	case stated != "" && stated != offered:
		return refuse(JurisdictionFacts, fmt.Sprintf("the cloud says that the machine stands in %s, the BurstProvider says %s", offered, stated),
			"correct the provider's country")
	}
	if slices.Contains(rule.Countries, offered) {
		return nil
	}
	return refuse(RegionExcluded, fmt.Sprintf("the machine stands in %s; tenant %s allows %s data in %s", offered, t.Tenant.Name, t.Class, list(rule.Countries)),
		"add the country to the tenant's data rule, or connect a provider in an allowed one")
}

// law looks at the laws that the tenant forbids. Of data that is not public, the
// provider's legal facts have to be stated and proven even where none is: who
// forbids no law has still to know which ones reach the data.
func law(t Trip) []Refusal {
	rule, ok := t.rule()
	if !ok || t.Provider == nil || t.Class == Public && len(rule.ForbiddenLaws) == 0 {
		return nil
	}
	legal := t.Provider.Spec.Legal
	for _, forbidden := range slices.Sorted(slices.Values(rule.ForbiddenLaws)) {
		if slices.Contains(legal.SubjectTo, forbidden) {
			return refuse(JurisdictionLaw,
				fmt.Sprintf("%s (owner %s, %s) is subject to %s, which tenant %s forbids for %s data", t.Provider.Name, legal.Owner, legal.OwnerCountry, forbidden, t.Tenant.Name, t.Class),
				"connect a provider that is not subject to it")
		}
	}
	missing := "add evidence to the provider's legal facts: a link, a review date and an expiry date"
	if why := misstated(legal); why != "" {
		return refuse(JurisdictionFacts, fmt.Sprintf("%s %s", t.Provider.Name, why), "state the provider's seat, its owner, and the laws that it is subject to")
	}
	if legal.Evidence == nil {
		return refuse(JurisdictionFacts, fmt.Sprintf("the legal facts of %s have no evidence", t.Provider.Name), missing)
	}
	if why := unproven(*legal.Evidence, t.Now, t.Until); why != "" {
		return refuse(JurisdictionFacts, fmt.Sprintf("the evidence for the legal facts of %s %s", t.Provider.Name, why), missing)
	}
	return nil
}

// misstated says where legal facts are not whole or can't all be true, or nothing.
func misstated(legal v1alpha1.LegalFacts) string {
	switch {
	case legal.Seat == "" || legal.Owner == "" || legal.OwnerCountry == "":
		return "does not state its legal seat, owner and owner's country"
	case (legal.Seat == "US" || legal.OwnerCountry == "US") && !slices.Contains(legal.SubjectTo, cloudAct):
		return fmt.Sprintf("is seated in %s, its owner in %s, and still its facts do not name %s", legal.Seat, legal.OwnerCountry, cloudAct)
	}
	return ""
}

func certifications(t Trip) []Refusal {
	rule, ok := t.rule()
	if !ok || t.Provider == nil {
		return nil
	}
	var all []Refusal
	for _, name := range slices.Sorted(slices.Values(rule.RequiredCertifications)) {
		at := slices.IndexFunc(t.Provider.Spec.Certifications, func(c v1alpha1.Certification) bool { return c.Name == name })
		if at < 0 {
			all = append(all, refuse(CertificationMissing, fmt.Sprintf("%s has no %s, which tenant %s requires for %s data", t.Provider.Name, name, t.Tenant.Name, t.Class),
				"enter the certificate, or connect a provider that has it")...)
			continue
		}
		if why := unproven(t.Provider.Spec.Certifications[at].Evidence, t.Now, t.Until); why != "" {
			all = append(all, refuse(CertificationExpired, fmt.Sprintf("the %s of %s %s", name, t.Provider.Name, why), "enter the renewed certificate")...)
		}
	}
	return all
}

// agreement asks for a processing agreement (GDPR Art. 28) for all data that
// is not public: nobody can say of the rest that it holds nothing personal.
func agreement(t Trip) []Refusal {
	if t.Class == Public || t.Provider == nil {
		return nil
	}
	dpa := t.Provider.Spec.ProcessingAgreement
	if dpa == nil {
		return refuse(AgreementMissing, fmt.Sprintf("there is no processing agreement with %s, which %s data needs", t.Provider.Name, t.Class),
			"sign one and enter it in the BurstProvider")
	}
	if why := unproven(*dpa, t.Now, t.Until); why != "" {
		return refuse(AgreementExpired, fmt.Sprintf("the processing agreement with %s %s", t.Provider.Name, why), "renew it and enter the new date")
	}
	return nil
}

// unproven says why evidence does not carry a burst from now on until its end,
// or nothing.
func unproven(e v1alpha1.Evidence, now, until time.Time) string {
	switch {
	case e.Link == "":
		return "has no link"
	case e.Reviewed.IsZero() || e.Reviewed.Time.After(now):
		return "was not reviewed yet"
	case e.Expires.IsZero():
		return "has no expiry date"
	case !e.Expires.Time.After(now):
		return "expired on " + day(e.Expires.Time)
	case e.Expires.Time.Before(until):
		return "expires on " + day(e.Expires.Time) + ", before the burst would end"
	}
	return ""
}

func available(t Trip) []Refusal {
	if t.Provider == nil {
		return nil
	}
	if until := t.Provider.Status.UnavailableUntil; until != nil && until.Time.After(t.Now) {
		return []Refusal{{
			Code: ProviderUnavailable, Until: until.Time,
			Message: fmt.Sprintf("%s is unavailable until %s: %s", t.Provider.Name, minute(until.Time), or(t.Provider.Status.UnavailableReason, "no reason was recorded")),
			Remedy:  "wait, or follow the runbook for a failed provider",
		}}
	}
	if meta.IsStatusConditionFalse(t.Provider.Status.Conditions, v1alpha1.ProviderHealthy) {
		return refuse(ProviderUnavailable, fmt.Sprintf("%s is not healthy: %s", t.Provider.Name, condition(t, v1alpha1.ProviderHealthy)), "follow the runbook for a failed provider")
	}
	return nil
}

func canHostNodes(t Trip) []Refusal {
	if t.Provider == nil || !meta.IsStatusConditionFalse(t.Provider.Status.Conditions, HostsNodes) {
		return nil
	}
	return refuse(ProviderNoNodes, fmt.Sprintf("machines of %s can't join as nodes: %s", t.Provider.Name, condition(t, HostsNodes)), "use a provider whose machines can join")
}

func priceKnown(t Trip) []Refusal {
	if t.Offer.Price.NanoPerHour > 0 && t.Offer.Price.Currency.Valid() {
		return nil
	}
	return refuse(PriceUnknown, "the price is not known; zero is never taken for free", "state a price for the instance type in the BurstProvider")
}

func condition(t Trip, name string) string {
	c := meta.FindStatusCondition(t.Provider.Status.Conditions, name)
	return or(c.Message, c.Reason)
}

func list(names []string) string {
	if len(names) == 0 {
		return "no place at all"
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func day(t time.Time) string    { return t.UTC().Format(time.DateOnly) }
func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }
