// Package placement answers one question: would these pods fit on these nodes?
//
// The answer comes from kube-scheduler's own PreFilter and Filter plugins in
// their default profile, run over a [Snapshot] of the cluster in memory. A
// planner that guesses buys the wrong machine, so nothing here reimplements a
// scheduling rule. Which of several fitting nodes the scheduler would prefer is
// a different question (scores) and is not asked.
//
// Vocabulary:
//   - snapshot: nodes with the pods bound to them, and the objects that filters
//     look up (namespaces, volumes, claims, classes).
//   - fork, commit, revert: a working copy of the snapshot. Forking is free,
//     reverting costs what was changed since, and forks nest.
//   - follow: bring a snapshot to what the cluster is now, at the cost of what
//     has changed there.
//   - placing: a pod that fits is put on its node in the snapshot, so that the
//     next pod sees it. Pods that must start together are placed all or not at
//     all, in one working copy.
//   - virtual node: what a cloud offer is expected to become after it joined.
//
// The package does no I/O: its informers are never started, they only hold the
// objects that the caller passed in. A Snapshot is not safe for concurrent use.
package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// ErrUnknownNode reports a change to a node that the snapshot does not hold.
var ErrUnknownNode = errors.New("node is not in the snapshot")

// Inventory is what a snapshot starts from. Everything but Nodes is optional;
// what is absent is absent for the filters too, so a pod that mounts a claim
// which is not listed here fits nowhere. The objects are read, never changed.
type Inventory struct {
	// Changes, if anybody knows them, say what is different from an inventory
	// before.
	Changes *Changes

	Nodes []*corev1.Node
	// Pods are the bound pods that still occupy their node. Pods without a
	// node name, and pods of nodes that are not listed, are ignored.
	Pods []*corev1.Pod

	Namespaces     []*corev1.Namespace
	Volumes        []*corev1.PersistentVolume
	Claims         []*corev1.PersistentVolumeClaim
	StorageClasses []*storagev1.StorageClass
	CSINodes       []*storagev1.CSINode
	CSIDrivers     []*storagev1.CSIDriver
}

// Snapshot is the simulated cluster. Use [New] to build one.
type Snapshot struct {
	sim   *simulator
	nodes []fwk.NodeInfo // real nodes by name, then added ones in order of adding
	index map[string]int // node name to position in nodes

	layers   []layer
	state    uint64 // see State
	states   uint64 // the last that was given
	affinity affinityLists
	sieve    sieve

	memory
	rules []string // the labels that the cluster's rules look at
	epoch uint64   // counts their changes
	free  freeIndex
	track tracked
}

// layer is the undo log of one fork.
type layer struct {
	// undo holds, for every node touched in this fork, what stood there when
	// the fork was taken; nil means that the node did not exist.
	undo map[string]*framework.NodeInfo
	// volumes are the volume bindings assumed in this fork.
	volumes []assumedVolumes
	// state is the one to which Revert leads back.
	state uint64
}

// New builds a snapshot. It fails only when the scheduler framework refuses its
// own default configuration or an object cannot be indexed.
func New(inv Inventory) (*Snapshot, error) {
	s := &Snapshot{index: map[string]int{}, free: freeIndex{}, track: tracked{nodes: map[string]version{}, pods: map[types.UID]*boundPod{}}}
	s.affinity = affinityLists{stale: true, hosts: map[string]int{}}
	if err := s.Follow(inv); err != nil {
		return nil, err
	}
	return s, nil
}

// Fork starts a working copy. Every Fork is ended by one Commit or one Revert.
func (s *Snapshot) Fork() {
	s.layers = append(s.layers, layer{undo: map[string]*framework.NodeInfo{}, state: s.state})
}

// Commit keeps what was changed since the last Fork: it becomes part of the
// copy around it, and is undone with that one. Without a fork it does nothing.
func (s *Snapshot) Commit() {
	top, ok := s.pop()
	if !ok || len(s.layers) == 0 {
		return
	}
	under := &s.layers[len(s.layers)-1]
	under.volumes = append(under.volumes, top.volumes...)
	for name, before := range top.undo {
		if _, older := under.undo[name]; !older {
			under.undo[name] = before
		}
	}
}

// Revert forgets everything since the last Fork. Without a fork it does nothing.
func (s *Snapshot) Revert() {
	top, ok := s.pop()
	if !ok {
		return
	}
	for _, v := range slices.Backward(top.volumes) {
		s.sim.release(v)
	}
	added := 0
	for name, before := range top.undo {
		i := s.index[name]
		s.affinity.touch(s.nodes[i])
		if before == nil {
			delete(s.index, name)
			added++
			continue
		}
		s.affinity.touch(before)
		s.nodes[i] = before
		s.free.update(i, before)
	}
	// Nodes are only ever appended, so those of this fork are the last ones.
	s.nodes = s.nodes[:len(s.nodes)-added]
	s.free.cut(len(s.nodes))
	s.state = top.state
}

// State numbers what is in the snapshot: while the number is the same, so is
// every answer. Revert brings the number back, too.
func (s *Snapshot) State() uint64 { return s.state }

// changed begins a state that never was before.
func (s *Snapshot) changed() {
	s.states++
	s.state = s.states
}

func (s *Snapshot) pop() (layer, bool) {
	if len(s.layers) == 0 {
		return layer{}, false
	}
	top := s.layers[len(s.layers)-1]
	s.layers = s.layers[:len(s.layers)-1]
	return top, true
}

// AddNode puts a node with no pods into the snapshot, behind all others. A
// second node of one name is an error: every promise needs a name of its own.
func (s *Snapshot) AddNode(n *corev1.Node) error {
	if _, taken := s.index[n.Name]; taken {
		return fmt.Errorf("add node %s to the snapshot: the name is taken", n.Name)
	}
	s.changed()
	info := framework.NewNodeInfo()
	info.SetNode(n)
	s.index[n.Name] = len(s.nodes)
	s.nodes = append(s.nodes, info)
	s.free.update(len(s.nodes)-1, info)
	if len(s.layers) > 0 {
		s.layers[len(s.layers)-1].undo[n.Name] = nil
	}
	return nil
}

// AddPod puts a pod on a node without asking whether it fits, as for a pod that
// is bound already. It returns [ErrUnknownNode] for a node that is not there.
func (s *Snapshot) AddPod(p *corev1.Pod, node string) error {
	return s.add(*podInfo(p), p, node)
}

// podInfo is what the framework makes of a pod. Affinity terms that can't be
// parsed are left out, as the scheduler leaves them out.
func podInfo(p *corev1.Pod) *framework.PodInfo {
	info, _ := framework.NewPodInfo(p)
	return info
}

// add puts a pod on a node; info is what the framework made of it or of one of
// its class.
func (s *Snapshot) add(info framework.PodInfo, p *corev1.Pod, node string) error {
	n, err := s.writable(node)
	if err != nil {
		return fmt.Errorf("add pod %s/%s to node %s: %w", p.Namespace, p.Name, node, err)
	}
	s.changed()
	bound := *p
	bound.Spec.NodeName = node
	info.Pod = &bound
	n.AddPodInfo(&info)
	s.free.update(s.index[node], n)
	s.affinity.touch(n)
	return nil
}

// RemovePod takes a pod off its node, as when running work ends.
func (s *Snapshot) RemovePod(p *corev1.Pod, node string) error {
	info, err := s.writable(node)
	if err != nil {
		return fmt.Errorf("remove pod %s/%s from node %s: %w", p.Namespace, p.Name, node, err)
	}
	s.changed()
	s.affinity.touch(info)
	if err := info.RemovePod(s.sim.logger, p); err != nil {
		return fmt.Errorf("remove pod %s/%s from node %s: %w", p.Namespace, p.Name, node, err)
	}
	s.free.update(s.index[node], info)
	return nil
}

// Nodes returns the node names in the order in which they are tried.
func (s *Snapshot) Nodes() []string {
	names := make([]string, len(s.nodes))
	for i, n := range s.nodes {
		names[i] = n.Node().Name
	}
	return names
}

// writable returns the node's state for changing. Inside a fork the first change
// of a node clones it, so that Revert can put the original back.
func (s *Snapshot) writable(node string) (*framework.NodeInfo, error) {
	i, ok := s.index[node]
	if !ok {
		return nil, ErrUnknownNode
	}
	info := s.nodes[i].(*framework.NodeInfo)
	if len(s.layers) == 0 {
		return info, nil
	}
	undo := s.layers[len(s.layers)-1].undo
	if _, mine := undo[node]; mine {
		return info, nil
	}
	undo[node] = info
	clone := info.SnapshotConcrete()
	s.affinity.touch(info)
	s.nodes[i] = clone
	return clone, nil
}

func byKey(a, b *corev1.Pod) int {
	if order := cmp.Compare(a.Namespace, b.Namespace); order != 0 {
		return order
	}
	if order := cmp.Compare(a.Name, b.Name); order != 0 {
		return order
	}
	return cmp.Compare(a.UID, b.UID)
}
