package plan

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// ending is a bound pod with the time by which it is over.
type ending struct {
	*stay
	at    time.Time
	place int // of its node, in run.onPrem
}

// stay is a pod on its node, as far as its end is concerned.
type stay struct {
	pod  *corev1.Pod
	node string
	// by is when its deadline or its deletion ends it; zero when neither does.
	by    time.Time
	taken []gpuNeed // extended resources, of which GPUs are some
	turn  uint64    // in which it was asked for last
}

func newStay(p *corev1.Pod) *stay {
	s := &stay{pod: p, node: p.Spec.NodeName}
	if d := p.Spec.ActiveDeadlineSeconds; d != nil && p.Status.StartTime != nil {
		s.by = p.Status.StartTime.Add(Seconds(*d))
	}
	if !p.DeletionTimestamp.IsZero() {
		s.by = sooner(s.by, p.DeletionTimestamp.Time)
	}
	for name, count := range placement.Extended(p) {
		s.taken = append(s.taken, gpuNeed{name, count})
	}
	return s
}

// sooner is the earlier of two times, of which zero says nothing.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// takes is how much of an extended resource the pod takes.
func (s *stay) takes(name corev1.ResourceName) int64 {
	for _, t := range s.taken {
		if t.name == name {
			return t.count
		}
	}
	return 0
}

// end is the earliest time by which the pod is over for certain: work that is long
// overdue says nothing any more.
func (s *stay) end(r *run) time.Time {
	end := sooner(r.Cluster.Ends[s.pod.UID], s.by)
	switch {
	case end.IsZero() || !end.Before(r.Now):
		return end
	case end.Add(r.Settings.Boot).Before(r.Now):
		return time.Time{}
	}
	return r.Now // overdue: it may be over any moment
}

// stays are the bound pods, which a planner keeps from one state to the next: the
// pods of a state are never changed.
type stays struct {
	known map[*corev1.Pod]*stay
	turn  uint64
}

// begin starts a turn: of pods that have left, no more are kept than of others.
func (k *stays) begin(pods int) {
	if k.known == nil {
		k.known = make(map[*corev1.Pod]*stay, pods)
	}
	if len(k.known) > 2*pods {
		maps.DeleteFunc(k.known, func(_ *corev1.Pod, s *stay) bool { return s.turn != k.turn })
	}
	k.turn++
}

func (k *stays) of(p *corev1.Pod) *stay {
	s := k.known[p]
	if s == nil {
		s = newStay(p)
		k.known[p] = s
	}
	s.turn = k.turn
	return s
}

// endings are the pods on-prem whose end is known, soonest first.
func (r *run) endings(known *stays) []ending {
	known.begin(len(r.Cluster.Pods))
	var all []ending
	for _, p := range r.Cluster.Pods {
		s := known.of(p)
		place, home := r.home[s.node]
		if !home {
			continue
		}
		if at := s.end(r); !at.IsZero() {
			all = append(all, ending{s, at, place})
		}
	}
	order := make([]int, len(all)) // moving numbers costs less
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		if order := all[i].at.Compare(all[j].at); order != 0 {
			return order
		}
		return podOrder(all[i].pod, all[j].pod)
	})
	sorted := make([]ending, len(all))
	for i, from := range order {
		sorted[i] = all[from]
	}
	return sorted
}
