package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
)

// findKinds learns the kinds of owners of this installation, and which of them
// the cluster serves now.
func (p *process) findKinds(ctx context.Context) (err error) {
	if p.table, err = p.readTable(ctx); err != nil {
		return err
	}
	if p.watched, err = p.table.Watch(p.mgr.GetRESTMapper()); err != nil {
		return err
	}
	names := make([]string, 0, len(p.watched))
	for _, w := range p.watched {
		names = append(names, w.GroupKind().String())
	}
	slices.Sort(names)
	p.Log.Info("kinds of work that the cluster serves; one that is installed later is known after a restart", "kinds", names)
	return p.mayRead(ctx)
}

// readTable reads the ConfigMap that the chart writes.
func (p *process) readTable(ctx context.Context) (observe.Table, error) {
	own := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: v1alpha1.KindsConfigMap}
	err := p.mgr.GetAPIReader().Get(ctx, key, own)
	if err != nil && !apierrors.IsNotFound(err) {
		return observe.Table{}, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	more, err := observe.ReadKinds([]byte(own.Data[v1alpha1.KindsKey]))
	if err != nil {
		return observe.Table{}, fmt.Errorf("ConfigMap %s: %s: %w", key, v1alpha1.KindsKey, err)
	}
	table, err := observe.NewTable(more...)
	if err != nil {
		return table, fmt.Errorf("ConfigMap %s: %s: %w", key, v1alpha1.KindsKey, err)
	}
	return table, nil
}

// mayRead asks for the right to read each kind: a cache of a kind that may not
// be listed would be waited for without end.
func (p *process) mayRead(ctx context.Context) error {
	var asks []authorizationv1.ResourceAttributes
	for _, w := range p.watched {
		mapping, err := p.mgr.GetRESTMapper().RESTMapping(w.GroupKind(), w.Version)
		if err != nil {
			return fmt.Errorf("ask for the resource of %s: %w", w.GroupKind(), err)
		}
		for _, verb := range []string{"list", "watch"} {
			asks = append(asks, authorizationv1.ResourceAttributes{Verb: verb, Group: mapping.Resource.Group, Resource: mapping.Resource.Resource})
		}
	}
	denied, err := denials(ctx, p.kube, asks)
	if err != nil {
		return err
	}
	if len(denied) > 0 {
		return fmt.Errorf("this identity may not %s: name the kinds of your own in the chart's values, which give the right to read them", strings.Join(denied, ", "))
	}
	return nil
}

// ownerReader reads owners: those of watched kinds from the cache, all others
// past it. An owner's kind is the user's word: a cache of any kind that is named
// would be waited for without end.
type ownerReader struct {
	client.Reader
	cache   client.Reader
	watched []observe.Watched
}

// Get reads the metadata of an owner.
func (r ownerReader) Get(ctx context.Context, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
	want, ok := into.(*metav1.PartialObjectMetadata)
	if !ok || !r.whole(want.GroupVersionKind()) {
		return r.Reader.Get(ctx, key, into, options...)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(want.GroupVersionKind())
	if err := r.cache.Get(ctx, key, u, options...); err != nil {
		return err
	}
	want.Namespace, want.Name, want.UID, want.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
	want.Labels, want.Annotations = u.GetLabels(), u.GetAnnotations()
	return nil
}

func (r ownerReader) whole(kind schema.GroupVersionKind) bool {
	return slices.ContainsFunc(r.watched, func(w observe.Watched) bool { return w.Whole && w.GroupVersionKind == kind })
}
