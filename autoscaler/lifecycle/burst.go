package lifecycle

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
)

// record is one burst in the hands of the reconciler. Conditions are written
// through its methods only.
type record struct {
	*v1alpha1.Burst
	now time.Time
}

// has reports whether a fact was recorded, true or false.
func (b record) has(fact string) bool {
	return meta.FindStatusCondition(b.Status.Conditions, fact) != nil
}

// is reports whether a fact was recorded as true.
func (b record) is(fact string) bool {
	return meta.IsStatusConditionTrue(b.Status.Conditions, fact)
}

// at is when a fact was recorded, the zero time when it was not.
func (b record) at(fact string) time.Time {
	if c := meta.FindStatusCondition(b.Status.Conditions, fact); c != nil {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// note writes a fact, once: a recorded fact is never changed.
func (b record) note(fact string, status metav1.ConditionStatus, reason, message string) {
	if b.has(fact) {
		return
	}
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
		Type: fact, Status: status, Reason: reason, Message: message,
		ObservedGeneration: b.Generation, LastTransitionTime: metav1.NewTime(b.now),
	})
}

// end stops the way forward. The first reason stays.
func (b record) end(reason, message string) {
	b.note(v1alpha1.Ending, metav1.ConditionTrue, reason, message)
}

// letIn reports whether pods of the burst may be on its nodes: some may have
// been admitted although the fact of it was never recorded.
func (b record) letIn() bool { return b.has(v1alpha1.KeyReleased) }

// ending reports whether the burst goes no further forward.
func (b record) ending() bool { return b.has(v1alpha1.Ending) }

// stopping reports whether the nodes were told to stop their pods at once.
func (b record) stopping() bool {
	l := b.Status.Lease
	return l != nil && l.Soft.Equal(&l.Issued)
}

// over reports whether the burst is at its end.
func (b record) over() bool { return b.has(v1alpha1.Complete) || b.has(v1alpha1.Failed) }

// why is the reason and message of a recorded fact.
func (b record) why(fact string) (reason, message string) {
	if c := meta.FindStatusCondition(b.Status.Conditions, fact); c != nil {
		return c.Reason, c.Message
	}
	return "", ""
}

// uid is the burst's UID: its key in the ledger, at the clouds and in staging.
func (b record) uid() string { return string(b.UID) }

// nodes are the names of all the nodes that the burst may have.
func (b record) nodes() []string {
	names := make([]string, 0, b.Spec.Machines)
	for i := range b.Spec.Machines {
		names = append(names, capi.NodeName(b.UID, i))
	}
	return names
}

// machine returns the status entry of one ordinal, made when absent.
func (b record) machine(ordinal int32) *v1alpha1.BurstMachine {
	for i := range b.Status.Machines {
		if b.Status.Machines[i].Ordinal == ordinal {
			return &b.Status.Machines[i]
		}
	}
	b.Status.Machines = append(b.Status.Machines, v1alpha1.BurstMachine{
		Ordinal: ordinal, Name: capi.NodeName(b.UID, ordinal),
	})
	return &b.Status.Machines[len(b.Status.Machines)-1]
}
