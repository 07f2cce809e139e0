package observe

import (
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkSplit finds the gangs among many pods, a tenth of them pending: the
// time for each pod stays the same.
func BenchmarkSplit(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table, err := NewTable()
			if err != nil {
				b.Fatal(err)
			}
			pods, jobs, sets := many(n)
			for b.Loop() {
				owned := newOwners(table, jobs)
				for _, u := range sets {
					owned.add(fromFields(u.GroupVersionKind(), u))
				}
				bound, gangs := split(those(pods...), nil, owned)
				owned.ends(bound)
				if len(bound)+len(gangs) == 0 {
					b.Fatal("nothing was found")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/pod")
		})
	}
}

// many are n pods of Jobs of ten, every tenth of them pending; a hundred Jobs
// are a JobSet.
func many(n int) (pods []corev1.Pod, jobs []batchv1.Job, sets []*unstructured.Unstructured) {
	yes, ten := true, int32(10)
	for i := range n {
		if i%1000 == 0 {
			u := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
				"spec": map[string]any{"replicatedJobs": []any{map[string]any{"name": "w", "replicas": int64(100)}}},
			}}
			u.SetNamespace("team")
			u.SetName(fmt.Sprintf("set-%d", i/1000))
			u.SetUID(types.UID(u.GetName()))
			sets = append(sets, u)
		}
		if i%10 == 0 {
			j := batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("job-%d", i/10), UID: types.UID(fmt.Sprintf("job-%d", i/10))}}
			j.Spec.Parallelism = &ten
			set := fmt.Sprintf("set-%d", i/1000)
			j.OwnerReferences = []metav1.OwnerReference{{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: set, UID: types.UID(set), Controller: &yes}}
			jobs = append(jobs, j)
		}
		p := pod(fmt.Sprintf("pod-%d", i))
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = jobs[i/10].Name, jobs[i/10].UID
		if i%10 != 0 {
			p.Spec.NodeName, p.Status.Phase = "rack", corev1.PodRunning
		}
		pods = append(pods, p)
	}
	return pods, jobs, sets
}
