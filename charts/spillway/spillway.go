// Package spillway carries the Helm chart of the same folder as Go data: the
// custom resources, accounts, roles and admission policies that make a cluster
// ready for Spillway.
//
// The templates are plain YAML, so that Helm and [Apply] install the very same
// objects; the demo and the tests use Apply. Its words: a manifest is one object
// of the chart; a guard is an admission policy with its binding. Guards act a
// few seconds after they are written: [WaitForGuards] returns when they do.
package spillway

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

//go:embed crds/*.yaml templates/*.yaml
var files embed.FS

// fieldManager owns the fields that Apply writes.
const fieldManager = "spillway-chart"

// Manifests returns every object of the chart in the order in which it can be
// created: kinds, namespace, accounts, roles, guards.
func Manifests() ([]*unstructured.Unstructured, error) {
	return Read(files, "crds/*.yaml", "templates/*.yaml")
}

// Read parses the YAML files of fsys that match any of the patterns and sorts
// their objects as Manifests does. Documents without content are left out. An
// error names the file.
func Read(fsys fs.FS, patterns ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, pattern := range patterns {
		names, err := fs.Glob(fsys, pattern)
		if err != nil {
			return nil, fmt.Errorf("manifests %s: %w", pattern, err)
		}
		for _, name := range names {
			data, err := fs.ReadFile(fsys, name)
			if err != nil {
				return nil, fmt.Errorf("manifests: %w", err)
			}
			found, err := parse(data)
			if err != nil {
				return nil, fmt.Errorf("manifest %s: %w", name, err)
			}
			objects = append(objects, found...)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(order(a)-order(b), last(a)-last(b))
	})
	return objects, nil
}

// parse reads the documents of one YAML file.
func parse(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := documents.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(object.Object) == 0 {
			continue
		}
		if object.GetKind() == "" || object.GetName() == "" {
			return nil, errors.New("an object without kind or name: give it both")
		}
		objects = append(objects, object)
	}
}

// probed is the guard that [WaitForGuards] asks. It is written last.
const probed = "spillway-nodes"

// order puts what others need first.
func order(object *unstructured.Unstructured) int {
	kinds := []string{
		"CustomResourceDefinition", "Namespace", "ServiceAccount", "Service", "ClusterRole", "Role",
		"ClusterRoleBinding", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	}
	if i := slices.Index(kinds, object.GetKind()); i >= 0 {
		return i
	}
	return len(kinds)
}

// last puts the probed guard behind the others of its kind.
func last(object *unstructured.Unstructured) int {
	if object.GetName() == probed {
		return 1
	}
	return 0
}

// Apply writes the chart into a cluster by server-side apply and returns when
// its kinds are served. Repeating it changes nothing. The caller must be a
// cluster administrator. Guards may not act yet; see [WaitForGuards].
func Apply(ctx context.Context, client dynamic.Interface) error {
	objects, err := Manifests()
	if err != nil {
		return err
	}
	return ApplyObjects(ctx, client, objects)
}

// ApplyObjects writes objects by server-side apply, in their order, and waits
// until each custom resource definition among them is served. An error names
// the object.
func ApplyObjects(ctx context.Context, client dynamic.Interface, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
		if _, err := resource(client, object).Apply(ctx, object.GetName(), object, options); err != nil {
			return fmt.Errorf("apply %s %s: %w; it takes the rights of a cluster administrator", object.GetKind(), object.GetName(), err)
		}
	}
	for _, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" {
			continue
		}
		if err := poll(ctx, func(ctx context.Context) (bool, error) {
			found, err := resource(client, object).Get(ctx, object.GetName(), metav1.GetOptions{})
			return err == nil && established(found), err
		}); err != nil {
			return fmt.Errorf("wait until the API server serves %s: %w", object.GetName(), err)
		}
	}
	return nil
}

// resource is where an object lives. Every kind of the chart has a regular
// plural, so no discovery is needed.
func resource(client dynamic.Interface, object *unstructured.Unstructured) dynamic.ResourceInterface {
	plural, _ := meta.UnsafeGuessKindToResource(object.GroupVersionKind())
	if namespace := object.GetNamespace(); namespace != "" {
		return client.Resource(plural).Namespace(namespace)
	}
	return client.Resource(plural)
}

// established reports whether the API server serves the kind.
func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Established" && condition["status"] == "True"
	})
}

// WaitForGuards returns when the API server refuses what the guards refuse: it
// asks, without storing anything, for a node under a burst node's name. The API
// server takes over policies, and bindings, in the order of their writing; the
// guard that is asked was written last, so the others act too. It ends with the
// context.
func WaitForGuards(ctx context.Context, client dynamic.Interface) error {
	probe := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "spw-guard-probe"},
	}}
	nodes := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"})
	err := poll(ctx, func(ctx context.Context) (bool, error) {
		_, err := nodes.Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), probed), nil
	})
	if err != nil {
		return fmt.Errorf("wait until the admission policies act: %w", err)
	}
	return nil
}

// poll asks until done is true, the context ends, or an error that is not "not
// there yet" comes.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
