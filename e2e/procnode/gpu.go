package procnode

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/nodeagent"
)

// inventory says which pod holds which GPU. The devices exist from the start
// but can be had only once they have appeared, as with a device plugin.
type inventory struct {
	resource string
	devices  []nodeagent.Device

	mu       sync.Mutex
	appeared bool
	holder   map[string]types.UID // by device ID
}

// newInventory names the devices after the node, the same on every boot.
func newInventory(node, resource, model string, count int) *inventory {
	g := &inventory{resource: resource, holder: map[string]types.UID{}}
	for i := range count {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, i))
		id := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
		g.devices = append(g.devices, nodeagent.Device{ID: id, Resource: resource, Model: model, Healthy: true})
	}
	return g
}

func (g *inventory) appear() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.appeared = true
}

// capacity is the number of devices that the node may offer now.
func (g *inventory) capacity() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.appeared {
		return 0
	}
	return int64(len(g.devices))
}

// list is what a device plugin would announce now.
func (g *inventory) list() []nodeagent.Device {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.appeared {
		return []nodeagent.Device{}
	}
	return slices.Clone(g.devices)
}

// outOfError is a pod that asks for more than is free, in a kubelet's words.
type outOfError struct {
	resource                  string
	requested, used, capacity int
}

func (e *outOfError) Error() string {
	return fmt.Sprintf("Pod was rejected: Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", e.resource, e.requested, e.used, e.capacity)
}

// take gives count devices to a pod, all or none.
func (g *inventory) take(pod types.UID, count int) ([]string, error) {
	if count == 0 {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	refusal := &outOfError{resource: g.resource, requested: count, used: len(g.holder)}
	var free []string
	if g.appeared {
		refusal.capacity = len(g.devices)
		for _, d := range g.devices {
			if _, held := g.holder[d.ID]; !held {
				free = append(free, d.ID)
			}
		}
	}
	if len(free) < count {
		return nil, refusal
	}
	for _, id := range free[:count] {
		g.holder[id] = pod
	}
	return free[:count], nil
}

// release takes back all that a pod holds.
func (g *inventory) release(pod types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, holder := range g.holder {
		if holder == pod {
			delete(g.holder, id)
		}
	}
}
