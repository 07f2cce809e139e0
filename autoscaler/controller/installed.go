package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/auth/rbac/validation"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	chart "spillway.dev/spillway/charts/spillway"
)

// kinds compares the kinds that the cluster serves with those of this version.
// `helm upgrade` leaves old ones as they are.
func kinds(ctx context.Context, c *rest.Config) (string, error) {
	n, err := compare(ctx, c, "CustomResourceDefinition")
	if err != nil {
		return "", err
	}
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return "", fmt.Errorf("API client: %w", err)
	}
	gv := clusterv1.GroupVersion.String()
	list, err := d.ServerResourcesForGroupVersion(gv)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("ask for the kinds of %s: %w", gv, err)
	}
	if list == nil || !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "machines" }) {
		return "", fmt.Errorf("machines of %s are not served: install Cluster API 1.11 or newer", gv)
	}
	return fmt.Sprintf("%d of ours and %s", n, gv), nil
}

// guards compares the admission policies with those of this version. Without
// them a tenant could reach what is another's, so nothing starts without.
func guards(ctx context.Context, c *rest.Config) (string, error) {
	policies, err := compare(ctx, c, "ValidatingAdmissionPolicy")
	if err != nil {
		return "", err
	}
	if _, err := compare(ctx, c, "ValidatingAdmissionPolicyBinding"); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d, all bound", policies), nil
}

// compare holds the cluster's objects of one kind to the chart's: they may
// have more, never less.
func compare(ctx context.Context, c *rest.Config, kind string) (int, error) {
	objects, err := chart.Manifests()
	if err != nil {
		return 0, err
	}
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return 0, fmt.Errorf("API client: %w", err)
	}
	n := 0
	for _, want := range objects {
		if want.GetKind() != kind {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(want.GroupVersionKind())
		got, err := client.Resource(plural).Get(ctx, want.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return n, fmt.Errorf("%s %s is missing: apply the chart of this version", kind, want.GetName())
		case err != nil:
			return n, fmt.Errorf("read %s %s: %w", kind, want.GetName(), err)
		}
		if path, ok := holds(got.Object["spec"], want.Object["spec"]); !ok {
			return n, fmt.Errorf("%s %s is of another version, it differs at spec%s: apply the chart of this version (helm upgrade leaves CRDs as they are: kubectl apply --server-side -f crds/)", kind, want.GetName(), path)
		}
		n++
	}
	return n, nil
}

// holds reports whether got has all that want has, and where it has not.
func holds(got, want any) (path string, ok bool) {
	switch want := want.(type) {
	case map[string]any:
		have, _ := got.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(want)) {
			if path, ok := holds(have[key], want[key]); !ok {
				return "." + key + path, false
			}
		}
		return "", true
	case []any:
		have, _ := got.([]any)
		if len(have) != len(want) {
			return "", false
		}
		for i := range want {
			if path, ok := holds(have[i], want[i]); !ok {
				return fmt.Sprintf("[%d]%s", i, path), false
			}
		}
		return "", true
	}
	return "", fmt.Sprint(got) == fmt.Sprint(want) // numbers come as int64 or float64
}

// rights compares what the API server's rules give this identity with every
// right that the chart's roles give, and asks for what no rule covers: an
// authorizer of another kind may allow it. Two questions and what is missing,
// not one for each of some 170 rights.
func rights(ctx context.Context, c *rest.Config) (string, error) {
	roles, err := neededRights()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		return "", fmt.Errorf("API client: %w", err)
	}
	needed := 0
	var asks []authorizationv1.ResourceAttributes
	for _, role := range roles {
		have, err := givenRights(ctx, client, cmp.Or(role.namespace, noNamespace))
		if err != nil {
			return "", err
		}
		for _, rule := range role.rules {
			needed += len(validation.BreakdownRule(rule))
		}
		_, open := validation.Covers(have, role.rules)
		for _, rule := range open {
			asks = append(asks, attributes(role.namespace, rule)...)
		}
	}
	denied, err := denials(ctx, client, asks)
	if err != nil {
		return "", err
	}
	if len(denied) > 0 {
		return "", fmt.Errorf("this identity may not %s, %d of %d needed rights are missing: apply the chart, and run as its ServiceAccount %s/%s",
			denied[0], len(denied), needed, v1alpha1.SystemNamespace, v1alpha1.ControllerAccount)
	}
	return fmt.Sprintf("all %d", needed), nil
}

// noNamespace is no namespace's name: what holds there holds in every one.
const noNamespace = "-"

// givenRights are the rules that hold for this identity in one namespace.
func givenRights(ctx context.Context, client kubernetes.Interface, namespace string) ([]rbacv1.PolicyRule, error) {
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
	answer, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for this identity's rights: %w", err)
	}
	var rules []rbacv1.PolicyRule
	for _, r := range answer.Status.ResourceRules {
		rules = append(rules, rbacv1.PolicyRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})
	}
	return rules, nil
}

// denials asks for rights one by one and returns the refused ones in words.
func denials(ctx context.Context, client kubernetes.Interface, asks []authorizationv1.ResourceAttributes) ([]string, error) {
	denied, errs := make([]string, len(asks)), make([]error, len(asks))
	slots := make(chan struct{}, 8)
	var group sync.WaitGroup
	for i, a := range asks {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &a}}
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			if err != nil {
				errs[i] = fmt.Errorf("ask for the right to %s: %w", said(a), err)
				return
			}
			if !answer.Status.Allowed {
				denied[i] = said(a)
			}
		})
	}
	group.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(denied, func(d string) bool { return d == "" }), nil
}

// role is a set of rules that hold in one namespace, or, unnamed, in all.
type role struct {
	namespace string
	rules     []rbacv1.PolicyRule
}

// neededRights are the rules of the roles that the chart binds to the
// controller.
func neededRights() ([]role, error) {
	objects, err := chart.Manifests()
	if err != nil {
		return nil, err
	}
	bound := map[string]bool{} // kind/namespace/name
	for _, o := range objects {
		if o.GetKind() != "ClusterRoleBinding" && o.GetKind() != "RoleBinding" {
			continue
		}
		var b rbacv1.RoleBinding
		if err := decode(o, &b); err != nil {
			return nil, err
		}
		for _, s := range b.Subjects {
			if s.Kind == "ServiceAccount" && s.Name == v1alpha1.ControllerAccount && s.Namespace == v1alpha1.SystemNamespace {
				bound[b.RoleRef.Kind+"/"+o.GetNamespace()+"/"+b.RoleRef.Name] = true
			}
		}
	}
	var roles []role
	for _, o := range objects {
		if !bound[o.GetKind()+"/"+o.GetNamespace()+"/"+o.GetName()] {
			continue
		}
		var r rbacv1.Role
		if err := decode(o, &r); err != nil {
			return nil, err
		}
		roles = append(roles, role{o.GetNamespace(), r.Rules})
	}
	return roles, nil
}

func decode(o *unstructured.Unstructured, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
		return fmt.Errorf("chart: %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// attributes spells a rule out.
func attributes(namespace string, rule rbacv1.PolicyRule) (asks []authorizationv1.ResourceAttributes) {
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			resource, sub, _ := strings.Cut(resource, "/")
			for _, verb := range rule.Verbs {
				for _, name := range names {
					asks = append(asks, authorizationv1.ResourceAttributes{
						Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name,
					})
				}
			}
		}
	}
	return asks
}

// said is a right in words.
func said(a authorizationv1.ResourceAttributes) string {
	what := a.Resource
	if a.Subresource != "" {
		what += "/" + a.Subresource
	}
	if a.Group != "" {
		what += "." + a.Group
	}
	return fmt.Sprintf("%s %s in %s", a.Verb, what, cmp.Or(a.Namespace, "every namespace"))
}
