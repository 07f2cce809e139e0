package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// version is what the API server says of a state of an object: where UID and
// resource version are equal, so is all the rest. The zero version says nothing.
type version struct {
	uid      types.UID
	resource string
}

func versionOf(o metav1.Object) version {
	v := version{o.GetUID(), o.GetResourceVersion()}
	if v.uid == "" || v.resource == "" {
		return version{}
	}
	return v
}

func (v version) told() bool { return v != version{} }

// tracked is what a snapshot knows of the cluster that it follows.
type tracked struct {
	turn   uint64
	state  uint64                // what Changes calls the state that it is in; 0 for none
	around map[aroundKey]version // what filters look up beside nodes and pods
	nodes  map[string]version
	pods   map[types.UID]*boundPod
	// loose are nodes with pods whose version can't be told.
	loose map[string]bool
}

type aroundKey struct{ kind, namespace, name string }

// boundPod is a pod on its node in some version.
type boundPod struct {
	version version
	node    string
	info    *framework.PodInfo
	seen    uint64 // in which turn last
}

// refill is a node that is not as it was.
type refill struct {
	node *corev1.Node         // nil: the same
	add  []*framework.PodInfo // pods that are new there, or changed
}

type refills map[string]*refill

func (r refills) of(node string) *refill {
	if r[node] == nil {
		r[node] = &refill{}
	}
	return r[node]
}

// Changes are what is different between two states of a cluster. Who has it from
// events hands it over with an [Inventory], and nothing else has to be looked at.
type Changes struct {
	// From and To number the states of one source, from 1 on.
	From, To uint64
	// Nodes by name and Pods by UID, as the inventory has them: nil for what is
	// not in it any more. To name what has not changed does no harm.
	Nodes map[string]*corev1.Node
	Pods  map[types.UID]*corev1.Pod
}

// Follow brings the snapshot to what the cluster is now, at the cost of what is
// different: an object that has the UID and the resource version it had the last
// time has not changed. What has neither is looked at anew each time. Afterwards
// the snapshot answers as a new one would. It keeps the nodes and pods, which
// nobody may change any more.
//
// Where the inventory says what has changed since the state that the snapshot is
// in, the rest of its nodes and pods is not even compared.
//
// It is for a snapshot without forks. After an error the snapshot is of no use.
func (s *Snapshot) Follow(inv Inventory) error {
	if len(s.layers) > 0 {
		return errors.New("follow the cluster: a fork of the snapshot is open")
	}
	s.turnOver()
	s.changed()
	if err := s.followAround(inv); err != nil {
		return err
	}
	dirty, err := s.followAll(inv)
	if err != nil {
		return err
	}
	for name, r := range dirty {
		s.refill(s.index[name], *r)
	}
	s.track.state = 0
	if inv.Changes != nil {
		s.track.state = inv.Changes.To
	}
	return nil
}

// followAll finds the nodes that are not as they were, or have other pods.
func (s *Snapshot) followAll(inv Inventory) (refills, error) {
	dirty := refills{}
	if c := inv.Changes; c != nil && s.knows(c) {
		for _, n := range c.Nodes {
			if err := s.followNode(n, dirty); err != nil {
				return nil, err
			}
		}
		forms := forms{}
		for uid, p := range c.Pods {
			s.followPod(uid, p, forms, dirty)
		}
		return dirty, nil
	}
	if err := s.followNodes(inv.Nodes, dirty); err != nil {
		return nil, err
	}
	s.followPods(inv.Pods, dirty)
	return dirty, nil
}

// knows reports whether the snapshot is in the state that changes start from,
// and they are of a kind that needs no look at anything else: a node that comes
// may have pods already, and one that goes gives the others their places.
func (s *Snapshot) knows(c *Changes) bool {
	if s.track.state == 0 || s.track.state != c.From || len(s.track.loose) > 0 {
		return false
	}
	for name, n := range c.Nodes {
		if _, here := s.index[name]; !here || n == nil {
			return false
		}
	}
	for _, p := range c.Pods {
		if p != nil && !versionOf(p).told() {
			return false
		}
	}
	return true
}

// followAround builds the filters anew when anything changed that they may have
// looked at in advance.
func (s *Snapshot) followAround(inv Inventory) error {
	now := map[aroundKey]version{}
	told := note(now, "Namespace", inv.Namespaces) && note(now, "PersistentVolume", inv.Volumes) &&
		note(now, "PersistentVolumeClaim", inv.Claims) && note(now, "StorageClass", inv.StorageClasses) &&
		note(now, "CSINode", inv.CSINodes) && note(now, "CSIDriver", inv.CSIDrivers)
	if !told {
		now = nil // and the next time there is nothing that could be the same
	} else if s.track.around != nil && maps.Equal(now, s.track.around) {
		return nil
	}
	sim, err := newSimulator(inv, sharedLister{s})
	if err != nil {
		return fmt.Errorf("build the scheduler's filters: %w", err)
	}
	s.sim, s.track.around = sim, now
	s.forgetClasses(nil)
	return nil
}

// note writes down the versions of objects; false means that one has none.
func note[T metav1.Object](versions map[aroundKey]version, kind string, objects []T) bool {
	for _, o := range objects {
		v := versionOf(o)
		if !v.told() {
			return false
		}
		versions[aroundKey{kind, o.GetNamespace(), o.GetName()}] = v
	}
	return true
}

// followNodes puts the nodes in order and finds those that are new or changed.
func (s *Snapshot) followNodes(nodes []*corev1.Node, dirty refills) error {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	same := len(nodes) == len(s.nodes)
	for i, n := range nodes {
		if i > 0 && nodes[i-1].Name == n.Name {
			return fmt.Errorf("add node %s to the snapshot: the name is taken", n.Name)
		}
		at, had := s.index[n.Name]
		same = same && had && at == i
		if err := s.followNode(n, dirty); err != nil {
			return err
		}
	}
	if same {
		return nil
	}
	return s.renumber(nodes)
}

// followNode looks whether a node is new or changed.
func (s *Snapshot) followNode(n *corev1.Node, dirty refills) error {
	at, had := s.index[n.Name]
	v := versionOf(n)
	if had && v.told() && s.track.nodes[n.Name] == v {
		return nil
	}
	dirty.of(n.Name).node = n
	s.track.nodes[n.Name] = v
	if had {
		s.affinity.host(s.nodes[at].Node(), -1)
	}
	s.affinity.host(n, 1)
	if err := s.sim.nodes.Update(n); err != nil {
		return fmt.Errorf("index node %s: %w", n.Name, err)
	}
	return nil
}

// renumber gives the nodes their places. What classes remember by place stays:
// it holds for one generation of one node, and no other has that.
func (s *Snapshot) renumber(nodes []*corev1.Node) error {
	old, was := s.nodes, s.index
	s.nodes, s.index = make([]fwk.NodeInfo, len(nodes)), make(map[string]int, len(nodes))
	for i, n := range nodes {
		s.index[n.Name] = i
		if at, had := was[n.Name]; had {
			s.nodes[i] = old[at]
		} else {
			s.nodes[i] = framework.NewNodeInfo()
		}
	}
	for name, at := range was {
		if _, stays := s.index[name]; !stays {
			delete(s.track.nodes, name)
			s.affinity.host(old[at].Node(), -1)
			if err := s.sim.nodes.Delete(old[at].Node()); err != nil {
				return fmt.Errorf("take node %s out of the index: %w", name, err)
			}
		}
	}
	s.free = freeIndex{}
	s.affinity.forget()
	return nil
}

// followPods finds the nodes whose pods are not those of the last turn.
func (s *Snapshot) followPods(pods []*corev1.Pod, dirty refills) {
	for node := range s.track.loose {
		if _, here := s.index[node]; here {
			dirty.of(node)
		}
	}
	s.track.loose = map[string]bool{}
	forms := forms{}
	seen := 0
	for _, p := range pods {
		node := p.Spec.NodeName
		if _, here := s.index[node]; !here {
			continue
		}
		old := s.track.pods[p.UID]
		if !versionOf(p).told() || old != nil && old.seen == s.track.turn { // no version, or two pods of one UID
			s.track.loose[node] = true
			dirty.of(node).add = append(dirty.of(node).add, forms.of(p))
			continue
		}
		s.followPod(p.UID, p, forms, dirty)
		seen++
	}
	if seen == len(s.track.pods) {
		return
	}
	for uid, b := range s.track.pods {
		if b.seen != s.track.turn {
			s.followPod(uid, nil, forms, dirty)
		}
	}
}

// followPod looks whether a pod is new or changed, or gone: nil. One whose node
// the snapshot does not have is gone from it, too.
func (s *Snapshot) followPod(uid types.UID, p *corev1.Pod, forms forms, dirty refills) {
	old := s.track.pods[uid]
	if p != nil {
		if _, here := s.index[p.Spec.NodeName]; !here {
			p = nil
		}
	}
	if p != nil && old != nil && (old.version == versionOf(p) || old.node == p.Spec.NodeName && alike(old.info.Pod, p)) {
		old.version, old.seen = versionOf(p), s.track.turn
		old.info.Pod = p // the one before need not be kept any longer
		return
	}
	if old != nil {
		if _, here := s.index[old.node]; here {
			dirty.of(old.node)
		}
		delete(s.track.pods, uid)
	}
	if p == nil {
		return
	}
	b := &boundPod{version: versionOf(p), node: p.Spec.NodeName, info: forms.of(p), seen: s.track.turn}
	s.track.pods[uid] = b
	dirty.of(b.node).add = append(dirty.of(b.node).add, b.info)
}

// alike reports whether no filter can tell two versions of one bound pod apart.
// Most events are such: a condition or a probe has changed. The API server counts
// the changes of a spec (the generation, since Kubernetes 1.35 of every pod); of
// all else the filters read the labels, whether the pod is being deleted, and what
// its node has given it.
func alike(old, now *corev1.Pod) bool {
	return old.Generation != 0 && old.Generation == now.Generation && old.Namespace == now.Namespace &&
		maps.Equal(old.Labels, now.Labels) && old.DeletionTimestamp.Equal(now.DeletionTimestamp) &&
		!resizing(old) && !resizing(now) && given(&old.Status, &now.Status)
}

// given reports whether two states say the same of what the node has given the pod.
func given(a, b *corev1.PodStatus) bool {
	each := func(a, b corev1.ContainerStatus) bool {
		return a.Name == b.Name && equality.Semantic.DeepEqual(a.Resources, b.Resources) && sameList(a.AllocatedResources, b.AllocatedResources)
	}
	return slices.EqualFunc(a.ContainerStatuses, b.ContainerStatuses, each) &&
		slices.EqualFunc(a.InitContainerStatuses, b.InitContainerStatuses, each) &&
		equality.Semantic.DeepEqual(a.Resources, b.Resources) && sameList(a.AllocatedResources, b.AllocatedResources) &&
		equality.Semantic.DeepEqual(a.NodeAllocatableResourceClaimStatuses, b.NodeAllocatableResourceClaimStatuses)
}

func sameList(a, b corev1.ResourceList) bool {
	return maps.EqualFunc(a, b, func(x, y resource.Quantity) bool { return x.Cmp(y) == 0 })
}

// refill builds a node's state from nothing, as a new snapshot would: what adding
// and taking away would leave behind in it is nobody's business to know.
func (s *Snapshot) refill(at int, r refill) {
	old := s.nodes[at]
	node := r.node
	if node == nil {
		node = old.Node()
	}
	all := r.add
	for _, p := range old.GetPods() {
		info := p.(*framework.PodInfo)
		if b := s.track.pods[info.Pod.UID]; b != nil && b.info == info {
			all = append(all, info)
		}
	}
	slices.SortFunc(all, func(a, b *framework.PodInfo) int { return byKey(a.Pod, b.Pod) })
	now := framework.NewNodeInfo()
	now.SetNode(node)
	for _, info := range all {
		now.AddPodInfo(info)
	}
	s.affinity.touch(old)
	s.affinity.touch(now)
	s.nodes[at] = now
	s.free.update(at, now)
}

// forms are what the framework made of pods, by what it looks at. To add up what
// a pod asks for is most of the work of a new snapshot.
type forms map[string]*framework.PodInfo

// of returns what the framework makes of a pod.
func (f forms) of(p *corev1.Pod) *framework.PodInfo {
	key, ok := formOf(p)
	if !ok {
		return podInfo(p)
	}
	like, known := f[key]
	if !known {
		like = podInfo(p)
		like.CalculateResource() // and keeps it
		f[key] = like
		return like
	}
	info := *like
	info.Pod = p
	return &info
}

// formOf writes down all that the framework adds up of a pod. Pods with rules
// about others, and those with rare ways to ask for something, stand alone.
func formOf(p *corev1.Pod) (string, bool) {
	st := &p.Status
	if p.Spec.Affinity != nil || p.Spec.Resources != nil || st.Resources != nil || len(st.AllocatedResources) > 0 ||
		len(st.NodeAllocatableResourceClaimStatuses) > 0 || resizing(p) {
		return "", false
	}
	facts := corev1.Pod{
		Spec: corev1.PodSpec{
			Containers: asking(p.Spec.Containers), InitContainers: asking(p.Spec.InitContainers), Overhead: p.Spec.Overhead,
		},
		Status: corev1.PodStatus{ContainerStatuses: having(st.ContainerStatuses), InitContainerStatuses: having(st.InitContainerStatuses)},
	}
	key, err := facts.Marshal()
	return string(key), err == nil
}

func resizing(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending || c.Type == corev1.PodResizeInProgress
	})
}

func asking(containers []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(containers))
	for i := range containers {
		c := &containers[i]
		out[i] = corev1.Container{Name: c.Name, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
	return out
}

func having(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range statuses {
		if s := &statuses[i]; s.Resources != nil || len(s.AllocatedResources) > 0 {
			out = append(out, corev1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources})
		}
	}
	return out
}
