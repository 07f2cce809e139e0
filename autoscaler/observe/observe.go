// Package observe gathers the cluster, the offers and the ledger into one
// [plan.State], and knows how pending pods become gangs.
//
// The promise: no State is built from caches that are not synced, and nodes are
// read before pods, so that a pod which was bound in between is seen on its
// node and not bought for again. Whatever can't be read is an error, never an
// empty list: an empty cluster would look like one without room.
//
// Vocabulary: a pod is pending work when the scheduler says Unschedulable, it
// has no node, and it asks for a GPU resource. Its owner is climbed to the top
// controller that we know; all pending pods of one owner are one gang.
package observe

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
)

// Offers are what the clouds sell now, as seen last.
type Offers interface {
	Offers(ctx context.Context, providers []v1alpha1.BurstProvider) []providers.Offer
}

// Observer builds States. All fields are needed.
type Observer struct {
	// Cache reads the cluster from informers.
	Cache client.Reader
	// Synced says that all informers have what the API server has.
	Synced   func(context.Context) bool
	Offers   Offers
	Book     func(context.Context) (quota.Book, error)
	Settings plan.Settings
	Now      func() time.Time
}

// State reads everything that a decision depends on.
func (o *Observer) State(ctx context.Context) (plan.State, error) {
	if !o.Synced(ctx) {
		return plan.State{}, fmt.Errorf("the caches are not synced with the API server yet; nothing is decided")
	}
	s := plan.State{Now: o.Now().UTC(), Settings: o.Settings}
	bursts, tenants, clouds := &v1alpha1.BurstList{}, &v1alpha1.BurstTenantList{}, &v1alpha1.BurstProviderList{}
	nodes, pods, jobs := &corev1.NodeList{}, &corev1.PodList{}, &batchv1.JobList{}
	// Bursts before nodes before pods: what happens in between is then seen at
	// its later place, and nothing is missed at both.
	for _, list := range []client.ObjectList{bursts, tenants, clouds, nodes, pods, jobs} {
		if err := o.Cache.List(ctx, list); err != nil {
			return s, fmt.Errorf("list %T: %w", list, err)
		}
	}
	s.Bursts, s.Tenants, s.Providers = bursts.Items, tenants.Items, clouds.Items
	s.Cluster.Nodes = nodes.Items
	if err := o.surroundings(ctx, &s.Cluster); err != nil {
		return s, err
	}
	owned := ownersOf(jobs.Items)
	s.Cluster.Pods, s.Gangs = split(pods.Items, nodes.Items, owned)
	s.Cluster.Ends = owned.ends(s.Cluster.Pods)
	s.Offers = o.Offers.Offers(ctx, s.Providers)
	book, err := o.Book(ctx)
	if err != nil {
		return s, fmt.Errorf("read the ledger; without it nothing is bought: %w", err)
	}
	s.Book = book
	return s, nil
}

// surroundings reads what the filters look up beside nodes and pods.
func (o *Observer) surroundings(ctx context.Context, c *plan.Cluster) error {
	namespaces, classes := &corev1.NamespaceList{}, &storagev1.StorageClassList{}
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	csiNodes, csiDrivers, daemons := &storagev1.CSINodeList{}, &storagev1.CSIDriverList{}, &appsv1.DaemonSetList{}
	for _, list := range []client.ObjectList{namespaces, classes, volumes, claims, csiNodes, csiDrivers, daemons} {
		if err := o.Cache.List(ctx, list); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	c.Namespaces, c.StorageClasses, c.Volumes, c.Claims = namespaces.Items, classes.Items, volumes.Items, claims.Items
	c.CSINodes, c.CSIDrivers, c.DaemonSets = csiNodes.Items, csiDrivers.Items, daemons.Items
	return nil
}

// split tells bound pods, which take room, from pending work.
func split(pods []corev1.Pod, nodes []corev1.Node, owned owners) (bound []corev1.Pod, gangs []plan.Gang) {
	burstNodes := map[string]bool{}
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			burstNodes[n.Name] = burstNodes[n.Name] || t.Key == v1alpha1.BurstTaint
		}
	}
	found := map[ownerKey]*members{}
	for i := range pods {
		if pod := &pods[i]; pending(pod) {
			owner := owned.top(pod)
			if found[keyOf(owner)] == nil {
				found[keyOf(owner)] = &members{owner: owner}
			}
		}
	}
	for i := range pods {
		pod := &pods[i]
		if over(pod) {
			continue
		}
		m := found[keyOf(owned.top(pod))]
		switch away := pod.Spec.NodeName != ""; {
		case away:
			bound = append(bound, *pod)
			if m != nil && !burstNodes[pod.Spec.NodeName] {
				m.bound++
			}
		case m == nil || !pod.DeletionTimestamp.IsZero():
		case pending(pod), unschedulable(pod) && owned.together(m.owner):
			m.waiting = append(m.waiting, pod)
		default:
			m.unseen++
		}
	}
	for _, m := range found { // the planner brings them into order
		gangs = append(gangs, m.gang(owned))
	}
	return bound, gangs
}

// members are the living pods of one owner.
type members struct {
	owner   plan.Owner
	waiting []*corev1.Pod // refused by the scheduler
	bound   int           // at home
	unseen  int           // without a node, and not refused by the scheduler
}

// gang is the work of the members. Those that must start together are all that
// live: with one that the scheduler has not refused yet the gang is incomplete.
func (m *members) gang(owned owners) plan.Gang {
	g := owned.gang(m.owner, m.waiting...)
	g.Bound = m.bound
	for _, pod := range m.waiting {
		g.Pods = append(g.Pods, *pod)
	}
	if g.Together {
		g.Size = max(g.Size, len(m.waiting)+m.bound+m.unseen)
	}
	return g
}

func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// pending reports whether a pod is unplaced GPU work.
func pending(pod *corev1.Pod) bool {
	return pod.Spec.NodeName == "" && !over(pod) && pod.DeletionTimestamp.IsZero() && asksForGPU(pod) && unschedulable(pod)
}

// unschedulable reports whether the scheduler has looked at a pod and found no
// place for it.
func unschedulable(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
		}
	}
	return false
}
