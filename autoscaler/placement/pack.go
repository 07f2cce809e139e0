package placement

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controller/daemon"
)

// Stock is a kind of machine that can be had in any number. It remembers how
// many pods of a class one machine takes, as long as its [Snapshot] lives.
// A stock that is used after its snapshot has followed the cluster is pruned.
type Stock struct {
	machine func(ordinal int) Machine
	sets    []*appsv1.DaemonSet
	holds   map[*class]holding
	daemons []*corev1.Pod // what the sets put on each machine, once looked at
	looked  bool
}

// NewStock takes a function that describes the machines, which may differ in
// their names only, and the DaemonSets of the cluster: a machine comes with the
// pods that their controller would put on it.
// cases: F6b kubernetes-sigs/karpenter#1749, H7 kubernetes-sigs/karpenter#1185
func NewStock(machine func(ordinal int) Machine, sets ...*appsv1.DaemonSet) *Stock {
	return &Stock{machine: machine, sets: sets, holds: map[*class]holding{}}
}

// Prune forgets what the snapshot has forgotten.
func (k *Stock) Prune(s *Snapshot) {
	maps.DeleteFunc(k.holds, func(c *class, _ holding) bool { return s.classes[c.key] != c })
}

// daemonsOn returns the pods of DaemonSets on a machine of the stock, by the
// DaemonSet controller's own rules: node selector, node affinity, and the taints
// that a set tolerates.
func (k *Stock) daemonsOn(s *Snapshot, node *corev1.Node) []*corev1.Pod {
	if k.looked {
		return k.daemons
	}
	k.looked = true
	for _, set := range k.sets {
		if run, _ := daemon.NodeShouldRunDaemonPod(s.sim.logger, node, set); run && set.DeletionTimestamp == nil {
			p := daemon.NewPod(set.DeepCopy(), node.Name)
			p.Name = set.Name
			k.daemons = append(k.daemons, p)
			s.affinity.learn(p) // before the first of them is placed
		}
	}
	return k.daemons
}

// holding is what a fresh machine of a stock takes of one class.
type holding struct {
	pods int
	full bool    // it takes no more; without it nobody has tried more
	why  *Reason // set when it takes none
}

// Packing says how many machines pods need, and who goes where.
type Packing struct {
	Machines int
	// Misfit is a pod that no fresh machine takes; then there is no packing.
	Misfit *Misfit
	// TooMany says that more machines are needed than were allowed.
	TooMany bool
	// Daemons is how many pods of DaemonSets each machine holds beside.
	Daemons int
	// Turns is how many pods run one after the other where most of them do.
	Turns int

	pods []*corev1.Pod // in the order of packing
	per  int           // so many go on each machine, unless
	at   []int         // this says for each where it goes
}

// Seats says on which machine each pod goes, the largest pods first.
func (p Packing) Seats() []Seat {
	seats := make([]Seat, len(p.pods))
	for i, pod := range p.pods {
		seats[i].Pod = pod
		if p.at != nil {
			seats[i].Machine = p.at[i]
		} else {
			seats[i].Machine = i / p.per
		}
	}
	return seats
}

// Seat is a pod and the machine, by ordinal, that takes it.
type Seat struct {
	Pod     *corev1.Pod
	Machine int
}

// Batch is pods that are packed together, looked at once for many stocks.
type Batch struct {
	pods  []*corev1.Pod
	more  []corev1.Toleration
	class *class // of all of them, or nil
	epoch uint64 // in which it was found
	told  bool   // each of them has a version
	turns int
}

// InTurns is the batch whose pods may run one after the other, so many in one
// place. Only pods that no filter can tell apart, and of which a machine decides
// by its own state, take turns: then what one has left the next can have.
func (b Batch) InTurns(most int) Batch {
	b.turns = most
	return b
}

// Tolerating is the batch whose pods tolerate more.
func (b Batch) Tolerating(more ...corev1.Toleration) Batch {
	b.more = more
	return b
}

// Equal reports whether no filter can tell the pods of the batch apart.
func (b Batch) Equal() bool { return b.class != nil }

// Batch looks at pods that are placed or packed together, for as long as the
// snapshot follows nothing. The largest goes first. They tolerate more there than
// they say, as the approver would let them.
func (s *Snapshot) Batch(pods []*corev1.Pod, more ...corev1.Toleration) Batch {
	class := s.classOfAll(pods)
	switch {
	case class == nil:
		pods = LargestFirst(pods)
	case !slices.IsSortedFunc(pods, byKey):
		pods = slices.Clone(pods)
		slices.SortStableFunc(pods, byKey)
	}
	told := !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return !versionOf(p).told() })
	return Batch{pods: pods, more: more, class: class, epoch: s.epoch, told: told}
}

// classOfAll is the class of all the pods, or nothing where they differ.
func (s *Snapshot) classOfAll(pods []*corev1.Pod) *class {
	var all *class
	for i, p := range pods {
		switch c := s.classOf(p); {
		case i == 0:
			all = c
		case c != all:
			return nil
		}
	}
	return all
}

// Pack finds how many fresh machines of a stock take all pods of a batch: each
// pod goes on the first machine that passes all filters, and where none does,
// one more is added. More than most are not tried. Nothing of it stays in the
// snapshot. The error is never about a pod that does not fit.
func (s *Snapshot) Pack(b Batch, stock *Stock, most int) (Packing, error) {
	if len(b.pods) == 0 {
		return Packing{}, nil
	}
	stock.look(s)
	b, alone, err := s.current(b)
	if err != nil {
		return Packing{}, err
	}
	if alone { // a machine's own state decides, so all take equally many
		p, err := s.multiply(b, stock, most)
		p.Daemons = len(stock.daemons)
		return p, err
	}
	p, err := s.pour(b, stock, most)
	p.Daemons = len(stock.daemons)
	return p, err
}

// look finds out what comes with a machine of the stock, and its rules.
func (k *Stock) look(s *Snapshot) {
	if !k.looked {
		k.daemonsOn(s, k.machine(0).Node())
	}
}

// current is the batch by the rules that are known now, which may tell more pods
// apart than those before. It also says whether its pods are of one class, of
// which a machine's own state decides.
func (s *Snapshot) current(b Batch) (Batch, bool, error) {
	b = s.renewed(b)
	if b.class == nil {
		return b, false, nil
	}
	v, err := s.viewOf(b.class, b.pods[0])
	if err != nil {
		return b, false, unfit(b.pods[0], err)
	}
	return b, v.alone, nil
}

// renewed is the batch by the rules that are known now.
func (s *Snapshot) renewed(b Batch) Batch {
	if s.rulesNow(); b.class != nil && b.epoch != s.epoch {
		return s.Batch(b.pods, b.more...).InTurns(b.turns)
	}
	return b
}

// Again reports whether a batch of a turn before holds in this one, too. Where its
// pods differ, or have no versions, it does not.
func (s *Snapshot) Again(b Batch) bool {
	s.rulesNow()
	if b.class == nil || !b.told || b.epoch != s.epoch {
		return false
	}
	b.class.turn = s.track.turn
	return true
}

func unfit(p *corev1.Pod, err error) error {
	return fmt.Errorf("fit pod %s/%s: %w", p.Namespace, p.Name, err)
}

// multiply fills one machine and reckons the others.
func (s *Snapshot) multiply(b Batch, stock *Stock, most int) (Packing, error) {
	h, err := s.held(b, stock)
	if err != nil {
		return Packing{}, err
	}
	if h.why != nil {
		return Packing{Misfit: &Misfit{Pod: b.pods[0], Reasons: []Reason{*h.why}}}, nil
	}
	machines := parts(len(b.pods), h.pods*max(b.turns, 1))
	if machines > most {
		return Packing{TooMany: true}, nil
	}
	p := Packing{Machines: machines, Turns: 1, pods: b.pods, per: h.pods}
	if b.turns > 1 { // evenly, so that the last one is over soonest
		p.per = parts(len(b.pods), machines)
		p.Turns = parts(p.per, h.pods)
	}
	return p, nil
}

// parts is how many parts of a size make up n.
func parts(n, size int) int { return (n + size - 1) / size }

// held is what a fresh machine takes of a batch of one class: found out once.
func (s *Snapshot) held(b Batch, stock *Stock) (holding, error) {
	h, known := stock.holds[b.class]
	if known && (h.full || h.pods >= len(b.pods)) {
		return h, nil
	}
	h, err := s.hold(b, stock)
	if err == nil {
		stock.holds[b.class] = h
	}
	return h, err
}

// hold puts pods of one class on a fresh machine until it takes no more.
func (s *Snapshot) hold(b Batch, stock *Stock) (holding, error) {
	s.Fork()
	defer s.Revert()
	at, err := s.fresh(stock, 0)
	if err != nil {
		return holding{}, err
	}
	guests := s.guests(b.more)
	for i, p := range b.pods {
		with, c := guests.of(p)
		node, why, err := s.place(with, c, []int{at})
		switch {
		case err != nil:
			return holding{}, unfit(p, err)
		case node == "" && i == 0:
			return holding{full: true, why: &why[0]}, nil
		case node == "":
			return holding{pods: i, full: true}, nil
		}
	}
	return holding{pods: len(b.pods)}, nil
}

// pour packs pods of whatever kind, one after the other.
func (s *Snapshot) pour(b Batch, stock *Stock, most int) (Packing, error) {
	s.Fork()
	defer s.Revert()
	guests := s.guests(b.more)
	packing := Packing{Turns: 1, pods: b.pods, at: make([]int, 0, len(b.pods))}
	var machines []int
	// What a machine refuses once for reasons of its own it refuses until the
	// end, as machines only fill up here.
	full := map[*class]int{}
	for _, p := range b.pods {
		with, c := guests.of(p)
		node, why, err := s.place(with, c, machines[full[c]:])
		if err == nil && c.view.alone {
			full[c] = len(machines)
			if node != "" {
				full[c] = s.index[node] - machines[0]
			}
		}
		if err == nil && node == "" {
			if len(machines) == most {
				return Packing{TooMany: true}, nil
			}
			var at int
			if at, err = s.fresh(stock, len(machines)); err == nil {
				machines = append(machines, at)
				node, why, err = s.place(with, c, machines[len(machines)-1:])
			}
		}
		switch {
		case err != nil:
			return Packing{}, unfit(p, err)
		case node == "":
			return Packing{Misfit: &Misfit{Pod: p, Reasons: why}}, nil
		}
		packing.at = append(packing.at, s.index[node]-machines[0])
	}
	packing.Machines = len(machines)
	return packing, nil
}

// fresh adds one more machine of a stock and returns its position.
func (s *Snapshot) fresh(stock *Stock, ordinal int) (int, error) {
	node := stock.machine(ordinal).Node()
	if err := s.AddNode(node); err != nil {
		return 0, err
	}
	for _, p := range stock.daemonsOn(s, node) {
		if err := s.AddPod(p, node.Name); err != nil {
			return 0, err
		}
	}
	return s.index[node.Name], nil
}
