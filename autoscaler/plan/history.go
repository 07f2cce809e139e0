package plan

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
)

// history is what the Burst objects remember.
type history struct {
	live   []*v1alpha1.Burst           // still owe something to their gang
	owners map[ownerKey]*past          // by owner of the work
	bought map[string]fleet            // in flight by provider
	gpus   map[string]map[string]int32 // in flight by tenant and GPU model
	placed map[types.UID]string        // pods that were seen on a node of a burst, by UID, with the burst's name
}

// ownerKey names an owner by namespace and UID: pods may state the UID of an
// owner in another tenant's namespace.
type ownerKey struct {
	namespace string
	uid       types.UID
}

// fleet is what is in flight at one provider.
type fleet struct{ machines, gpus int32 }

// past is what was bought for one owner before.
type past struct {
	live     []*v1alpha1.Burst
	bought   time.Time // when the last of them was written, live or not
	next     int32     // number of the next attempt
	failures int       // that were not the market's
	counted  time.Time // when the last one that counts was
	failed   time.Time
	lastWhy  string
	// excluded are offers that are not asked again before the time.
	excluded map[string]exclusion
}

type exclusion struct {
	until   time.Time // zero: never again for this owner
	why     string
	refused int // times that the market said no
}

// fault is what the end of a burst means for the next attempt.
type fault int

const (
	noFault     fault = iota // nobody's: it was served, or went away
	workFault                // the work's own; the offer is innocent
	moneyFault               // the ledger refused; the offer is innocent
	marketFault              // the cloud would not sell; ask the next one at once
	neverFault               // nor will it ever, as written; ask the next one at once
	offerFault               // bought and not good for anything
)

// faultOf reads the reason with which a burst ended. Reasons of the market
// carry the names of providers.Kind; what nobody knows is the offer's fault, so
// that a plan which fails is never sent again unchanged.
// cases: H-18 hashicorp/nomad#25808, F41 ray-project/ray#25525
func faultOf(reason string) fault {
	switch reason {
	case v1alpha1.EndSucceeded, v1alpha1.EndServedLocally, v1alpha1.EndWorkloadGone, v1alpha1.EndDeleted:
		return noFault
	case v1alpha1.EndWorkFailed, v1alpha1.EndOutOfTime, v1alpha1.EndStagingRefused:
		return workFault
	case v1alpha1.EndBudgetExceeded, v1alpha1.EndNoReservation:
		return moneyFault
	case v1alpha1.EndSoldOut, v1alpha1.EndLimitReached:
		return marketFault
	case v1alpha1.EndRejected:
		return neverFault
	}
	return offerFault
}

// remember reads the bursts, oldest attempt first. onNodes counts the pods on
// each burst's nodes by its UID.
func remember(s State, onNodes map[string]int) history {
	h := history{
		owners: map[ownerKey]*past{},
		bought: map[string]fleet{},
		gpus:   map[string]map[string]int32{},
		placed: map[types.UID]string{},
	}
	for i := range s.Bursts {
		b := &s.Bursts[i]
		key := ownerKey{b.Namespace, b.Spec.Gang.UID}
		p := h.owners[key]
		if p == nil {
			p = &past{excluded: map[string]exclusion{}}
			h.owners[key] = p
		}
		p.next = max(p.next, b.Spec.Attempt+1)
		if at := b.CreationTimestamp.Time; at.After(p.bought) {
			p.bought = at
		}
		for _, pod := range b.Status.Placed {
			h.placed[pod.UID] = b.Name
		}
		over, ended := outcome(b)
		if !over && b.Spec.Offer.Provider != "" {
			h.count(b)
		}
		if !ended || !over && serving(b, onNodes) {
			p.live = append(p.live, b)
			h.live = append(h.live, b)
			continue
		}
		if !over {
			h.live = append(h.live, b) // it still holds money, not its gang
		}
		p.learn(b, s.Settings)
	}
	return h
}

// outcome reports whether a burst is over (all its facts are in) and whether
// it has ended (it goes no further forward, but may still owe).
func outcome(b *v1alpha1.Burst) (over, ended bool) {
	has := func(fact string) bool { return meta.FindStatusCondition(b.Status.Conditions, fact) != nil }
	over = has(v1alpha1.Complete) || has(v1alpha1.Failed)
	return over, over || has(v1alpha1.Ending)
}

// serving reports whether an ending burst may still have pods of its gang: then
// it has to be over before anything else is bought for them.
func serving(b *v1alpha1.Burst, onNodes map[string]int) bool {
	return onNodes[string(b.UID)] > 0 || meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.PodsAdmitted)
}

// learn takes the end of a burst into account for the next attempt.
func (p *past) learn(b *v1alpha1.Burst, s Settings) {
	reason, at := ends(b)
	key := offerOf(b).Key()
	switch faultOf(reason) {
	case workFault, moneyFault:
		p.fail(b, at, reason)
	case offerFault:
		p.fail(b, at, reason)
		p.excluded[key] = exclusion{why: reason}
	case neverFault:
		p.excluded[key] = exclusion{why: reason}
	case marketFault:
		e, known := p.excluded[key]
		if known && e.until.IsZero() {
			return
		}
		e.refused++
		e.why, e.until = reason, at.Add(s.Bench<<min(e.refused-1, 4))
		p.excluded[key] = e
	}
}

// fail counts a failure, unless its burst was bought before the last one was
// known: bursts that were bought together are one try.
func (p *past) fail(b *v1alpha1.Burst, at time.Time, reason string) {
	if p.failures == 0 || !b.CreationTimestamp.Time.Before(p.counted) {
		p.failures++
		p.counted = at
	}
	p.lastWhy = reason
	if at.After(p.failed) {
		p.failed = at
	}
}

// ends returns why and when a burst ended.
func ends(b *v1alpha1.Burst) (string, time.Time) {
	for _, fact := range []string{v1alpha1.Ending, v1alpha1.Failed, v1alpha1.Complete} {
		c := meta.FindStatusCondition(b.Status.Conditions, fact)
		if c == nil {
			continue
		}
		if fact == v1alpha1.Complete {
			return "Succeeded", c.LastTransitionTime.Time
		}
		return c.Reason, c.LastTransitionTime.Time
	}
	return "", time.Time{}
}

// count adds a burst's machines to what is in flight. They count until the
// cloud says gone, whatever their nodes look like: a node that is ready before
// its GPUs are, or flaps, changes nothing.
// cases: H-11 kubernetes/kubernetes#54959, H-12 kubernetes/autoscaler#1659, F33 kubernetes/kubernetes#43709
func (h *history) count(b *v1alpha1.Burst) {
	if meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.MachineGone) {
		return
	}
	h.add(b.Spec.Offer.Provider, b.Spec.TenantID, b.Spec.Offer.GPUModel, b.Spec.Machines, b.Spec.Offer.GPUs)
}

func (h *history) add(provider, tenant, model string, machines, gpusEach int32) {
	f := h.bought[provider]
	f.machines += machines
	f.gpus += machines * gpusEach
	h.bought[provider] = f
	if h.gpus[tenant] == nil {
		h.gpus[tenant] = map[string]int32{}
	}
	h.gpus[tenant][model] += machines * gpusEach
}

// of returns what was bought for an owner before, nil when nothing was.
func (h *history) of(o Owner) *past { return h.owners[ownerKey{o.Namespace, o.UID}] }

// underWay ends the questions for a gang that has a burst, or that failed too
// often or too lately. A gang is never bought for twice.
// cases: A4 kubernetes/autoscaler#7095, H5 aws/karpenter-provider-aws#1905, F8 SkyPilot placer
func (r *run) underWay(w *work) (Decision, bool) {
	p := r.history.of(w.Owner)
	if p == nil {
		return Decision{}, false
	}
	w.attempt = p.next
	if left := p.left(w); len(p.live) > 0 && len(left) > 0 {
		r.left(w, left)
	} else if len(p.live) > 0 {
		live := p.live[len(p.live)-1]
		step := live.Status.Step
		if step == "" {
			step = "start"
		}
		return w.decision(Wait, Reason{
			Code: AlreadyPlanned, Message: fmt.Sprintf("burst %s at %s is on its way, step %s", live.Name, live.Spec.Offer.Provider, step),
			Remedy: "follow it with kubectl get bursts",
		}), true
	}
	if p.failures >= r.Settings.Attempts {
		return w.decision(Refuse, Reason{
			Code: AttemptsExhausted, Message: fmt.Sprintf("%s for it failed, the last one with %s", count(p.failures, "burst"), p.lastWhy),
			Remedy: "look at its failed bursts, then delete them to let it try again",
		}), true
	}
	if p.failures > 0 {
		if next := p.failed.Add(r.Settings.Backoff << min(p.failures-1, 10)); next.After(r.Now) {
			return w.until(next, Wait, Reason{
				Code: BackoffAfterFailure, Message: fmt.Sprintf("%s for it failed, the last one at %s with %s", count(p.failures, "burst"), clock(p.failed), p.lastWhy),
				Remedy: "wait",
			}), true
		}
	}
	return Decision{}, false
}

// left are those of independent pods that no burst on its way is for, although
// they were there when the last one was bought: what was bought together need not
// fail together, and what seemed to fit at home may not. A pod that came later
// waits until the bursts that are on their way are over.
func (p *past) left(w *work) []*corev1.Pod {
	if w.Together {
		return nil
	}
	had := map[types.UID]bool{}
	for _, b := range p.live {
		for _, pod := range b.Spec.Gang.Pods {
			had[pod.UID] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(w.pods), func(pod *corev1.Pod) bool { return had[pod.UID] || pod.CreationTimestamp.After(p.bought) })
}

// offerOf returns the offer that a burst bought, as far as its key goes.
func offerOf(b *v1alpha1.Burst) providers.Offer {
	o := b.Spec.Offer
	return providers.Offer{Provider: o.Provider, Region: o.Region, Zone: o.Zone, InstanceType: o.InstanceType, CapacityType: o.CapacityType}
}
