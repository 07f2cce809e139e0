package placement

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"pgregory.net/rapid"
)

// What the filters say of every node is the same when PreFilter sees all pods of
// all nodes, however the cluster changes in between.
func TestSieveChangesNoAnswer(t *testing.T) {
	sifted := 0
	rapid.Check(t, func(t *rapid.T) {
		room := corev1.ResourceList{"cpu": resource.MustParse("16"), "pods": resource.MustParse("100")}
		var inv Inventory
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			inv.Nodes = append(inv.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: rapid.SampledFrom([]string{"east", "west"}).Draw(t, "zone"),
			}}, Status: corev1.NodeStatus{Capacity: room, Allocatable: room}})
		}
		s, err := New(inv)
		if err != nil {
			t.Fatal(err)
		}
		asks := []*corev1.Pod{ruled(t, "ask-0"), ruled(t, "ask-1")}
		bound := map[*corev1.Pod]string{}
		for i := range rapid.IntRange(1, 12).Draw(t, "acts") {
			switch rapid.IntRange(0, 5).Draw(t, "act") {
			case 0:
				s.Fork()
			case 1:
				s.Revert()
				clear(bound) // who of them is left is nobody's business
			case 2:
				for p, node := range bound {
					if err := s.RemovePod(p, node); err != nil {
						t.Fatal(err)
					}
					delete(bound, p)
					break
				}
			default:
				p, node := ruled(t, fmt.Sprintf("p%d", i)), rapid.SampledFrom(inv.Nodes).Draw(t, "node").Name
				if err := s.AddPod(p, node); err != nil {
					t.Fatal(err)
				}
				bound[p] = node
			}
			for _, p := range asks {
				through, all := answers(t, s, p, true), answers(t, s, p, false)
				if fmt.Sprint(through) != fmt.Sprint(all) {
					t.Fatalf("%s: with the sieve %q, without %q", p.Name, through, all)
				}
				if _, known := meant(p); known {
					sifted++
				}
			}
		}
	})
	if sifted == 0 {
		t.Error("nothing was ever sifted")
	}
}

// Nodes whose pods keep nobody off any more are not looked at.
func TestNobodyKeptOff(t *testing.T) {
	inv := Inventory{Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "home", Labels: map[string]string{corev1.LabelHostname: "home"}}}}}
	s, err := New(inv)
	if err != nil {
		t.Fatal(err)
	}
	keeping := func(name, app string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}},
		}}}}
	}
	shy := keeping("shy", "loud")
	if err := s.AddPod(keeping("meek", "mighty"), "home"); err != nil { // stays
		t.Fatal(err)
	}
	loud := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "loud", Labels: map[string]string{"app": "loud"}}}
	quiet := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "quiet", Labels: map[string]string{"app": "quiet"}}}
	check := func(when string, fromLoud int) {
		t.Helper()
		if a := s.affinity.fresh(s.nodes); len(a.against(loud)) != fromLoud || len(a.against(quiet)) != 0 {
			t.Errorf("%s: %d nodes may keep off the loud pod, %d the quiet one, want %d and none", when, len(a.against(loud)), len(a.against(quiet)), fromLoud)
		}
	}
	for range 2 {
		if err := s.AddPod(shy, "home"); err != nil {
			t.Fatal(err)
		}
		check("with the shy pod", 1)
		if err := s.RemovePod(shy, "home"); err != nil {
			t.Fatal(err)
		}
		check("without", 0)
	}
	s.Fork()
	if err := s.AddNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rented"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.AddPod(shy, "rented"); err != nil {
		t.Fatal(err)
	}
	check("with the shy pod on a new node", 2)
	s.Revert()
	check("without the node", 0)
	s.affinity.forget()
	check("without it still", 0)
	if err := s.AddPod(shy, "home"); err != nil {
		t.Fatal(err)
	}
	check("with the shy pod again", 1)
}

// answers are what the filters say of a pod, node by node.
func answers(t *rapid.T, s *Snapshot, p *corev1.Pod, through bool) (told []string) {
	if through {
		s.sieve.set(p)
		defer s.sieve.off()
	}
	state := framework.NewCycleState()
	allowed, status, _ := s.sim.filters.RunPreFilterPlugins(s.sim.ctx, state, p)
	s.sieve.off()
	if !status.IsSuccess() {
		return []string{status.Message()}
	}
	for _, n := range s.nodes {
		told = append(told, fmt.Sprint(allowed, s.sim.filters.RunFilterPlugins(s.sim.ctx, state, p, n).Message()))
	}
	return told
}

// ruled is a pod with some labels, and rules about others.
func ruled(t *rapid.T, name string) *corev1.Pod {
	pick := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	selector := func() *metav1.LabelSelector {
		value := pick("value", "x", "y")
		switch pick("selector", "match", "match", "in", "not in", "exists", "nothing", "everything", "both") {
		case "match":
			return &metav1.LabelSelector{MatchLabels: map[string]string{pick("key", "a", "b"): value}}
		case "in":
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{value, "z"}}}}
		case "not in":
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: metav1.LabelSelectorOpNotIn, Values: []string{value}}}}
		case "exists":
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "b", Operator: metav1.LabelSelectorOpExists}}}
		case "nothing":
			return nil
		case "both":
			return &metav1.LabelSelector{MatchLabels: map[string]string{"a": value, "b": "x"}}
		}
		return &metav1.LabelSelector{}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick("namespace", "one", "two"), Name: name, UID: types.UID(name), ResourceVersion: "1", Labels: map[string]string{}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}}},
	}
	for _, key := range []string{"a", "b"} {
		if value := pick(key, "", "x", "y"); value != "" {
			p.Labels[key] = value
		}
	}
	key := pick("topology", corev1.LabelHostname, corev1.LabelTopologyZone)
	terms := func() (terms []corev1.PodAffinityTerm) {
		for range rapid.IntRange(1, 2).Draw(t, "terms") {
			terms = append(terms, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: selector(), Namespaces: []string{"one", "two"}[:rapid.IntRange(0, 2).Draw(t, "namespaces")]})
		}
		return terms
	}
	if pick("spread", "no", "yes") == "yes" {
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector()}}
	}
	switch pick("rule", "none", "near", "apart", "apart", "both") {
	case "near":
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()}}
	case "apart":
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()}}
	case "both":
		p.Spec.Affinity = &corev1.Affinity{
			PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()},
			PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms()},
		}
	}
	return p
}
