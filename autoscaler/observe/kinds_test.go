package observe

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	kyaml "sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/plan"
)

// Manifests of each kind, with what their controllers make of them, and the
// gangs that come out. Run with -update to accept a change.
func TestGangsOfEachKind(t *testing.T) { goldenFolder(t, "kinds") }

// Work that is pending for another reason than room is held: the reason, the
// evidence and the remedy are what people read.
func TestWhatHoldsWork(t *testing.T) { goldenFolder(t, "held") }

// goldenFolder compares what comes out of each file of a folder with the golden
// file of the folder.
func goldenFolder(t *testing.T, folder string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", folder, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of %s: %v", len(files), folder, err)
	}
	var all strings.Builder
	for _, file := range files {
		fmt.Fprintf(&all, "%s\n", strings.TrimSuffix(filepath.Base(file), ".yaml"))
		w := readWorld(t, file)
		forward := w.gangs(t)
		slices.Reverse(w.cluster.Pods)
		slices.Reverse(w.jobs)
		if diff := cmp.Diff(forward, w.gangs(t)); diff != "" {
			t.Errorf("%s: the gangs depend on the order of what is listed:\n%s", file, diff)
		}
		all.WriteString(forward)
	}
	golden := filepath.Join("testdata", folder+".golden")
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), all.String()); diff != "" {
		t.Errorf("the gangs changed (-want +got):\n%s", diff)
	}
}

// world is what a file of manifests holds.
type world struct {
	jobs    []batchv1.Job
	others  []*unstructured.Unstructured
	cluster plan.Cluster // with all pods
}

func readWorld(t *testing.T, file string) *world {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return w
		}
		if err == nil {
			err = w.read(doc)
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
}

func (w *world) read(doc []byte) error {
	var kind metav1.TypeMeta
	if err := kyaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	switch kind.Kind {
	case "Pod":
		var pods []corev1.Pod
		err := add(doc, &pods)
		w.cluster.Pods = append(w.cluster.Pods, those(pods...)...)
		return err
	case "PersistentVolumeClaim":
		return add(doc, &w.cluster.Claims)
	case "StorageClass":
		return add(doc, &w.cluster.StorageClasses)
	case "ResourceQuota":
		return add(doc, &w.cluster.Quotas)
	}
	if kind.APIVersion == "batch/v1" && kind.Kind == "Job" {
		return add(doc, &w.jobs)
	}
	u := &unstructured.Unstructured{}
	data, err := kyaml.YAMLToJSONStrict(doc)
	if err != nil {
		return err
	}
	w.others = append(w.others, u)
	return u.UnmarshalJSON(data) // numbers as the API server's answers have them
}

func add[T corev1.Pod | corev1.PersistentVolumeClaim | corev1.ResourceQuota | storagev1.StorageClass | batchv1.Job](doc []byte, to *[]T) error {
	var one T
	if err := kyaml.UnmarshalStrict(doc, &one); err != nil {
		return err
	}
	*to = append(*to, one)
	return nil
}

// gangs are the gangs of the file, as text, in one order.
func (w *world) gangs(t *testing.T) string {
	t.Helper()
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	owned := newOwners(table, w.jobs)
	for _, u := range w.others {
		if k := table.kinds[u.GroupVersionKind().GroupKind()]; k != nil { // as a cache keeps it
			if _, err := k.watched().Lean(u); err != nil {
				t.Fatal(err)
			}
		}
		owned.add(fromFields(u.GroupVersionKind(), u))
	}
	owned.volumes, owned.quotas = newVolumes(&w.cluster), newQuotas(w.cluster.Quotas)
	_, gangs := split(w.cluster.Pods, nil, owned)
	slices.SortFunc(gangs, func(a, b plan.Gang) int { return strings.Compare(a.Owner.String(), b.Owner.String()) })
	var text strings.Builder
	for _, g := range gangs {
		text.WriteString(written(g))
	}
	if len(gangs) == 0 {
		text.WriteString("  no pending work\n")
	}
	return text.String()
}

// written is all of a gang that its kind decides.
func written(g plan.Gang) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s of %s:", g.Owner, g.Owner.APIVersion)
	if g.Together {
		fmt.Fprintf(&b, " together, wants %d,", g.Size)
	}
	fmt.Fprintf(&b, " %d waiting, %d at home", len(g.Pods), g.Bound)
	if g.Service {
		b.WriteString(", a service")
	}
	if g.MaxRun > 0 {
		fmt.Fprintf(&b, ", runs %s", g.MaxRun)
	}
	if !g.EndsBy.IsZero() {
		fmt.Fprintf(&b, ", ends by %s", g.EndsBy.UTC().Format(time.TimeOnly))
	}
	if !g.Created.IsZero() {
		fmt.Fprintf(&b, ", since %s", g.Created.UTC().Format(time.TimeOnly))
	}
	b.WriteString("\n")
	names := make([]string, 0, len(g.Pods))
	for _, p := range g.Pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if len(names) > 0 {
		fmt.Fprintf(&b, "    pods: %s\n", strings.Join(names, " "))
	}
	if g.Hold != nil {
		fmt.Fprintf(&b, "    held: %s\n", g.Hold)
	}
	if g.Short != nil {
		fmt.Fprintf(&b, "    short: %s\n", g.Short)
	}
	return b.String()
}

func TestACacheKeepsLittleOfAnOwner(t *testing.T) {
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow",
		"metadata": map[string]any{"name": "w", "managedFields": []any{map[string]any{"manager": "argo"}}},
		"spec":     map[string]any{"activeDeadlineSeconds": int64(60), "templates": []any{"much"}},
		"status":   map[string]any{"startedAt": "2026-11-30T12:00:00Z", "nodes": map[string]any{"n": "very much"}},
	}}
	if _, err := table.kinds[u.GroupVersionKind().GroupKind()].watched().Lean(u); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": map[string]any{"name": "w"},
		"spec": map[string]any{"activeDeadlineSeconds": int64(60)}, "status": map[string]any{"startedAt": "2026-11-30T12:00:00Z"},
	}
	if diff := cmp.Diff(want, u.Object); diff != "" {
		t.Error(diff)
	}
}

func TestKindsOfAnInstallation(t *testing.T) {
	more, err := ReadKinds([]byte(`
- group: example.com
  kind: Fleet
  together: true
  pods: [{of: "spec.crews[]", times: [size]}]
  suspended: spec.paused
`))
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable(more...)
	if err != nil {
		t.Fatal(err)
	}
	owner := plan.Owner{APIVersion: "example.com/v1beta3", Kind: "Fleet"}
	k := table.of(owner)
	if k == nil || !k.Together || sum(map[string]any{"spec": map[string]any{"crews": []any{map[string]any{"size": int64(2)}, map[string]any{}}}}, k.Pods) != 3 {
		t.Errorf("the kind is %+v", k)
	}
	owner.APIVersion = "other.example/v1"
	if table.of(owner) != nil {
		t.Error("a kind of the same name in another group is taken for it")
	}
}

func TestKindsThatMeanNothing(t *testing.T) {
	for text, want := range map[string]string{
		"- {group: a}":                                        "kind is empty",
		"- {group: batch, kind: Job}":                         "leave it out",
		"- {kind: X, apart: true, through: true}":             "exclude each other",
		"- {kind: X, started: status.at}":                     "state the deadline",
		"- {kind: X, leader: a=b}":                            "state memberSize",
		"- {kind: X, pods: [{times: [a]}]}":                   "state of",
		"- {kind: X, pods: [{of: spec..n}]}":                  `"spec..n" is no path`,
		"- {kind: X, inOrder: [spec.order]}":                  `"spec.order" is no condition`,
		"- {kind: X, togehter: true}":                         "togehter",
		"kind: X":                                             "YAML list",
		"- {kind: X, pods: [{of: spec, times: [\"[]\"]}]}":    "is no path",
		"- {group: a, kind: X, pods: [{of: \"a b\"}]}":        "is no path",
		"- {group: a, kind: X, suspended: \"spec.a=true\"}":   "is no path",
		"- {group: a, kind: X, staged: [\"=true\"]}":          "is no condition",
		"- {group: a, kind: X, deadline: spec.d, started: .}": "is no path",
	} {
		more, err := ReadKinds([]byte(text))
		if err == nil {
			_, err = NewTable(more...)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
}
