package observe

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/plan"
)

// someKinds are kinds of every sort: climbed through, apart, together, services,
// groups, and ones that the table does not have.
func someKinds() []metav1.TypeMeta {
	return []metav1.TypeMeta{
		{APIVersion: "batch/v1", Kind: "Job"},
		{APIVersion: "batch/v1", Kind: "CronJob"},
		{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet"},
		{APIVersion: "trainer.kubeflow.org/v1alpha1", Kind: "TrainJob"},
		{APIVersion: "ray.io/v1", Kind: "RayCluster"},
		{APIVersion: "apps/v1", Kind: "ReplicaSet"},
		{APIVersion: "apps/v1", Kind: "StatefulSet"},
		{APIVersion: "v1", Kind: "Pod"},
		{APIVersion: "x.example/v1", Kind: "Sweep"},
		{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup"},
	}
}

// drawMeta draws an object that few others may have the namespace, the UID or
// the owner of.
func drawMeta(t *rapid.T, name string) metav1.ObjectMeta {
	uid := rapid.Map(rapid.IntRange(0, 5), func(n int) types.UID { return types.UID(fmt.Sprintf("u%d", n)) })
	m := metav1.ObjectMeta{Name: name, Namespace: rapid.SampledFrom([]string{"team", "mallory"}).Draw(t, "namespace"), UID: uid.Draw(t, "uid")}
	if rapid.Bool().Draw(t, "owned") {
		yes, kind := true, rapid.SampledFrom(someKinds()).Draw(t, "kind of the owner")
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: kind.APIVersion, Kind: kind.Kind, Name: "o", UID: uid.Draw(t, "owner"), Controller: &yes}}
	}
	return m
}

// drawWorld draws owners and pods that the scheduler refused.
func drawWorld(t *rapid.T, table Table) (*owners, []corev1.Pod) {
	var jobs []batchv1.Job
	for i := range rapid.IntRange(0, 3).Draw(t, "jobs") {
		jobs = append(jobs, batchv1.Job{ObjectMeta: drawMeta(t, fmt.Sprintf("j%d", i))})
	}
	owned := newOwners(table, jobs)
	for range rapid.IntRange(0, 6).Draw(t, "owners") {
		m, kind := drawMeta(t, "g"), rapid.SampledFrom(someKinds()).Draw(t, "kind")
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kind.APIVersion, "kind": kind.Kind}}
		u.SetNamespace(m.Namespace)
		u.SetName(m.Name)
		u.SetUID(m.UID)
		u.SetOwnerReferences(m.OwnerReferences)
		owned.add(fromFields(u.GroupVersionKind(), u))
	}
	var pods []corev1.Pod
	for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
		p := pod(fmt.Sprintf("p%d", i))
		m := drawMeta(t, p.Name)
		p.Namespace, p.OwnerReferences = m.Namespace, m.OwnerReferences
		if rapid.Bool().Draw(t, "grouped") {
			group := "g"
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
		}
		pods = append(pods, p)
	}
	return owned, pods
}

// Whoever names whom as owner, in circles, across namespaces and with stolen
// UIDs: the climb ends, a gang has pods of its own namespace only, and each pod
// that the scheduler refused is in exactly the gang of its owner, unless that
// owner is known to hold it.
func TestGangsWhateverOwnersAreNamed(t *testing.T) {
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		owned, pods := drawWorld(t, table)
		_, gangs := split(those(pods...), nil, owned)
		in := map[types.UID]plan.Owner{}
		for _, g := range gangs {
			for _, p := range g.Pods {
				if before, twice := in[p.UID]; twice {
					t.Fatalf("pod %s is in the gangs of %s and %s", p.Name, before, g.Owner)
				}
				if p.Namespace != g.Owner.Namespace {
					t.Fatalf("pod %s of %s is in a gang of %s", p.Name, p.Namespace, g.Owner)
				}
				in[p.UID] = g.Owner
			}
			if g.Together && g.Size < len(g.Pods) {
				t.Fatalf("gang %s wants %d of %d pods", g.Owner, g.Size, len(g.Pods))
			}
		}
		for i := range pods {
			w, owner := owned.of(&pods[i]), in[pods[i].UID]
			if w.why == nil && keyOf(owner) != keyOf(w.owner) {
				t.Fatalf("pod %s of %s is in the gang of %q", pods[i].Name, w.owner, owner)
			}
		}
	})
}
