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
)

// Whoever names whom as owner, in circles, across namespaces and with stolen
// UIDs: the climb ends, each pod is in one gang at most, a gang has pods of its
// own namespace only, and no pod is lost that the scheduler refused.
func TestGangsWhateverOwnersAreNamed(t *testing.T) {
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	kinds := []metav1.TypeMeta{
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
	rapid.Check(t, func(t *rapid.T) {
		meta := func(label, name string) metav1.ObjectMeta {
			m := metav1.ObjectMeta{Name: name, Namespace: rapid.SampledFrom([]string{"team", "mallory"}).Draw(t, label+" namespace")}
			m.UID = types.UID(fmt.Sprintf("u%d", rapid.IntRange(0, 5).Draw(t, label+" uid")))
			if rapid.Bool().Draw(t, label+" owned") {
				yes, kind := true, rapid.SampledFrom(kinds).Draw(t, label+" owner")
				uid := types.UID(fmt.Sprintf("u%d", rapid.IntRange(0, 5).Draw(t, label+" owner uid")))
				m.OwnerReferences = []metav1.OwnerReference{{APIVersion: kind.APIVersion, Kind: kind.Kind, Name: "o", UID: uid, Controller: &yes}}
			}
			return m
		}
		var jobs []batchv1.Job
		for i := range rapid.IntRange(0, 3).Draw(t, "jobs") {
			jobs = append(jobs, batchv1.Job{ObjectMeta: meta("job", fmt.Sprintf("j%d", i))})
		}
		owned := newOwners(table, jobs)
		for range rapid.IntRange(0, 6).Draw(t, "owners") {
			m, kind := meta("owner", "g"), rapid.SampledFrom(kinds).Draw(t, "kind")
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
			m := meta("pod", p.Name)
			p.Namespace, p.OwnerReferences = m.Namespace, m.OwnerReferences
			if rapid.Bool().Draw(t, "grouped") {
				group := "g"
				p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
			}
			pods = append(pods, p)
		}
		_, gangs := split(pods, nil, owned)
		seen := map[types.UID]bool{}
		for _, g := range gangs {
			for _, p := range g.Pods {
				if seen[p.UID] {
					t.Fatalf("pod %s is in two gangs", p.Name)
				}
				if p.Namespace != g.Owner.Namespace {
					t.Fatalf("pod %s of %s is in a gang of %s", p.Name, p.Namespace, g.Owner)
				}
				seen[p.UID] = true
			}
			if g.Together && g.Size < len(g.Pods) {
				t.Fatalf("gang %s wants %d of %d pods", g.Owner, g.Size, len(g.Pods))
			}
		}
		for _, p := range pods { // one that waits with held members of its gang may be left out of its pods
			if !seen[p.UID] && len(gangs) == 0 {
				t.Fatalf("pod %s was refused and is nowhere", p.Name)
			}
		}
	})
}
