package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// held ends the questions for work that is pending for another reason than
// capacity: more machines would not help it.
// cases: F2 kubernetes-sigs/karpenter#742, F4 kubernetes/autoscaler#8783, F11 volcano-sh/volcano#4710
func (r *run) held(w *work) (Decision, bool) {
	if w.Hold != nil {
		return w.decision(Wait, *w.Hold), true
	}
	for _, p := range w.pods {
		if why, held := r.podHeld(p); held {
			return w.decision(Wait, why), true
		}
	}
	if len(w.pods) > 0 && !slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool { return len(gpuRequests(p)) > 0 }) {
		return w.decision(Wait, Reason{Code: NoGPU, Message: "none of its pods asks for a GPU", Remedy: "only work that asks for GPUs bursts"}), true
	}
	if have := len(w.pods) + w.Bound; w.Together && w.Size > have {
		return w.decision(Wait, Reason{
			Code: GangIncomplete, Message: fmt.Sprintf("%d of %d members exist and were refused by the scheduler", have, w.Size),
			Remedy: "wait until its controller has made them all and the scheduler has looked at each",
		}), true
	}
	if len(w.pods) == 0 {
		return w.decision(Wait, Reason{Code: NotUnschedulableYet, Message: "it has no pending pod", Remedy: "wait until its controller makes one, or see the controller's events"}), true
	}
	return Decision{}, false
}

func (r *run) podHeld(p *corev1.Pod) (Reason, bool) {
	switch {
	case !p.DeletionTimestamp.IsZero():
		return Reason{Code: PodTerminating, Message: fmt.Sprintf("pod %s is being deleted", p.Name), Remedy: "its owner makes another one, or it is over"}, true
	case p.Spec.NodeName != "":
		return Reason{Code: NodeNameSet, Message: fmt.Sprintf("pod %s is bound to node %s", p.Name, p.Spec.NodeName), Remedy: "leave spec.nodeName out to let a scheduler choose"}, true
	case r.history.placed[p.UID] != "":
		// No pod is ever unbound: the cache of pods is behind that of bursts.
		return Reason{
			Code: NodeNameSet, Message: fmt.Sprintf("pod %s has run on burst %s", p.Name, r.history.placed[p.UID]), Remedy: "wait: the news of its end is on the way",
		}, true
	case len(p.Spec.SchedulingGates) > 0:
		return Gated(p), true
	case daemon(p) || r.system[p.Namespace]:
		return Reason{Code: OwnerUnsupported, Message: fmt.Sprintf("pod %s belongs to the system or to a DaemonSet", p.Name), Remedy: "run the work as a Job"}, true
	}
	if by := p.Spec.SchedulerName; by != "" && by != corev1.DefaultSchedulerName {
		return PlacedElsewhere(p), true
	}
	return Reason{}, false
}

// Gated is why a pod with scheduling gates waits.
func Gated(p *corev1.Pod) Reason {
	gates := make([]string, 0, len(p.Spec.SchedulingGates))
	for _, g := range p.Spec.SchedulingGates {
		gates = append(gates, g.Name)
	}
	slices.Sort(gates)
	return Reason{
		Code: SchedulingGated, Message: fmt.Sprintf("pod %s is gated by %s", p.Name, strings.Join(gates, ", ")),
		Remedy: "whoever set the gate removes it",
	}
}

// PlacedElsewhere is why a pod of another scheduler waits.
func PlacedElsewhere(p *corev1.Pod) Reason {
	return Reason{
		Code:    OtherScheduler,
		Message: fmt.Sprintf("pod %s is placed by %s; whether it waits for room or for its queue can't be told", p.Name, p.Spec.SchedulerName),
		Remedy:  "let " + corev1.DefaultSchedulerName + " place it",
	}
}

// preempting waits for a preemption under way: the scheduler has chosen a node
// and its victims are leaving. A nomination counts only while the node lives
// and only until the victims' grace is over. Of independent pods those that are
// nominated stay, and the others go on; a gang waits whole.
// cases: F7 kubernetes/kubernetes#134428, F12 kubernetes/kubernetes#85677
func (r *run) preempting(w *work) (Decision, bool) {
	nominated := func(p *corev1.Pod) bool { return p.Status.NominatedNodeName != "" }
	if !slices.ContainsFunc(w.pods, nominated) {
		return Decision{}, false
	}
	var until time.Time
	var node string
	var others []*corev1.Pod
	for _, p := range w.pods {
		leaving := time.Time{}
		if _, home := r.home[p.Status.NominatedNodeName]; home {
			leaving = r.victimsUntil(p.Status.NominatedNodeName)
		}
		if !leaving.After(r.Now) {
			others = append(others, p)
			continue
		}
		// The seat is taken, so that no other gang counts on it.
		if err := r.cluster.AddPod(p, p.Status.NominatedNodeName); err != nil {
			return w.decision(Refuse, undecidable(err)), true
		}
		if leaving.After(until) {
			until, node = leaving, p.Status.NominatedNodeName
		}
	}
	if node == "" {
		return Decision{}, false
	}
	if len(others) > 0 && !w.Together {
		r.left(w, others)
		return Decision{}, false
	}
	return w.until(until, Wait, Reason{
		Code: PreemptionPossible, Message: fmt.Sprintf("the scheduler makes room on %s; pods there end by %s", node, clock(until)),
		Remedy: "wait",
	}), true
}

// victimsUntil returns when the pods that are being deleted from a node are
// gone at the latest, with the debounce for the scheduler's reaction.
func (r *run) victimsUntil(node string) time.Time {
	var until time.Time
	for i := range r.Cluster.Pods {
		p := r.Cluster.Pods[i]
		if p.Spec.NodeName == node && !p.DeletionTimestamp.IsZero() {
			if end := p.DeletionTimestamp.Add(r.Settings.Debounce); end.After(until) {
				until = end
			}
		}
	}
	return until
}

// settling waits until the scheduler has refused every pod for long enough.
func (r *run) settling(w *work) (Decision, bool) {
	if p := w.unrefused; p != nil {
		return w.decision(Wait, Reason{
			Code: NotUnschedulableYet, Message: fmt.Sprintf("the scheduler has not found pod %s unschedulable", p.Name), Remedy: "wait",
		}), true
	}
	if ready := w.lately.Add(r.Settings.Debounce); ready.After(r.Now) {
		return w.until(ready, Wait, Reason{
			Code: NotUnschedulableYet, Message: fmt.Sprintf("unschedulable since %s, less than %s", clock(w.lately), short(r.Settings.Debounce)), Remedy: "wait",
		}), true
	}
	return Decision{}, false
}

// unschedulable returns since when the scheduler refuses the pod. Other reasons
// than Unschedulable (gates, scheduler errors) are no want of capacity.
func unschedulable(p *corev1.Pod) (time.Time, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return time.Time{}, false
}

// gpuRequests returns what a pod asks of each GPU resource, by name. Init
// containers run before the others, so the larger need counts.
func gpuRequests(p *corev1.Pod) []gpuNeed {
	var needs []gpuNeed
	each := func(containers []corev1.Container, count func(have, more int64) int64) {
		for i := range containers {
			for name, q := range containers[i].Resources.Requests {
				if !IsGPU(name) {
					continue
				}
				at, known := slices.BinarySearchFunc(needs, name, func(n gpuNeed, name corev1.ResourceName) int { return cmp.Compare(n.name, name) })
				if !known {
					needs = slices.Insert(needs, at, gpuNeed{name: name})
				}
				needs[at].count = count(needs[at].count, q.Value())
			}
		}
	}
	each(p.Spec.Containers, func(have, more int64) int64 { return have + more })
	each(p.Spec.InitContainers, func(have, more int64) int64 { return max(have, more) })
	return needs
}

// IsGPU recognises GPUs, MIG slices and shared GPUs by their resource name.
func IsGPU(name corev1.ResourceName) bool {
	domain, device, ok := strings.Cut(string(name), "/")
	return ok && (device == "gpu" || slices.Contains([]string{"nvidia.com", "gpu.intel.com", "habana.ai"}, domain))
}
