package plan

import (
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// gpuNeed is a number of GPUs in one node.
type gpuNeed struct {
	name  corev1.ResourceName
	count int64
}

// freeAt returns when the work fits on-prem as running work ends by its
// deadlines; zero when that is not known. Up to the horizon, where it decides, it
// is the first such time, and where the pods go then stands beside it; beyond,
// for work whose pods differ or have rules about others, it is one such time.
//
// Where pods differ it begins where GPUs alone would do: before that the work
// provably does not fit.
func (r *run) freeAt(w *work, horizon time.Time) (time.Time, []placement.Placed, error) {
	ask := placement.Ask{Batch: w.batch, Together: true, Nodes: &r.onPrem}
	scope, err := r.cluster.Scope(w.batch)
	switch {
	case err != nil:
		return time.Time{}, nil, err
	case scope == placement.EqualAndAlone:
		return r.seated(w, ask, horizon)
	}
	low, found := r.enoughGPUs(w.needs)
	if !found {
		return time.Time{}, nil, nil
	}
	if soon := r.endingsBy(horizon); low <= soon {
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
	return sort.Search(len(r.ends), func(i int) bool { return r.ends[i].at.After(horizon) })
}

// seated is freeAt for equal pods of which each node decides alone: a node's
// seats are counted by themselves, and only when something ended there.
func (r *run) seated(w *work, ask placement.Ask, horizon time.Time) (time.Time, []placement.Placed, error) {
	seats, err := r.seatsFor(w.pods[0], w.needs[0], len(w.pods))
	if err != nil || len(seats) < len(w.pods) {
		return time.Time{}, nil, err
	}
	n := seats[len(w.pods)-1]
	at := r.ends[max(n, 1)-1].at
	if at.After(horizon) {
		return at, nil, nil
	}
	answer, err := r.afterwards(ask, w.needs, placement.EqualAndAlone, n)
	return at, answer.Placed, err
}

// seats are the numbers of endings after which there is a seat for one pod more
// of a class, as things are in one state of the cluster.
type seats struct {
	state uint64
	after []int
	all   bool // more there never are
}

// seatsFor returns the seats for pods like one of them, with what each needs:
// for at least count of them if there ever are so many.
func (r *run) seatsFor(like *corev1.Pod, need gpuNeed, count int) ([]int, error) {
	class := r.cluster.ClassOf(like)
	known := r.seats[class]
	if known.state == r.cluster.State() && (known.all || len(known.after) >= count) {
		return known.after, nil
	}
	c := seatCount{run: r, like: like, most: 2 * count, seen: make([]seatsAt, len(r.endsOn))}
	r.cluster.Fork()
	err := c.count(need)
	r.cluster.Revert()
	if err != nil {
		return nil, err
	}
	r.seats[class] = seats{r.cluster.State(), c.after, len(c.after) < c.most}
	return c.after, nil
}

// seatCount goes through the endings until it has found so many seats.
type seatCount struct {
	*run
	like  *corev1.Pod
	most  int
	seen  []seatsAt // by node
	after []int
}

// seatsAt is what is known of one node: its seats, and how many of the endings
// there are taken off.
type seatsAt struct{ seats, over int }

// count looks at the nodes that have GPUs enough, and then at each at whose
// endings there are enough. All others have no seat and are not touched.
func (c *seatCount) count(need gpuNeed) error {
	free := c.spare(need.name)
	for node := range free {
		if places(free[node], need) == 0 {
			continue
		}
		if err := c.look(node, 0); err != nil || len(c.after) >= c.most {
			return err
		}
	}
	for i, n := range c.freedOf(need.name) {
		node := c.ends[i].place
		if free[node] += n; places(free[node], need) == 0 {
			continue
		}
		if err := c.look(node, i+1); err != nil || len(c.after) >= c.most {
			return err
		}
	}
	return nil
}

// look counts the seats of a node after n endings.
func (c *seatCount) look(node, n int) error {
	at, ends := &c.seen[node], c.endsOn[node]
	for ; at.over < len(ends) && ends[at.over] < n; at.over++ {
		p := c.ends[ends[at.over]].pod
		if err := c.cluster.RemovePod(p, p.Spec.NodeName); err != nil {
			return err
		}
	}
	now, err := c.cluster.Room(c.onPrem, node, c.like, c.most)
	for range now - at.seats {
		c.after = append(c.after, n)
	}
	at.seats = now
	return err
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
// then by halving.
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
// other, as things are in one state of the cluster.
type slots struct {
	state uint64
	after []int // never falls: endings only free something
}

func (r *run) slotsFor(need gpuNeed) []int {
	if known, ok := r.slots[need]; ok && known.state == r.cluster.State() {
		return known.after
	}
	free := r.spare(need.name)
	s := slots{r.cluster.State(), make([]int, len(r.ends))}
	count := 0
	for _, n := range free {
		count += places(n, need)
	}
	freed := r.freedOf(need.name)
	for i, e := range r.ends {
		count -= places(free[e.place], need)
		free[e.place] += freed[i]
		count += places(free[e.place], need)
		s.after[i] = count
	}
	r.slots[need] = s
	return s.after
}

// spare is how much of a resource each on-prem node has left, to reckon with until
// the next call.
func (r *run) spare(name corev1.ResourceName) []int64 {
	r.room = r.cluster.Free(r.room[:0], r.onPrem, name)
	return r.room
}

// freedOf is what each ending frees of a resource.
func (r *run) freedOf(name corev1.ResourceName) []int64 {
	freed, known := r.freed[name]
	if !known {
		freed = make([]int64, len(r.ends))
		for i, e := range r.ends {
			freed[i] = e.takes(name)
		}
		r.freed[name] = freed
	}
	return freed
}

func places(free int64, need gpuNeed) int {
	switch {
	case need.count == 0:
		return 1 // GPUs say nothing about it
	case free < need.count:
		return 0
	}
	return int(free / need.count)
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
	free := r.spare(least.name)
	freed := r.freedOf(least.name)
	for i, e := range r.ends[:n] {
		free[e.place] += freed[i]
	}
	large := r.onPrem.Only(func(i int) bool { return places(free[i], least) > 0 })
	ask.Nodes = &large
	r.cluster.Fork()
	defer r.cluster.Revert()
	for _, e := range r.ends[:n] {
		if scope != placement.Wide && places(free[e.place], least) == 0 {
			continue
		}
		if err := r.cluster.RemovePod(e.pod, e.pod.Spec.NodeName); err != nil {
			return placement.Answer{}, err
		}
	}
	return r.cluster.Fit(ask)
}
