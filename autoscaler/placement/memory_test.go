package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a snapshot remembers is of the pods of its last turns, however long it
// follows: nobody can fill its memory with pods that have gone.
func TestFollowKeepsNoMoreThanItNeeds(t *testing.T) {
	home := Machine{Name: "home", MilliCPU: 64_000, Memory: 256 << 30, GPUResource: "nvidia.com/gpu", GPUs: 8}.Node()
	home.UID, home.ResourceVersion = "home", "1"
	s, err := New(Inventory{})
	if err != nil {
		t.Fatal(err)
	}
	const turns = 20
	for turn := range turns {
		ask := func(number int) *corev1.Pod {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: fmt.Sprint("p", number), UID: types.UID(fmt.Sprint("p", number)), ResourceVersion: "1"}}
			p.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceName(fmt.Sprint("nvidia.com/kind-", number)): resource.MustParse("1"),
			}}}}
			return p
		}
		bound := ask(turns + turn)
		bound.Spec.NodeName = home.Name
		if err := s.Follow(Inventory{Nodes: []*corev1.Node{home}, Pods: []*corev1.Pod{bound}}); err != nil {
			t.Fatal(err)
		}
		s.Fork()
		loose := ask(turn)
		loose.UID = ""
		if _, err := s.Fit(Ask{Pods: []*corev1.Pod{ask(turn), loose}}); err != nil {
			t.Fatal(err)
		}
		s.Revert()
	}
	for what, n := range map[string]int{
		"classes": len(s.classes), "pods": len(s.unversioned), "versions of pods": len(s.known), "resources": len(s.free),
		"bound pods": len(s.track.pods), "nodes": len(s.track.nodes), "hosts": len(s.affinity.hosts),
	} {
		if n > 2 {
			t.Errorf("after %d turns with a pod each it remembers %d %s, want 2 at most", turns, n, what)
		}
	}
}
