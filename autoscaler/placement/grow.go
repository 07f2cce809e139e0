package placement

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// grower fills machines that may still become larger ones: a machine is of the
// cheapest ware that its pods need so far.
type grower struct {
	s     *Snapshot
	wares []ranked // cheapest first
	gpu   corev1.ResourceName
	bins  []bin
	// dead are machines that take no pod of a class any more, whatever comes.
	dead map[*class][]bool
	row  choices
}

// ranked is a ware with the size of its machine. Machines of one kind look alike
// to the pods but for their size.
type ranked struct {
	Ware
	place int // among the wares that were given
	size  load
	kind  string
}

// load is an amount of what nearly every pod and machine has some of. It only
// says where a pod can't be; that it can, the filters say.
type load [5]int64 // CPU, memory, disk, GPUs, pods

func (a load) within(b load) bool {
	for i := range a {
		if a[i] > b[i] {
			return false
		}
	}
	return true
}

func (a load) plus(b load) load {
	for i := range a {
		a[i] += b[i]
	}
	return a
}

// bin is a machine with its ware by rank.
type bin struct {
	at   int // in the snapshot
	rank int
	has  load
	pods []*corev1.Pod
}

// choice is a machine that may take a pod, as the ware that it is then, for so
// much more.
type choice struct {
	more int64
	bin  int
	rank int
}

// choices is a heap: the least money first, and then the machine that was there
// first.
type choices []choice

func (c choices) Len() int { return len(c) }
func (c choices) Less(i, j int) bool {
	return c[i].more < c[j].more || c[i].more == c[j].more && c[i].bin < c[j].bin
}
func (c choices) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *choices) Push(x any)   { *c = append(*c, x.(choice)) }
func (c *choices) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// grow puts one pod after the other on the machine where it costs least more,
// or on a new one where that is cheaper still.
func (s *Snapshot) grow(b Batch, wares []Ware) (Mixture, error) {
	for _, p := range b.pods {
		s.affinity.learn(p) // before the first of them is placed
	}
	s.Fork()
	defer s.Revert()
	g := &grower{s: s, dead: map[*class][]bool{}}
	g.rank(b, wares)
	guests := s.guests(b.more)
	for _, p := range b.pods {
		with, c := guests.of(p)
		why, err := g.put(p, with, c)
		switch {
		case err != nil:
			return Mixture{}, unfit(p, err)
		case why != nil:
			return Mixture{Misfit: &Misfit{Pod: p, Reasons: why}}, nil
		}
	}
	m := Mixture{Machines: make([]Mixed, len(g.bins))}
	for i, bin := range g.bins {
		m.Machines[i] = Mixed{g.wares[bin.rank].place, bin.pods}
	}
	return m, nil
}

// rank sorts the wares by price.
func (g *grower) rank(b Batch, wares []Ware) {
	seen := map[string]bool{corev1.LabelTopologyRegion: true, corev1.LabelTopologyZone: true, corev1.LabelArchStable: true}
	for _, p := range b.pods {
		for _, key := range looksAtNodes(p) {
			seen[key] = true
		}
	}
	keys := make([]string, 0, len(seen))
	for key := range seen {
		if key != corev1.LabelHostname {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for i, w := range wares {
		node := w.Stock.machine(0).Node()
		if g.gpu == "" {
			g.gpu = corev1.ResourceName(w.Stock.machine(0).GPUResource)
		}
		kind := strings.Builder{}
		for _, key := range keys {
			kind.WriteString(node.Labels[key] + "\n")
		}
		for _, d := range w.Stock.daemons {
			kind.WriteString(d.Namespace + "/" + d.Name + "\n")
		}
		room := framework.NewResource(node.Status.Allocatable)
		size := g.loadOf(room)
		size[4] = int64(room.AllowedPodNumber)
		g.wares = append(g.wares, ranked{w, i, size, kind.String()})
	}
	slices.SortStableFunc(g.wares, func(a, b ranked) int { return cmp.Compare(a.Price, b.Price) })
}

func (g *grower) loadOf(r fwk.Resource) load {
	return load{r.GetMilliCPU(), r.GetMemory(), r.GetEphemeralStorage(), r.GetScalarResources()[g.gpu], 0}
}

// needs is what a pod asks for, as the scheduler counts it.
func (g *grower) needs(with *corev1.Pod, c *class) load {
	if c.info == nil {
		c.info = podInfo(with)
		c.info.CalculateResource() // and keeps it
	}
	need := g.loadOf(c.info.CalculateResource().Resource)
	need[4] = 1
	return need
}

// put finds a place for a pod, or says why there is none.
func (g *grower) put(p, with *corev1.Pod, c *class) ([]Reason, error) {
	need := g.needs(with, c)
	v, err := g.s.viewOf(c, with)
	switch {
	case err != nil:
		return nil, err
	case v.rejected != nil:
		return []Reason{*v.rejected}, nil
	}
	opening := g.cheapest(need, 0, "")
	ceiling := int64(math.MaxInt64)
	if opening >= 0 {
		ceiling = g.wares[opening].Price
	}
	placed, err := g.join(p, with, c, v, need, ceiling)
	if placed || err != nil {
		return nil, err
	}
	why, err := g.open(p, with, c, need)
	if why == nil || err != nil {
		return nil, err
	}
	if v, err = g.s.viewOf(c, with); err != nil {
		return nil, err
	}
	if placed, err = g.join(p, with, c, v, need, math.MaxInt64); placed || err != nil {
		return nil, err
	}
	return why, nil
}

// cheapest is the first ware from a rank on with room for so much, of a kind if
// one is given; -1 when there is none.
func (g *grower) cheapest(has load, from int, kind string) int {
	for rank := from; rank < len(g.wares); rank++ {
		if w := &g.wares[rank]; has.within(w.size) && (kind == "" || w.kind == kind) {
			return rank
		}
	}
	return -1
}

// join tries the machines that are there, up to a price.
func (g *grower) join(p, with *corev1.Pod, c *class, v *view, need load, most int64) (bool, error) {
	dead := g.dead[c]
	g.row = g.row[:0]
	for i := range g.bins {
		if i < len(dead) && dead[i] {
			continue
		}
		b := &g.bins[i]
		rank := g.cheapest(b.has.plus(need), b.rank, g.wares[b.rank].kind)
		if rank < 0 {
			continue
		}
		if more := g.wares[rank].Price - g.wares[b.rank].Price; more <= most {
			g.row = append(g.row, choice{more, i, rank})
		}
	}
	heap.Init(&g.row)
	for len(g.row) > 0 {
		next := heap.Pop(&g.row).(choice)
		why, err := g.try(next, with, c, v)
		if err != nil {
			return false, err
		}
		if why == nil {
			return true, g.settle(next, p, with, c, v, need)
		}
		if forGood(why, v) {
			g.bury(c, next.bin)
		}
	}
	return false, nil
}

// try asks the filters about a machine as it would be then.
func (g *grower) try(next choice, with *corev1.Pod, c *class, v *view) (*Reason, error) {
	b := &g.bins[next.bin]
	if next.rank != b.rank {
		g.resize(b, next.rank)
	}
	why, err := g.s.refuses(g.s.nodes[b.at], b.at, c, v)
	if next.rank != b.rank && (why != nil || err != nil) {
		g.resize(b, b.rank)
	}
	return why, err
}

func (g *grower) settle(next choice, p, with *corev1.Pod, c *class, v *view, need load) error {
	b := &g.bins[next.bin]
	b.rank, b.has, b.pods = next.rank, b.has.plus(need), append(b.pods, p)
	return g.s.settle(v, c, with, g.s.nodes[b.at].Node().Name)
}

// resize makes a machine one of another ware, with its name and its pods.
func (g *grower) resize(b *bin, rank int) {
	info := g.s.nodes[b.at].(*framework.NodeInfo) // added in this fork
	m := g.wares[rank].Stock.machine(0)
	m.Name = info.Node().Name
	g.s.affinity.touch(info)
	info.SetNode(m.Node())
	g.s.free.update(b.at, info)
}

// open takes a new machine of the cheapest ware that takes the pod.
func (g *grower) open(p, with *corev1.Pod, c *class, need load) (why []Reason, err error) {
	tried := map[string]bool{} // a larger machine of a kind is refused like a smaller one
	for rank := range g.wares {
		w := &g.wares[rank]
		if tried[w.kind] || !need.within(w.size) {
			continue
		}
		if why, err = g.add(rank, p, with, c, need); why == nil || err != nil {
			return nil, err
		}
		tried[w.kind] = why[0].Plugin != names.NodeResourcesFit
	}
	if why == nil { // all are too small, and the filters say of what
		return g.add(len(g.wares)-1, p, with, c, need)
	}
	return why, nil
}

// add takes one more machine for a pod, or says why it does not take the pod.
func (g *grower) add(rank int, p, with *corev1.Pod, c *class, need load) ([]Reason, error) {
	g.s.Fork()
	at, err := g.s.fresh(g.wares[rank].Stock, len(g.bins))
	if err != nil {
		g.s.Revert()
		return nil, err
	}
	info := g.s.nodes[at]
	has := g.loadOf(info.GetRequested())
	has[4] = int64(len(info.GetPods()))
	_, why, err := g.s.place(with, c, []int{at})
	if why != nil || err != nil {
		g.s.Revert()
		return why, err
	}
	g.s.Commit()
	g.bins = append(g.bins, bin{at: at, rank: rank, has: has.plus(need), pods: []*corev1.Pod{p}})
	return nil, nil
}

func (g *grower) bury(c *class, bin int) {
	if more := len(g.bins) - len(g.dead[c]); more > 0 {
		g.dead[c] = append(g.dead[c], make([]bool, more)...)
	}
	g.dead[c][bin] = true
}

// forGood reports whether a machine that refused a pod refuses it as long as
// nobody leaves: for somebody who is there, or for what is not about room.
func forGood(why *Reason, v *view) bool {
	if v.alone {
		return why.Plugin != names.NodeResourcesFit
	}
	return why.Plugin == names.InterPodAffinity && strings.Contains(why.Message, "anti-affinity")
}

// looksAtNodes lists the labels of nodes that the required rules of a pod look at.
func looksAtNodes(p *corev1.Pod) []string {
	var keys []string
	for key := range p.Spec.NodeSelector {
		keys = append(keys, key)
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		keys = append(keys, c.TopologyKey)
	}
	a := p.Spec.Affinity
	if a == nil {
		return keys
	}
	if n := a.NodeAffinity; n != nil && n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, t := range n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range t.MatchExpressions {
				keys = append(keys, e.Key)
			}
		}
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, t := range terms {
		keys = append(keys, t.TopologyKey)
	}
	return keys
}
