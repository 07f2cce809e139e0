package placement_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// What a DaemonSet brings to a machine can tell pods apart that nothing in the
// cluster tells apart: the machine takes some of them and not the others.
func TestPackBesideDaemonsWithRules(t *testing.T) {
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: pod("agent", 0, awayFrom("index", "1"), func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}).Spec}},
	}
	var pods []*corev1.Pod
	for i := range 3 {
		pods = append(pods, pod(fmt.Sprintf("p%d", i), 1, func(p *corev1.Pod) { p.Labels["index"] = fmt.Sprint(i) }))
	}
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
	batch := s.Batch(pods, guest())
	want := "p1: 0/1 nodes fit: 1 node(s) didn't satisfy existing pods anti-affinity rules"
	for range 2 {
		got, err := s.Pack(batch, placement.NewStock(rentedMachine, set), 16)
		if err != nil {
			t.Fatal(err)
		}
		if told := told(got); told != want {
			t.Errorf("Pack() = %s, want %s", told, want)
		}
	}
}

// Whatever a filter reads of a pod tells it apart from pods without.
func TestPodsThatDifferForAFilter(t *testing.T) {
	fits := pod("fits", 1)
	tests := map[string]func(*corev1.Pod){
		"options of a bind mount": func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/s", BindMountOptions: []string{"noexec"}}}
		},
		"a restart of all containers": func(p *corev1.Pod) {
			p.Spec.Containers[0].RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
		},
		"users of its own on the host's network": func(p *corev1.Pod) {
			own := false
			p.Spec.HostNetwork, p.Spec.HostUsers = true, &own
		},
		"a sidecar": func(p *corev1.Pod) {
			always := corev1.ContainerRestartPolicyAlways
			side := pod("side", 8).Spec.Containers[0]
			side.RestartPolicy = &always
			p.Spec.InitContainers = []corev1.Container{side}
		},
		"resources of the whole pod": func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("65")}}
		},
		"overhead": func(p *corev1.Pod) {
			p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("64")}
		},
		"a claim for a device": func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &fits.Name}}
		},
		"a claim for a volume":  claiming("data"),
		"a host port":           hostPort(9100),
		"a rule about one node": on("elsewhere"),
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}, Pods: []*corev1.Pod{pod("agent", 0, hostPort(9100), on("home"))}})
			got := fit(t, s, placement.Ask{Pods: []*corev1.Pod{fits, pod("stays", 1, change)}})
			if len(got.Placed) != 1 || got.Placed[0].Pod != fits {
				t.Errorf("Fit() = %q, want that only %s fits", tell(got), fits.Name)
			}
		})
	}
}

// A pod that keeps others out of its zone keeps them off every node there, until
// it is gone: no other node's refusal is remembered beyond that.
func TestRefusalOfAZoneIsNotRemembered(t *testing.T) {
	rack := labelled(corev1.LabelTopologyZone, "rack")
	shy := pod("shy", 0, apart(corev1.LabelTopologyZone))
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("a", 8, rack), node("b", 8, rack)}})
	if err := s.AddPod(shy, "a"); err != nil {
		t.Fatal(err)
	}
	ask := placement.Ask{Pods: []*corev1.Pod{pod("p", 1)}, Nodes: choose(s, "b")}
	if got, want := tell(fit(t, s, ask)), "p nowhere, 0/1 nodes fit: 1 node(s) didn't satisfy existing pods anti-affinity rules"; got != want {
		t.Errorf("Fit() = %q, want %q", got, want)
	}
	if err := s.RemovePod(shy, "a"); err != nil {
		t.Fatal(err)
	}
	if got, want := tell(fit(t, s, ask)), "p on b"; got != want {
		t.Errorf("Fit() after the other is gone = %q, want %q", got, want)
	}
}
