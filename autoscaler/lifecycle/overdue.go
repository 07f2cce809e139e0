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
		return v1alpha1.EndOutOfTime, fmt.Sprintf("the deadline %s has passed", b.Spec.Deadline.UTC().Format(time.RFC3339)), nil
	case !b.has(v1alpha1.Reserved):
		if b.now.After(begun.Add(patience)) {
			return v1alpha1.EndBudgetExceeded, "nothing was reserved: " + fmt.Sprintf(failed, patience), nil
		}
		return "", "", nil
	case !b.has(v1alpha1.Staged) && b.now.After(begun.Add(patience)):
		return v1alpha1.EndStagingStalled, fmt.Sprintf("staging made no progress for %s, at %d of %d bytes", patience, b.Status.Data.StagedBytes, b.Status.Data.TotalBytes), nil
	case !b.has(v1alpha1.MachineRequested):
		if b.now.After(begun.Add(patience)) {
			return v1alpha1.EndBuyDeadline, "no machine could be asked for: " + fmt.Sprintf(failed, patience), nil
		}
		return "", "", nil
	case l != nil && b.now.After(l.Hard.Time):
		return v1alpha1.EndMachineLost, "the last lease has run out: the node has ended itself", nil
	case b.has(v1alpha1.NodeJoined):
		return r.idleTooLong(ctx, b)
	}
	return "", "", nil
}

// slowestFill is how many bytes a second a node may take at the least to fill
// its cache, beside the patience that everything gets.
const slowestFill = 20 << 20

// idleTooLong says why nodes that have joined wait for nothing.
func (r *Reconciler) idleTooLong(ctx context.Context, b record) (reason, message string, err error) {
	lost, err := r.lostMachine(ctx, b)
	if err != nil {
		return "", "", err
	}
	if lost == "" {
		lost = r.rebooted(b)
	}
	fill := r.Settings.StagingPatience + time.Duration(b.Status.Data.TotalBytes/slowestFill)*time.Second
	switch {
	case lost != "":
		return v1alpha1.EndMachineLost, lost, nil
	case b.has(v1alpha1.KeyReleased) && b.now.After(b.at(v1alpha1.KeyReleased).Add(r.Settings.StagingPatience)):
		return v1alpha1.EndReadyDeadline, fmt.Sprintf("its pods could not be let in within %s; the controller's log has the errors", r.Settings.StagingPatience), nil
	case !b.has(v1alpha1.KeyReleased) && b.now.After(latest(b.at(v1alpha1.NodeJoined), b.at(v1alpha1.Staged)).Add(fill)):
		return v1alpha1.EndStagingStalled, fmt.Sprintf("the nodes' caches are not filled after %s%s", fill, r.problems(b)), nil
	}
	return "", "", nil
}

// problems are the nodes' own words.
func (r *Reconciler) problems(b record) (words string) {
	for _, node := range b.nodes() {
		if report, _, ok := r.Nodes.Report(node); ok && report.Problem != "" {
			words += "; " + node + ": " + report.Problem
		}
	}
	return words
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
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
