package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

type nodeSet = sets.Set[string]

// Ask is one question to a snapshot.
type Ask struct {
	// Pods to place. The largest goes first, equals in order of their names.
	Pods []*corev1.Pod
	// Batch, where it is set, is the pods, looked at before. What they tolerate
	// more there counts for machines only.
	Batch Batch
	// Together means all or none: when one pod fits nowhere, none is placed.
	Together bool
	// Nodes limits the question to these; nil means every node.
	Nodes *Choice
	// Tolerate is added to the pods for this question only, as the approver
	// would add it to the real ones.
	Tolerate []corev1.Toleration
}

// Answer says where the pods went. Both lists are sorted by pod.
type Answer struct {
	Placed []Placed
	Misfit []Misfit
}

// OK reports that every pod was placed.
func (a Answer) OK() bool { return len(a.Misfit) == 0 }

// Placed is a pod on a node.
type Placed struct {
	Pod  *corev1.Pod
	Node string
}

// Misfit is a pod that fits on none of the nodes, with the nodes' reasons.
type Misfit struct {
	Pod *corev1.Pod
	// Reasons are sorted by how many nodes have them, most first, and then by
	// their text.
	Reasons []Reason
	// Fitted is how many pods of an all-or-none question had a place before
	// this one had none.
	Fitted int
}

// Reason is a filter that refused a pod, in the scheduler's own words. Of
// several filters that refuse it on one node the first counts, and before all
// of them a lack of GPUs or other extended resources.
type Reason struct {
	Plugin  string
	Message string
	// Nodes is how many nodes it holds for; 0 means that it is about the pod
	// and holds everywhere.
	Nodes int
}

// String sums the reasons up as kube-scheduler does, most frequent first:
// "0/3 nodes fit: 2 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable".
func (m Misfit) String() string {
	if len(m.Reasons) == 0 {
		return "0/0 nodes fit: there is no node to try"
	}
	nodes := 0
	texts := make([]string, 0, len(m.Reasons))
	for _, r := range m.Reasons {
		if r.Nodes == 0 {
			return "no node fits: " + r.Message
		}
		nodes += r.Nodes
		texts = append(texts, fmt.Sprintf("%d %s", r.Nodes, r.Message))
	}
	return fmt.Sprintf("0/%d nodes fit: %s", nodes, strings.Join(texts, ", "))
}

// tally counts the reasons of nodes. They come as pointers, equal ones mostly
// as the same, and are few.
type tally struct {
	whys  []*Reason
	count []int
}

func (t *tally) add(why *Reason) {
	i := slices.Index(t.whys, why)
	if i < 0 {
		i = slices.IndexFunc(t.whys, func(w *Reason) bool { return *w == *why })
	}
	if i < 0 {
		i = len(t.whys)
		t.whys, t.count = append(t.whys, why), append(t.count, 0)
	}
	t.count[i]++
}

func (t *tally) reasons() []Reason {
	var all []Reason
	for i, why := range t.whys {
		all = append(all, Reason{why.Plugin, why.Message, t.count[i]})
	}
	slices.SortFunc(all, func(a, b Reason) int {
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(a.Message, b.Message), cmp.Compare(a.Plugin, b.Plugin))
	})
	return all
}

// Fit places the pods that fit into the snapshot and explains the others. Each
// pod goes to the first node, in the order of [Snapshot.Nodes], that passes all
// filters. The error is never about a pod that does not fit: it reports a
// filter that could not do its work, and then nothing is placed.
func (s *Snapshot) Fit(ask Ask) (Answer, error) {
	batch := s.asked(ask)
	candidates := s.candidates(ask.Nodes)
	guests := s.guests(ask.Tolerate)
	var answer Answer
	var last *class
	from := 0 // nodes before this one refuse the last class: they only fill up here
	s.Fork()
	for _, p := range batch.pods {
		with, c := p, batch.class
		if c == nil || len(ask.Tolerate) > 0 {
			with, c = guests.of(p)
		}
		if c != last {
			last, from = c, 0
		}
		at, reasons, err := s.seek(with, c, candidates, from)
		if err != nil {
			s.Revert()
			return Answer{}, unfit(p, err)
		}
		if at >= 0 {
			answer.Placed = append(answer.Placed, Placed{Pod: p, Node: s.nodes[candidates.at[at]].Node().Name})
			if c.view.alone {
				from = at
			}
			continue
		}
		miss := Misfit{Pod: p, Reasons: reasons}
		if ask.Together {
			miss.Fitted = len(answer.Placed)
			s.Revert()
			return Answer{Misfit: []Misfit{miss}}, nil
		}
		answer.Misfit = append(answer.Misfit, miss)
	}
	s.Commit()
	sortUnlessSorted(answer.Placed, func(a, b Placed) int { return byKey(a.Pod, b.Pod) })
	sortUnlessSorted(answer.Misfit, func(a, b Misfit) int { return byKey(a.Pod, b.Pod) })
	return answer, nil
}

// asked is what a question is about.
func (s *Snapshot) asked(ask Ask) Batch {
	if ask.Batch.pods == nil {
		return s.Batch(ask.Pods)
	}
	return s.renewed(ask.Batch)
}

// candidates returns the asked nodes, in snapshot order.
func (s *Snapshot) candidates(nodes *Choice) Choice {
	if nodes != nil {
		return *nodes
	}
	at := make([]int, len(s.nodes))
	for i := range at {
		at[i] = i
	}
	return Choice{at}
}

// place puts p on the first of the nodes at some positions that passes all
// filters, or says why none does.
func (s *Snapshot) place(p *corev1.Pod, c *class, candidates []int) (string, []Reason, error) {
	k, reasons, err := s.seek(p, c, Choice{candidates}, 0)
	if k < 0 {
		return "", reasons, err
	}
	return s.nodes[candidates[k]].Node().Name, nil, nil
}

// seek is like place, and returns which of the candidates it was, or -1. Those
// before from are known to refuse the pod, and are asked for their reasons only.
func (s *Snapshot) seek(p *corev1.Pod, c *class, candidates Choice, from int) (int, []Reason, error) {
	v, err := s.viewOf(c, p)
	if err != nil {
		return -1, nil, err
	}
	if v.rejected != nil {
		return -1, []Reason{*v.rejected}, nil
	}
	if c.nowhere.state == s.state && c.nowhere.among.same(candidates) {
		return -1, c.nowhere.reasons, nil
	}
	var refused tally
	short := s.shortages(c)
	for k := from; k < len(candidates.at); k++ {
		i := candidates.at[k]
		why := short.of(i)
		if why == nil {
			if why, err = s.refuses(s.nodes[i], i, c, v); err != nil {
				return -1, nil, err
			}
		}
		if why == nil {
			return k, nil, s.settle(v, c, p, s.nodes[i].Node().Name)
		}
		refused.add(why)
	}
	if from > 0 { // and now with the reasons of the others
		return s.seek(p, c, candidates, 0)
	}
	reasons := refused.reasons()
	if v.alone {
		c.nowhere = nowhere{s.state, candidates, reasons}
	}
	return -1, reasons, nil
}

// refuses returns why a node refuses a class, or nothing when it takes it.
func (s *Snapshot) refuses(n fwk.NodeInfo, at int, c *class, v *view) (*Reason, error) {
	if !v.allowed.AllNodes() && !v.allowed.NodeNames.Has(n.Node().Name) {
		by := strings.Join(sets.List(v.narrowedBy), ", ")
		return &Reason{Plugin: by, Message: "node(s) didn't satisfy plugin " + by}, nil
	}
	if v.alone {
		if why := c.remembered(at, n); why != nil {
			return why, nil
		}
	}
	status := s.sim.filters.RunFilterPlugins(s.sim.ctx, v.state, v.pod, n)
	switch {
	case status.IsSuccess():
		return nil, nil
	case !status.IsRejected():
		return nil, status.AsError()
	}
	why := reason(status)
	if v.alone {
		c.remember(at, n, &why)
	}
	return &why, nil
}

// settle records p on node, with the volumes that the filters chose for it.
func (s *Snapshot) settle(v *view, c *class, p *corev1.Pod, node string) error {
	if v.alone {
		if c.info == nil {
			c.info = podInfo(p)
			c.info.CalculateResource() // and keeps it
		}
		return s.add(*c.info, p, node)
	}
	if len(p.Spec.Volumes) > 0 {
		v := assumedVolumes{state: v.state, pod: p, node: node}
		if err := s.sim.reserve(v); err != nil {
			return err
		}
		top := &s.layers[len(s.layers)-1]
		top.volumes = append(top.volumes, v)
	}
	return s.AddPod(p, node)
}

func reason(status *fwk.Status) Reason {
	messages := slices.Clone(status.Reasons())
	slices.Sort(messages)
	return Reason{Plugin: status.Plugin(), Message: strings.Join(messages, ", ")}
}

// guests are pods that tolerate more for the time of one question.
type guests struct {
	s    *Snapshot
	more []corev1.Toleration
	// classes are those of the guests, by the class that they have without.
	classes map[*class]*class
}

func (s *Snapshot) guests(more []corev1.Toleration) guests {
	return guests{s, more, map[*class]*class{}}
}

// of returns the pod as it asks, and its class.
func (g guests) of(p *corev1.Pod) (*corev1.Pod, *class) {
	c := g.s.classOf(p)
	if len(g.more) == 0 {
		return p, c
	}
	if g.classes[c] == nil {
		g.classes[c] = &class{needs: c.needs}
	}
	return tolerating(p, g.more), g.classes[c]
}

// tolerating returns p with more tolerations; p itself stays as it is.
func tolerating(p *corev1.Pod, more []corev1.Toleration) *corev1.Pod {
	if len(more) == 0 {
		return p
	}
	with := *p
	with.Spec.Tolerations = append(slices.Clone(p.Spec.Tolerations), more...)
	return &with
}

// sortUnlessSorted spares what it most often is the work.
func sortUnlessSorted[T any](list []T, order func(a, b T) int) {
	if !slices.IsSortedFunc(list, order) {
		slices.SortFunc(list, order)
	}
}

// LargestFirst returns the pods by what is hardest to place: extended resources
// (GPUs), then memory, then CPU. Of equal ones those that keep others off go first,
// as they need a node each, and then they go by name.
func LargestFirst(pods []*corev1.Pod) []*corev1.Pod {
	all := make([]sized, len(pods))
	for i, p := range pods {
		all[i] = sized{p, request(p)}
	}
	slices.SortStableFunc(all, func(a, b sized) int {
		return cmp.Or(cmp.Compare(b.extended, a.extended), cmp.Compare(b.memory, a.memory),
			cmp.Compare(b.cpu, a.cpu), cmp.Compare(keepsOff(b.pod), keepsOff(a.pod)), byKey(a.pod, b.pod))
	})
	sorted := make([]*corev1.Pod, len(pods))
	for i := range all {
		sorted[i] = all[i].pod
	}
	return sorted
}

// keepsOff counts the required rules by which a pod keeps others off.
func keepsOff(p *corev1.Pod) int {
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		return len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return 0
}

type sized struct {
	pod *corev1.Pod
	size
}

type size struct{ extended, memory, cpu int64 }

func request(p *corev1.Pod) size {
	var s size
	for _, c := range p.Spec.Containers {
		for name, q := range c.Resources.Requests {
			switch {
			case name == corev1.ResourceCPU:
				s.cpu += q.MilliValue()
			case name == corev1.ResourceMemory:
				s.memory += q.Value()
			case strings.Contains(string(name), "/"):
				s.extended += q.Value()
			}
		}
	}
	return s
}
