package plan_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// A plan reckons with what machines of a type turned out to be, more or less
// than their offer lets expect.
func TestLearnedMachines(t *testing.T) {
	asks := func(cpu, product string) given {
		return site().gang("train", 1).pods(func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
			if product != "" {
				p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": product}
			}
		}).offer("ovh", 1, "1 EUR").budget("vision-month", "1000 EUR")
	}
	tests := map[string]struct {
		given   given
		learned v1alpha1.LearnedMachine
		want    string
	}{
		"nothing is known":                 {asks("15", ""), v1alpha1.LearnedMachine{}, "train: burst 1xgpu1 at ovh for 1\n"},
		"it has less":                      {asks("15", ""), v1alpha1.LearnedMachine{InstanceType: "gpu1", MilliCPU: 14_000}, "train: refuse MACHINE_TOO_SMALL\n"},
		"it has more than was left to it":  {asks("16", ""), v1alpha1.LearnedMachine{InstanceType: "gpu1", MilliCPU: 16_000}, "train: burst 1xgpu1 at ovh for 1\n"},
		"another type is known":            {asks("15", ""), v1alpha1.LearnedMachine{InstanceType: "gpu9", MilliCPU: 14_000}, "train: burst 1xgpu1 at ovh for 1\n"},
		"it takes no pods":                 {asks("1", ""), v1alpha1.LearnedMachine{InstanceType: "gpu1", Pods: 1}, "train: burst 1xgpu1 at ovh for 1\n"},
		"its GPUs are not the ones named":  {asks("1", "NVIDIA-L40S"), v1alpha1.LearnedMachine{InstanceType: "gpu1", Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40"}}, "train: refuse GPU_MODEL_NOT_OFFERED\n"},
		"its GPUs are the ones asked for":  {asks("1", "NVIDIA-L40"), v1alpha1.LearnedMachine{InstanceType: "gpu1", Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40"}}, "train: burst 1xgpu1 at ovh for 1\n"},
		"a label that nobody knows counts": {asks("1", "NVIDIA-L40S"), v1alpha1.LearnedMachine{InstanceType: "gpu1", MilliCPU: 14_000}, "train: burst 1xgpu1 at ovh for 1\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := tt.given.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				p.Status.Learned = []v1alpha1.LearnedMachine{tt.learned}
			})
			if got := outcomes(plan.Decide(g.s)); got != tt.want {
				t.Errorf("Decide():\n%swant:\n%s", got, tt.want)
			}
		})
	}
}

func TestLearn(t *testing.T) {
	node := func(cpu, memory, product string) *corev1.Node {
		n := &corev1.Node{}
		n.Labels = map[string]string{
			"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8", "nvidia.com/gfd.timestamp": "1", "nvidia.com/gpu.deploy.dcgm": "true", "kubernetes.io/hostname": "n",
		}
		n.Status.Allocatable = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse("110"),
		}
		return n
	}
	got := plan.Learn("gpu8", []*corev1.Node{node("15800m", "60Gi", "NVIDIA-H100"), node("15900m", "59Gi", "NVIDIA-H200")})
	want := v1alpha1.LearnedMachine{InstanceType: "gpu8", MilliCPU: 15_800, Memory: 59 << 30, Pods: 110, Labels: map[string]string{"nvidia.com/gpu.count": "8"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Learn() (-want +got):\n%s", diff)
	}
}

func TestDifferences(t *testing.T) {
	s := site().offer("ovh", 1, "1 EUR").s
	cloud, offers := &s.Providers[0], s.Offers
	for _, tt := range []struct {
		name string
		is   v1alpha1.LearnedMachine
		want []string
	}{
		{"as predicted, or more", v1alpha1.LearnedMachine{InstanceType: "gpu1", MilliCPU: 16_000, Memory: 64 << 30}, nil},
		{"less, and other GPUs", v1alpha1.LearnedMachine{InstanceType: "gpu1", MilliCPU: 14_500, Memory: 50 << 30, Labels: map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}}, []string{
			`gpu1 has cpu 14500m instead of 15800m, memory 51200Mi instead of 58982Mi, label nvidia.com/gpu.product "Tesla-T4" instead of "NVIDIA-L40S"`,
		}},
		{"of a type that is not sold any more", v1alpha1.LearnedMachine{InstanceType: "gpu9", MilliCPU: 1}, nil},
	} {
		cloud.Status.Learned = []v1alpha1.LearnedMachine{tt.is}
		if diff := cmp.Diff(tt.want, plan.Differences(cloud, append(offers, offers...), plan.Settings{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
