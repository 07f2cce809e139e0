package main

import (
	"fmt"
	"math/rand"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// drawer draws as karpenter's benchmark does: the same seed, and for each pod
// the same draws in the same order.
type drawer struct{ *rand.Rand }

// diversePods are the pods of karpenter's benchmark, drawn from its seed as when
// a size is run alone.
func diversePods(count int) []*corev1.Pod {
	d := drawer{rand.New(rand.NewSource(42))}
	fifth := count / 5
	var pods []*corev1.Pod
	draw := func(n int, kind func() corev1.Pod) {
		for range n {
			p := kind()
			p.Namespace, p.Name = "default", fmt.Sprintf("pod-%05d", len(pods))
			p.UID = types.UID(p.Name)
			pods = append(pods, &p)
		}
	}
	draw(fifth, d.plain)
	draw(fifth, func() corev1.Pod { return d.spread(corev1.LabelTopologyZone) })
	draw(fifth, func() corev1.Pod { return d.spread(corev1.LabelHostname) })
	draw(fifth, d.drawn)
	draw(fifth, d.apart)
	draw(count-5*fifth, d.plain)
	return pods
}

func (d drawer) plain() corev1.Pod { return d.pod(d.labels("my-label")) }

// spread pods select by a label that is drawn apart from their own.
func (d drawer) spread(key string) corev1.Pod {
	own, others := d.labels("my-label"), d.labels("my-label")
	p := d.pod(own)
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: others},
	}}
	return p
}

// drawn pods want the zone of their like.
func (d drawer) drawn() corev1.Pod {
	own := d.labels("my-affininity")
	p := d.pod(own)
	p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(own, corev1.LabelTopologyZone)}}
	return p
}

// apart pods want a host each.
func (d drawer) apart() corev1.Pod {
	own := map[string]string{"app": "nginx"}
	p := d.pod(own)
	p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(own, corev1.LabelHostname)}}
	return p
}

func terms(labels map[string]string, key string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{LabelSelector: &metav1.LabelSelector{MatchLabels: labels}, TopologyKey: key}}
}

func (d drawer) labels(key string) map[string]string {
	return map[string]string{key: string(rune('a' + d.Intn(7)))}
}

func (d drawer) pod(labels map[string]string) corev1.Pod {
	cpu := []int64{100, 250, 500, 1000, 1500}[d.Intn(5)]
	memory := []int64{100, 256, 512, 1024, 2048, 4096}[d.Intn(6)]
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "main", Image: "image",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memory<<20, resource.BinarySI),
			}},
		}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
}
