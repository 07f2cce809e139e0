package lifecycle

import (
	"context"
	"fmt"

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
		return outcome{end: ReasonStagingRefused, message: refused}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	d := &b.Status.Data
	d.Objects, d.StagedBytes, d.TotalBytes = s.Objects, s.Bytes, s.Total
	if !s.Done {
		return outcome{pass: r.Settings.Poll}, nil
	}
	d.ManifestSHA256 = s.ManifestSHA256
	return outcome{message: fmt.Sprintf("%d objects, %d bytes staged as ciphertext", s.Objects, s.Bytes)}, nil
}
