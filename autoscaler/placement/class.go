package placement

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// class is a set of pods that no filter can tell apart on a node that stands
// for itself: they ask for the same in the same namespace. Names, hostnames,
// images, commands and environments don't count, and of the labels only those
// that a rule selects by.
// cases: I1 kubernetes/autoscaler#4441
type class struct {
	key   string
	needs []need
	// view is what the filters made of the class before they saw any node, as
	// of an epoch of the cluster's affinity rules.
	view  view
	epoch uint64
	// info is what the framework makes of a pod of the class, resources added
	// up; set once one was placed.
	info *framework.PodInfo
	// refused remembers, by position of the node, why and in which of its
	// generations the node refused the class.
	refused []verdict
	turn    uint64 // in which it was asked for last
	// nowhere is the last question that no node could answer.
	nowhere nowhere
}

// nowhere is what some nodes said in a state of the snapshot in which none of
// them took the class.
type nowhere struct {
	state   uint64
	among   Choice
	reasons []Reason
}

// need is how much of an extended resource a pod asks for.
type need struct {
	name  corev1.ResourceName
	count int64
	why   *Reason // where there is too little
}

// verdict holds for one generation of a node's state; generations are unique.
type verdict struct {
	generation int64
	why        *Reason
}

// view is what PreFilter said of a pod.
type view struct {
	pod        *corev1.Pod
	state      fwk.CycleState
	allowed    *fwk.PreFilterResult
	narrowedBy nodeSet
	rejected   *Reason // holds for all nodes
	// alone says that a node's own state decides: no rule looks at another
	// node, at volumes or at devices.
	alone bool
}

// memory is what a snapshot has found out about pods.
type memory struct {
	classes     map[string]*class
	unversioned map[*corev1.Pod]*class
	// known are the classes of pods in some version, by UID.
	known map[types.UID]*knownPod
}

// knownPod is a pod of which the class is known.
type knownPod struct {
	version         version
	namespace, name string
	class           *class
	turn            uint64 // in which it was asked for last
}

// classOf returns the class of a pod. Pods are not changed while a snapshot
// knows them, so each is looked at once in a version of it; in a turn, where its
// version can't be told.
func (s *Snapshot) classOf(p *corev1.Pod) *class {
	s.rulesNow()
	v := versionOf(p)
	if k := s.known[v.uid]; k != nil && k.version == v && k.namespace == p.Namespace && k.name == p.Name {
		k.turn, k.class.turn = s.track.turn, s.track.turn
		return k.class
	}
	if c, known := s.unversioned[p]; known && !v.told() {
		return c
	}
	key := s.keyOf(p)
	c := s.classes[key]
	if c == nil {
		c = newClass(p, key)
		s.classes[key] = c
	}
	c.turn = s.track.turn
	if v.told() {
		s.known[v.uid] = &knownPod{v, p.Namespace, p.Name, c, s.track.turn}
	} else {
		s.unversioned[p] = c
	}
	return c
}

// rulesNow forgets the classes when there are rules that may tell more pods apart.
func (s *Snapshot) rulesNow() {
	if rules := s.affinity.fresh(s.nodes).rules; len(rules) > len(s.rules) {
		s.forgetClasses(rules)
	}
}

func (s *Snapshot) forgetClasses(rules []string) {
	s.rules = rules
	s.epoch++
	s.memory = memory{map[string]*class{}, map[*corev1.Pod]*class{}, map[types.UID]*knownPod{}}
}

// turnOver begins a turn: pods that were not asked for in the last one are
// forgotten, classes likewise, and how much is free of what none of the others
// needs: pods may ask for resources of any name.
func (s *Snapshot) turnOver() {
	now, needed := s.track.turn, map[corev1.ResourceName]bool{}
	maps.DeleteFunc(s.known, func(_ types.UID, k *knownPod) bool { return k.turn != now })
	maps.DeleteFunc(s.classes, func(_ string, c *class) bool { return c.turn != now })
	for _, c := range s.classes {
		for _, need := range c.needs {
			needed[need.name] = true
		}
	}
	maps.DeleteFunc(s.free, func(name corev1.ResourceName, _ []int64) bool { return !needed[name] })
	s.unversioned, s.sieve = map[*corev1.Pod]*class{}, sieve{}
	s.track.turn++
}

func newClass(p *corev1.Pod, key string) *class {
	c := &class{key: key}
	takes := Extended(p)
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		c.needs = append(c.needs, need{name, takes[name], &Reason{Plugin: names.NodeResourcesFit, Message: "Insufficient " + string(name)}})
	}
	return c
}

// plain says that a pod takes what its containers ask for.
func plain(p *corev1.Pod) bool {
	return len(p.Spec.InitContainers) == 0 && p.Spec.Overhead == nil && p.Spec.Resources == nil
}

// Extended is what a pod takes of each extended resource, as the scheduler counts it.
func Extended(p *corev1.Pod) map[corev1.ResourceName]int64 {
	takes := map[corev1.ResourceName]int64{}
	if plain(p) {
		for i := range p.Spec.Containers {
			addExtended(takes, p.Spec.Containers[i].Resources.Requests)
		}
		return takes
	}
	addExtended(takes, resource.PodRequests(p, resource.PodResourcesOptions{}))
	return takes
}

func addExtended(takes map[corev1.ResourceName]int64, list corev1.ResourceList) {
	for name, q := range list {
		if strings.Contains(string(name), "/") && !q.IsZero() {
			takes[name] += q.Value()
		}
	}
}

// keyOf writes down all that the filters may read of a pod. What is not known
// to be of no interest to them is in it.
func (s *Snapshot) keyOf(p *corev1.Pod) string {
	spec := p.Spec // a copy; what is cut below is replaced, not changed
	spec.Hostname, spec.Subdomain, spec.HostAliases, spec.DNSConfig = "", "", nil, nil
	spec.Containers, spec.InitContainers = bare(spec.Containers), bare(spec.InitContainers)
	spec.Volumes = slices.DeleteFunc(slices.Clone(spec.Volumes), func(v corev1.Volume) bool {
		return v.Projected != nil || v.ConfigMap != nil || v.Secret != nil || v.EmptyDir != nil || v.DownwardAPI != nil
	})
	facts := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Labels: s.seenLabels(p)}, Spec: spec}
	if len(spec.Volumes) > 0 || len(spec.ResourceClaims) > 0 || resource.IsPodResizeDeferred(p) {
		facts.Name = p.Name // claims may be named after the pod; what is resized is no new pod
	}
	key, err := facts.Marshal()
	if err != nil {
		return string(p.UID) + "/" + p.Namespace + "/" + p.Name // a class of its own
	}
	return string(key)
}

// bare cuts from containers what runs in them. A mount stays when it asks the
// node for something: the others are named at random.
func bare(containers []corev1.Container) []corev1.Container {
	out := slices.Clone(containers)
	for i := range out {
		c := &out[i]
		c.Image, c.Command, c.Args, c.WorkingDir, c.Env, c.EnvFrom = "", nil, nil, "", nil, nil
		c.VolumeMounts = slices.DeleteFunc(slices.Clone(c.VolumeMounts), func(m corev1.VolumeMount) bool { return len(m.BindMountOptions) == 0 })
	}
	return out
}

// seenLabels are the labels of a pod that a rule looks at, its own or one of the
// cluster. Labels that only number or name it are not among them, unless they
// are selected by.
func (s *Snapshot) seenLabels(p *corev1.Pod) map[string]string {
	seen := map[string]string{}
	for _, key := range append(looksAt(p), s.rules...) {
		if value, has := p.Labels[key]; has {
			seen[key] = value
		}
	}
	return seen
}

// looksAt lists the labels that the required rules of a pod select pods by.
func looksAt(p *corev1.Pod) (labels []string) {
	for _, c := range p.Spec.TopologySpreadConstraints {
		labels = append(append(labels, selects(c.LabelSelector)...), c.MatchLabelKeys...)
	}
	a := p.Spec.Affinity
	if a == nil {
		return labels
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, t := range terms {
		labels = append(append(append(labels, selects(t.LabelSelector)...), t.MatchLabelKeys...), t.MismatchLabelKeys...)
	}
	return labels
}

func selects(s *metav1.LabelSelector) []string {
	if s == nil {
		return nil
	}
	keys := slices.Collect(maps.Keys(s.MatchLabels))
	for _, e := range s.MatchExpressions {
		keys = append(keys, e.Key)
	}
	return keys
}

// viewOf returns what PreFilter makes of a pod now. For a pod whose node alone
// decides it is that of its class.
func (s *Snapshot) viewOf(c *class, p *corev1.Pod) (*view, error) {
	if c.view.alone && c.epoch == s.affinity.epoch {
		return &c.view, nil
	}
	state := framework.NewCycleState()
	s.sieve.set(p)
	defer s.sieve.off()
	allowed, status, narrowedBy := s.sim.filters.RunPreFilterPlugins(s.sim.ctx, state, p)
	switch {
	case status.IsRejected():
		why := reason(status)
		return &view{rejected: &why}, nil
	case !status.IsSuccess():
		return nil, status.AsError()
	}
	v := view{pod: p, state: state, allowed: allowed, narrowedBy: narrowedBy, alone: s.alone(state, p)}
	c.view, c.epoch = v, s.affinity.epoch
	return &v, nil
}

// Class is a set of pods that no filter can tell apart, as of the rules in the
// cluster now. Equal classes are equal values.
type Class struct{ of *class }

// ClassOf returns the class of a pod.
func (s *Snapshot) ClassOf(p *corev1.Pod) Class { return Class{s.classOf(p)} }

// Scope is how far the filters look to place some pods, as things are now.
type Scope int

const (
	// Wide: a rule looks at other nodes, at volumes or at devices.
	Wide Scope = iota
	// Alone: of each pod every node decides by its own state. What happens on a
	// node that takes none of them anyway is of no interest.
	Alone
	// EqualAndAlone: so it is, and no filter can tell the pods apart. Less on
	// the nodes never means fewer places for them.
	EqualAndAlone
)

// Scope looks at the rules of pods, and at those that others have about them.
func (s *Snapshot) Scope(b Batch) (Scope, error) {
	b, alone, err := s.current(b)
	if err != nil || alone {
		return EqualAndAlone, err
	}
	scope := EqualAndAlone
	var last *class
	for _, p := range b.pods {
		c := s.classOf(p)
		if c == last {
			continue
		}
		v, err := s.viewOf(c, p)
		switch {
		case err != nil:
			return Wide, unfit(p, err)
		case !v.alone:
			return Wide, nil
		case last != nil:
			scope = Alone
		}
		last = c
	}
	return scope, nil
}

// alone reports whether a node's own state decides about a pod: all filters that
// look further have left it aside. Anti-affinity of others that reaches no
// further than their own node is such state, too.
func (s *Snapshot) alone(state fwk.CycleState, p *corev1.Pod) bool {
	skipped := state.GetSkipFilterPlugins()
	for _, name := range s.sim.elsewhere {
		here := name == names.InterPodAffinity && !relates(p) && !s.affinity.fresh(s.nodes).far
		if !here && !skipped.Has(name) {
			return false
		}
	}
	return true
}

// relates reports whether a pod has rules of its own about other pods.
func relates(p *corev1.Pod) bool {
	a := p.Spec.Affinity
	return a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// shortage is an extended resource of which nodes may have too little left for
// a class. It is asked before all filters: NodeResourcesFit would refuse,
// whatever the others say.
type shortage struct {
	need int64
	free []int64 // by position of the node
	why  *Reason
}

type shortages []shortage

func (s *Snapshot) shortages(c *class) shortages {
	all := make(shortages, len(c.needs))
	for i, need := range c.needs {
		all[i] = shortage{need.count, s.free.of(need.name, s.nodes), need.why}
	}
	return all
}

// of is why the node at a position is too small.
func (all shortages) of(at int) *Reason {
	for _, s := range all {
		if s.need > s.free[at] {
			return s.why
		}
	}
	return nil
}

// remembered is the reason for which a node in its present state refused the
// class before, if it did.
func (c *class) remembered(at int, n fwk.NodeInfo) *Reason {
	if at < len(c.refused) && c.refused[at].generation == n.GetGeneration() {
		return c.refused[at].why
	}
	return nil
}

func (c *class) remember(at int, n fwk.NodeInfo, why *Reason) {
	if at >= len(c.refused) {
		c.refused = append(c.refused, make([]verdict, at+1-len(c.refused))...)
	}
	c.refused[at] = verdict{n.GetGeneration(), why}
}
