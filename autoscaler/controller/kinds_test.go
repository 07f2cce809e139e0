package controller

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
)

// kindsTemplate renders the one file of the chart that depends on values, with
// the few functions of Helm that it calls.
func kindsTemplate(t *testing.T, values string) []string {
	t.Helper()
	text, err := os.ReadFile("../../charts/spillway/templates/kinds/kinds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		t.Fatal(err)
	}
	functions := template.FuncMap{
		"toYaml": func(v any) (string, error) {
			b, err := yaml.Marshal(v)
			return strings.TrimSuffix(string(b), "\n"), err
		},
		"indent": func(n int, s string) string {
			pad := strings.Repeat(" ", n)
			return pad + strings.ReplaceAll(s, "\n", "\n"+pad)
		},
		"quote": func(s string) string { return `"` + s + `"` },
	}
	var out bytes.Buffer
	if err := template.Must(template.New("kinds").Funcs(functions).Parse(string(text))).Execute(&out, map[string]any{"Values": v}); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n---\n")
}

// What a chart value states is what a controller knows, and may read.
func TestTheChartAddsKinds(t *testing.T) {
	documents := kindsTemplate(t, `kinds: [{group: example.com, kind: Fleet, resource: fleets, together: true, pods: [{of: "spec.crews[]", times: [size]}]}]`)
	if len(documents) != 3 {
		t.Fatalf("%d objects, want a ConfigMap, a role and its binding:\n%s", len(documents), strings.Join(documents, "\n"))
	}
	var own corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(documents[0]), &own); err != nil {
		t.Fatal(err)
	}
	if own.Name != v1alpha1.KindsConfigMap || own.Namespace != v1alpha1.SystemNamespace {
		t.Errorf("the ConfigMap is %s/%s", own.Namespace, own.Name)
	}
	kinds, err := observe.ReadKinds([]byte(own.Data[v1alpha1.KindsKey]))
	if err != nil || len(kinds) != 1 || !kinds[0].Together || kinds[0].Pods[0].Of != "spec.crews[]" {
		t.Errorf("the controller reads %+v, %v", kinds, err)
	}
	if !strings.Contains(documents[1], `resources: ["fleets"]`) {
		t.Errorf("the role gives no right to read fleets:\n%s", documents[1])
	}
}

// The values as they are delivered add nothing, and their example is one.
func TestTheDeliveredValues(t *testing.T) {
	data, err := os.ReadFile("../../charts/spillway/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if documents := kindsTemplate(t, string(data)); len(documents) != 1 || documents[0] != "" {
		t.Errorf("without kinds the chart makes %q", documents)
	}
	_, example, _ := strings.Cut(string(data), "For example:\n#\n")
	example, _, _ = strings.Cut(example, "\nkinds: []")
	documents := kindsTemplate(t, strings.ReplaceAll(strings.TrimPrefix(example, "# "), "\n# ", "\n"))
	var own corev1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(documents[0]), &own); err != nil {
		t.Fatal(err)
	}
	kinds, err := observe.ReadKinds([]byte(own.Data[v1alpha1.KindsKey]))
	if err == nil {
		_, err = observe.NewTable(kinds...)
	}
	if err != nil || len(kinds) != 2 {
		t.Errorf("the example of values.yaml: %d kinds, %v", len(kinds), err)
	}
}

// Owners of watched kinds are told from the cache; any other kind is the user's
// word, and is never cached for it.
func TestOwnersAreReadFromTheCacheOfTheirKind(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}
	object := func(kind schema.GroupVersionKind, note string) client.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		u.SetNamespace("team")
		u.SetName("train")
		u.SetUID("uid")
		u.SetAnnotations(map[string]string{"from": note})
		return u
	}
	other := schema.GroupVersionKind{Group: "x.example", Version: "v1", Kind: "Sweep"}
	r := ownerReader{
		Reader:  fake.NewClientBuilder().WithObjects(object(kind, "server"), object(other, "server")).Build(),
		cache:   fake.NewClientBuilder().WithObjects(object(kind, "cache"), object(other, "cache")).Build(),
		watched: []observe.Watched{{GroupVersionKind: kind, Whole: true}},
	}
	newer := schema.GroupVersionKind{Group: kind.Group, Version: "v1", Kind: kind.Kind}
	for kind, want := range map[schema.GroupVersionKind]string{kind: "cache", newer: "cache", other: "server"} {
		m := &metav1.PartialObjectMetadata{}
		m.SetGroupVersionKind(kind)
		if err := r.Get(t.Context(), types.NamespacedName{Namespace: "team", Name: "train"}, m); err != nil {
			t.Fatal(err)
		}
		if m.Annotations["from"] != want || m.UID != "uid" {
			t.Errorf("a %s is read from the %s with UID %s, want the %s", kind.Kind, m.Annotations["from"], m.UID, want)
		}
	}
}

// A kind that means nothing keeps a controller from its start, in one sentence
// that says where it stands; no ConfigMap is the ordinary case.
func TestAnInstallationsOwnKinds(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"- {group: x.example, kind: Fleet}":  "",
		"- {group: x.example, kind: ''}":     "ConfigMap spillway-kinds, kinds.yaml: kind \"\" of group \"x.example\": kind is empty",
		"- {group: x.example, kinds: Fleet}": "unknown field \"kinds\"",
	} {
		client := kubefake.NewClientset()
		if text != "" {
			client = kubefake.NewClientset(&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: v1alpha1.KindsConfigMap}, Data: map[string]string{v1alpha1.KindsKey: text},
			})
		}
		_, err := readTable(t.Context(), client)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
