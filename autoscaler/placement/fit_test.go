package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// tell writes an answer as one line: where each pod went, or why it did not.
func tell(a placement.Answer) string {
	var parts []string
	for _, p := range a.Placed {
		parts = append(parts, p.Pod.Name+" on "+p.Node)
	}
	for _, m := range a.Misfit {
		parts = append(parts, fmt.Sprintf("%s nowhere, %s", m.Pod.Name, m))
	}
	return strings.Join(parts, "; ")
}

func TestFit(t *testing.T) {
	two := []*corev1.Node{node("a", 2), node("b", 2)}
	tests := map[string]struct {
		nodes    []*corev1.Node
		bound    []*corev1.Pod
		pods     []*corev1.Pod
		together bool
		want     string
	}{
		"a pod goes to the first node by name that takes it": {
			nodes: []*corev1.Node{node("b", 2), node("a", 2)}, pods: []*corev1.Pod{pod("x", 1)},
			want: "x on a",
		},
		"what is bound takes its GPUs": {
			nodes: two, bound: []*corev1.Pod{pod("old", 2, on("a"))}, pods: []*corev1.Pod{pod("x", 1)},
			want: "x on b",
		},
		"the reasons are counted, most frequent first": {
			nodes: append(slices.Clone(two), node("c", 8, tainted("maintenance", "yes"))),
			pods:  []*corev1.Pod{pod("x", 4)},
			want:  "x nowhere, 0/3 nodes fit: 2 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)",
		},
		"the largest pod is placed first": {
			nodes: []*corev1.Node{node("a", 2), node("b", 1)}, together: true,
			pods: []*corev1.Pod{pod("one", 1), pod("two", 2)},
			want: "one on b; two on a",
		},
		"a smaller pod goes back to a node that was too small for another": {
			nodes: []*corev1.Node{node("a", 1), node("b", 3)}, pods: []*corev1.Pod{pod("one", 1), pod("two", 2)},
			want: "one on a; two on b",
		},
		"a gang that does not fit whole is not placed at all": {
			nodes: two, together: true, pods: []*corev1.Pod{pod("x", 2), pod("y", 2), pod("z", 2)},
			want: "z nowhere, 0/2 nodes fit: 2 Insufficient nvidia.com/gpu",
		},
		"independent pods are placed as far as there is room": {
			nodes: two, pods: []*corev1.Pod{pod("x", 2), pod("y", 2), pod("z", 2)},
			want: "x on a; y on b; z nowhere, 0/2 nodes fit: 2 Insufficient nvidia.com/gpu",
		},
		"a node selector that no node carries": {
			nodes: two, pods: []*corev1.Pod{pod("x", 1, selecting("nvidia.com/gpu.product", "NVIDIA-H200"))},
			want: "x nowhere, 0/2 nodes fit: 2 node(s) didn't match Pod's node affinity/selector",
		},
		"a pod that names its node has no other": {
			nodes: two, bound: []*corev1.Pod{pod("old", 2, on("b"))},
			pods: []*corev1.Pod{pod("x", 2, func(p *corev1.Pod) {
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
						Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"},
					}}}},
				}}}
			})},
			want: "x nowhere, 0/2 nodes fit: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't satisfy plugin NodeAffinity",
		},
		"a host port is taken once a node": {
			nodes: two, pods: []*corev1.Pod{pod("x", 0, hostPort(80)), pod("y", 0, hostPort(80)), pod("z", 0, hostPort(80))},
			want: "x on a; y on b; z nowhere, 0/2 nodes fit: 2 node(s) didn't have free ports for the requested pod ports",
		},
		"anti-affinity by host sees the pods that were placed before": {
			nodes: two, pods: []*corev1.Pod{pod("x", 0, apart(corev1.LabelHostname)), pod("y", 0, apart(corev1.LabelHostname)), pod("z", 0, apart(corev1.LabelHostname))},
			want: "x on a; y on b; z nowhere, 0/2 nodes fit: 2 node(s) didn't match pod anti-affinity rules",
		},
		"topology spread sees the pods that were placed before": {
			nodes: two, pods: []*corev1.Pod{pod("w", 0, spread(corev1.LabelTopologyZone)), pod("x", 0, spread(corev1.LabelTopologyZone)), pod("y", 0, spread(corev1.LabelTopologyZone))},
			want: "w on a; x on b; y on a",
		},
		"a claim that nobody knows fits nowhere": {
			nodes: two, pods: []*corev1.Pod{pod("x", 0, claiming("data"))},
			want: `x nowhere, no node fits: persistentvolumeclaim "data" not found`,
		},
		"a cordoned node takes nothing": {
			nodes: []*corev1.Node{node("a", 2, func(n *corev1.Node) { n.Spec.Unschedulable = true })}, pods: []*corev1.Pod{pod("x", 1)},
			want: "x nowhere, 0/1 nodes fit: 1 node(s) were unschedulable",
		},
		"a cluster without nodes": {
			pods: []*corev1.Pod{pod("x", 1)},
			want: "x nowhere, 0/0 nodes fit: there is no node to try",
		},
		"devices by resource claim are not simulated, and say so": {
			nodes: two,
			pods: []*corev1.Pod{pod("x", 0, func(p *corev1.Pod) {
				name := "gpu"
				p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}}
			})},
			want: `x nowhere, no node fits: resourceclaims.resource.k8s.io "gpu" not found`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, placement.Inventory{Nodes: tt.nodes, Pods: tt.bound})
			got := tell(fit(t, s, placement.Ask{Pods: tt.pods, Together: tt.together}))
			if got != tt.want {
				t.Errorf("Fit() = %q\nwant    %q", got, tt.want)
			}
		})
	}
}

// cases: H-17 hashicorp/nomad#27820: after a change in the simulation the
// reservation went to an old copy, so later devices looked taken, or free.
func TestGangSharesOneWorkingCopy(t *testing.T) {
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("a", 4)}, Pods: []*corev1.Pod{pod("old", 2, on("a"))}})
	twice := pod("twice", 1)
	second := *twice.Spec.Containers[0].DeepCopy()
	second.Name = "second"
	twice.Spec.Containers = append(twice.Spec.Containers, second) // two device requests in one pod
	s.Fork()
	if err := s.RemovePod(pod("old", 2), "a"); err != nil {
		t.Fatal(err)
	}
	answer := fit(t, s, placement.Ask{Pods: []*corev1.Pod{twice, pod("other", 2)}, Together: true})
	if !answer.OK() {
		t.Errorf("both fit once the old pod is gone, got %s", tell(answer))
	}
	if more := fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("more", 1)}}); more.OK() {
		t.Error("a fifth GPU was found on a node with four")
	}
	s.Revert()
	if again := fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("three", 3)}}); again.OK() {
		t.Error("the old pod is back after Revert, and still its GPUs look free")
	}
	if room := fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("room", 2)}}); !room.OK() {
		t.Errorf("two GPUs are free after Revert, got %s", tell(room))
	}
}

func TestVirtualNode(t *testing.T) {
	taint := corev1.Taint{Key: "spillway.dev/burst", Value: "one", Effect: corev1.TaintEffectNoSchedule}
	ours := corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpEqual, Value: "one"}
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 0)}})
	s.Fork()
	err := s.AddNode(placement.Machine{
		Name: "spw-1", InstanceType: "gpu.l40s", Region: "gra", MilliCPU: 8000, Memory: 32 << 30, Disk: 100 << 30,
		GPUResource: "nvidia.com/gpu", GPUs: 1, Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40S"}, Taints: []corev1.Taint{taint},
	}.Node())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("keeps out whoever does not tolerate its taint", func(t *testing.T) {
		got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("x", 1)}}))
		want := "x nowhere, 0/2 nodes fit: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s)"
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("takes an approved pod by its predicted labels, and leaves the pod as it was", func(t *testing.T) {
		p := pod("x", 1, selecting("nvidia.com/gpu.product", "NVIDIA-L40S"))
		before := p.DeepCopy()
		got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{p}, Tolerate: []corev1.Toleration{ours}}))
		if got != "x on spw-1" {
			t.Errorf("got %q", got)
		}
		if diff := cmp.Diff(before, p); diff != "" {
			t.Errorf("Fit changed the pod:\n%s", diff)
		}
	})
	t.Run("a second one needs a name of its own", func(t *testing.T) {
		if err := s.AddNode(node("home", 1)); err == nil {
			t.Error("AddNode took a name twice") // cases: H8 kubernetes/autoscaler#4082
		}
	})
	s.Revert()
	if got := s.Nodes(); !slices.Equal(got, []string{"home"}) {
		t.Errorf("nodes after Revert: %v", got)
	}
}

// Unbound claims of the pods of one gang must not all count on one volume.
func TestVolumesAreReservedOnce(t *testing.T) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait}
	volume := func(name, node string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
			Spec: corev1.PersistentVolumeSpec{
				StorageClassName: "local", Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")},
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/data"}},
				NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
				}}}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
		}
	}
	claim := func(name string) *corev1.PersistentVolumeClaim {
		local := "local"
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name, ResourceVersion: "1"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &local, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
			},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		}
	}
	s := cluster(t, placement.Inventory{
		Nodes: []*corev1.Node{node("a", 2), node("b", 2)}, StorageClasses: []*storagev1.StorageClass{class},
		Volumes: []*corev1.PersistentVolume{volume("v", "b")}, Claims: []*corev1.PersistentVolumeClaim{claim("one"), claim("two")},
	})
	both := []*corev1.Pod{pod("x", 0, claiming("one")), pod("y", 0, claiming("two"))}
	if got := fit(t, s, placement.Ask{Pods: both, Together: true}); got.OK() {
		t.Errorf("two claims were given one volume: %s", tell(got))
	}
	for _, one := range both { // the second one proves that the first let go
		s.Fork()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{one}})); got != one.Name+" on b" {
			t.Errorf("a claim alone has one volume on node b, got %q", got)
		}
		s.Revert()
	}
}
