package observe

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"spillway.dev/spillway/autoscaler/plan"
)

const (
	// kueueGate is the gate by which Kueue holds pods back until their quota is
	// there; kueueQueue is the label, long ago the annotation, that names the queue.
	kueueGate  = "kueue.x-k8s.io/admission"
	kueueQueue = "kueue.x-k8s.io/queue-name"
	// kueueMaxExec is the label with the seconds after which Kueue ends what it
	// has admitted.
	kueueMaxExec = "kueue.x-k8s.io/max-exec-time-seconds"
)

// standing is how a pod without a node stands with its scheduler.
type standing int

const (
	unseen  standing = iota // nobody has looked at it yet
	refused                 // there is no room for it
	held                    // it is pending for another reason than room
)

// look says how a pod stands, and for a held one why. Only a want of room is a
// reason to buy; one that can't be told from others is none.
// cases: F1 volcano-sh/volcano#2558, F11 volcano-sh/volcano#4710, F14 kubernetes/autoscaler#7343
func (o *owners) look(pod *corev1.Pod, w *way) (standing, plan.Reason) {
	if gates := pod.Spec.SchedulingGates; len(gates) > 0 {
		return held, gated(pod, gates)
	}
	if by := pod.Spec.SchedulerName; by != "" && by != corev1.DefaultSchedulerName {
		return held, w.elsewhere(pod, by)
	}
	scheduled := condition(pod)
	switch {
	case scheduled == nil && w.refusedAt().IsZero():
		return unseen, plan.Reason{}
	case scheduled != nil && scheduled.Status == corev1.ConditionFalse && scheduled.Reason == corev1.PodReasonSchedulerError:
		return held, plan.Reason{
			Code: plan.SchedulerError, Message: fmt.Sprintf("the scheduler failed on pod %s: %s", pod.Name, scheduled.Message),
			Remedy: "the scheduler tries again; if it stays, mend what it names",
		}
	case scheduled != nil && !unschedulable(pod):
		return unseen, plan.Reason{}
	}
	if w.why != nil {
		return held, *w.why
	}
	if why, ok := o.volumes.missing(pod); ok {
		return held, why
	}
	return refused, plan.Reason{}
}

func condition(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c
		}
	}
	return nil
}

// unschedulable reports whether the scheduler has looked at a pod and found no
// place for it.
func unschedulable(pod *corev1.Pod) bool {
	c := condition(pod)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

// refusedAt is when the scheduler found no place for the group as a whole, zero
// when it did not. The members of a refused group have no condition of their own.
func (w *way) refusedAt() time.Time {
	if w.group == nil || w.of.refused == "" {
		return time.Time{}
	}
	for _, c := range at(w.group.fields, "status.conditions[]") {
		if first(c.value, "type") == w.of.refused && first(c.value, "status") == "False" && first(c.value, "reason") == corev1.PodReasonUnschedulable {
			since, _ := instant(first(c.value, "lastTransitionTime"))
			return since
		}
	}
	return time.Time{}
}

// refusedWith is a pod with its group's refusal as its own, unless it has one.
func refusedWith(pod *corev1.Pod, since time.Time) *corev1.Pod {
	if condition(pod) != nil {
		return pod
	}
	out := *pod
	c := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}
	c.LastTransitionTime.Time = since
	out.Status.Conditions = append(slices.Clip(out.Status.Conditions), c)
	return &out
}

func gated(pod *corev1.Pod, gates []corev1.PodSchedulingGate) plan.Reason {
	if slices.ContainsFunc(gates, func(g corev1.PodSchedulingGate) bool { return g.Name == kueueGate }) {
		return kueue("pod "+pod.Name, cmp.Or(pod.Labels[kueueQueue], pod.Annotations[kueueQueue]))
	}
	return plan.Gated(pod)
}

// kueue is the reason of what Kueue has not admitted.
func kueue(what, queue string) plan.Reason {
	if queue != "" {
		what += " in queue " + queue
	}
	return plan.Reason{
		Code: plan.KueueNotAdmitted, Message: what + " is not admitted by Kueue",
		Remedy: "wait for quota of the queue, or have it raised: what has no quota is never bought for",
	}
}

// elsewhere is the reason of a pod that another scheduler places.
func (w *way) elsewhere(pod *corev1.Pod, by string) plan.Reason {
	if w.group != nil && holdsAny(w.group.fields, w.of.queued) {
		queue, _ := first(w.group.fields, "spec.queue").(string)
		return plan.Reason{
			Code:    plan.QueueHeld,
			Message: fmt.Sprintf("group %s has no room in queue %s of %s", w.group.Name, cmp.Or(queue, "default"), by),
			Remedy:  "wait for the queue, or have its quota raised: what has no quota is never bought for",
		}
	}
	return plan.PlacedElsewhere(pod)
}

// held is why owners on the way hold all pods below them, nil when they don't:
// the highest that is suspended, one that starts its pods in order, one that
// can't be read.
func (w *way) held() *plan.Reason {
	for _, x := range slices.Backward(w.path) {
		switch {
		case x.suspended():
			if queue := w.queue(); queue != "" {
				why := kueue("the "+x.Kind, queue)
				return &why
			}
			return &plan.Reason{Code: plan.JobSuspended, Message: "the " + x.Kind + " is suspended", Remedy: "resume it, or wait for its queue to admit it"}
		case holdsAny(x.fields, x.kind.InOrder):
			return &plan.Reason{
				Code: plan.StartsInOrder, Message: fmt.Sprintf("the %s starts some of its pods only when others run, and all of them need one place", x.Kind),
				Remedy: "let all of them start at once, or wait for on-prem",
			}
		}
	}
	switch {
	case w.group != nil && first(w.group.fields, w.of.larger) != nil:
		return &plan.Reason{
			Code: plan.OwnerUnknown, Message: fmt.Sprintf("%s %s is a part of the larger gang %v, which can't be read", w.group.Kind, w.group.Name, first(w.group.fields, w.of.larger)),
			Remedy: "make it one group, or wait for on-prem",
		}
	case w.lost == "":
		return nil
	}
	return &plan.Reason{
		Code: plan.OwnerUnknown, Message: w.lost + ", to which its pods belong, is not known",
		Remedy: "if it exists, its kind is newer here than Spillway's start: restart the controller; if it does not, its pods go with it",
	}
}

// queue is the queue of Kueue that an owner on the way names.
func (w *way) queue() string {
	for _, x := range slices.Backward(w.path) {
		if queue := cmp.Or(x.GetLabels()[kueueQueue], x.GetAnnotations()[kueueQueue]); queue != "" {
			return queue
		}
	}
	return ""
}

// hold is why the work of a gang is pending for another reason than room, nil
// when it is for want of room. A gang waits with any of its members; of
// independent pods those that are not held go on.
func (m *members) hold() *plan.Reason {
	if len(m.waiting) > 0 && !m.together() {
		return nil
	}
	var first *plan.Reason
	for w := range m.ways {
		if w.why != nil && (first == nil || cmp.Or(cmp.Compare(w.why.Code, first.Code), cmp.Compare(w.why.Message, first.Message)) < 0) {
			first = w.why
		}
	}
	if first == nil && len(m.held) > 0 {
		why := slices.MinFunc(m.held, func(a, b heldPod) int { return cmp.Compare(a.pod.Name, b.pod.Name) }).why
		first = &why
	}
	return first
}

// volumes are the claims that pods may name; the zero value knows none and
// misses none.
type volumes struct {
	claims map[string]*corev1.PersistentVolumeClaim
	later  map[string]bool // storage classes that bind when a pod has its node
}

func newVolumes(c *plan.Cluster) volumes {
	v := volumes{claims: make(map[string]*corev1.PersistentVolumeClaim, len(c.Claims)), later: map[string]bool{}}
	for i := range c.Claims {
		v.claims[c.Claims[i].Namespace+"/"+c.Claims[i].Name] = &c.Claims[i]
	}
	for _, class := range c.StorageClasses {
		v.later[class.Name] = class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	}
	return v
}

// missing says what a pod waits for in its volumes: no machine would bring it.
// A claim that is bound with its pod is policy's business.
func (v volumes) missing(pod *corev1.Pod) (plan.Reason, bool) {
	if v.claims == nil {
		return plan.Reason{}, false
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		name := volume.PersistentVolumeClaim.ClaimName
		claim := v.claims[pod.Namespace+"/"+name]
		switch {
		case claim == nil:
			return plan.Reason{
				Code: plan.ClaimMissing, Message: fmt.Sprintf("pod %s mounts claim %s, which does not exist", pod.Name, name),
				Remedy: "create the claim, or drop the volume",
			}, true
		case claim.Spec.VolumeName == "" && !v.binds(claim):
			return plan.Reason{
				Code: plan.ClaimUnbound, Message: fmt.Sprintf("pod %s mounts claim %s, which has no volume yet", pod.Name, name),
				Remedy: "see the claim's events: its storage class makes the volume, or somebody does",
			}, true
		}
	}
	return plan.Reason{}, false
}

// binds reports whether an unbound claim is bound when its pod has a node.
func (v volumes) binds(claim *corev1.PersistentVolumeClaim) bool {
	class := claim.Spec.StorageClassName
	return class != nil && v.later[*class]
}
