package plan

import (
	"cmp"
	"slices"
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
// its deadlines; zero when that is not known.
//
// What ends only frees room, so the first count of endings that is enough is
// found by steps that double, and then by halving. It begins where GPUs alone
// would do: before that the work provably does not fit.
func (r *run) freeAt(w *work) (time.Time, []placement.Placed, error) {
	ask := placement.Ask{Pods: w.pods, Together: true, Nodes: &r.onPrem}
	low, found := r.enoughGPUs(w.pods) // low-1 endings are too few
	if !found {
		return time.Time{}, nil, nil
	}
	var where []placement.Placed
	high := low // enough, once where is set
	for step := 1; where == nil; step *= 2 {
		answer, err := r.afterwards(ask, high)
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
		answer, err := r.afterwards(ask, mid)
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
func (r *run) enoughGPUs(pods []*corev1.Pod) (int, bool) {
	most, count := gpuNeed{}, 0
	for _, p := range pods {
		switch need := needOf(p); {
		case need.count > most.count || need.count == most.count && need.name < most.name:
			most, count = need, 1
		case need == most:
			count++
		}
	}
	if most.count == 0 {
		return 1, len(r.ends) > 0
	}
	free, slots := r.cluster.Free(r.onPrem, most.name), 0
	for _, n := range free {
		slots += places(n, most)
	}
	freed := r.freedOf(most.name)
	for i, e := range r.ends {
		slots -= places(free[e.node], most)
		free[e.node] += freed[i]
		if slots += places(free[e.node], most); slots >= count {
			return i + 1, true
		}
	}
	return 0, false
}

// freedOf is what each ending frees of a resource.
func (r *run) freedOf(name corev1.ResourceName) []int64 {
	freed, known := r.freed[name]
	if !known {
		freed = make([]int64, len(r.ends))
		for i, e := range r.ends {
			freed[i] = placement.Extended(e.pod)[name]
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

// needOf is the largest number of GPUs of one kind that a pod asks for.
func needOf(p *corev1.Pod) gpuNeed {
	var most gpuNeed
	for name, n := range gpuRequests(p) {
		if n > most.count || n == most.count && name < most.name {
			most = gpuNeed{name, n}
		}
	}
	return most
}

// afterwards answers a question for the time when the first n endings are over.
// Nodes whose GPUs are too few even then are left out of it.
func (r *run) afterwards(ask placement.Ask, n int) (placement.Answer, error) {
	least := needOf(ask.Pods[0])
	for _, p := range ask.Pods[1:] {
		if need := needOf(p); need.name != least.name {
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
		if places(free[e.node], least) == 0 {
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
		p := &r.Cluster.Pods[i]
		node, home := r.home[p.Spec.NodeName]
		if !home {
			continue
		}
		if at := r.endOf(p); !at.IsZero() {
			all = append(all, ending{pod: p, at: at, node: node})
		}
	}
	slices.SortStableFunc(all, func(a, b ending) int {
		return cmp.Or(a.at.Compare(b.at), podOrder(*a.pod, *b.pod))
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
