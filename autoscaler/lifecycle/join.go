package lifecycle

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
)

// join waits until every machine is a node of the cluster with all its GPUs
// allocatable and an agent that has shown its evidence. A pod that is let in
// earlier gets stuck (cases: H-20 NVIDIA/k8s-device-plugin#291).
func (r *Reconciler) join() []act {
	return []act{{fact: v1alpha1.NodeJoined, do: r.nodesJoined}}
}

func (r *Reconciler) nodesJoined(ctx context.Context, b record) (outcome, error) {
	views, err := r.Machines.Read(ctx, b.UID)
	if err != nil {
		return outcome{}, err
	}
	waiting := ""
	for _, v := range views {
		if words := lost(v); words != "" {
			b.keepTimes(v)
			return outcome{end: v1alpha1.EndMachineLost, message: fmt.Sprintf("machine %s at %s %s", v.Name, b.Spec.Offer.Provider, words)}, r.bench(ctx, b, v1alpha1.EndMachineLost)
		}
		missing, err := r.notReady(ctx, b, v)
		if err != nil {
			return outcome{}, err
		}
		if missing != "" && waiting == "" {
			waiting = fmt.Sprintf("machine %s: %s", v.Name, missing)
		}
	}
	if waiting == "" && int32(len(views)) == b.Spec.Machines {
		if err := r.learn(ctx, b, views); err != nil {
			return outcome{}, err
		}
		// What joined needs no token any more, and user-data can be read from
		// the cloud (cases: B-28 kubernetes-sigs/cluster-api#1739).
		if err := r.Joins.Revoke(ctx, b.Burst); err != nil {
			return outcome{}, err
		}
		return outcome{message: fmt.Sprintf("%d nodes, %d x %s each", len(views), b.Spec.Offer.GPUs, b.Spec.Offer.GPUResource)}, nil
	}
	return r.lateJoin(ctx, b, views, waiting)
}

// lateJoin ends the burst when the node, or its GPUs, are overdue.
func (r *Reconciler) lateJoin(ctx context.Context, b record, views []capi.View, waiting string) (outcome, error) {
	p, err := r.provider(ctx, b)
	if err != nil {
		return outcome{}, err
	}
	bought, joined := b.at(v1alpha1.MachineBought), true
	for _, v := range views {
		joined = joined && v.Node != ""
	}
	switch {
	case !joined && b.now.After(r.Settings.joinBy(p, bought)):
		message := fmt.Sprintf("%s; the join deadline %s has passed and the join token with it", waiting, r.Settings.joinBy(p, bought).Format(time.RFC3339))
		return outcome{end: v1alpha1.EndJoinDeadline, message: message}, r.bench(ctx, b, v1alpha1.EndJoinDeadline)
	case b.now.After(r.Settings.readyBy(p, bought)):
		return outcome{end: v1alpha1.EndReadyDeadline, message: fmt.Sprintf("%s; the deadline %s has passed", waiting, r.Settings.readyBy(p, bought).Format(time.RFC3339))}, r.bench(ctx, b, v1alpha1.EndReadyDeadline)
	}
	return outcome{wait: r.Settings.Poll}, nil
}

// notReady says what a machine's node still lacks, empty for nothing.
func (r *Reconciler) notReady(ctx context.Context, b record, v capi.View) (string, error) {
	if v.Node == "" {
		return fmt.Sprintf("no Node with spec.providerID %s yet", v.ProviderID), nil
	}
	if v.Node != v.Name { // another machine took this one's provider id
		return fmt.Sprintf("the Node with its providerID is named %s, expected %s", v.Node, v.Name), nil
	}
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: v.Node}, node); err != nil {
		return "its Node object is gone", client.IgnoreNotFound(err)
	}
	if node.Spec.ProviderID != v.ProviderID {
		return fmt.Sprintf("the Node's providerID is %s, expected %s", node.Spec.ProviderID, v.ProviderID), nil
	}
	gpus := node.Status.Allocatable[corev1.ResourceName(b.Spec.Offer.GPUResource)]
	if gpus.Value() < int64(b.Spec.Offer.GPUs) {
		return fmt.Sprintf("%d of %d %s allocatable", gpus.Value(), b.Spec.Offer.GPUs, b.Spec.Offer.GPUResource), nil
	}
	if !fenced(node, b.uid()) {
		return "the Node lacks the burst's taint", nil
	}
	report, seen, ok := r.Nodes.Report(v.Name)
	if !ok || r.silent(b, seen) {
		return "no report from its agent yet", nil
	}
	for _, e := range report.Readiness.Evidence {
		if !e.OK && !slices.Contains(r.Settings.Waived, e.Gate) {
			return fmt.Sprintf("agent: %s: %s", e.Gate, e.Seen), nil
		}
	}
	if len(report.Readiness.Evidence) == 0 {
		return "the agent has shown no evidence yet", nil
	}
	m := b.machine(v.Ordinal)
	m.BootID, m.ProofKey = report.BootID, base64.StdEncoding.EncodeToString(report.ProofKey)
	return "", nil
}

// fenced reports whether the node keeps everybody but this burst's pods out.
func fenced(n *corev1.Node, burst string) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == v1alpha1.BurstTaint && t.Value == burst && t.Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}
