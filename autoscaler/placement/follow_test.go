package placement_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

// A snapshot that follows a cluster through any history answers as a cold one,
// whatever was tried on it in between.
func TestFollowEqualsColdRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &living{version: 1}
		for range rapid.IntRange(1, 3).Draw(t, "nodes") {
			h.act(t, "node")
		}
		warm, err := placement.New(placement.Inventory{})
		if err != nil {
			t.Fatal(err)
		}
		told := telling{}
		var kinds []*corev1.Pod
		for i := range 3 {
			p := drawPod(t, 900+i)
			p.ResourceVersion = "1" // pending pods live longer than a turn, too
			kinds = append(kinds, p)
		}
		for range rapid.IntRange(1, 8).Draw(t, "turns") {
			for range rapid.IntRange(0, 3).Draw(t, "acts") {
				h.act(t, rapid.SampledFrom([]string{"node", "relabel", "fall", "bind", "bind", "move", "change", "end", "anew", "news", "label", "leave", "given"}).Draw(t, "act"))
			}
			inv := h.inventory(rapid.Uint64().Draw(t, "order"))
			told.tell(t, &inv)
			if rapid.IntRange(0, 7).Draw(t, "lost") == 0 {
				continue // with all that it told
			}
			if err := warm.Follow(inv); err != nil {
				t.Fatal(err)
			}
			compare(t, warm, nil, h.world, kinds)
			warm.Fork()
			if _, err := warm.Fit(placement.Ask{Pods: kinds}); err != nil {
				t.Fatal(err)
			}
			warm.Revert()
		}
	})
}

// living is a cluster whose objects are replaced, never changed, and carry
// versions as an API server's do. Some pods have none.
type living struct {
	world
	version int
	made    int
}

func (h *living) next() string { h.version++; return fmt.Sprint(h.version) }

func (h *living) act(t *rapid.T, what string) {
	h.made++
	anyOf := func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "which") }
	zone := rapid.SampledFrom([]string{"east", "west"}).Draw(t, "zone")
	switch {
	case what == "node":
		n := node(fmt.Sprintf("n%d-%03d", h.made%3, h.made), rapid.Int64Range(0, 4).Draw(t, "gpus"), labelled(corev1.LabelTopologyZone, zone))
		n.UID, n.ResourceVersion = types.UID(n.Name), h.next()
		h.nodes = append(h.nodes, n)
	case len(h.nodes) == 0:
	case what == "relabel":
		i := anyOf(len(h.nodes))
		n := h.nodes[i].DeepCopy()
		n.Labels[corev1.LabelTopologyZone], n.ResourceVersion = zone, h.next()
		n.Labels[corev1.LabelHostname] = rapid.SampledFrom([]string{n.Name, "localhost"}).Draw(t, "host")
		h.nodes[i] = n
	case what == "fall":
		i := anyOf(len(h.nodes))
		h.nodes = slices.Delete(slices.Clone(h.nodes), i, i+1)
	case what == "bind":
		p := drawPod(t, h.made)
		p.Spec.NodeName = h.nodes[anyOf(len(h.nodes))].Name
		p.Generation = rapid.Int64Range(0, 1).Draw(t, "generation") // 0: of a server older than 1.35
		if rapid.IntRange(0, 4).Draw(t, "loose") > 0 {
			p.ResourceVersion = h.next()
		}
		h.pods = append(h.pods, p)
	case len(h.pods) == 0:
	case what == "end":
		i := anyOf(len(h.pods))
		h.pods = slices.Delete(slices.Clone(h.pods), i, i+1)
	default: // one pod becomes another under its name
		i := anyOf(len(h.pods))
		p := h.pods[i].DeepCopy()
		switch what {
		case "move":
			p.Spec.NodeName = h.nodes[anyOf(len(h.nodes))].Name
		case "change":
			p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(int64(anyOf(4)), resource.DecimalSI)
			p.Labels["app"] = rapid.SampledFrom([]string{"train", "serve"}).Draw(t, "app")
			p.Generation += min(p.Generation, 1)
		case "anew":
			p.UID = types.UID(fmt.Sprintf("anew-%d", h.made))
		case "news": // of no interest to a filter
			p.Annotations = map[string]string{"made": fmt.Sprint(h.made)}
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Message: fmt.Sprint(h.made)})
		case "label":
			p.Labels["app"] = rapid.SampledFrom([]string{"train", "serve"}).Draw(t, "app")
		case "leave":
			now := metav1.Unix(1_800_000_000, 0)
			p.DeletionTimestamp = &now
		case "given":
			ask(t, p, rapid.SampledFrom([]string{"allocated", "actual", "resized"}).Draw(t, "field"))
		}
		if p.ResourceVersion != "" {
			p.ResourceVersion = h.next()
		}
		h.pods[i] = p
	}
}

// telling knows what has changed since it was asked last, as one who hears of
// every event does.
type telling struct {
	state uint64
	nodes map[string]*corev1.Node
	pods  map[types.UID]*corev1.Pod
}

// tell puts the changes into an inventory, mostly. When it does not, the
// inventory has to be enough.
func (h *telling) tell(t *rapid.T, inv *placement.Inventory) {
	was := *h
	*h = telling{was.state + 1, map[string]*corev1.Node{}, map[types.UID]*corev1.Pod{}}
	c := &placement.Changes{From: was.state, To: h.state, Nodes: map[string]*corev1.Node{}, Pods: map[types.UID]*corev1.Pod{}}
	idle := rapid.Bool().Draw(t, "idle changes")
	for _, n := range inv.Nodes {
		if old := was.nodes[n.Name]; old == nil || !reflect.DeepEqual(old, n) || idle {
			c.Nodes[n.Name] = n
		}
		h.nodes[n.Name] = n
		delete(was.nodes, n.Name)
	}
	for _, p := range inv.Pods {
		if old := was.pods[p.UID]; old == nil || !reflect.DeepEqual(old, p) || idle {
			c.Pods[p.UID] = p
		}
		h.pods[p.UID] = p
		delete(was.pods, p.UID)
	}
	for name := range was.nodes {
		c.Nodes[name] = nil
	}
	for uid := range was.pods {
		c.Pods[uid] = nil
	}
	if rapid.IntRange(0, 7).Draw(t, "told") > 0 {
		inv.Changes = c
	}
}

// inventory is the world in some order, in objects of its own, as a list of a
// cache gives them.
func (h *living) inventory(seed uint64) placement.Inventory {
	r := rand.New(rand.NewPCG(seed, 1))
	var inv placement.Inventory
	for _, i := range r.Perm(len(h.nodes)) {
		own := *h.nodes[i]
		inv.Nodes = append(inv.Nodes, &own)
	}
	for _, i := range r.Perm(len(h.pods)) {
		own := *h.pods[i]
		inv.Pods = append(inv.Pods, &own)
	}
	return inv
}

// What the filters look up beside nodes and pods is followed, too.
func TestFollowAround(t *testing.T) {
	space := func(version, team string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work", UID: "work", ResourceVersion: version, Labels: map[string]string{"team": team}}}
	}
	shy := pod("shy", 1, apart(corev1.LabelHostname), on("home"))
	shy.ResourceVersion = "7"
	term := &shy.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0]
	term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "loud"}}
	home := node("home", 8)
	home.UID, home.ResourceVersion = "home", "1"
	inv := placement.Inventory{Nodes: []*corev1.Node{home}, Pods: []*corev1.Pod{shy}, Namespaces: []*corev1.Namespace{space("1", "quiet")}}
	s := cluster(t, inv)
	tells := func(p *corev1.Pod, want string) {
		t.Helper()
		s.Fork()
		defer s.Revert()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{p}})); got != want {
			t.Errorf("Fit() = %q, want %q", got, want)
		}
	}
	follow := func() {
		t.Helper()
		if err := s.Follow(inv); err != nil {
			t.Fatal(err)
		}
	}
	next := pod("next", 1)
	next.ResourceVersion = "8"
	tells(next, "next on home")
	inv.Namespaces = []*corev1.Namespace{space("2", "loud")}
	follow()
	tells(next, "next nowhere, 0/1 nodes fit: 1 node(s) didn't satisfy existing pods anti-affinity rules")
	inv.Pods = nil
	follow()
	tells(next, "next on home")

	reader := pod("reader", 0, claiming("data"))
	reader.ResourceVersion = "9"
	tells(reader, `reader nowhere, no node fits: persistentvolumeclaim "data" not found`)
	inv.Claims, inv.Volumes = []*corev1.PersistentVolumeClaim{boundClaim("data")}, []*corev1.PersistentVolume{localVolume("data", "home")}
	follow()
	tells(reader, "reader on home")
}

func boundClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "work", Name: name, UID: types.UID(name), ResourceVersion: "1",
			Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"},
		},
		Spec:   corev1.PersistentVolumeClaimSpec{VolumeName: name, StorageClassName: new(string), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

func localVolume(name, node string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-volume"), ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef:    &corev1.ObjectReference{Namespace: "work", Name: name, UID: types.UID(name)},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
	}
}

func TestFollowRefuses(t *testing.T) {
	s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
	s.Fork()
	if err := s.Follow(placement.Inventory{}); err == nil || !strings.Contains(err.Error(), "a fork of the snapshot is open") {
		t.Errorf("Follow() with a fork = %v, want an error", err)
	}
	s.Revert()
	if err := s.Follow(placement.Inventory{Nodes: []*corev1.Node{node("a", 1), node("a", 2)}}); err == nil || !strings.Contains(err.Error(), "the name is taken") {
		t.Errorf("Follow() with two nodes of a name = %v, want an error", err)
	}
}

// What pods ask for is added up once for those that ask alike; it is what the
// framework adds up for each alone.
func TestFormsAddUpAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(1, 6).Draw(t, "pods") {
			p := pod(fmt.Sprintf("p%d", i), 0, on("home"))
			fields := []string{"asks", "overhead", "init", "sidecar", "allocated", "actual", "resized"}
			if i > 0 { // unlike another in one field
				p = rapid.SampledFrom(pods).Draw(t, "like").DeepCopy()
				p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprintf("p%d", i))
				fields = []string{rapid.SampledFrom(fields).Draw(t, "field")}
			}
			for _, field := range fields {
				ask(t, p, field)
			}
			pods = append(pods, p)
		}
		inv := placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}, Pods: pods}
		all, err := placement.New(inv)
		if err != nil {
			t.Fatal(err)
		}
		inv.Pods = nil
		each, err := placement.New(inv)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			if err := each.AddPod(p, "home"); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(each.Free(nil, each.Choose("home"), "nvidia.com/gpu"), all.Free(nil, all.Choose("home"), "nvidia.com/gpu")); diff != "" {
			t.Errorf("free GPUs (-one by one +together):\n%s", diff)
		}
	})
}

// ask draws one of the fields by which a pod asks for GPUs.
func ask(t *rapid.T, p *corev1.Pod, field string) {
	var list corev1.ResourceList
	if n := rapid.Int64Range(0, 3).Draw(t, field); n > 0 {
		list = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	}
	status := func(list corev1.ResourceList, actual bool) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: list}}
		if actual {
			p.Status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{Requests: list}
		}
	}
	switch field {
	case "asks":
		p.Spec.Containers[0].Resources.Requests = list
	case "overhead":
		p.Spec.Overhead = list
	case "init", "sidecar":
		init := corev1.Container{Name: "init", Resources: corev1.ResourceRequirements{Requests: list}}
		if always := corev1.ContainerRestartPolicyAlways; field == "sidecar" {
			init.RestartPolicy = &always
		}
		p.Spec.InitContainers = []corev1.Container{init}
	case "allocated", "actual":
		status(list, field == "actual")
	case "resized":
		p.Status.Conditions = nil
		if len(list) > 0 {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Reason: rapid.SampledFrom([]string{corev1.PodReasonInfeasible, corev1.PodReasonDeferred}).Draw(t, "why")}}
		}
	}
}

// Objects without a version are looked at anew each time, and so is the cluster
// without them.
func TestFollowAroundWithoutVersions(t *testing.T) {
	claim, volume := boundClaim("data"), localVolume("data", "home")
	volume.ResourceVersion = ""
	s := cluster(t, placement.Inventory{
		Nodes:  []*corev1.Node{node("home", 8)},
		Claims: []*corev1.PersistentVolumeClaim{claim}, Volumes: []*corev1.PersistentVolume{volume},
	})
	for turn, want := range []string{
		"reader on home",
		`reader nowhere, no node fits: persistentvolumeclaim "data" not found`,
	} {
		if turn == 1 {
			if err := s.Follow(placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}}); err != nil {
				t.Fatal(err)
			}
		}
		s.Fork()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{pod("reader", 0, claiming("data"))}})); got != want {
			t.Errorf("turn %d: Fit() = %q, want %q", turn, got, want)
		}
		s.Revert()
	}
}

// One name of a host can stand for several nodes: what a pod on one of them
// refused on another is not remembered when it has ended.
func TestFollowNodesOfOneHost(t *testing.T) {
	host := labelled(corev1.LabelHostname, "localhost")
	a, b := node("a", 1, host), node("b", 2, host)
	for _, n := range []*corev1.Node{a, b} {
		n.UID, n.ResourceVersion = types.UID(n.Name), "1"
	}
	shy := pod("shy", 1, apart(corev1.LabelHostname), on("a"))
	next := pod("next", 2)
	shy.ResourceVersion, next.ResourceVersion = "1", "2"
	inv := placement.Inventory{Nodes: []*corev1.Node{a, b}, Pods: []*corev1.Pod{shy}}
	s := cluster(t, inv)
	for _, want := range []string{
		"next nowhere, 0/2 nodes fit: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't satisfy existing pods anti-affinity rules",
		"next on b",
	} {
		if err := s.Follow(inv); err != nil {
			t.Fatal(err)
		}
		s.Fork()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{next}})); got != want {
			t.Errorf("Fit() = %q, want %q", got, want)
		}
		s.Revert()
		inv.Pods = nil
	}
}

// What was known of a node that fell, or of a pod that has changed, is void.
func TestFollowForgets(t *testing.T) {
	east := labelled(corev1.LabelTopologyZone, "east")
	shy := pod("shy", 1, apart(corev1.LabelTopologyZone), on("a"))
	shy.ResourceVersion = "1"
	next := pod("next", 1)
	next.ResourceVersion = "2"
	large := next.DeepCopy()
	large.ResourceVersion = "3"
	large.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("9")
	s := cluster(t, placement.Inventory{})
	for _, turn := range []struct {
		nodes []*corev1.Node
		ask   *corev1.Pod
		want  string
	}{
		{[]*corev1.Node{node("a", 8, east), node("b", 8, east)}, next, "next nowhere, 0/2 nodes fit: 2 node(s) didn't satisfy existing pods anti-affinity rules"},
		{[]*corev1.Node{node("b", 8, east)}, next, "next on b"},
		{[]*corev1.Node{node("b", 8, east)}, large, "next nowhere, 0/1 nodes fit: 1 Insufficient nvidia.com/gpu"},
		{[]*corev1.Node{node("b", 8, east), node("c", 9)}, large, "next on c"},
	} {
		if err := s.Follow(placement.Inventory{Nodes: turn.nodes, Pods: []*corev1.Pod{shy}}); err != nil {
			t.Fatal(err)
		}
		s.Fork()
		if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{turn.ask}})); got != turn.want {
			t.Errorf("Fit() = %q, want %q", got, turn.want)
		}
		s.Revert()
	}
}

// BenchmarkFollow is one event in a cluster: a pod ends and another begins.
func BenchmarkFollow(b *testing.B) {
	for _, size := range []int{100, 1000, 5000} {
		inv := busy(size)
		for i, p := range inv.Pods {
			p.ResourceVersion = fmt.Sprint(i + 1)
			inv.Nodes[i].UID, inv.Nodes[i].ResourceVersion = types.UID(inv.Nodes[i].Name), fmt.Sprint(i+1)
		}
		s := cluster(b, inv)
		b.Run(fmt.Sprintf("nodes=%d", size), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				p := *inv.Pods[0]
				p.ResourceVersion = fmt.Sprintf("next-%d", i)
				inv.Pods[0] = &p
				if err := s.Follow(inv); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Changes count from the state that they name, and from no other.
func TestChangesAfterAnotherState(t *testing.T) {
	home := node("home", 1)
	home.UID, home.ResourceVersion = "home", "1"
	old := pod("old", 1, on("home"))
	old.UID, old.ResourceVersion = "old", "2"
	full := placement.Inventory{Nodes: []*corev1.Node{home}, Pods: []*corev1.Pod{old}}
	empty := placement.Inventory{Nodes: full.Nodes}
	s, err := placement.New(placement.Inventory{})
	if err != nil {
		t.Fatal(err)
	}
	for turn, inv := range []placement.Inventory{full, empty, full} {
		if turn != 1 {
			inv.Changes = &placement.Changes{From: uint64(turn/2 + 1), To: uint64(turn/2 + 2)}
		}
		if err := s.Follow(inv); err != nil {
			t.Fatal(err)
		}
	}
	if answer, err := s.Fit(placement.Ask{Pods: []*corev1.Pod{pod("next", 1)}}); err != nil || answer.OK() {
		t.Errorf("Fit() = %+v, %v: the node is full again", answer, err)
	}
}
