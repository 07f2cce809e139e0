package placement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

// rented is a stock of machines with 4 GPUs and 64 cores, behind a taint.
func rented() *placement.Stock { return placement.NewStock(rentedMachine) }

func rentedMachine(i int) placement.Machine {
	return placement.Machine{
		Name: fmt.Sprintf("rented-%d", i), MilliCPU: 64_000, Memory: 256 << 30, Disk: 1 << 40, Region: "away",
		GPUResource: "nvidia.com/gpu", GPUs: 4, Labels: map[string]string{"product": "l40s"},
		Taints: []corev1.Taint{{Key: "rented", Value: "yes", Effect: corev1.TaintEffectNoSchedule}},
	}
}

func guest() corev1.Toleration {
	return corev1.Toleration{Key: "rented", Operator: corev1.TolerationOpEqual, Value: "yes"}
}

func TestPack(t *testing.T) {
	many := func(n int, gpus int64, change ...func(*corev1.Pod)) (pods []*corev1.Pod) {
		for i := range n {
			pods = append(pods, pod(fmt.Sprintf("p%02d", i), gpus, append(change, func(p *corev1.Pod) {
				p.Labels["batch.kubernetes.io/job-completion-index"] = fmt.Sprint(i)
				p.Spec.Hostname = p.Name
				p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "INDEX", Value: fmt.Sprint(i)}}
			})...))
		}
		return pods
	}
	tests := map[string]struct {
		pods []*corev1.Pod
		want string
	}{
		"no pod needs no machine":                    {nil, "0 machines"},
		"equal pods fill machine after machine":      {many(5, 2), "3 machines"},
		"a pod that is too large is named":           {many(3, 5), "p00: 0/1 nodes fit: 1 Insufficient nvidia.com/gpu"},
		"what needs more than is allowed is said so": {many(17, 4), "too many"},
		"unequal pods share":                         {append(many(3, 3), pod("q", 1)), "3 machines"},
		"pods that avoid each other stand alone":     {many(3, 1, apart(corev1.LabelHostname)), "3 machines"},
		"one that no machine takes among others":     {append(many(2, 1), pod("q", 1, selecting("product", "h100"))), "q: 0/1 nodes fit: 1 node(s) didn't match Pod's node affinity/selector"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
			stock := rented()
			for range 2 { // the second time from memory
				got, err := s.Pack(s.Batch(tt.pods, guest()), stock, 16)
				if err != nil {
					t.Fatal(err)
				}
				if told := told(got); told != tt.want {
					t.Errorf("Pack() = %s, want %s", told, tt.want)
				}
			}
			if got := s.Nodes(); len(got) != 1 {
				t.Errorf("nodes left behind: %v", got)
			}
		})
	}
}

// A machine comes with the pods that DaemonSets put on it, and with no others.
// cases: F6b kubernetes-sigs/karpenter#1749, H7 kubernetes-sigs/karpenter#1185, F75 krustlet#167
func TestPackBesideDaemons(t *testing.T) {
	everywhere := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	}
	tests := map[string]struct {
		daemon *corev1.Pod
		pod    *corev1.Pod
		want   string
	}{
		"one that tolerates everything takes its room": {pod("agent", 0, cores("2"), everywhere), pod("p", 4, cores("63")), "p: 0/1 nodes fit: 1 Insufficient cpu, beside 1"},
		"what is left is for the work":                 {pod("agent", 0, cores("2"), everywhere), pod("p", 4, cores("62")), "1 machines, beside 1"},
		"one without our toleration stays away":        {pod("agent", 0, cores("2")), pod("p", 4, cores("63")), "1 machines, beside 0"},
		"one for other machines stays away":            {pod("agent", 0, cores("2"), everywhere, selecting("product", "h100")), pod("p", 4, cores("63")), "1 machines, beside 0"},
		"its host port is taken":                       {pod("agent", 0, hostPort(9100), everywhere), pod("p", 4, hostPort(9100)), "p: 0/1 nodes fit: 1 node(s) didn't have free ports for the requested pod ports, beside 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			set := &appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"},
				Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: tt.daemon.Spec}},
			}
			leaving := set.DeepCopy()
			leaving.DeletionTimestamp = &metav1.Time{}
			s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
			got, err := s.Pack(s.Batch([]*corev1.Pod{tt.pod}, guest()), placement.NewStock(rentedMachine, set, leaving), 16)
			if err != nil {
				t.Fatal(err)
			}
			if told := fmt.Sprintf("%s, beside %d", told(got), got.Daemons); told != tt.want {
				t.Errorf("Pack() = %s, want %s", told, tt.want)
			}
		})
	}
}

func told(p placement.Packing) string {
	switch {
	case p.Misfit != nil:
		return p.Misfit.Pod.Name + ": " + p.Misfit.String()
	case p.TooMany:
		return "too many"
	}
	return fmt.Sprintf("%d machines", p.Machines)
}

// What Pack reckons and remembers is what first fit finds, one pod and one
// filter run at a time, on a snapshot that remembers nothing.
func TestPackEqualsFirstFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		inv := placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}}
		for i := range rapid.IntRange(0, 2).Draw(t, "bound") {
			inv.Pods = append(inv.Pods, drawPod(t, 800+i))
			inv.Pods[i].Spec.NodeName = "home"
		}
		warm, err := placement.New(inv)
		if err != nil {
			t.Fatal(err)
		}
		var sets []*appsv1.DaemonSet
		if rapid.IntRange(0, 2).Draw(t, "daemons") == 0 {
			agent := drawPod(t, 999)
			agent.Labels["app"] = "agent"
			agent.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			sets = append(sets, &appsv1.DaemonSet{
				ObjectMeta: metav1.ObjectMeta{Namespace: agent.Namespace, Name: agent.Name},
				Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: agent.Labels}, Spec: agent.Spec}},
			})
		}
		stock := placement.NewStock(rentedMachine, sets...)
		for round := range rapid.IntRange(1, 4).Draw(t, "rounds") {
			pods := []*corev1.Pod{drawPod(t, 100*round)}
			for i := range rapid.IntRange(0, 9).Draw(t, "more") {
				p := pods[0].DeepCopy()
				if rapid.IntRange(0, 5).Draw(t, "other") == 0 {
					p = drawPod(t, 0)
				}
				p.Name = fmt.Sprintf("p%03d", 100*round+1+i)
				p.Labels["index"] = rapid.SampledFrom([]string{"0", "1"}).Draw(t, "index")
				pods = append(pods, p)
			}
			got, err := warm.Pack(warm.Batch(pods, guest()), stock, 4)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(firstFit(t, inv, sets, pods, 4), seats(got)); diff != "" {
				t.Fatalf("round %d (-first fit +Pack):\n%s", round, diff)
			}
		}
	})
}

func seats(p placement.Packing) map[string]string {
	all := map[string]string{"": told(p)}
	for _, s := range p.Seats() {
		all[s.Pod.Name] = fmt.Sprintf("rented-%d", s.Machine)
	}
	return all
}

func firstFit(t *rapid.T, inv placement.Inventory, sets []*appsv1.DaemonSet, pods []*corev1.Pod, most int) map[string]string {
	ask := func(p *corev1.Pod, nodes ...string) placement.Answer {
		cold, err := placement.New(inv)
		if err != nil {
			t.Fatal(err)
		}
		among := cold.Choose(nodes...)
		answer, err := cold.Fit(placement.Ask{Pods: []*corev1.Pod{p}, Nodes: &among, Tolerate: []corev1.Toleration{guest()}})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	bind := func(p *corev1.Pod, node string) {
		bound := p.DeepCopy()
		bound.Spec.NodeName = node
		inv.Pods = append(slices.Clone(inv.Pods), bound)
	}
	var machines []string
	all := map[string]string{}
	for _, p := range placement.LargestFirst(pods) {
		answer := ask(p, machines...)
		if !answer.OK() {
			if len(machines) == most {
				return map[string]string{"": "too many"}
			}
			fresh := rentedMachine(len(machines)).Node()
			inv.Nodes = append(slices.Clone(inv.Nodes), fresh)
			for _, set := range sets {
				agent := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
				agent.Namespace, agent.Name = set.Namespace, set.Name+fresh.Name
				if selects := agent.Spec.NodeSelector; selects["product"] == fresh.Labels["product"] || selects == nil {
					bind(agent, fresh.Name)
				}
			}
			machines = append(machines, fresh.Name)
			answer = ask(p, fresh.Name)
		}
		if !answer.OK() {
			return map[string]string{"": told(placement.Packing{Misfit: &answer.Misfit[0]})}
		}
		all[p.Name] = answer.Placed[0].Node
		bind(p, answer.Placed[0].Node)
	}
	all[""] = fmt.Sprintf("%d machines", len(machines))
	return all
}

// What is remembered of a node holds for its present state only, and for pods
// that no rule tells apart.
func TestMemory(t *testing.T) {
	large := func(name string) *corev1.Pod { return pod(name, 0, cores("40")) }
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
	first := large("first")
	tells := func(want string, p *corev1.Pod) {
		t.Helper()
		s.Fork()
		defer s.Revert()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{p}})); got != want {
			t.Errorf("Fit() = %q, want %q", got, want)
		}
	}
	if err := s.AddPod(first, "home"); err != nil {
		t.Fatal(err)
	}
	tells("second nowhere, 0/1 nodes fit: 1 Insufficient cpu", large("second"))
	if err := s.RemovePod(first, "home"); err != nil {
		t.Fatal(err)
	}
	tells("third on home", large("third"))

	indexed := func(index string) *corev1.Pod {
		return pod("index-"+index, 1, func(p *corev1.Pod) { p.Labels["index"] = index })
	}
	tells("index-0 on home", indexed("0"))
	if err := s.AddPod(pod("shy", 0, awayFrom("index", "0")), "home"); err != nil {
		t.Fatal(err)
	}
	tells("index-0 nowhere, 0/1 nodes fit: 1 node(s) didn't satisfy existing pods anti-affinity rules", indexed("0"))
	tells("index-1 on home", indexed("1"))
}

// BenchmarkPack has the shapes of cluster-autoscaler's own benchmarks, to which
// its figures can be held: 50,000 equal pods on machines that take 50, and two
// kinds, 51,000 pods, on machines of one core.
func BenchmarkPack(b *testing.B) {
	many := func(n int, name, cpu, memory string) (pods []*corev1.Pod) {
		for i := range n {
			pods = append(pods, pod(fmt.Sprintf("%s-%05d", name, i), 0, cores(cpu), func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse(memory)
			}))
		}
		return pods
	}
	for name, shape := range map[string]struct {
		pods    []*corev1.Pod
		machine placement.Machine
		want    int
	}{
		"pods=50000": {many(50_000, "p", "100m", "100"), placement.Machine{MilliCPU: 5000, Memory: 1 << 30}, 1000},
		"pods=51000": {append(many(50_000, "small", "50m", "100"), many(1000, "large", "95m", "190")...), placement.Machine{MilliCPU: 1000, Memory: 5000}, 2595},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := cluster(b, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
				got, err := s.Pack(s.Batch(shape.pods), placement.NewStock(func(i int) placement.Machine {
					m := shape.machine
					m.Name = fmt.Sprintf("rented-%d", i)
					return m
				}), 3000)
				if err != nil || got.Machines != shape.want {
					b.Fatalf("%d machines, %v, want %d", got.Machines, err, shape.want)
				}
			}
		})
	}
}
