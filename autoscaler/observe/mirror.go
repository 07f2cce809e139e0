package observe

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/placement"
)

// Mirror has the nodes and pods of a cluster as its informers tell of them, event
// by event, and knows what has changed since it was last read. The objects are
// those of the informers: they are shared, and nobody changes them. One that was
// made by [NewMirror] is ready. It has one reader.
type Mirror struct {
	// Wake, if set, is called after the mirror has learned something of a pod.
	Wake func()

	mu     sync.Mutex
	nodes  map[string]*corev1.Node
	pods   []*corev1.Pod // in no order; at says where each is
	at     map[types.UID]int
	told   placement.Changes // since the last read
	synced []func() bool
}

// NewMirror is a mirror of an empty cluster.
func NewMirror() *Mirror {
	m := &Mirror{nodes: map[string]*corev1.Node{}, at: map[types.UID]int{}}
	m.turn()
	return m
}

// turn begins the changes to the next state.
func (m *Mirror) turn() {
	m.told = placement.Changes{From: m.told.To, To: m.told.To + 1, Nodes: map[string]*corev1.Node{}, Pods: map[types.UID]*corev1.Pod{}}
}

// Follow has informers tell the mirror. It is for informers that live as long as
// the mirror; once they are started it waits until they have a first state.
func (m *Mirror) Follow(ctx context.Context, informers cache.Informers) error {
	for _, kind := range []client.Object{&corev1.Node{}, &corev1.Pod{}} {
		informer, err := informers.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		handle, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { m.tell(nil, o) },
			UpdateFunc: func(old, o any) { m.tell(old, o) },
			DeleteFunc: func(old any) { m.tell(old, nil) },
		})
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
		m.synced = append(m.synced, handle.HasSynced)
	}
	return nil
}

// Synced reports whether the mirror has all that the informers started with.
func (m *Mirror) Synced() bool {
	for _, synced := range m.synced {
		if !synced() {
			return false
		}
	}
	return true
}

// tell takes an event: what was there, and what is there now; nil for nothing.
// Of an object whose end was missed the informer knows some state before it.
func (m *Mirror) tell(old, now any) {
	if gone, ok := old.(toolscache.DeletedFinalStateUnknown); ok {
		old = gone.Obj
	}
	m.take(old, now)
	_, pod := cmp.Or(now, old).(*corev1.Pod)
	if pod && m.Wake != nil {
		m.Wake()
	}
}

func (m *Mirror) take(old, now any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch old := old.(type) {
	case *corev1.Node:
		m.node(old.Name, nil)
	case *corev1.Pod:
		if p, ok := now.(*corev1.Pod); !ok || p.UID != old.UID {
			m.pod(old.UID, nil)
		}
	}
	switch now := now.(type) {
	case *corev1.Node:
		m.node(now.Name, now)
	case *corev1.Pod:
		m.pod(now.UID, now)
	}
}

func (m *Mirror) node(name string, now *corev1.Node) {
	m.told.Nodes[name] = now
	if now == nil {
		delete(m.nodes, name)
	} else {
		m.nodes[name] = now
	}
}

func (m *Mirror) pod(uid types.UID, now *corev1.Pod) {
	m.told.Pods[uid] = now
	i, known := m.at[uid]
	switch last := len(m.pods) - 1; {
	case known && now != nil:
		m.pods[i] = now
	case now != nil:
		m.at[uid] = len(m.pods)
		m.pods = append(m.pods, now)
	case known: // the last one takes its place
		m.pods[i] = m.pods[last]
		m.at[m.pods[i].UID] = i
		m.pods[last] = nil
		m.pods = m.pods[:last]
		delete(m.at, uid)
	}
}

// read returns the nodes and all pods as they are now, and what has changed among
// the nodes and the pods that take room on them since the last read.
func (m *Mirror) read() ([]*corev1.Node, []*corev1.Pod, *placement.Changes) {
	m.mu.Lock()
	nodes, pods, told := slices.Collect(maps.Values(m.nodes)), slices.Clone(m.pods), m.told
	m.turn()
	m.mu.Unlock()
	for uid, p := range told.Pods {
		if p != nil && !takesRoom(p) {
			told.Pods[uid] = nil
		}
	}
	return nodes, pods, &told
}

// takesRoom reports whether a pod is on a node and has not ended.
func takesRoom(p *corev1.Pod) bool { return p.Spec.NodeName != "" && !over(p) }
