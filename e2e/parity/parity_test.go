package parity

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extender "k8s.io/kube-scheduler/extender/v1"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/e2e/controlplane"
)

var (
	draws = flag.Int("draws", 200, "how many pods are asked about")
	first = flag.Uint64("seed", 1, "seed of the first cluster; the next ones count on")
)

// perCluster is how many pods are asked about in each drawn cluster.
const perCluster = 20

// TestParity: for every draw, placement lets a pod on exactly the nodes on
// which kube-scheduler's own filters let it.
func TestParity(t *testing.T) {
	s := newSite(t)
	fits, asked := 0, 0
	refused := map[string]int{}
	for seed := *first; asked < *draws; seed++ {
		c := drawCluster(seed, min(perCluster, *draws-asked))
		s.build(c)
		theirs := s.scheduler(c)
		ours := s.placement(c, refused)
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			asked++
			fits += len(ours[name])
			if diff := cmp.Diff(theirs[name], ours[name]); diff != "" {
				t.Errorf("pod %s fits elsewhere for us than for kube-scheduler; replay with -seed=%d -draws=%d (-scheduler +ours):\n%s\n%s",
					name, seed, perCluster, diff, s.described(name))
			}
		}
		s.clear()
	}
	if fits < asked {
		t.Errorf("%d pods fit on %d nodes in all: draws that fit nearly nowhere prove little", asked, fits)
	}
	for _, plugin := range []string{
		"NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodePorts", "NodeResourcesFit", "VolumeRestrictions",
		"NodeVolumeLimits", "VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity",
	} {
		if refused[plugin] == 0 {
			t.Errorf("no draw was refused by %s: nothing was compared there", plugin)
		}
	}
	t.Logf("%d draws, %d placements agreed on; refusals by filter: %v", asked, fits, refused)
}

// answers is the filter extender: it writes down which nodes are left for each
// pod, and then leaves none, so that no pod is ever bound.
type answers struct {
	mu    sync.Mutex
	nodes map[types.UID][]string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extender.ExtenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil || args.Pod == nil || args.NodeNames == nil {
		http.Error(w, "no question of a scheduler", http.StatusBadRequest)
		return
	}
	names := slices.Sorted(slices.Values(*args.NodeNames))
	a.mu.Lock()
	a.nodes[args.Pod.UID] = names
	a.mu.Unlock()
	refused := extender.FailedNodesMap{}
	for _, n := range names {
		refused[n] = "only asking"
	}
	_ = json.NewEncoder(w).Encode(extender.ExtenderFilterResult{NodeNames: &[]string{}, FailedAndUnresolvableNodes: refused})
}

func (a *answers) of(uid types.UID) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, a.nodes[uid]...)
}

// newSite starts a control plane whose scheduler asks our extender.
func newSite(t *testing.T) *site {
	t.Helper()
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "parity")
	if err != nil {
		t.Fatal(err)
	}
	a := &answers{nodes: map[types.UID][]string{}}
	server := httptest.NewServer(a)
	cp, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: bin, Dir: dir, Extender: server.URL, Unmanaged: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
		server.Close()
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	s := connect(t, cp)
	s.answers = a
	s.furnish()
	return s
}

// scheduler asks kube-scheduler: the nodes for each asked pod, by its name.
func (s *site) scheduler(c *cluster) map[string][]string {
	s.t.Helper()
	s.settled(c)
	s.ungate(c)
	out := map[string][]string{}
	s.until("the scheduler to answer for every pod", func() bool {
		for _, p := range s.pods() {
			if name, reason := p.Name, scheduled(&p); strings.Contains(name, "-asked-") && (reason == corev1.PodReasonUnschedulable || reason == corev1.PodReasonSchedulerError) {
				out[name] = s.answers.of(p.UID)
			}
		}
		return len(out) == len(c.asked)
	})
	return out
}

// scheduled is the reason of a pod's PodScheduled condition.
func scheduled(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Reason
		}
	}
	return ""
}

// settled waits until the scheduler knows the cluster: a pod that tolerates
// everything, made after all else, is told the number of the nodes.
func (s *site) settled(c *cluster) {
	s.t.Helper()
	canary := &corev1.Pod{}
	canary.Namespace, canary.Name = teamA, c.prefix+"-canary"
	canary.Spec = corev1.PodSpec{
		AutomountServiceAccountToken: new(bool),
		Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers:                   []corev1.Container{{Name: "main", Image: "image"}},
	}
	s.create(canary)
	want := fmt.Sprintf("0/%d nodes are available", len(c.nodes))
	s.until("the scheduler to know the cluster", func() bool {
		for _, p := range s.pods() {
			for _, cond := range p.Status.Conditions {
				if p.Name == canary.Name && strings.HasPrefix(cond.Message, want) {
					return true
				}
			}
		}
		return false
	})
}

// placement asks our own package, with what the API server gives back, and
// counts which filter refused.
func (s *site) placement(c *cluster, refused map[string]int) map[string][]string {
	s.t.Helper()
	inv, asked := s.inventory()
	snapshot, err := placement.New(inv)
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string][]string{}
	for _, p := range asked {
		fits := []string{}
		for _, n := range inv.Nodes {
			snapshot.Fork()
			one := snapshot.Choose(n.Name)
			answer, err := snapshot.Fit(placement.Ask{Pods: []*corev1.Pod{p}, Nodes: &one})
			snapshot.Revert()
			if err != nil {
				s.t.Fatalf("pod %s on node %s: %v", p.Name, n.Name, err)
			}
			if answer.OK() {
				fits = append(fits, n.Name)
				continue
			}
			for _, r := range answer.Misfit[0].Reasons {
				refused[r.Plugin]++
			}
		}
		slices.Sort(fits)
		out[p.Name] = fits
	}
	if len(out) != len(c.asked) {
		s.t.Fatalf("%d pods were read back, %d were drawn", len(out), len(c.asked))
	}
	return out
}

// until polls a condition that must come true.
func (s *site) until(what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !done(); {
		if time.Now().After(end) {
			s.t.Fatalf("waited two minutes for %s; the logs are in %s", what, s.logs)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
