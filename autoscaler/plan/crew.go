package plan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
)

// crew is pods that a place is sought for, with what is known of them by
// themselves, whatever the cluster and the market are.
type crew struct {
	pods  []*corev1.Pod // in order
	batch placement.Batch
	asks  []gpuAsk
	needs []gpuNeed // the largest of each pod
	// since is when the scheduler refused the first of them, lately when the last.
	since, lately time.Time
	unrefused     *corev1.Pod // which it has not

	given []*corev1.Pod // as the state had them
}

func newCrew(pods []*corev1.Pod, cluster *placement.Snapshot) *crew {
	c := &crew{pods: slices.Clone(pods), given: pods}
	slices.SortFunc(c.pods, podOrder)
	c.batch = cluster.Batch(c.pods, corev1.Toleration{Key: v1alpha1.BurstTaint, Operator: corev1.TolerationOpEqual, Value: planned})
	if len(pods) > 0 {
		c.asks, c.needs = gpuAsks(c.pods, c.batch.Equal())
	}
	for _, p := range c.pods {
		at, refused := unschedulable(p)
		if !refused {
			c.unrefused = p
			break
		}
		if c.since.IsZero() || at.Before(c.since) {
			c.since = at
		}
		if at.After(c.lately) {
			c.lately = at
		}
	}
	return c
}

// crews are those of gangs, which a planner keeps from one state to the next: an
// object of the API server is replaced, never changed.
type crews struct {
	last, now map[ownerKey]*crew
}

func (k *crews) turn() { k.last, k.now = k.now, map[ownerKey]*crew{} }

// of is the crew of a gang: the one of the last state, where it is the same pods.
// Pods whose version can't be told are looked at anew.
func (k *crews) of(g *Gang, cluster *placement.Snapshot) *crew {
	key := ownerKey{g.Owner.Namespace, g.Owner.UID}
	c := k.last[key]
	if c == nil || !slices.Equal(c.given, g.Pods) || !cluster.Again(c.batch) {
		c = newCrew(g.Pods, cluster)
	}
	if c.batch.Equal() {
		k.now[key] = c
	}
	return c
}
