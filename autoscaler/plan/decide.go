package plan

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/policy"
)

// Decide returns the outcome for every gang of the state. It is pure: equal
// states give equal plans, in whatever order their lists come, and the state
// is left as it was. It never fails: what can't be decided is refused, with
// the reason.
func Decide(s State) Plan { return new(Planner).Decide(s) }

// Planner decides on one state after the other, each as [Decide] would, and
// keeps between them what has not changed in the cluster. It recognises objects
// by UID and resource version, so states have to be those of one API server.
// The zero Planner is ready. It is not safe for concurrent use.
type Planner struct {
	cluster *placement.Snapshot
	stocks  stocks
	stays   stays
	crews   crews
}

// Decide is like the function [Decide].
func (p *Planner) Decide(s State) Plan {
	s = sorted(s)
	s.Settings = s.Settings.withDefaults()
	out := Plan{At: s.Now, Decisions: make([]Decision, 0, len(s.Gangs))}
	err := p.follow(&s.Cluster)
	if err != nil {
		for i := range s.Gangs {
			out.Decisions = append(out.Decisions, (&work{Gang: &s.Gangs[i]}).decision(Refuse, undecidable(err)))
		}
		return out
	}
	p.cluster.Fork()
	defer p.cluster.Revert()
	r := newRun(s, p.cluster, &p.stays)
	p.stocks.supply(r)
	p.crews.turn()
	for i := range s.Gangs {
		out.Decisions = append(out.Decisions, r.decide(&work{Gang: &s.Gangs[i], crew: p.crews.of(&s.Gangs[i], p.cluster)}))
	}
	return out
}

// follow brings the simulated cluster to the state's. One that could not follow
// is built anew the next time, and with it the stocks: it has learned their rules.
func (p *Planner) follow(c *Cluster) (err error) {
	if p.cluster == nil {
		p.cluster, err = placement.New(inventory(c))
	} else {
		err = p.cluster.Follow(inventory(c))
	}
	if err != nil {
		*p = Planner{}
	}
	return err
}

// work is one gang on its way through the questions, with what was found out
// about it so far.
type work struct {
	*Gang
	// crew are its pods that have no node yet and no place found for them.
	*crew

	tenant  *v1alpha1.BurstTenant
	attempt int32
	// misfit says in the scheduler's words why on-prem has no place now;
	// localAt is when it is expected to have one, zero when nobody knows.
	misfit  string
	localAt time.Time
	class   policy.Class
	maxRun  time.Duration
	sliced  bool      // its ceiling is reserved slice by slice
	speaks  []*Reason // see speaking
	journey *journey
	wired   *Reason // see wiring
	// refusals and candidates are what the offers came to; see desk.
	refusals   []Refusal
	candidates []*candidate
}

// left are the pods that are still sought a place for.
func (r *run) left(w *work, pods []*corev1.Pod) {
	w.crew = newCrew(pods, r.cluster)
}

// decision ends the questions with what is known of the gang.
func (w *work) decision(v Verdict, why Reason) Decision {
	d := Decision{Owner: w.Owner, Verdict: v, Reason: why, Refusals: slices.Clone(w.refusals)}
	if w.tenant != nil {
		d.Tenant = w.tenant.Name
	}
	if w.Short != nil {
		d.Refusals = append([]Refusal{{Reason: *w.Short}}, d.Refusals...)
	}
	return d
}

// until is decision with the time at which to look again.
func (w *work) until(at time.Time, v Verdict, why Reason) Decision {
	d := w.decision(v, why)
	d.Until = at
	return d
}

// decide asks the questions in their order until one of them settles the
// matter. The order is the promise of the package: local first, policy before
// price, money last.
func (r *run) decide(w *work) Decision {
	for _, question := range []func(*work) (Decision, bool){
		r.held,        // pending for want of something else than capacity
		r.preempting,  // the scheduler is making room
		r.fitsNow,     // local first
		r.settling,    // too early to tell
		r.payer,       // somebody may pay for it
		r.underWay,    // a burst is on its way, or failed lately
		r.split,       // a member runs on-prem
		r.localChance, // burstAfter
		r.bounded,     // its cost has a bound
		r.leaving,     // policy on the work
		r.shopping,    // policy on the offers, the market, fit, size
		r.localSoon,   // on-prem will be free first
		r.paying,      // the ceiling fits the budgets
	} {
		if d, settled := question(w); settled {
			return d
		}
	}
	return w.decision(Refuse, noOffer(w))
}

func undecidable(err error) Reason {
	return Reason{
		Code: Undecidable, Message: "the scheduler's filters could not be run: " + err.Error(),
		Remedy: "this is a fault of Spillway or of an object that it read: report it with the captured state",
	}
}

// sorted returns a state whose lists are in one fixed order, but for pods: there
// are many, and who needs them in order sees to it. The lists are copied, their
// elements are not.
func sorted(s State) State {
	s.Gangs = sortedBy(s.Gangs, func(a, b Gang) int {
		return cmp.Or(
			cmp.Compare(b.Priority, a.Priority),
			a.Created.Compare(b.Created),
			cmp.Compare(a.Owner.Namespace, b.Owner.Namespace),
			cmp.Compare(a.Owner.Name, b.Owner.Name),
			cmp.Compare(a.Owner.Kind, b.Owner.Kind),
			cmp.Compare(a.Owner.UID, b.Owner.UID),
		)
	})
	for i := range s.Gangs {
		s.Gangs[i].Inputs = sortedBy(s.Gangs[i].Inputs, cmp.Compare[string])
		s.Gangs[i].Outputs = sortedBy(s.Gangs[i].Outputs, cmp.Compare[string])
		s.Gangs[i].Fabrics = sortedBy(s.Gangs[i].Fabrics, cmp.Compare[string])
	}
	s.Cluster.Nodes = sortedBy(s.Cluster.Nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	s.Cluster.DaemonSets = sortedBy(s.Cluster.DaemonSets, func(a, b appsv1.DaemonSet) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	s.Tenants = sortedBy(s.Tenants, func(a, b v1alpha1.BurstTenant) int { return cmp.Compare(a.Name, b.Name) })
	s.Providers = sortedBy(s.Providers, func(a, b v1alpha1.BurstProvider) int { return cmp.Compare(a.Name, b.Name) })
	s.Bursts = sortedBy(s.Bursts, func(a, b v1alpha1.Burst) int {
		return cmp.Or(cmp.Compare(a.Spec.Attempt, b.Spec.Attempt), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return s
}

func sortedBy[T any](list []T, order func(a, b T) int) []T {
	list = slices.Clone(list)
	slices.SortStableFunc(list, order)
	return list
}

func podOrder(a, b *corev1.Pod) int {
	if order := cmp.Compare(a.Namespace, b.Namespace); order != 0 {
		return order
	}
	if order := cmp.Compare(a.Name, b.Name); order != 0 {
		return order
	}
	return cmp.Compare(a.UID, b.UID)
}
