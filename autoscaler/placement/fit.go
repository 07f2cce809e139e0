package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

type nodeSet = sets.Set[string]

// Ask is one question to a snapshot.
type Ask struct {
	// Pods to place. The largest goes first, equals in order of their names.
	Pods []*corev1.Pod
	// Together means all or none: when one pod fits nowhere, none is placed.
	Together bool
	// Nodes limits the question to these; nil means every node.
	Nodes []string
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

// Misfit is a pod that fits on none of the nodes, with each node's reason.
type Misfit struct {
	Pod *corev1.Pod
	// Reasons are sorted by node. A reason without a node holds for all nodes.
	Reasons []Reason
	// Fitted is how many pods of an all-or-none question had a place before
	// this one had none.
	Fitted int
}

// Reason is the first filter that refused a pod on a node, in the scheduler's
// own words.
type Reason struct {
	Node    string
	Plugin  string
	Message string
}

// String sums the reasons up as kube-scheduler does, most frequent first:
// "0/3 nodes fit: 2 Insufficient nvidia.com/gpu, 1 node(s) were unschedulable".
func (m Misfit) String() string {
	count := map[string]int{}
	for _, r := range m.Reasons {
		if r.Node == "" {
			return fmt.Sprintf("no node fits: %s", r.Message)
		}
		count[r.Message]++
	}
	if len(m.Reasons) == 0 {
		return "0/0 nodes fit: there is no node to try"
	}
	messages := make([]string, 0, len(count))
	for msg := range count {
		messages = append(messages, msg)
	}
	slices.SortFunc(messages, func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	for i, msg := range messages {
		messages[i] = fmt.Sprintf("%d %s", count[msg], msg)
	}
	return fmt.Sprintf("0/%d nodes fit: %s", len(m.Reasons), strings.Join(messages, ", "))
}

// Fit places the pods that fit into the snapshot and explains the others. Each
// pod goes to the first node, in the order of [Snapshot.Nodes], that passes all
// filters. The error is never about a pod that does not fit: it reports a
// filter that could not do its work, and then nothing is placed.
func (s *Snapshot) Fit(ask Ask) (Answer, error) {
	pods := LargestFirst(ask.Pods)
	candidates := s.candidates(ask.Nodes)
	var answer Answer
	s.Fork()
	for _, p := range pods {
		node, reasons, err := s.place(tolerating(p, ask.Tolerate), candidates)
		if err != nil {
			s.Revert()
			return Answer{}, fmt.Errorf("fit pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if node != "" {
			answer.Placed = append(answer.Placed, Placed{Pod: p, Node: node})
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
	slices.SortFunc(answer.Placed, func(a, b Placed) int { return byKey(a.Pod, b.Pod) })
	slices.SortFunc(answer.Misfit, func(a, b Misfit) int { return byKey(a.Pod, b.Pod) })
	return answer, nil
}

// candidates returns the positions of the asked nodes, in snapshot order.
func (s *Snapshot) candidates(names []string) []int {
	var at []int
	if names == nil {
		for i := range s.nodes {
			at = append(at, i)
		}
		return at
	}
	for _, name := range names {
		if i, ok := s.index[name]; ok {
			at = append(at, i)
		}
	}
	slices.Sort(at)
	return slices.Compact(at)
}

// place puts p on the first candidate that passes all filters, or says why
// none does.
func (s *Snapshot) place(p *corev1.Pod, candidates []int) (string, []Reason, error) {
	state := framework.NewCycleState()
	allowed, status, narrowedBy := s.sim.filters.RunPreFilterPlugins(s.sim.ctx, state, p)
	if status.IsRejected() {
		return "", []Reason{reason("", status)}, nil
	}
	if !status.IsSuccess() {
		return "", nil, status.AsError()
	}
	var reasons []Reason
	for _, i := range candidates {
		node := s.nodes[i].Node().Name
		if !allowed.AllNodes() && !allowed.NodeNames.Has(node) {
			by := strings.Join(sets.List(narrowedBy), ", ")
			reasons = append(reasons, Reason{Node: node, Plugin: by, Message: "node(s) didn't satisfy plugin " + by})
			continue
		}
		status := s.sim.filters.RunFilterPlugins(s.sim.ctx, state, p, s.nodes[i])
		if status.IsSuccess() {
			return node, nil, s.settle(state, p, node)
		}
		if !status.IsRejected() {
			return "", nil, status.AsError()
		}
		reasons = append(reasons, reason(node, status))
	}
	slices.SortFunc(reasons, func(a, b Reason) int { return cmp.Compare(a.Node, b.Node) })
	return "", reasons, nil
}

// settle records p on node, with the volumes that the filters chose for it.
func (s *Snapshot) settle(state fwk.CycleState, p *corev1.Pod, node string) error {
	if len(p.Spec.Volumes) > 0 {
		v := assumedVolumes{state: state, pod: p, node: node}
		if err := s.sim.reserve(v); err != nil {
			return err
		}
		top := &s.layers[len(s.layers)-1]
		top.volumes = append(top.volumes, v)
	}
	return s.AddPod(p, node)
}

func reason(node string, status *fwk.Status) Reason {
	messages := slices.Clone(status.Reasons())
	slices.Sort(messages)
	return Reason{Node: node, Plugin: status.Plugin(), Message: strings.Join(messages, ", ")}
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

// LargestFirst returns the pods by what is hardest to place: extended resources
// (GPUs), then memory, then CPU. Equal pods go by name.
func LargestFirst(pods []*corev1.Pod) []*corev1.Pod {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, largerFirst)
	return pods
}

func largerFirst(a, b *corev1.Pod) int {
	ra, rb := request(a), request(b)
	return cmp.Or(cmp.Compare(rb.extended, ra.extended), cmp.Compare(rb.memory, ra.memory),
		cmp.Compare(rb.cpu, ra.cpu), byKey(a, b))
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
