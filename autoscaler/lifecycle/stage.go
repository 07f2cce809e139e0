package lifecycle

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// stage makes the burst's data key and puts the ciphertext of its inputs near
// the node. The machine is bought meanwhile; only admit waits for Staged.
func (r *Reconciler) stage() []act {
	return []act{
		{fact: v1alpha1.StagingStarted, do: r.startStaging},
		{fact: v1alpha1.Staged, do: r.finishStaging},
	}
}

func (r *Reconciler) startStaging(ctx context.Context, b record) (outcome, error) {
	if err := r.Data.Prepare(ctx, b.Burst, b.Spec.Deadline.Time); err != nil {
		return outcome{}, err
	}
	return outcome{message: "data key made at home, for this burst only"}, nil
}

func (r *Reconciler) finishStaging(ctx context.Context, b record) (outcome, error) {
	s, err := r.Data.Stage(ctx, b.Burst)
	if refused, ok := refusedStaging(err); ok {
		return outcome{end: v1alpha1.EndStagingRefused, message: refused}, nil
	}
	switch {
	case err != nil && b.has(v1alpha1.MachineRequested): // the machine is looked after all the same
		r.Log.Warn("staging failed; it is tried again", "burst", b.Name, "namespace", b.Namespace, "error", err)
		return outcome{pass: r.Settings.patiently()}, nil
	case err != nil:
		return outcome{}, err
	}
	d := &b.Status.Data
	if d.Progress == nil || s.Objects != d.Objects || s.Bytes != d.StagedBytes || s.Total != d.TotalBytes {
		now := metav1.NewTime(b.now)
		d.Progress = &now
	}
	d.Objects, d.StagedBytes, d.TotalBytes = s.Objects, s.Bytes, s.Total
	if !s.Done {
		return outcome{pass: r.Settings.Poll}, nil
	}
	d.ManifestSHA256 = s.ManifestSHA256
	return outcome{message: fmt.Sprintf("%d objects, %d bytes staged as ciphertext", s.Objects, s.Bytes)}, nil
}
