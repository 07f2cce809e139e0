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

func (l nodeLister) List() ([]fwk.NodeInfo, error) { return l.s.nodes, nil }

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
	return l.s.affinity.fresh(l.s.nodes).anti, nil
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
	*a = affinityLists{epoch: a.epoch, rules: a.rules, hosts: a.hosts, twins: a.twins}
	for _, n := range nodes {
		if len(n.GetPodsWithAffinity()) > 0 {
			a.any = append(a.any, n)
		}
		if len(n.GetPodsWithRequiredAntiAffinity()) > 0 {
			a.anti = append(a.anti, n)
			for _, p := range n.GetPodsWithRequiredAntiAffinity() {
				a.learn(p.GetPod())
				a.far = a.far || slices.ContainsFunc(p.GetRequiredAntiAffinityTerms(), func(t fwk.AffinityTerm) bool {
					return t.TopologyKey != corev1.LabelHostname
				})
			}
		}
		if len(n.GetPodsWithRequiredNonHostScopedAntiAffinity()) > 0 {
			a.wide = append(a.wide, n)
		}
	}
	a.far = a.far || a.twins > 0 && len(a.anti) > 0
	return a
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
