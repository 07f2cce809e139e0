// Package observe gathers the cluster, the offers and the ledger into one
// [plan.State], and knows how pending pods become gangs.
//
// The promise: no State is built from caches that are not synced, and nodes are
// read before pods, so that a pod which was bound in between is seen on its
// node and not bought for again. Whatever can't be read is an error, never an
// empty list: an empty cluster would look like one without room.
//
// Vocabulary: a pod is pending work when the scheduler says Unschedulable of it
// or of its group, it has no node, and it asks for a GPU resource; it is held
// when it waits for something else than room. Its owner is climbed to the top
// controller that the table of kinds knows; all pending pods of one owner are
// one gang.
package observe

import (
	"context"
	"fmt"
	"slices"
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

// Observer builds States. All fields but Scales are needed.
type Observer struct {
	// Cache reads the cluster from informers; Mirror has its nodes and pods.
	Cache  client.Reader
	Mirror *Mirror
	// Table is the kinds of owners; Watched are those that the cluster serves.
	Table   Table
	Watched []Watched
	// Synced says that all informers have what the API server has.
	Synced   func(context.Context) bool
	Offers   Offers
	Book     func(context.Context) (quota.Book, error)
	Settings plan.Settings
	Now      func() time.Time
	// Scales weigh the inputs of gangs; without them nobody knows how much they are.
	Scales *Scales
}

// State reads everything that a decision depends on.
func (o *Observer) State(ctx context.Context) (plan.State, error) {
	if !o.Synced(ctx) || !o.Mirror.Synced() {
		return plan.State{}, fmt.Errorf("the caches are not synced with the API server yet; nothing is decided")
	}
	s := plan.State{Now: o.Now().UTC(), Settings: o.Settings}
	bursts, tenants, clouds := &v1alpha1.BurstList{}, &v1alpha1.BurstTenantList{}, &v1alpha1.BurstProviderList{}
	jobs := &batchv1.JobList{}
	// Bursts before nodes and pods before their owners: what happens in between is
	// then seen at its later place, and nothing is missed at both.
	if err := o.list(ctx, bursts, tenants, clouds); err != nil {
		return s, err
	}
	s.Bursts, s.Tenants, s.Providers = bursts.Items, tenants.Items, clouds.Items
	var pods []*corev1.Pod
	s.Cluster.Nodes, pods, s.Cluster.Changes = o.Mirror.read()
	if err := o.list(ctx, jobs); err != nil {
		return s, err
	}
	if err := o.surroundings(ctx, &s.Cluster); err != nil {
		return s, err
	}
	owned, err := o.owners(ctx, jobs.Items)
	if err != nil {
		return s, err
	}
	owned.volumes, owned.quotas = newVolumes(&s.Cluster), newQuotas(s.Cluster.Quotas)
	s.Cluster.Pods, s.Gangs = split(pods, s.Cluster.Nodes, owned)
	s.Gangs = concerned(s.Gangs, s.Tenants)
	o.weigh(ctx, &s)
	s.Cluster.Ends = owned.ends(s.Cluster.Pods)
	s.Offers = o.Offers.Offers(ctx, s.Providers)
	book, err := o.Book(ctx)
	if err != nil {
		return s, fmt.Errorf("read the ledger; without it nothing is bought: %w", err)
	}
	s.Book = book
	return s, nil
}

// list reads from the cache what a state is made of. The objects are shared with
// the cache: nobody who reads a State changes what is in it. To copy them would
// be most of the memory of a cycle in a large cluster.
func (o *Observer) list(ctx context.Context, lists ...client.ObjectList) error {
	for _, list := range lists {
		if err := o.Cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list %T: %w", list, err)
		}
	}
	return nil
}

// concerned leaves out what waits for no room in namespaces that no tenant has:
// nobody there has asked Spillway for anything, so nobody is told why.
func concerned(gangs []plan.Gang, tenants []v1alpha1.BurstTenant) []plan.Gang {
	theirs := map[string]bool{}
	for _, t := range tenants {
		for _, namespace := range t.Spec.Namespaces {
			theirs[namespace] = true
		}
	}
	return slices.DeleteFunc(gangs, func(g plan.Gang) bool { return g.Hold != nil && !theirs[g.Owner.Namespace] })
}

// surroundings reads what the filters look up beside nodes and pods.
func (o *Observer) surroundings(ctx context.Context, c *plan.Cluster) error {
	namespaces, classes := &corev1.NamespaceList{}, &storagev1.StorageClassList{}
	volumes, claims := &corev1.PersistentVolumeList{}, &corev1.PersistentVolumeClaimList{}
	csiNodes, csiDrivers, daemons := &storagev1.CSINodeList{}, &storagev1.CSIDriverList{}, &appsv1.DaemonSetList{}
	quotas := &corev1.ResourceQuotaList{}
	if err := o.list(ctx, namespaces, classes, volumes, claims, csiNodes, csiDrivers, daemons, quotas); err != nil {
		return err
	}
	c.Namespaces, c.StorageClasses, c.Volumes, c.Claims = namespaces.Items, classes.Items, volumes.Items, claims.Items
	c.CSINodes, c.CSIDrivers, c.DaemonSets, c.Quotas = csiNodes.Items, csiDrivers.Items, daemons.Items, quotas.Items
	return nil
}
