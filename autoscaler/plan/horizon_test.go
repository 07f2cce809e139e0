package plan_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/plan"
)

const zone = corev1.LabelTopologyZone

// When on-prem is free is found by asking after one ending, after two, and so
// on, each time of a cluster that has never known the pods that are over. Within
// the local horizon Decide says just that. Beyond it, where nothing is decided
// by it, it names a time at which the work does fit.
func TestLocalTimeEqualsBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawHorizon(t).s
		fits, ends := fitsAfter(t, s)
		d := plan.Decide(s).Decisions[0]
		first := slices.Index(fits, true)
		horizon := now().Add(10 * time.Minute) // the expected boot
		switch {
		case first == 0:
			if d.Code != plan.FitsLocally {
				t.Fatalf("it fits now, Decide says %s", d.Explain())
			}
		case first > 0 && !ends[first-1].After(horizon):
			if d.Code != plan.WaitingLocalETA || !d.Until.Equal(ends[first-1]) {
				t.Fatalf("it fits at %s, Decide says %s", ends[first-1], d.Explain())
			}
		case d.Code == plan.WaitingLocalETA || d.Code == plan.FitsLocally:
			t.Fatalf("it does not fit soon, Decide says %s", d.Explain())
		case d.Burst == nil: // no machine takes it either
		case d.Burst.LocalAt.IsZero():
			if fits[len(ends)] {
				t.Fatalf("it fits after all endings, Decide knows no time")
			}
		default:
			for i, ok := range fits[1:] {
				if ok && ends[i].Equal(d.Burst.LocalAt) {
					return
				}
			}
			t.Fatalf("it does not fit at %s", d.Burst.LocalAt)
		}
	})
}

// drawHorizon makes a small busy site in two zones and one gang.
func drawHorizon(t *rapid.T) given {
	g := site().offer("ovh", 8, "2 EUR").budget("vision-month", "1000000 EUR")
	nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
	for i := range nodes {
		g = g.node(fmt.Sprintf("rack%d", i), rapid.Int64Range(0, 3).Draw(t, "gpus"))
		n := g.s.Cluster.Nodes[i]
		n.Labels[zone] = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "zone")
		n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("4")
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "running") {
		ends := time.Duration(rapid.IntRange(0, 14).Draw(t, "ends")) * time.Minute
		node := fmt.Sprintf("rack%d", rapid.IntRange(0, nodes-1).Draw(t, "on"))
		g = g.running(fmt.Sprintf("old%d", i), node, rapid.Int64Range(0, 2).Draw(t, "used"), ends)
		p := g.s.Cluster.Pods[len(g.s.Cluster.Pods)-1]
		p.Namespace = "vision"
		dress(t, p, "old")
	}
	g = g.gang("ring", 1).times(rapid.IntRange(1, 3).Draw(t, "pods")).together()
	return g.work(func(w *plan.Gang) {
		equal := rapid.Bool().Draw(t, "equal")
		for i := range w.Pods {
			if equal && i > 0 {
				name, uid := w.Pods[i].Name, w.Pods[i].UID
				w.Pods[i] = w.Pods[0].DeepCopy()
				w.Pods[i].Name, w.Pods[i].UID = name, uid
				continue
			}
			if n := rapid.Int64Range(0, 2).Draw(t, "wants"); i == 0 || n > 0 {
				w.Pods[i].Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(max(n, 1), resource.DecimalSI)
			} else {
				delete(w.Pods[i].Spec.Containers[0].Resources.Requests, "nvidia.com/gpu")
			}
			dress(t, w.Pods[i], "ring")
		}
	})
}

// dress gives a pod a size and sometimes rules about other pods.
func dress(t *rapid.T, p *corev1.Pod, app string) {
	p.Labels = map[string]string{"app": app}
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(rapid.SampledFrom([]string{"1", "1", "3"}).Draw(t, "cpu"))
	term := corev1.PodAffinityTerm{
		TopologyKey:   rapid.SampledFrom([]string{zone, corev1.LabelHostname}).Draw(t, "key"),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": rapid.SampledFrom([]string{"old", "ring"}).Draw(t, "to")}},
	}
	terms := []corev1.PodAffinityTerm{term}
	switch rapid.SampledFrom([]string{"", "", "", "apart", "near", "spread"}).Draw(t, "rule") {
	case "apart":
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	case "near":
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
	case "spread":
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: term.TopologyKey, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: term.LabelSelector,
		}}
	}
}

// fitsAfter says of each count of endings whether the gang fits after them, and
// when each ending is.
func fitsAfter(t *rapid.T, s plan.State) (fits []bool, ends []time.Time) {
	var known, others []*corev1.Pod
	for _, p := range s.Cluster.Pods {
		if s.Cluster.Ends[p.UID].IsZero() {
			others = append(others, p)
		} else {
			known = append(known, p)
		}
	}
	slices.SortFunc(known, func(a, b *corev1.Pod) int {
		return cmp.Or(s.Cluster.Ends[a.UID].Compare(s.Cluster.Ends[b.UID]), cmp.Compare(a.Name, b.Name))
	})
	for n := range len(known) + 1 {
		if n > 0 {
			ends = append(ends, s.Cluster.Ends[known[n-1].UID])
		}
		inv := placement.Inventory{Nodes: s.Cluster.Nodes, Pods: append(slices.Clone(others), known[n:]...)}
		snapshot, err := placement.New(inv)
		if err != nil {
			t.Fatal(err)
		}
		ask := placement.Ask{Together: true}
		ask.Pods = append(ask.Pods, s.Gangs[0].Pods...)
		answer, err := snapshot.Fit(ask)
		if err != nil {
			t.Fatal(err)
		}
		fits = append(fits, answer.OK())
	}
	return fits, ends
}
