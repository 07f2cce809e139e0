package plan_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/plan"
)

// A planner that goes from state to state decides on each as one that has never
// seen another.
func TestPlannerEqualsColdRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var planner plan.Planner
		later := time.Duration(0)
		var g given
		var before plan.Cluster
		kept := cached{}
		for turn := range rapid.IntRange(1, 5).Draw(t, "turns") {
			switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
			case turn == 0 || kind == 0:
				g = draw(t)
			case kind == 1:
				g = drawHorizon(t)
			} // else the state stays, and time goes on
			s := g.s
			later += time.Duration(rapid.IntRange(0, 600).Draw(t, "later")) * time.Second
			s.Now = s.Now.Add(later)
			s.Settings.Machines = rapid.SampledFrom([]int{1, 16}).Draw(t, "machines")
			s.Settings.ReservePercent = rapid.SampledFrom([]int{10, 10, 90}).Draw(t, "reserve")
			if cpus := rapid.SampledFrom([]string{"", "", "1", "60"}).Draw(t, "daemon"); cpus != "" {
				s.Cluster.DaemonSets = []appsv1.DaemonSet{daemonSet(cpus)}
			}
			s = stamped(t, s)
			if rapid.Bool().Draw(t, "cached") {
				kept.share(s.Cluster.Pods)
				for i := range s.Gangs {
					kept.share(s.Gangs[i].Pods)
				}
			}
			cold := plan.Decide(s)
			if rapid.Bool().Draw(t, "told") {
				s.Cluster.Changes = between(uint64(turn+1), before, s.Cluster)
			}
			before = s.Cluster
			if diff := cmp.Diff(cold, planner.Decide(s)); diff != "" {
				t.Fatalf("turn %d (-cold +planner):\n%s", turn, diff)
			}
		}
	})
}

// cached are pods as an informer keeps them: one that has not changed is the same
// object.
type cached map[types.UID]*corev1.Pod

func (c cached) share(pods []*corev1.Pod) {
	for i, p := range pods {
		if old := c[p.UID]; old != nil && old.ResourceVersion == p.ResourceVersion {
			pods[i] = old
		}
		c[p.UID] = pods[i]
	}
}

// between is what has changed from one cluster to the next, both of one source.
func between(state uint64, before, now plan.Cluster) *placement.Changes {
	c := &placement.Changes{From: state, To: state + 1, Nodes: map[string]*corev1.Node{}, Pods: map[types.UID]*corev1.Pod{}}
	for _, n := range before.Nodes {
		c.Nodes[n.Name] = nil
	}
	for _, n := range now.Nodes {
		c.Nodes[n.Name] = n
	}
	for _, p := range before.Pods {
		c.Pods[p.UID] = nil
	}
	for _, p := range now.Pods {
		c.Pods[p.UID] = p
	}
	return c
}

func daemonSet(cpus string) appsv1.DaemonSet {
	return appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent"},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "agent", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus)}},
			}},
		}}},
	}
}

// stamped gives objects UIDs by their names and resource versions by what is in
// them, as an API server would.
func stamped(t rapid.TB, s plan.State) plan.State {
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var own plan.State // nothing is shared with the turn before
	if err := json.Unmarshal(text, &own); err != nil {
		t.Fatal(err)
	}
	for i := range own.Cluster.Nodes {
		stamp(t, own.Cluster.Nodes[i])
	}
	for i := range own.Cluster.Pods {
		stamp(t, own.Cluster.Pods[i])
	}
	for i := range own.Cluster.Namespaces {
		stamp(t, &own.Cluster.Namespaces[i])
	}
	for i := range own.Gangs {
		for j := range own.Gangs[i].Pods {
			stamp(t, own.Gangs[i].Pods[j])
		}
	}
	return own
}

func stamp(t rapid.TB, o metav1.Object) {
	if o.GetUID() == "" {
		o.SetUID(types.UID(o.GetNamespace() + "/" + o.GetName()))
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	o.SetResourceVersion(fmt.Sprintf("%x", sha256.Sum256(text)))
}

// Pods that carry no version may be other ones at the same place.
func TestPlannerLooksAnewAtPodsWithoutVersions(t *testing.T) {
	g := site().gang("train", 1).times(2).offer("ovh", 1, "1 EUR").offer("aws", 4, "4 EUR").budget("vision-month", "1000 EUR")
	var planner plan.Planner
	planner.Decide(g.s)
	for _, p := range g.s.Gangs[0].Pods {
		p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("4")
	}
	if diff := cmp.Diff(plan.Decide(g.s), planner.Decide(g.s)); diff != "" {
		t.Errorf("after a change (-cold +planner):\n%s", diff)
	}
}

// A machine that an offer describes anew, and DaemonSets that come and go, are
// not what was reckoned with before.
func TestPlannerSeesOtherMachines(t *testing.T) {
	g := site().gang("train", 1).times(4).offer("ovh", 2, "1 EUR").budget("vision-month", "1000 EUR")
	larger := g.s
	larger.Offers = append(larger.Offers[:0:0], larger.Offers...)
	larger.Offers[0].GPUs = 4
	beside := larger
	beside.Cluster.DaemonSets = []appsv1.DaemonSet{daemonSet(fmt.Sprint(larger.Offers[0].MilliCPU/1000 - 2))}
	var planner plan.Planner
	for turn, s := range []plan.State{g.s, larger, beside, larger, g.s} {
		want := plan.Decide(s)
		if diff := cmp.Diff(want, planner.Decide(s)); diff != "" {
			t.Errorf("turn %d (-cold +planner):\n%s", turn, diff)
		}
		if bought := want.Bursts(); turn < 2 && (len(bought) != 1 || int(bought[0].Machines) != 2-turn) {
			t.Errorf("turn %d buys %v, want %d machines", turn, bought, 2-turn)
		}
	}
}

// What could not be followed is read anew.
func TestPlannerRecovers(t *testing.T) {
	g := site().node("rack1", 2).gang("train", 2).offer("ovh", 2, "1 EUR").budget("vision-month", "1000 EUR")
	smaller := site().node("rack1", 1).s.Cluster.Nodes[0]
	twice, after := g.s, g.s
	twice.Cluster.Nodes = []*corev1.Node{smaller, smaller}
	after.Cluster.Nodes = []*corev1.Node{smaller}
	var planner plan.Planner
	for turn, want := range []plan.Code{plan.FitsLocally, plan.Undecidable, plan.Bursts} {
		s := stamped(t, []plan.State{g.s, twice, after}[turn])
		got := planner.Decide(s)
		if diff := cmp.Diff(plan.Decide(s), got); diff != "" {
			t.Errorf("turn %d (-cold +planner):\n%s", turn, diff)
		}
		if got.Decisions[0].Code != want {
			t.Errorf("turn %d is %s, want %s", turn, got.Decisions[0].Code, want)
		}
	}
}

// The rules of DaemonSets tell pods apart in a snapshot that was built anew, too.
func TestPlannerRecoversWithRules(t *testing.T) {
	g := site().offer("ovh", 2, "1 EUR").gang("train", 1).times(2).daemonSet("1").work(func(w *plan.Gang) {
		w.Pods[0].Labels, w.Pods[1].Labels = map[string]string{"app": "quiet"}, map[string]string{"app": "loud"}
	})
	g.s.Cluster.DaemonSets[0].Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, NamespaceSelector: &metav1.LabelSelector{},
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "loud"}},
		}},
	}}
	twice := g.node("rack1", 0).node("rack1", 0)
	var planner plan.Planner
	for turn, want := range []plan.Code{plan.PodAffinityOnPrem, plan.Undecidable, plan.PodAffinityOnPrem} {
		s := stamped(t, []given{g, twice, g}[turn].s)
		got := planner.Decide(s)
		if diff := cmp.Diff(plan.Decide(s), got); diff != "" {
			t.Errorf("turn %d (-cold +planner):\n%s", turn, diff)
		}
		if got.Decisions[0].Code != want {
			t.Errorf("turn %d is %s, want %s", turn, got.Decisions[0].Code, want)
		}
	}
}
