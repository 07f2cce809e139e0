package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/autoscaler/plan"
)

// learn keeps with the provider what the machines of a burst turned out to be,
// so that the next plan doesn't reckon with what an offer only promised.
func (r *Reconciler) learn(ctx context.Context, b record, views []capi.View) error {
	nodes := make([]*corev1.Node, len(views))
	for i, v := range views {
		nodes[i] = &corev1.Node{}
		if err := r.Client.Get(ctx, types.NamespacedName{Name: v.Node}, nodes[i]); err != nil {
			return client.IgnoreNotFound(err) // it is missed elsewhere
		}
	}
	p, err := r.provider(ctx, b)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	is := plan.Learn(b.Spec.Offer.InstanceType, nodes)
	old := p.DeepCopy()
	all := &p.Status.Learned
	if i := slices.IndexFunc(*all, func(m v1alpha1.LearnedMachine) bool { return m.InstanceType == is.InstanceType }); i >= 0 {
		was := (*all)[i]
		if was.MilliCPU == is.MilliCPU && was.Memory == is.Memory && was.Disk == is.Disk && was.Pods == is.Pods && maps.Equal(was.Labels, is.Labels) {
			return nil
		}
		*all = slices.Delete(*all, i, i+1)
	}
	is.At = metav1.NewTime(b.now)
	*all = append(*all, is)
	if over := len(*all) - v1alpha1.LearnedMax; over > 0 {
		*all = slices.Delete(*all, 0, over) // the ones learned longest ago
	}
	if err := r.Client.Status().Patch(ctx, p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("keep what machines of type %s at %s are: %w", is.InstanceType, p.Name, err)
	}
	return nil
}
