package observe

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
)

func lean(t interface{ Fatal(...any) }, l *LeanPods, p *corev1.Pod) *corev1.Pod {
	kept, err := l.Transform(p.DeepCopy())
	if err != nil {
		t.Fatal(err)
	}
	return kept.(*corev1.Pod)
}

// homeShapes are what may count of a pod that runs at home, and what doesn't.
var homeShapes = map[string]func(*corev1.Pod){
	"port": func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 8080, ContainerPort: 80}}
	},
	"mount": func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "m", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}}}
	},
	"disk": func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: "iqn.2026-01.example:disk"}}}}
	},
	"apart": func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "train"}},
		}}}}
	},
	"sidecar": func(p *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Resources: cores("3")}}
	},
	"init":     func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: cores("6")}} },
	"overhead": func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{"cpu": resource.MustParse("2")} },
	"as one": func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("5")}}
	},
	"resized": func(p *corev1.Pod) {
		given := cores("7")
		p.Status.ContainerStatuses[0].Resources, p.Status.ContainerStatuses[0].AllocatedResources = &given, given.Requests
	},
	"finished": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
}

func cores(n string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(n)}}
}

func drawLeanPod(t *rapid.T, name, node string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name), Labels: map[string]string{"app": rapid.SampledFrom([]string{"train", "serve"}).Draw(t, "app")}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "main", Image: "a", Env: []corev1.EnvVar{{Name: "a"}}, Resources: cores(rapid.SampledFrom([]string{"1", "2"}).Draw(t, "cores")),
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "b"}}},
	}
	for _, shape := range rapid.SliceOfNDistinct(rapid.SampledFrom(slices.Sorted(maps.Keys(homeShapes))), 0, 3, rapid.ID[string]).Draw(t, "shapes") {
		homeShapes[shape](p)
	}
	return p
}

// What is kept of the pods at home leads to the same answers, and the same
// reasons, as all of it.
func TestLeanPodsDecideTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var keeper LeanPods
		whole := placement.Inventory{Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "team"}}}}
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			room := corev1.ResourceList{"cpu": resource.MustParse("16"), "pods": resource.MustParse("5")}
			whole.Nodes = append(whole.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}, Status: corev1.NodeStatus{Capacity: room, Allocatable: room}})
		}
		less := whole
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			p := drawLeanPod(t, fmt.Sprintf("p%d", i), rapid.SampledFrom(whole.Nodes).Draw(t, "node").Name)
			whole.Pods, less.Pods = append(whole.Pods, p), append(less.Pods, lean(t, &keeper, p))
		}
		asks := []*corev1.Pod{drawLeanPod(t, "ask-0", ""), drawLeanPod(t, "ask-1", "")}
		if diff := cmp.Diff(answersOf(t, whole, asks), answersOf(t, less, asks)); diff != "" {
			t.Errorf("what was cut off counts (-whole +lean):\n%s", diff)
		}
	})
}

func answersOf(t *rapid.T, inv placement.Inventory, asks []*corev1.Pod) (told []string) {
	s, err := placement.New(inv)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Fit(placement.Ask{Pods: asks})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range a.Placed {
		told = append(told, p.Pod.Name+" on "+p.Node)
	}
	for _, m := range a.Misfit {
		told = append(told, m.Pod.Name+": "+m.String())
	}
	return told
}

// A pod that waits may be bought for, and one on a rented machine is the proof
// of how it ran: of these nothing is cut.
func TestLeanPodsKeepWhatIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var keeper LeanPods
		p := drawLeanPod(t, "p", rapid.SampledFrom([]string{"", v1alpha1.NodePrefix + "5f3a", "rack-1"}).Draw(t, "node"))
		p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		once := lean(t, &keeper, p)
		if diff := cmp.Diff(once, lean(t, &keeper, once)); diff != "" {
			t.Errorf("a second time cuts more:\n%s", diff)
		}
		if p.Spec.NodeName == "rack-1" {
			if once.Spec.Containers[0].Image != "" {
				t.Error("a pod at home is kept whole")
			}
			return
		}
		if diff := cmp.Diff(p, once, cmpopts.IgnoreFields(metav1.ObjectMeta{}, "ManagedFields")); diff != "" || once.ManagedFields != nil {
			t.Errorf("changed (-before +after):\n%s", diff)
		}
	})
}

// Pods of one template share what their containers ask for and were given; those
// of another don't.
func TestLeanPodsShareForms(t *testing.T) {
	var keeper LeanPods
	pod := func(name, size string) *corev1.Pod {
		given := cores(size)
		return lean(t, &keeper, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.PodSpec{NodeName: "rack-1", Containers: []corev1.Container{{Name: "main", Image: name, Resources: cores(size)}}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: name, Resources: &given, AllocatedResources: given.Requests}}},
		})
	}
	a, b, c := pod("a", "1"), pod("b", "1"), pod("c", "2")
	if &a.Spec.Containers[0] != &b.Spec.Containers[0] || &a.Status.ContainerStatuses[0] != &b.Status.ContainerStatuses[0] {
		t.Error("two pods that ask alike don't share it")
	}
	if got := c.Spec.Containers[0].Resources.Requests.Cpu().String(); got != "2" {
		t.Errorf("the other one asks for %s cores", got)
	}
	if got := c.Status.ContainerStatuses[0].AllocatedResources.Cpu().String(); got != "2" {
		t.Errorf("the other one was given %s cores", got)
	}
	for i := range mostForms + 1 {
		pod("many", fmt.Sprint(i))
	}
	if len(keeper.asking) > mostForms || len(keeper.statuses) > mostForms {
		t.Errorf("%d and %d forms are kept", len(keeper.asking), len(keeper.statuses))
	}
}
