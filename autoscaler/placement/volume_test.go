package placement_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// disk is a bound claim and its volume of a CSI driver.
func disk(name string, mode corev1.PersistentVolumeAccessMode) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	none := ""
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name, UID: "uid", Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &none, VolumeName: "pv-" + name, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{mode},
			ClaimRef:               &corev1.ObjectReference{Namespace: "work", Name: name, UID: "uid"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "rbd.csi.example.org", VolumeHandle: name}},
		},
	}
	return claim, volume
}

func TestBoundVolumes(t *testing.T) {
	oneClaim, oneVolume := disk("one", corev1.ReadWriteOncePod)
	twoClaim, twoVolume := disk("two", corev1.ReadWriteOnce)
	slots := int32(1)
	inv := placement.Inventory{
		Nodes:  []*corev1.Node{node("a", 2), node("b", 2)},
		Pods:   []*corev1.Pod{pod("old", 0, on("a"), claiming("one"))},
		Claims: []*corev1.PersistentVolumeClaim{oneClaim, twoClaim}, Volumes: []*corev1.PersistentVolume{oneVolume, twoVolume},
		CSINodes: []*storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: "rbd.csi.example.org", Allocatable: &storagev1.VolumeNodeResources{Count: &slots},
		}}}}},
		CSIDrivers: []*storagev1.CSIDriver{{ObjectMeta: metav1.ObjectMeta{Name: "rbd.csi.example.org"}}},
	}
	tests := map[string]struct{ claim, want string }{
		"a claim for one pod only is taken": {"one", "x nowhere, 0/2 nodes fit: 2 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"},
		"a node without a free volume slot": {"two", "x on b"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, inv)
			if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("x", 0, claiming(tt.claim))}})); got != tt.want {
				t.Errorf("Fit() = %q\nwant    %q", got, tt.want)
			}
		})
	}
}

// Affinity to a namespace looks the namespace up, not only the pods.
func TestAffinityAcrossNamespaces(t *testing.T) {
	near := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "data"}},
		}}}}
	}
	other := pod("store", 0, on("b"))
	other.Namespace = "data"
	s := cluster(t, placement.Inventory{
		Nodes: []*corev1.Node{node("a", 2), node("b", 2)}, Pods: []*corev1.Pod{other},
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"team": "data"}}}},
	})
	if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("x", 0, near)}})); got != "x on b" {
		t.Errorf("Fit() = %q, want x on b", got)
	}
	if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("y", 0, near)}, Nodes: choose(s, "a")})); got != "y nowhere, 0/1 nodes fit: 1 node(s) didn't match pod affinity rules" {
		t.Errorf("Fit() on node a = %q", got)
	}
}
