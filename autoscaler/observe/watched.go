package observe

import (
	"context"
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/plan"
)

// Watched is a kind whose objects are read, in the version that the cluster
// prefers.
type Watched struct {
	schema.GroupVersionKind
	// Resource is its plural, by which the right to read it is given.
	Resource string
	// Whole says that the fields are needed, and not only who owns it.
	Whole bool
	// Named says that pods name its objects, and that their status counts.
	Named bool
	// keep are the paths of what is read; without any it is everything.
	keep []string
}

// Watch asks the cluster which kinds of the table it serves. One that it does
// not serve is left out: nobody can have made one. A kind that is installed
// later is noticed when this is asked again, at the start of a controller;
// until then gangs of it are held as OWNER_UNKNOWN.
func (t Table) Watch(served meta.RESTMapper) ([]Watched, error) {
	var all []Watched
	add := func(kind schema.GroupKind, w Watched) error {
		mapping, err := served.RESTMapping(kind)
		if meta.IsNoMatchError(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("ask whether %s is served: %w", kind, err)
		}
		w.GroupVersionKind, w.Resource = mapping.GroupVersionKind, mapping.Resource.Resource
		all = append(all, w)
		return nil
	}
	for kind, k := range t.kinds {
		if kind == (schema.GroupKind{Group: "batch", Kind: "Job"}) || !k.whole() && !k.Through {
			continue // read as what it is, or by its name alone
		}
		if err := add(kind, k.watched()); err != nil {
			return nil, err
		}
	}
	for _, g := range t.groups {
		if err := add(g.GroupKind, Watched{Whole: true, Named: true}); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// watched is the kind without the version that a cluster prefers.
func (k *Kind) watched() Watched {
	w := Watched{Whole: k.whole(), keep: []string{k.Suspended, k.Deadline, k.Started}}
	if k.Suspended != "" {
		w.keep = append(w.keep, "spec") // what its templates ask for
	}
	for _, c := range slices.Concat(k.Pods, k.Jobs) {
		w.keep = append(w.keep, c.Of)
	}
	for _, condition := range slices.Concat(k.Staged, k.InOrder) {
		path, _, _ := cutCondition(condition)
		w.keep = append(w.keep, path)
	}
	return w
}

// Lean takes away what is never read, before a cache keeps an object: who wrote
// which field, and of owners all but the fields that the table names. A
// Workflow's status alone may be a megabyte.
func (w Watched) Lean(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	u, ok := object.(*unstructured.Unstructured)
	if !ok || w.keep == nil {
		return object, nil
	}
	lean := map[string]any{"apiVersion": u.Object["apiVersion"], "kind": u.Object["kind"], "metadata": u.Object["metadata"]}
	for _, path := range w.keep {
		path, _, _ = strings.Cut(path, "[]") // a list or map is kept as it is
		names := strings.Split(path, ".")
		if value, found, err := unstructured.NestedFieldNoCopy(u.Object, names...); found && err == nil {
			if err := unstructured.SetNestedField(lean, value, names...); err != nil {
				return nil, fmt.Errorf("keep %s of %s %s: %w", path, w.Kind, u.GetName(), err)
			}
		}
	}
	u.Object = lean
	return u, nil
}

// Object is an empty object of the kind, as a cache is asked for it.
func (w Watched) Object() client.Object {
	if w.Whole {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(w.GroupVersionKind)
		return u
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(w.GroupVersionKind)
	return m
}

// owners reads the objects of all watched kinds. They are the cache's own, and
// are only read.
func (o *Observer) owners(ctx context.Context, jobs []batchv1.Job) (*owners, error) {
	owned := newOwners(o.Table, jobs)
	for _, w := range o.Watched {
		owned.watched[w.GroupKind()] = true
		kind := w.GroupVersionKind
		kind.Kind += "List"
		if !w.Whole {
			list := &metav1.PartialObjectMetadataList{}
			list.SetGroupVersionKind(kind)
			if err := o.Cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list %s: %w", w.GroupVersionKind, err)
			}
			for i := range list.Items {
				owned.add(&object{Owner: ownerFrom(w.GroupVersionKind, &list.Items[i]), Object: &list.Items[i]})
			}
			continue
		}
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := o.Cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list %s: %w", w.GroupVersionKind, err)
		}
		for i := range list.Items {
			owned.add(fromFields(w.GroupVersionKind, &list.Items[i]))
		}
	}
	return owned, nil
}

func fromFields(kind schema.GroupVersionKind, u *unstructured.Unstructured) *object {
	return &object{Owner: ownerFrom(kind, u), Object: u, fields: u.Object}
}

func ownerFrom(kind schema.GroupVersionKind, o metav1.Object) plan.Owner {
	return plan.Owner{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
}
