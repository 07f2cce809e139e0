package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota/money"
)

// Subject is an object that somebody asks about: an owner of pods, a pod, or a
// Burst. Its kind is written in any case.
type Subject struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String is namespace/Kind/name.
func (s Subject) String() string { return s.Namespace + "/" + s.Kind + "/" + s.Name }

func (s Subject) burst() bool { return strings.EqualFold(s.Kind, "Burst") }

// Answer is what is known about one piece of work at a time.
type Answer struct {
	At      time.Time `json:"at"`
	Subject Subject   `json:"subject"`
	// Decisions are those about the work that waits.
	Decisions []Decision `json:"decisions"`
	// Bursts are what was bought for it, oldest first.
	Bursts []Purchase `json:"bursts"`
	// Idle says why there is nothing to decide, where there is no decision.
	Idle *Reason `json:"idle,omitempty"`
}

// Purchase is one Burst in short.
type Purchase struct {
	Name     string `json:"name"`
	Owner    Owner  `json:"owner"`
	Provider string `json:"provider"`
	Region   string `json:"region"`
	Country  string `json:"country"`
	Machines int32  `json:"machines"`
	Type     string `json:"type"`
	// Fact is the newest condition, Since its time; empty before the first one.
	Fact  string      `json:"fact,omitempty"`
	Since metav1.Time `json:"since,omitzero"`
	Reason
	Ceiling v1alpha1.Money `json:"ceiling"`
	// Spent is what it has cost so far; empty when nothing was posted.
	Spent v1alpha1.Money `json:"spent,omitempty"`
}

// nothingYet is the code of a purchase of which nothing is recorded yet.
const nothingYet Code = "DECIDED"

// About answers what is known about a subject, from a state and the plan that
// was made of it. It tells of the gang that the subject belongs to and of its
// bursts, and of nothing else. What it is asked about need not exist.
func About(s State, decided Plan, subject Subject) Answer {
	a := Answer{At: s.Now, Subject: subject, Decisions: []Decision{}, Bursts: []Purchase{}}
	owners := map[ownerKey]bool{}
	for i := range s.Gangs {
		if g := &s.Gangs[i]; subject.in(g) {
			owners[keyOf(g.Owner)] = true
		}
	}
	for i := range s.Bursts {
		if b := &s.Bursts[i]; subject.of(b) {
			owners[ownerKey{b.Namespace, b.Spec.Gang.UID}] = true
		}
	}
	for _, d := range decided.Decisions {
		if owners[keyOf(d.Owner)] {
			a.Decisions = append(a.Decisions, d)
		}
	}
	for i := range s.Bursts {
		b := &s.Bursts[i]
		if subject.burst() && !subject.of(b) {
			continue // the other attempts are not asked about
		}
		if owners[ownerKey{b.Namespace, b.Spec.Gang.UID}] {
			a.Bursts = append(a.Bursts, purchase(b))
		}
	}
	slices.SortFunc(a.Bursts, func(x, y Purchase) int { return strings.Compare(x.Name, y.Name) })
	slices.SortStableFunc(a.Bursts, func(x, y Purchase) int { return x.Since.Compare(y.Since.Time) })
	if len(a.Decisions) == 0 && (!subject.burst() || len(a.Bursts) == 0) {
		a.Idle = idle(s, subject)
	}
	return a
}

func keyOf(o Owner) ownerKey { return ownerKey{o.Namespace, o.UID} }

// in reports whether the subject is a gang's owner, one of its pods, or the
// controller of one.
func (s Subject) in(g *Gang) bool {
	if g.Owner.Namespace != s.Namespace {
		return false
	}
	if strings.EqualFold(g.Owner.Kind, s.Kind) && g.Owner.Name == s.Name {
		return true
	}
	return slices.ContainsFunc(g.Pods, s.is)
}

// is reports whether the subject is a pod or its controller.
func (s Subject) is(p *corev1.Pod) bool {
	if p.Namespace != s.Namespace {
		return false
	}
	if strings.EqualFold(s.Kind, "Pod") {
		return p.Name == s.Name
	}
	above := metav1.GetControllerOfNoCopy(p)
	return above != nil && strings.EqualFold(above.Kind, s.Kind) && above.Name == s.Name
}

// of reports whether a burst is the subject or was bought for it.
func (s Subject) of(b *v1alpha1.Burst) bool {
	switch {
	case b.Namespace != s.Namespace:
		return false
	case s.burst():
		return b.Name == s.Name
	case strings.EqualFold(s.Kind, "Pod"):
		return slices.ContainsFunc(b.Spec.Gang.Pods, func(p v1alpha1.PodReference) bool { return p.Name == s.Name })
	}
	return strings.EqualFold(b.Spec.Gang.Kind, s.Kind) && b.Spec.Gang.Name == s.Name
}

// idle says why nothing is decided about a subject.
func idle(s State, subject Subject) *Reason {
	why := Reason{
		Code: NotPending, Message: "none of its pods waits for a place: it has ended, is not there, or asks for no GPU",
		Remedy: "nothing is to be decided",
	}
	for i := range s.Cluster.Pods {
		if p := s.Cluster.Pods[i]; subject.is(p) {
			why.Message = fmt.Sprintf("pod %s has its place on node %s", p.Name, p.Spec.NodeName)
			break
		}
	}
	return &why
}

// purchase is a burst with the newest fact of its life. Of facts of one second
// the later one in a burst's life is the newest.
func purchase(b *v1alpha1.Burst) Purchase {
	o := b.Spec.Offer
	p := Purchase{
		Name: b.Name, Provider: o.Provider, Region: o.Region, Country: o.Country, Machines: b.Spec.Machines, Type: o.InstanceType,
		Owner: Owner{
			APIVersion: b.Spec.Gang.APIVersion, Kind: b.Spec.Gang.Kind, Namespace: b.Namespace, Name: b.Spec.Gang.Name, UID: b.Spec.Gang.UID,
		},
		Since: b.CreationTimestamp, Ceiling: b.Spec.Ceiling, Spent: b.Status.Cost.Spent,
		Reason: Reason{Code: nothingYet, Message: "decided; nothing is reserved yet"},
	}
	for _, fact := range append([]string{v1alpha1.Ending}, v1alpha1.Facts()...) {
		c := meta.FindStatusCondition(b.Status.Conditions, fact)
		if c == nil || p.Fact != "" && c.LastTransitionTime.Before(&p.Since) {
			continue
		}
		p.Fact, p.Since, p.Reason = fact, c.LastTransitionTime, Reason{Code: Code(c.Reason), Message: c.Message}
	}
	return p
}

// Explain writes the answer for people, in a stable order and wording.
func (a Answer) Explain() string {
	var b strings.Builder
	for _, d := range a.Decisions {
		b.WriteString(d.Explain())
	}
	for _, p := range a.Bursts {
		fmt.Fprintf(&b, "%s\n", p)
	}
	if a.Idle != nil {
		fmt.Fprintf(&b, "%s: %s\n", a.Subject, *a.Idle)
	}
	return b.String()
}

// String is one line: where, what, how far, at which cost.
func (p Purchase) String() string {
	cost := "at most " + plain(p.Ceiling)
	if p.Spent != "" {
		cost = "cost " + plain(p.Spent)
	}
	place := p.Region
	if p.Country != "" {
		place += " (" + p.Country + ")"
	}
	text := fmt.Sprintf("burst %s for %s: %d x %s at %s in %s, %s", p.Name, p.Owner, p.Machines, p.Type, p.Provider, place, cost)
	if p.Fact != "" {
		text += fmt.Sprintf("; %s since %s", p.Fact, clock(p.Since.Time))
	}
	return text + ": " + p.Reason.String()
}

// plain is an amount as the ledger writes it, or the text itself.
func plain(m v1alpha1.Money) string {
	if a, err := money.Parse(string(m)); err == nil {
		return a.String()
	}
	return string(m)
}
