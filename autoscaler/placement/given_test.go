package placement_test

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

// node and pod build objects with only what a case is about.

func node(name string, gpus int64, change ...func(*corev1.Node)) *corev1.Node {
	n := placement.Machine{
		Name: name, MilliCPU: 64_000, Memory: 256 << 30, Disk: 1 << 40, Region: "home", Zone: "rack-" + name,
		GPUResource: "nvidia.com/gpu", GPUs: gpus,
	}.Node()
	for _, f := range change {
		f(n)
	}
	return n
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

func tainted(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

func pod(name string, gpus int64, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "train"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("1"),
				corev1.ResourceMemory: resource.MustParse("1Gi"),
			}},
		}}},
	}
	if gpus > 0 {
		p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func on(name string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = name } }

func selecting(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: value} }
}

func hostPort(port int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: port, ContainerPort: port}}
	}
}

// apart keeps pods of one app on different values of a topology key.
func apart(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
			}},
		}}
	}
}

// spread spreads pods of one app evenly over the values of a topology key.
func spread(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
		}}
	}
}

func claiming(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{
			Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
		})
	}
}

func cluster(t rapid.TB, inv placement.Inventory) *placement.Snapshot {
	t.Helper()
	s, err := placement.New(inv)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	return s
}

func fit(t rapid.TB, s *placement.Snapshot, ask placement.Ask) placement.Answer {
	t.Helper()
	a, err := s.Fit(ask)
	if err != nil {
		t.Fatalf("Fit() = %v", err)
	}
	return a
}

func choose(s *placement.Snapshot, nodes ...string) *placement.Choice {
	c := s.Choose(nodes...)
	return &c
}

func cores(n string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(n)
	}
}

// awayFrom keeps a pod from nodes with pods that have a label.
func awayFrom(label, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: value}},
			}},
		}}
	}
}

// near brings pods to those of one app, over a topology key.
func near(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
			}},
		}}
	}
}

// prefersApart states a wish, which no filter asks about.
func prefersApart(p *corev1.Pod) {
	apart(corev1.LabelTopologyZone)(p)
	rule := p.Spec.Affinity.PodAntiAffinity
	rule.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.WeightedPodAffinityTerm{{
		Weight: 1, PodAffinityTerm: rule.RequiredDuringSchedulingIgnoredDuringExecution[0],
	}}
	rule.RequiredDuringSchedulingIgnoredDuringExecution = nil
}
