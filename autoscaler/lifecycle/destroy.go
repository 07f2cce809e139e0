package lifecycle

import (
	"context"
	"fmt"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
)

// destroy gives the machines back. It is done only when the cloud lists
// nothing of them any more, instance and parts.
func (r *Reconciler) destroy() []act {
	// Not only after MachineRequested: a crash, then a deletion, may have left
	// objects that no fact speaks of.
	reserved := func(b record) bool { return b.has(v1alpha1.Reserved) }
	return []act{
		{fact: v1alpha1.MachineGone, do: r.machinesGone, owed: true, due: reserved},
		{fact: v1alpha1.Certified, do: r.certify, owed: true, due: reserved},
	}
}

func (r *Reconciler) machinesGone(ctx context.Context, b record) (outcome, error) {
	views, err := r.Machines.Delete(ctx, b.UID)
	if err != nil {
		return outcome{}, err
	}
	if err := r.Machines.Release(ctx, b.UID, capi.PreDrainHook, capi.PreTerminateHook); err != nil {
		return outcome{}, err
	}
	last := time.Time{}
	for _, v := range views {
		b.keepTimes(v)
		if v.Gone.IsZero() {
			return outcome{wait: r.Settings.Poll}, nil
		}
		if v.Gone.After(last) {
			last = v.Gone
		}
	}
	for _, node := range b.nodes() {
		r.Nodes.Forget(node)
	}
	if last.IsZero() {
		return outcome{reason: "NothingBought", message: "no machine was ever bought"}, nil
	}
	return outcome{message: fmt.Sprintf("%s lists nothing of the burst since %s", b.Spec.Offer.Provider, last.UTC().Format(time.RFC3339))}, nil
}

// certify holds up the end of the burst when it fails, and not its money.
func (r *Reconciler) certify(ctx context.Context, b record) (outcome, error) {
	if !b.has(v1alpha1.KeyDestroyed) {
		return outcome{pass: r.Settings.patiently()}, nil
	}
	ref, err := r.issue(ctx, b)
	if err != nil {
		r.Log.Error("the burst is not certified yet; it is tried again", "burst", b.Name, "namespace", b.Namespace, "error", err)
		return outcome{pass: r.Settings.patiently()}, nil
	}
	b.Status.Certificate = &ref
	return outcome{message: fmt.Sprintf("certificate %s: %s", ref.Name, ref.Level)}, nil
}

// issue lets go of what the machines left here, and certifies their end.
func (r *Reconciler) issue(ctx context.Context, b record) (v1alpha1.CertificateReference, error) {
	if err := r.Joins.Revoke(ctx, b.Burst); err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	if err := r.Machines.Forget(ctx, b.UID); err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	c, err := r.certificate(b)
	if err != nil {
		return v1alpha1.CertificateReference{}, err
	}
	return r.Records.Certify(b.uid(), c)
}
