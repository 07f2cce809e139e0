// Package policy answers whether work may leave the house, and whether it may
// go to one particular offer, and if not, why. It is asked before any price is
// looked at, and no price can change its answer.
//
// A rule is a pure function from facts to refusals; a chain is a list of rules.
// All rules of a chain are asked, so that a person sees every reason at once
// and not one after the other. There are two chains: [Leaving] about the work
// itself (its data, its pods), and [Going] about one offer and its provider
// (country, law, certificates, agreement, availability).
//
// Everything fails closed. A data class that is not known, a class that the
// tenant has no rule for, a provider without the legal facts that a rule needs,
// evidence that has run out before the burst would end: each is a refusal, as
// nobody has said that it is allowed. Legal facts are the operator's own
// statements; this package compares them and has no opinion on law, but where
// two of them contradict each other it does not pick the convenient one.
package policy

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
)

// Refusal is one reason against something.
type Refusal struct {
	Rule    string    // name of the rule in its chain
	Code    string    // stable reason, see codes.go
	Message string    // the evidence
	Remedy  string    // what the reader can do
	Until   time.Time // when the reason ends by itself; zero: it does not
}

// Work is what wants to leave.
type Work struct {
	Tenant        v1alpha1.BurstTenant
	PriorityClass string
	Pods          []*corev1.Pod
	// Inputs and Outputs are S3 URLs, s3://bucket/prefix.
	Inputs, Outputs []string
	// DataClass is what the work states itself; it can raise, never lower.
	DataClass string
	// Claims by namespace/name and Volumes by name, for pods that mount them.
	Claims  map[string]*corev1.PersistentVolumeClaim
	Volumes map[string]*corev1.PersistentVolume
}

// Trip is work of a known class on its way to one offer.
type Trip struct {
	Tenant v1alpha1.BurstTenant
	Class  Class
	Offer  providers.Offer
	// Provider is the BurstProvider that the offer names, nil when there is none.
	Provider *v1alpha1.BurstProvider
	// Now and Until bound the burst: evidence has to hold for all of it.
	Now, Until time.Time
}

// Rule is one question. Check returns nothing when it has no objection.
type Rule[Facts any] struct {
	Name  string
	Check func(Facts) []Refusal
}

// Chain is a list of rules, asked in order.
type Chain[Facts any] []Rule[Facts]

// Evaluate asks every rule and returns all refusals in the order of the chain.
func (c Chain[Facts]) Evaluate(facts Facts) []Refusal {
	var all []Refusal
	for _, rule := range c {
		for _, r := range rule.Check(facts) {
			r.Rule = rule.Name
			all = append(all, r)
		}
	}
	return all
}

// Leaving is the chain about the work itself.
func Leaving() Chain[Work] {
	return Chain[Work]{
		{"data class", dataClass},            // known, and not lowered
		{"data sources", dataSources},        // inputs and outputs lie in the tenant's sources
		{"plain sources", plainSources},      // the front of a burst node can answer for them
		{"priority class", priorityClass},    // may cost money
		{"volumes", volumes},                 // nothing that exists on-prem only
		{"host access", hostAccess},          // no host paths, namespaces, ports, privileges
		{"tolerations", wildcardTolerations}, // no key for every door
		{"resource claims", resourceClaims},  // GPUs as a device plugin counts them
	}
}

// Going is the chain about one offer.
func Going() Chain[Trip] {
	return Chain[Trip]{
		{"provider known", providerKnown},           // somebody stated facts about it
		{"provider allowed", providerAllowed},       // the tenant's list for this class
		{"class may leave", classMayLeave},          // the tenant has a rule for the class
		{"country", country},                        // where the machine stands
		{"law", law},                                // whose law reaches the provider
		{"certifications", certifications},          // held until the end
		{"processing agreement", agreement},         // in force until the end
		{"availability of the provider", available}, // not out of service
		{"nodes can join", canHostNodes},            // the driver's machines become nodes
		{"price known", priceKnown},                 // zero means unknown, never free
	}
}

func refuse(code, message, remedy string) []Refusal {
	return []Refusal{{Code: code, Message: message, Remedy: remedy}}
}
