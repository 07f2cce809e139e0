package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Choice is some of a snapshot's nodes, in the order in which they are tried.
// It holds as long as its snapshot: nodes that were there at its making are
// never taken away.
type Choice struct{ at []int }

// Choose returns the named nodes. Names that no node has are left out.
func (s *Snapshot) Choose(names ...string) Choice {
	at := make([]int, 0, len(names))
	for _, name := range names {
		if i, ok := s.index[name]; ok {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	return Choice{slices.Compact(at)}
}

// Only returns those nodes of the choice for whose places in it keep is true.
func (c Choice) Only(keep func(i int) bool) Choice {
	var kept Choice
	for i, at := range c.at {
		if keep(i) {
			kept.at = append(kept.at, at)
		}
	}
	return kept
}

// Free appends to free how much of an extended resource each node of a choice has
// left. It can be less than nothing, where pods were put without asking.
func (s *Snapshot) Free(free []int64, c Choice, name corev1.ResourceName) []int64 {
	all := s.free.of(name, s.nodes)
	for _, at := range c.at {
		free = append(free, all[at])
	}
	return free
}

// same reports whether both are one choice, not only equal ones.
func (c Choice) same(other Choice) bool {
	return len(c.at) == len(other.at) && (len(c.at) == 0 || &c.at[0] == &other.at[0])
}

// Room returns how many pods like p the i-th node of a choice takes now, up to
// most. It is for a pod of which each node decides alone.
func (s *Snapshot) Room(c Choice, i int, p *corev1.Pod, most int) (int, error) {
	s.Fork()
	defer s.Revert()
	class, only := s.classOf(p), Choice{c.at[i : i+1]}
	for n := range most {
		node, _, err := s.seek(p, class, only, 0)
		switch {
		case err != nil:
			return 0, unfit(p, err)
		case node < 0:
			return n, nil
		}
	}
	return most, nil
}

// freeIndex holds what nodes have left of extended resources, by the position
// of the node: the first thing that is asked of every node.
type freeIndex map[corev1.ResourceName][]int64

func (f freeIndex) of(name corev1.ResourceName, nodes []fwk.NodeInfo) []int64 {
	free, known := f[name]
	if !known {
		free = make([]int64, len(nodes))
		for i, n := range nodes {
			free[i] = left(n, name)
		}
		f[name] = free
	}
	return free
}

// update follows a change of the node at a position, which may be a new one.
func (f freeIndex) update(at int, n fwk.NodeInfo) {
	for name, free := range f {
		if at == len(free) {
			free = append(free, 0)
		}
		free[at] = left(n, name)
		f[name] = free
	}
}

// cut follows the loss of the last nodes.
func (f freeIndex) cut(nodes int) {
	for name, free := range f {
		f[name] = free[:nodes]
	}
}

func left(n fwk.NodeInfo, name corev1.ResourceName) int64 {
	return n.GetAllocatable().GetScalarResources()[name] - n.GetRequested().GetScalarResources()[name]
}
