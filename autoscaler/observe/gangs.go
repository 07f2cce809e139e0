package observe

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/autoscaler/policy"
)

// asksForGPU reports whether any container of a pod asks for a GPU resource.
func asksForGPU(spec *corev1.PodSpec) bool {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for _, c := range containers {
			for name, q := range c.Resources.Limits {
				if !q.IsZero() && plan.IsGPU(name) {
					return true
				}
			}
		}
	}
	return false
}

// split tells bound pods, which take room, from the work that waits.
func split(pods []*corev1.Pod, nodes []*corev1.Node, owned *owners) (bound []*corev1.Pod, gangs []plan.Gang) {
	burstNodes := map[string]bool{}
	for _, n := range nodes {
		for _, t := range n.Spec.Taints {
			burstNodes[n.Name] = burstNodes[n.Name] || t.Key == v1alpha1.BurstTaint
		}
	}
	work := owned.work(pods)
	bound = make([]*corev1.Pod, 0, len(pods))
	for _, pod := range pods {
		m := work[keyOf(owned.of(pod).owner)]
		switch away := pod.Spec.NodeName != ""; {
		case over(pod):
			if m != nil && pod.Status.Phase == corev1.PodSucceeded {
				m.done++
			}
		case away:
			bound = append(bound, pod)
			if m != nil && !burstNodes[pod.Spec.NodeName] {
				m.bound++
			}
		case m != nil && pod.DeletionTimestamp.IsZero():
			m.take(pod, owned)
		}
	}
	for _, m := range work { // the planner brings them into order
		gangs = append(gangs, m.gang(owned))
	}
	return bound, gangs
}

// work finds the owners with GPU work that waits: by their pods, and by
// themselves where they have none because they are suspended or beyond a quota.
func (o *owners) work(pods []*corev1.Pod) map[ownerKey]*members {
	found := map[ownerKey]*members{}
	of := func(w *way) *members {
		m := found[keyOf(w.owner)]
		if m == nil {
			m = &members{owner: w.owner, ways: map[*way]bool{}}
			found[keyOf(w.owner)] = m
		}
		return m
	}
	for _, pod := range pods {
		if pod.Spec.NodeName == "" && !over(pod) && pod.DeletionTimestamp.IsZero() && asksForGPU(&pod.Spec) {
			w := o.of(pod)
			if s, _ := o.look(pod, w); s != unseen {
				of(w)
			}
		}
	}
	for _, x := range o.objects {
		if x.suspended() && x.asks() {
			w := o.climb(x.Owner)
			w.why = w.held()
			of(w).ways[w] = true
		}
	}
	o.lack(of)
	return found
}

// members are the living pods of one owner.
type members struct {
	owner   plan.Owner
	ways    map[*way]bool
	waiting []*corev1.Pod // refused by the scheduler
	held    []heldPod
	bound   int          // at home
	unseen  int          // without a node, and not looked at yet
	done    int          // have succeeded
	short   *plan.Reason // why some don't exist, nil when all do
}

// heldPod is a pod that is pending for another reason than room.
type heldPod struct {
	pod *corev1.Pod
	why plan.Reason
}

// take counts a pod without a node. Pods without GPUs belong to their gang, and
// to no independent work.
func (m *members) take(pod *corev1.Pod, owned *owners) {
	w := owned.of(pod)
	if !w.together && !asksForGPU(&pod.Spec) {
		return
	}
	m.ways[w] = true
	switch s, why := owned.look(pod, w); s {
	case refused:
		m.waiting = append(m.waiting, refusedWith(pod, w.refusedAt()))
	case held:
		m.held = append(m.held, heldPod{pod, why})
	case unseen:
		m.unseen++
	}
}

func (m *members) together() bool {
	for w := range m.ways {
		if w.together {
			return true
		}
	}
	return false
}

// has reports whether an object is the owner. References may name it in another
// version of its API.
func (m *members) has(x *object) bool { return keyOf(x.Owner) == keyOf(m.owner) }

// gang is the work of the members. Those that must start together are all that
// live: with one that the scheduler has not refused yet the gang is incomplete.
func (m *members) gang(owned *owners) plan.Gang {
	all := m.waiting
	if m.together() || len(all) == 0 {
		for _, h := range m.held {
			all = append(slices.Clip(all), h.pod)
		}
	}
	g := stated(all)
	g.Owner, g.Together, g.Bound, g.Hold = m.owner, m.together(), m.bound, m.hold()
	if g.Pods = m.waiting; len(g.Pods) == 0 {
		g.Pods = all // every one of them is held
	}
	if g.Together {
		g.Size = max(m.size(owned), len(m.waiting)+len(m.held)+m.bound+m.unseen)
	}
	lacks(&g, m.short, len(m.waiting))
	m.limit(&g)
	return g
}

// size is how many members the gang wants in all, as far as anybody says.
func (m *members) size(owned *owners) int {
	stated, pods, jobs := 0, 0, 0
	seen := map[*object]bool{}
	for w := range m.ways {
		stated = max(stated, w.size)
		if x := w.sized(); x != nil && !seen[x] {
			seen[x] = true
			p, j := owned.wants(x, w.of)
			pods, jobs = pods+p, jobs+j
		}
	}
	return max(stated, jobs+max(pods-m.done, 0))
}

// limit puts down what the owners say of the work: since when it exists, whether
// it ends by itself, and the soonest of their deadlines.
func (m *members) limit(g *plan.Gang) {
	run := g.MaxRun
	for w := range m.ways {
		g.Service = g.Service || w.service
		r, end := w.deadline()
		if g.MaxRun == 0 && r > 0 && (run == 0 || r < run) {
			run = r
		}
		if !end.IsZero() && (g.EndsBy.IsZero() || end.Before(g.EndsBy)) {
			g.EndsBy = end
		}
		for _, x := range append(slices.Clip(w.path), w.group) {
			if x != nil && m.has(x) {
				g.Created = x.GetCreationTimestamp().Time
			}
		}
	}
	g.MaxRun = run
}

// stated puts together what the pods of one owner state, in whatever order they
// come: all that any of them reads and writes, the highest data class, the
// longest run. The least important pod ranks them all: nobody may pay for it as
// for the others.
func stated(pods []*corev1.Pod) plan.Gang {
	var g plan.Gang
	var classes []string
	for i, pod := range pods {
		if created := pod.CreationTimestamp.Time; i == 0 || created.Before(g.Created) {
			g.Created = created
		}
		priority, class := int32(0), pod.Spec.PriorityClassName
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		if i == 0 || priority < g.Priority || priority == g.Priority && class < g.PriorityClass {
			g.Priority, g.PriorityClass = priority, class
		}
		if s := pod.Spec.ActiveDeadlineSeconds; s != nil {
			g.MaxRun = max(g.MaxRun, plan.Seconds(*s))
		}
		if class := pod.Annotations[v1alpha1.DataClassAnnotation]; class != "" {
			classes = append(classes, class)
		}
		if fabric := pod.Annotations[v1alpha1.FabricAnnotation]; fabric != "" {
			g.Fabrics = append(g.Fabrics, fabric)
		}
		g.Inputs = append(g.Inputs, urls(pod.Annotations[v1alpha1.InputsAnnotation])...)
		g.Outputs = append(g.Outputs, urls(pod.Annotations[v1alpha1.OutputsAnnotation])...)
	}
	g.DataClass = highest(classes)
	g.Inputs, g.Outputs, g.Fabrics = each(g.Inputs), each(g.Outputs), each(g.Fabrics)
	return g
}

// highest returns the highest class; one that is no class goes before all
// others, so that policy refuses it.
func highest(classes []string) string {
	slices.Sort(classes)
	top := policy.Class("")
	for _, c := range classes {
		if top = policy.Highest(policy.Class(c), cmp.Or(top, policy.Class(c))); top == "" {
			return c
		}
	}
	return string(top)
}

// each returns the texts sorted, and every one once.
func each(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// over reports whether a pod has ended.
func over(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func urls(annotation string) []string {
	var out []string
	for part := range strings.SplitSeq(annotation, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
