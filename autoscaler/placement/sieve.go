package placement

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// sieve shows PreFilter only those pods of a node that the rules of one pod can
// mean. Their selectors mostly ask for a label with a value, and a pod without it
// is no match, whatever else they ask: to compare each pod with each selector is
// most of the work of an inter-pod rule.
type sieve struct {
	meshes map[string]*mesh
	now    *mesh       // of the pod that is asked about; nil shows everything
	pod    *corev1.Pod // the same
}

// mostMeshes bounds what is remembered. Rules are made by templates, and few.
const mostMeshes = 200

// mesh lets through the pods that have one of some labels.
type mesh struct {
	labels []label
	nodes  []fwk.NodeInfo // *sifted, by place
}

type label struct{ key, value string }

func (a label) compare(b label) int {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.value, b.value))
}

// sifted is a node with the pods that a mesh lets through.
type sifted struct {
	fwk.NodeInfo
	generation int64 // of the node's state
	pods       []fwk.PodInfo
}

// GetPods returns the pods that count.
func (n *sifted) GetPods() []fwk.PodInfo { return n.pods }

// set has the sieve stand for the rules of a pod, until the next one.
func (s *sieve) set(p *corev1.Pod) {
	s.pod, s.now = p, nil
	labels, known := meant(p)
	if !known || len(labels) == 0 {
		return
	}
	key := ""
	for _, l := range labels {
		key += l.key + "\x00" + l.value + "\x00"
	}
	if s.meshes[key] == nil {
		if s.meshes == nil || len(s.meshes) == mostMeshes {
			s.meshes = map[string]*mesh{}
		}
		s.meshes[key] = &mesh{labels: labels}
	}
	s.now = s.meshes[key]
}

// off has the sieve show everything.
func (s *sieve) off() { s.pod, s.now = nil, nil }

// list returns the nodes as the sieve shows them.
func (s *sieve) list(nodes []fwk.NodeInfo) []fwk.NodeInfo {
	if s.now == nil {
		return nodes
	}
	m := s.now
	for len(m.nodes) < len(nodes) {
		m.nodes = append(m.nodes, &sifted{generation: -1})
	}
	for i, n := range nodes {
		at := m.nodes[i].(*sifted)
		if generation := n.GetGeneration(); at.generation != generation {
			at.NodeInfo, at.generation, at.pods = n, generation, m.through(at.pods[:0], n.GetPods())
		}
	}
	return m.nodes[:len(nodes)]
}

// through appends to kept the pods that a mesh lets through.
func (m *mesh) through(kept, pods []fwk.PodInfo) []fwk.PodInfo {
	for _, p := range pods {
		if hasOne(p.GetPod(), m.labels) {
			kept = append(kept, p)
		}
	}
	return kept
}

func hasOne(p *corev1.Pod, labels []label) bool {
	return slices.ContainsFunc(labels, func(l label) bool {
		value, has := p.Labels[l.key]
		return has && value == l.value
	})
}

// meant are labels of which every pod that the required rules of p select has at
// least one; false where a rule may select pods without any of them.
func meant(p *corev1.Pod) ([]label, bool) {
	var labels []label
	known := true
	add := func(s *metav1.LabelSelector) {
		some, ok := pick(s)
		labels, known = append(labels, some...), known && ok
	}
	for _, c := range p.Spec.TopologySpreadConstraints {
		add(c.LabelSelector)
	}
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			for _, t := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				add(t.LabelSelector)
			}
		}
		if a.PodAntiAffinity != nil {
			for _, t := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
				add(t.LabelSelector)
			}
		}
	}
	slices.SortFunc(labels, label.compare)
	return slices.Compact(labels), known
}

// pick returns labels of which every pod that a selector selects has at least one;
// false where there are no such.
func pick(s *metav1.LabelSelector) ([]label, bool) {
	if s == nil {
		return nil, false
	}
	if len(s.MatchLabels) > 0 {
		key := slices.Min(slices.Collect(maps.Keys(s.MatchLabels)))
		return []label{{key, s.MatchLabels[key]}}, true
	}
	for _, e := range s.MatchExpressions {
		if e.Operator == metav1.LabelSelectorOpIn {
			labels := make([]label, len(e.Values))
			for i, value := range e.Values {
				labels[i] = label{e.Key, value}
			}
			return labels, true
		}
	}
	return nil, false
}
