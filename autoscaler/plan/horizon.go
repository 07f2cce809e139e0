package plan

import (
	"cmp"
	"slices"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// ending is a bound pod with the time by which it is over.
type ending struct {
	pod  *corev1.Pod
	at   time.Time
	node int // in run.onPrem
}

// gpuNeed is a number of GPUs in one node.
type gpuNeed struct {
	name  corev1.ResourceName
	count int64
}

// freeAt returns when, and where, the work fits on-prem as running work ends by
// its deadlines; zero when that is not known. Up to the horizon, where it
// decides, it is the first such time; beyond, for work whose pods differ or have
// rules about others, it is one such time.
//
// It begins where GPUs alone would do: before that the work provably does not
// fit.
func (r *run) freeAt(w *work, horizon time.Time) (time.Time, []placement.Placed, error) {
	ask := placement.Ask{Pods: w.pods, Together: true, Nodes: &r.onPrem}
	low, found := r.enoughGPUs(w.needs)
	if !found {
		return time.Time{}, nil, nil
	}
	scope, err := r.cluster.Scope(w.pods)
	if err != nil {
		return time.Time{}, nil, err
	}
	if soon := r.endingsBy(horizon); scope != placement.EqualAndAlone && low <= soon {
		at, where, err := r.stepwise(ask, low, soon)
		if err != nil || where != nil || soon == len(r.ends) {
			return at, where, err
		}
		low = soon + 1
	}
	return r.halving(ask, w.needs, scope, low)
}

// endingsBy counts the endings up to a time.
func (r *run) endingsBy(horizon time.Time) int {
	n := 0
	for n < len(r.ends) && !r.ends[n].at.After(horizon) {
		n++
	}
	return n
}

// stepwise asks after each ending from low to high. More room can mean that
// pods no longer fit: the first takes a node that only the second can use, or
// what they have to be near to is over.
func (r *run) stepwise(ask placement.Ask, low, high int) (time.Time, []placement.Placed, error) {
	r.cluster.Fork()
	defer r.cluster.Revert()
	for i, e := range r.ends[:high] {
		if err := r.cluster.RemovePod(e.pod, e.pod.Spec.NodeName); err != nil {
			return time.Time{}, nil, err
		}
		if i+1 < low {
			continue
		}
		if answer, err := r.cluster.Fit(ask); err != nil || answer.OK() {
			return e.at, answer.Placed, err
		}
	}
	return time.Time{}, nil, nil
}

// halving finds a count of endings that is enough, by steps that double, and
// then by halving. For equal pods of which each node decides alone it is the
// first: what ends only frees room for them.
func (r *run) halving(ask placement.Ask, needs []gpuNeed, scope placement.Scope, low int) (time.Time, []placement.Placed, error) {
	var where []placement.Placed
	high := low // enough, once where is set; low-1 endings are too few
	for step := 1; where == nil; step *= 2 {
		answer, err := r.afterwards(ask, needs, scope, high)
		switch {
		case err != nil:
			return time.Time{}, nil, err
		case answer.OK():
			where = answer.Placed
		case high == len(r.ends):
			return time.Time{}, nil, nil
		default:
			low, high = high+1, min(high+step, len(r.ends))
		}
	}
	for low < high {
		mid := (low + high) / 2
		answer, err := r.afterwards(ask, needs, scope, mid)
		switch {
		case err != nil:
			return time.Time{}, nil, err
		case answer.OK():
			high, where = mid, answer.Placed
		default:
			low = mid + 1
		}
	}
	return r.ends[high-1].at, where, nil
}

// enoughGPUs returns the first count of endings after which the nodes have
// enough free GPUs for the pods that want most of them, other questions aside.
func (r *run) enoughGPUs(needs []gpuNeed) (int, bool) {
	most, count := gpuNeed{}, 0
	for _, need := range needs {
		switch {
		case need.count > most.count || need.count == most.count && need.name < most.name:
			most, count = need, 1
		case need == most:
			count++
		}
	}
	if most.count == 0 {
		return 1, len(r.ends) > 0
	}
	after := r.slotsFor(most)
	first := sort.SearchInts(after, count)
	return first + 1, first < len(after)
}

// slots are how many pods with a need have GPUs after each ending, one after the
// other, as long as the nodes have that much free now.
type slots struct {
	free  []int64
	after []int // never falls: endings only free something
}

func (r *run) slotsFor(need gpuNeed) []int {
	free := r.cluster.Free(r.onPrem, need.name)
	if known, ok := r.slots[need]; ok && slices.Equal(known.free, free) {
		return known.after
	}
	s := slots{slices.Clone(free), make([]int, len(r.ends))}
	count := 0
	for _, n := range free {
		count += places(n, need)
	}
	freed := r.freedOf(need.name)
	for i, e := range r.ends {
		count -= places(free[e.node], need)
		free[e.node] += freed[i]
		count += places(free[e.node], need)
		s.after[i] = count
	}
	r.slots[need] = s
	return s.after
}

// freedOf is what each ending frees of a resource.
func (r *run) freedOf(name corev1.ResourceName) []int64 {
	freed, known := r.freed[name]
	if !known {
		freed = make([]int64, len(r.ends))
		for i, e := range r.ends {
			freed[i] = placement.Takes(e.pod, name)
		}
		r.freed[name] = freed
	}
	return freed
}

func places(free int64, need gpuNeed) int {
	if need.count == 0 {
		return 1 // GPUs say nothing about it
	}
	return int(max(free, 0) / need.count)
}

// afterwards answers a question for the time when the first n endings are over.
// Nodes whose GPUs are too few even then are left out of it; what ends there
// counts for pods with rules about others only.
func (r *run) afterwards(ask placement.Ask, needs []gpuNeed, scope placement.Scope, n int) (placement.Answer, error) {
	least := needs[0]
	for _, need := range needs[1:] {
		if need.name != least.name {
			least = gpuNeed{}
		} else if need.count < least.count {
			least = need
		}
	}
	free := r.cluster.Free(r.onPrem, least.name)
	freed := r.freedOf(least.name)
	for i, e := range r.ends[:n] {
		free[e.node] += freed[i]
	}
	large := r.onPrem.Only(func(i int) bool { return places(free[i], least) > 0 })
	ask.Nodes = &large
	r.cluster.Fork()
	defer r.cluster.Revert()
	for _, e := range r.ends[:n] {
		if scope != placement.Wide && places(free[e.node], least) == 0 {
			continue
		}
		if err := r.cluster.RemovePod(e.pod, e.pod.Spec.NodeName); err != nil {
			return placement.Answer{}, err
		}
	}
	return r.cluster.Fit(ask)
}

// endings are the pods on-prem whose end is known, soonest first.
func (r *run) endings() []ending {
	var all []ending
	for i := range r.Cluster.Pods {
		p := r.Cluster.Pods[i]
		node, home := r.home[p.Spec.NodeName]
		if !home {
			continue
		}
		if at := r.endOf(p); !at.IsZero() {
			all = append(all, ending{pod: p, at: at, node: node})
		}
	}
	slices.SortFunc(all, func(a, b ending) int {
		return cmp.Or(a.at.Compare(b.at), podOrder(a.pod, b.pod))
	})
	return all
}

// endOf returns the earliest time by which a bound pod is over for certain.
func (r *run) endOf(p *corev1.Pod) time.Time {
	end := r.Cluster.Ends[p.UID]
	consider := func(at time.Time) {
		if end.IsZero() || at.Before(end) {
			end = at
		}
	}
	if s := p.Spec.ActiveDeadlineSeconds; s != nil && p.Status.StartTime != nil {
		consider(p.Status.StartTime.Add(Seconds(*s)))
	}
	if !p.DeletionTimestamp.IsZero() {
		consider(p.DeletionTimestamp.Time)
	}
	switch {
	case end.IsZero() || !end.Before(r.Now):
		return end
	case end.Add(r.Settings.Boot).Before(r.Now):
		return time.Time{} // long overdue: its deadline says nothing any more
	}
	return r.Now // overdue: it may be over any moment
}
