package lifecycle

import (
	"context"
	"fmt"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// overdue ends a burst that waits for what can't come any more, before its way
// forward is walked. So an act may wait, or fail, for as long as it likes: no
// machine idles on a neighbour that stays down, and no money is held for it.
// Once its pods are let in, watch is what ends a burst.
func (r *Reconciler) overdue(ctx context.Context, b record) error {
	if b.ending() || b.has(v1alpha1.PodsAdmitted) {
		return nil
	}
	before := b.Status.DeepCopy()
	reason, message, err := r.tooLate(ctx, b)
	if err != nil || reason == "" {
		return err
	}
	b.end(reason, message)
	r.Log.Info("burst is ending", "burst", b.Name, "namespace", b.Namespace, "step", b.Status.Step, "reason", reason, "message", message)
	return r.patch(ctx, b, before)
}

// tooLate says why a burst can't go on, empty when it can.
func (r *Reconciler) tooLate(ctx context.Context, b record) (reason, message string, err error) {
	const failed = "no success within %s; the controller's log has the errors"
	begun, patience := b.CreationTimestamp.Time, r.Settings.StagingPatience
	if moved := b.Status.Data.Progress; moved != nil {
		begun = moved.Time
	}
	switch l := b.Status.Lease; {
	case b.now.After(b.Spec.Deadline.Time):
		return ReasonOutOfTime, fmt.Sprintf("the deadline %s has passed", b.Spec.Deadline.UTC().Format(time.RFC3339)), nil
	case !b.has(v1alpha1.Reserved):
		if b.now.After(begun.Add(patience)) {
			return ReasonBudgetExceeded, "nothing was reserved: " + fmt.Sprintf(failed, patience), nil
		}
		return "", "", nil
	case !b.has(v1alpha1.Staged) && b.now.After(begun.Add(patience)):
		return ReasonStagingStalled, fmt.Sprintf("staging made no progress for %s, at %d of %d bytes", patience, b.Status.Data.StagedBytes, b.Status.Data.TotalBytes), nil
	case !b.has(v1alpha1.MachineRequested):
		if b.now.After(begun.Add(patience)) {
			return ReasonBuyDeadline, "no machine could be asked for: " + fmt.Sprintf(failed, patience), nil
		}
		return "", "", nil
	case l != nil && b.now.After(l.Hard.Time):
		return ReasonMachineLost, "the last lease has run out: the node has ended itself", nil
	case b.has(v1alpha1.NodeJoined):
		lost, err := r.lostMachine(ctx, b)
		if err == nil && lost == "" {
			lost = r.rebooted(b)
		}
		return orNone(lost), lost, err
	}
	return "", "", nil
}

func orNone(lost string) string {
	if lost == "" {
		return ""
	}
	return ReasonMachineLost
}

// rebooted says which node is not the boot any more that proved itself: it gets
// no key, so nothing can run on it.
func (r *Reconciler) rebooted(b record) string {
	for _, node := range b.nodes() {
		if report, _, ok := r.Nodes.Report(node); ok && report.BootID != b.bootOf(node) {
			return fmt.Sprintf("node %s has booted again: boot %s proved itself, %s reports", node, b.bootOf(node), report.BootID)
		}
	}
	return ""
}
