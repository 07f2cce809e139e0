package placement

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// sharedLister shows the snapshot to the plugins. Pod groups are not simulated:
// the planner keeps gangs together itself, and the plugins see single pods.
type sharedLister struct{ s *Snapshot }

var _ fwk.SharedLister = sharedLister{}

func (l sharedLister) NodeInfos() fwk.NodeInfoLister { return nodeLister(l) }

func (l sharedLister) StorageInfos() fwk.StorageInfoLister { return nodeLister(l) }

func (l sharedLister) PodGroupStates() fwk.PodGroupStateLister { return noGroupStates{} }
func (l sharedLister) PodGroups() fwk.PodGroupLister           { return noGroups{} }
func (l sharedLister) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}

func (l sharedLister) CompositePodGroups() fwk.CompositePodGroupLister { return noComposites{} }

type nodeLister struct{ s *Snapshot }

func (l nodeLister) List() ([]fwk.NodeInfo, error) { return l.s.sieve.list(l.s.nodes), nil }

func (l nodeLister) Get(name string) (fwk.NodeInfo, error) {
	i, ok := l.s.index[name]
	if !ok {
		return nil, fmt.Errorf("node %s: %w", name, ErrUnknownNode)
	}
	return l.s.nodes[i], nil
}

func (l nodeLister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return l.s.affinity.fresh(l.s.nodes).any, nil
}

func (l nodeLister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.s.affinity.fresh(l.s.nodes).against(l.s.sieve.pod), nil
}

func (l nodeLister) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.s.affinity.fresh(l.s.nodes).wide, nil
}

// IsPVCUsedByPods is asked for ReadWriteOncePod claims only, so it may scan.
func (l nodeLister) IsPVCUsedByPods(key string) bool {
	for _, n := range l.s.nodes {
		if n.GetPVCRefCounts()[key] > 0 {
			return true
		}
	}
	return false
}

// affinityLists are the nodes that inter-pod affinity has to look at. Few pods
// have affinity terms, so the lists are rebuilt when such a node has changed.
type affinityLists struct {
	stale           bool
	epoch           uint64 // moves whenever such a node may have changed
	any, anti, wide []fwk.NodeInfo
	// far says that a pod keeps others off further nodes than its own. The
	// list of such nodes doesn't tell: by default the framework leaves it empty.
	far bool
	// hosts counts the nodes by the name of their host, and twins the names that
	// more than one has: there a rule about one host reaches further, too.
	hosts map[string]int
	twins int
	// rules are the labels that required anti-affinity of pods on nodes looks
	// at, or once did, or will on a fresh machine; sorted.
	rules []string

	known []relations // by place of the node
	// kept counts the nodes of which a pod keeps off those that have a label, and
	// anybody those of which one may keep off whomever.
	kept    map[label]int
	anybody int
}

// relations are what pods on one node, in one state of it, say about others.
type relations struct {
	generation      int64
	any, anti, wide bool
	far             bool
	keeps           []label // those who have one of them are kept off
	anybody         bool
}

// touch notes that n is about to change or be replaced.
func (a *affinityLists) touch(n fwk.NodeInfo) {
	if len(n.GetPodsWithAffinity()) > 0 {
		a.forget()
	}
}

// forget makes that all nodes are looked at again.
func (a *affinityLists) forget() {
	a.stale = true
	a.epoch++
}

// host counts a node of the cluster that comes (1) or goes (-1).
func (a *affinityLists) host(n *corev1.Node, by int) {
	name, named := n.Labels[corev1.LabelHostname]
	if !named {
		return
	}
	before := a.hosts[name]
	if a.hosts[name] += by; a.hosts[name] == 0 {
		delete(a.hosts, name)
	}
	if min(before, before+by) == 1 {
		a.twins += by
		a.forget()
	}
}

func (a *affinityLists) fresh(nodes []fwk.NodeInfo) *affinityLists {
	if !a.stale {
		return a
	}
	if a.kept == nil {
		a.kept = map[label]int{}
	}
	for i := len(nodes); i < len(a.known); i++ {
		a.count(&a.known[i], -1)
	}
	a.known = a.known[:min(len(a.known), len(nodes))]
	a.any, a.anti, a.wide, a.far, a.stale = a.any[:0:0], a.anti[:0:0], a.wide[:0:0], false, false
	for i, n := range nodes {
		if i == len(a.known) {
			a.known = append(a.known, relations{generation: -1})
		}
		r := &a.known[i]
		if r.generation != n.GetGeneration() {
			a.count(r, -1)
			*r = a.relations(n)
			a.count(r, 1)
		}
		if r.any {
			a.any = append(a.any, n)
		}
		if r.anti {
			a.anti = append(a.anti, n)
		}
		if r.wide {
			a.wide = append(a.wide, n)
		}
		a.far = a.far || r.far
	}
	a.far = a.far || a.twins > 0 && len(a.anti) > 0
	return a
}

// count adds what the pods of a node say, or takes it off.
func (a *affinityLists) count(r *relations, by int) {
	for _, l := range r.keeps {
		if a.kept[l] += by; a.kept[l] == 0 {
			delete(a.kept, l)
		}
	}
	if r.anybody {
		a.anybody += by
	}
}

// relations looks at the pods of a node, and learns their rules.
func (a *affinityLists) relations(n fwk.NodeInfo) relations {
	r := relations{
		generation: n.GetGeneration(), any: len(n.GetPodsWithAffinity()) > 0,
		wide: len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0,
	}
	for _, p := range n.GetPodsWithRequiredAntiAffinity() {
		r.anti = true
		a.learn(p.GetPod())
		r.far = r.far || slices.ContainsFunc(p.GetRequiredAntiAffinityTerms(), func(t fwk.AffinityTerm) bool {
			return t.TopologyKey != corev1.LabelHostname
		})
		for _, t := range p.GetPod().Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			labels, known := pick(t.LabelSelector)
			r.keeps, r.anybody = append(r.keeps, labels...), r.anybody || !known
		}
	}
	slices.SortFunc(r.keeps, label.compare)
	r.keeps = slices.Compact(r.keeps)
	return r
}

// against are the nodes with pods that may keep off a pod, or any where none is
// asked about.
func (a *affinityLists) against(p *corev1.Pod) []fwk.NodeInfo {
	if p == nil || a.anybody > 0 {
		return a.anti
	}
	for key, value := range p.Labels {
		if a.kept[label{key, value}] > 0 {
			return a.anti
		}
	}
	return nil
}

// learn notes what labels the rules of a pod look at.
func (a *affinityLists) learn(p *corev1.Pod) {
	for _, label := range looksAt(p) {
		if at, known := slices.BinarySearch(a.rules, label); !known {
			a.rules = slices.Insert(slices.Clone(a.rules), at, label)
		}
	}
}

// csiNodes lists the CSINode objects of the inventory.
type csiNodes map[string]*storagev1.CSINode

func (c csiNodes) CSINodes() fwk.CSINodeLister { return c }

func (c csiNodes) List() ([]*storagev1.CSINode, error) {
	all := make([]*storagev1.CSINode, 0, len(c))
	for _, n := range c {
		all = append(all, n)
	}
	return all, nil
}

func (c csiNodes) Get(name string) (*storagev1.CSINode, error) {
	if n, ok := c[name]; ok {
		return n, nil
	}
	return nil, notFound("storage.k8s.io", "csinodes", name)
}

type (
	noGroups          struct{}
	noGroupStates     struct{}
	noComposites      struct{}
	noCompositeStates struct{}
)

func (noGroups) Get(_, name string) (*schedulingv1beta1.PodGroup, error) {
	return nil, notFound("scheduling.k8s.io", "podgroups", name)
}

func (noGroupStates) Get(_, name string) (fwk.PodGroupState, error) {
	return nil, notFound("scheduling.k8s.io", "podgroups", name)
}

func (noComposites) Get(_, name string) (*schedulingv1alpha3.CompositePodGroup, error) {
	return nil, notFound("scheduling.k8s.io", "compositepodgroups", name)
}

func (noCompositeStates) Get(_, name string) (fwk.CompositePodGroupState, error) {
	return nil, notFound("scheduling.k8s.io", "compositepodgroups", name)
}

func notFound(group, resource, name string) error {
	return errors.NewNotFound(schema.GroupResource{Group: group, Resource: resource}, name)
}

var _ fwk.NodeInfo = (*framework.NodeInfo)(nil)
