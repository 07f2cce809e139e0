package placement

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxPods is how many pods a kubelet takes unless told otherwise.
const maxPods = 110

// Machine is what a machine of an offer is expected to be once it is a node.
type Machine struct {
	// Name has to differ from that of every other node, real or virtual.
	Name         string
	InstanceType string
	Region       string
	Zone         string // empty: the region counts as one zone
	Arch         string // empty: amd64
	// Labels are predicted for the node; they win over the others.
	Labels map[string]string

	MilliCPU int64
	Memory   int64 // bytes
	Disk     int64 // bytes of ephemeral storage
	// GPUResource and GPUs are the extended resource and its count.
	GPUResource string
	GPUs        int64
	// Pods is how many pods the kubelet takes; 0 means 110.
	Pods int64

	// Taints keep everybody else out; ask with a matching toleration.
	Taints []corev1.Taint
}

// Node returns the virtual node: ready, with all that was promised allocatable
// and the taints in place.
func (m Machine) Node() *corev1.Node {
	zone, arch, pods := m.Zone, m.Arch, m.Pods
	if pods == 0 {
		pods = maxPods
	}
	if zone == "" {
		zone = m.Region
	}
	if arch == "" {
		arch = "amd64"
	}
	labels := map[string]string{
		corev1.LabelHostname:           m.Name,
		corev1.LabelOSStable:           "linux",
		corev1.LabelArchStable:         arch,
		corev1.LabelInstanceTypeStable: m.InstanceType,
		corev1.LabelTopologyRegion:     m.Region,
		corev1.LabelTopologyZone:       zone,
	}
	maps.Copy(labels, m.Labels)
	allocatable := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(m.MilliCPU, resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(m.Memory, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(m.Disk, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(pods, resource.DecimalSI),
	}
	if m.GPUResource != "" {
		allocatable[corev1.ResourceName(m.GPUResource)] = *resource.NewQuantity(m.GPUs, resource.DecimalSI)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity: allocatable.DeepCopy(), Allocatable: allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	node.Spec.Taints = m.Taints
	return node
}
