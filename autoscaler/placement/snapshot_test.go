package placement_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

func TestSnapshotRefusesUnknownNodes(t *testing.T) {
	s := cluster(t, placement.Inventory{})
	if err := s.AddPod(pod("x", 1), "gone"); !errors.Is(err, placement.ErrUnknownNode) {
		t.Errorf("AddPod() = %v, want ErrUnknownNode", err)
	}
	if err := s.RemovePod(pod("x", 1), "gone"); !errors.Is(err, placement.ErrUnknownNode) {
		t.Errorf("RemovePod() = %v, want ErrUnknownNode", err)
	}
	s.Commit() // without a fork these do nothing
	s.Revert()
}

// Each change begins a state that never was; who takes it back has the old one.
func TestState(t *testing.T) {
	inv := placement.Inventory{Nodes: []*corev1.Node{node("a", 1)}}
	s := cluster(t, inv)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	seen := map[uint64]string{s.State(): "the beginning"}
	was := s.State()
	s.Fork()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"AddPod", func() { must(s.AddPod(pod("x", 1), "a")) }},
		{"RemovePod", func() { must(s.RemovePod(pod("x", 1, on("a")), "a")) }},
		{"AddNode", func() { must(s.AddNode(node("b", 1))) }},
		{"Fit", func() { _, err := s.Fit(placement.Ask{Pods: []*corev1.Pod{pod("y", 1)}}); must(err) }},
		{"Revert", func() {
			s.Revert()
			if s.State() != was {
				t.Errorf("after Revert the state is %d, and was %d", s.State(), was)
			}
			delete(seen, was)
		}},
		{"Follow", func() { must(s.Follow(inv)) }},
	} {
		step.do()
		if before, known := seen[s.State()]; known {
			t.Errorf("after %s the state is that after %s", step.name, before)
		}
		seen[s.State()] = step.name
	}
}

// world is what the snapshot should hold, kept in the plainest way.
type world struct {
	nodes []*corev1.Node
	pods  []*corev1.Pod
	first int // so many nodes were there from the beginning
}

func (w world) copy() world {
	return world{nodes: append([]*corev1.Node(nil), w.nodes...), pods: append([]*corev1.Pod(nil), w.pods...), first: w.first}
}

// drawPod draws a pod with one of the features that look beyond one node.
func drawPod(t *rapid.T, number int) *corev1.Pod {
	shapes := map[string]func(*corev1.Pod){
		"plain":         func(*corev1.Pod) {},
		"host port":     hostPort(8080),
		"apart":         apart(corev1.LabelHostname),
		"apart by zone": apart(corev1.LabelTopologyZone),
		"spread":        spread(corev1.LabelTopologyZone),
		"product":       selecting("product", "l40s"),
		"large":         cores("40"),
		"first only":    awayFrom("index", "0"),
		"near":          near(corev1.LabelHostname),
		"near by zone":  near(corev1.LabelTopologyZone),
		"prefers":       prefersApart,
	}
	shape := rapid.SampledFrom(slices.Sorted(maps.Keys(shapes))).Draw(t, "shape")
	return pod(fmt.Sprintf("p%03d", number), rapid.Int64Range(0, 3).Draw(t, "gpus"), shapes[shape], func(p *corev1.Pod) {
		p.Labels = map[string]string{
			"app": rapid.SampledFrom([]string{"train", "serve"}).Draw(t, "app"), "index": rapid.SampledFrom([]string{"0", "1"}).Draw(t, "index"),
		}
	})
}

// After any history of changes, forks, commits and reverts the snapshot answers
// as a cold one that was built from what should be there.
func TestSnapshotEqualsColdRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var start world
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			start.nodes = append(start.nodes, node(fmt.Sprintf("n%d", i), rapid.Int64Range(0, 4).Draw(t, "gpus"), labelled("product", rapid.SampledFrom([]string{"l40s", "h100"}).Draw(t, "product")),
				labelled(corev1.LabelTopologyZone, rapid.SampledFrom([]string{"east", "west"}).Draw(t, "zone"))))
		}
		start.first = len(start.nodes)
		warm, err := placement.New(placement.Inventory{Nodes: start.nodes})
		if err != nil {
			t.Fatal(err)
		}
		few := warm.Choose(names(start.nodes)...)
		var kinds []*corev1.Pod // few, so that what is remembered of them is asked for
		for i := range 4 {
			kinds = append(kinds, drawPod(t, i))
		}
		stack := []world{start}
		for step := range rapid.IntRange(1, 15).Draw(t, "steps") {
			change(t, warm, &stack, kinds, step)
			compare(t, warm, nil, stack[len(stack)-1], kinds)
			compare(t, warm, &few, stack[len(stack)-1], kinds)
		}
	})
}

// change does one random thing to both the snapshot and the world.
func change(t *rapid.T, warm *placement.Snapshot, stack *[]world, kinds []*corev1.Pod, step int) {
	top := &(*stack)[len(*stack)-1]
	switch rapid.SampledFrom([]string{"fork", "commit", "revert", "fit", "fit", "remove", "node"}).Draw(t, "act") {
	case "fork":
		warm.Fork()
		*stack = append(*stack, top.copy())
	case "commit":
		if len(*stack) > 1 {
			warm.Commit()
			(*stack)[len(*stack)-2] = *top
			*stack = (*stack)[:len(*stack)-1]
		}
	case "revert":
		if len(*stack) > 1 {
			warm.Revert()
			*stack = (*stack)[:len(*stack)-1]
		}
	case "fit":
		ask := placement.Ask{Together: rapid.Bool().Draw(t, "together")}
		for i := range rapid.IntRange(1, 3).Draw(t, "pods") {
			p := rapid.SampledFrom(kinds).Draw(t, "kind").DeepCopy()
			p.Name = fmt.Sprintf("p%03d", 10*step+i)
			p.UID = types.UID(p.Name)
			ask.Pods = append(ask.Pods, p)
		}
		got, err := warm.Fit(ask)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range got.Placed {
			bound := p.Pod.DeepCopy()
			bound.Spec.NodeName = p.Node
			top.pods = append(top.pods, bound)
		}
	case "remove":
		if len(top.pods) > 0 {
			at := rapid.IntRange(0, len(top.pods)-1).Draw(t, "victim")
			if err := warm.RemovePod(top.pods[at], top.pods[at].Spec.NodeName); err != nil {
				t.Fatal(err)
			}
			top.pods = append(append([]*corev1.Pod(nil), top.pods[:at]...), top.pods[at+1:]...)
		}
	case "node":
		n := node(fmt.Sprintf("v%03d", step), 2, labelled("product", "l40s"))
		if err := warm.AddNode(n); err != nil {
			t.Fatal(err)
		}
		top.nodes = append(top.nodes, n)
	}
}

func names(nodes []*corev1.Node) (all []string) {
	for _, n := range nodes {
		all = append(all, n.Name)
	}
	return all
}

// compare asks both about one more pod of each kind, on all nodes or on a few of
// the warm one's.
func compare(t *rapid.T, warm *placement.Snapshot, few *placement.Choice, want world, kinds []*corev1.Pod) {
	cold, err := placement.New(placement.Inventory{Nodes: want.nodes, Pods: want.pods})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(cold.Nodes(), warm.Nodes()); diff != "" {
		t.Fatalf("nodes differ (-cold +warm):\n%s", diff)
	}
	var same *placement.Choice
	if few != nil {
		same = new(cold.Choose(names(want.nodes[:want.first])...))
	}
	for _, p := range kinds {
		cold.Fork()
		warm.Fork()
		a, errA := cold.Fit(placement.Ask{Pods: []*corev1.Pod{p}, Nodes: same})
		b, errB := warm.Fit(placement.Ask{Pods: []*corev1.Pod{p}, Nodes: few})
		cold.Revert()
		warm.Revert()
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if diff := cmp.Diff(tell(a), tell(b)); diff != "" {
			t.Fatalf("pod %s gets different answers (-cold +warm):\n%s", p.Name, diff)
		}
	}
}

func BenchmarkNew(b *testing.B) {
	for _, size := range []int{100, 1000} {
		inv := busy(size)
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			for b.Loop() {
				cluster(b, inv)
			}
		})
	}
}

// BenchmarkForkRevert: what is changed costs, not what is there.
func BenchmarkForkRevert(b *testing.B) {
	for _, size := range []int{100, 1000, 5000} {
		s := cluster(b, busy(size))
		p := pod("x", 1)
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			for b.Loop() {
				s.Fork()
				if err := s.AddPod(p, "n00042"); err != nil {
					b.Fatal(err)
				}
				s.Revert()
			}
		})
	}
}

// BenchmarkFitNowhere asks every node and is refused by every one: the usual
// case of a full cluster.
func BenchmarkFitNowhere(b *testing.B) {
	s := cluster(b, busy(1000))
	for b.Loop() {
		if fit(b, s, placement.Ask{Pods: []*corev1.Pod{pod("x", 8)}}).OK() {
			b.Fatal("it fits")
		}
	}
}

// busy is a cluster whose nodes have 8 GPUs each and hold one pod with 7.
func busy(size int) placement.Inventory {
	var inv placement.Inventory
	for i := range size {
		name := fmt.Sprintf("n%05d", i)
		inv.Nodes = append(inv.Nodes, node(name, 8))
		inv.Pods = append(inv.Pods, pod("old-"+name, 7, on(name)))
	}
	return inv
}
