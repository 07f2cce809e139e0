package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
)

// kindsOfWork are the kinds of owners that this installation knows, and those
// of them that the cluster serves now and that this identity may read. A cache
// of a kind that may not be listed would be waited for without end.
func kindsOfWork(ctx context.Context, c *rest.Config) (observe.Table, []observe.Watched, error) {
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return observe.Table{}, nil, fmt.Errorf("API client: %w", err)
	}
	table, err := readTable(ctx, client)
	if err != nil {
		return table, nil, err
	}
	http, err := rest.HTTPClientFor(c)
	if err != nil {
		return table, nil, fmt.Errorf("API client: %w", err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(c, http)
	if err != nil {
		return table, nil, fmt.Errorf("ask for the kinds that are served: %w", err)
	}
	watched, err := table.Watch(mapper)
	if err != nil {
		return table, nil, err
	}
	var asks []authorizationv1.ResourceAttributes
	for _, w := range watched {
		for _, verb := range []string{"list", "watch"} {
			asks = append(asks, authorizationv1.ResourceAttributes{Verb: verb, Group: w.Group, Resource: w.Resource})
		}
	}
	denied, err := denials(ctx, client, asks)
	if err == nil && len(denied) > 0 {
		err = fmt.Errorf("this identity may not %s: apply the chart, and name kinds of your own in its values with their resource", strings.Join(denied, ", "))
	}
	return table, watched, err
}

// readTable reads the ConfigMap that the chart writes for kinds of one's own.
func readTable(ctx context.Context, client kubernetes.Interface) (observe.Table, error) {
	own, err := client.CoreV1().ConfigMaps(v1alpha1.SystemNamespace).Get(ctx, v1alpha1.KindsConfigMap, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return observe.Table{}, fmt.Errorf("read ConfigMap %s: %w", v1alpha1.KindsConfigMap, err)
	}
	var table observe.Table
	more, err := observe.ReadKinds([]byte(own.Data[v1alpha1.KindsKey]))
	if err == nil {
		table, err = observe.NewTable(more...)
	}
	if err != nil {
		return table, fmt.Errorf("ConfigMap %s, %s: %w", v1alpha1.KindsConfigMap, v1alpha1.KindsKey, err)
	}
	return table, nil
}

// work is kindsOfWork as a check before the start.
func work(ctx context.Context, c *rest.Config) (string, error) {
	_, watched, err := kindsOfWork(ctx, c)
	names := make([]string, 0, len(watched))
	for _, w := range watched {
		names = append(names, w.GroupKind().String())
	}
	slices.Sort(names)
	return strings.Join(names, ", ") + " are served; what is installed later is known after a restart", err
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
	if !ok {
		return r.Reader.Get(ctx, key, into, options...)
	}
	kind := want.GroupVersionKind().GroupKind() // its version may be another than the cache's
	i := slices.IndexFunc(r.watched, func(w observe.Watched) bool { return w.Whole && w.GroupKind() == kind })
	if i < 0 {
		return r.Reader.Get(ctx, key, into, options...)
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.watched[i].GroupVersionKind)
	if err := r.cache.Get(ctx, key, u, options...); err != nil {
		return err
	}
	want.Namespace, want.Name, want.UID, want.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
	want.Labels, want.Annotations = u.GetLabels(), u.GetAnnotations()
	return nil
}
