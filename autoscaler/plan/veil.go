package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// personal begin the keys of labels in which tools write who made a pod: Argo
// Workflows, JupyterHub, Coder.
func personal() []string {
	return []string{"workflows.argoproj.io/creator", "workflows.argoproj.io/actor", "hub.jupyter.org/", "com.coder.user."}
}

// veil puts numbers in the place of the values of personal labels, on pods and
// in the rules that select by them. Equal values have equal numbers, so rules
// tell apart what they did before.
type veil struct {
	keys  map[string]bool   // by the tenants' word
	names map[string]string // value to number
}

func newVeil(s *State) *veil {
	v := &veil{keys: map[string]bool{}, names: map[string]string{}}
	for i := range s.Tenants {
		for _, key := range s.Tenants[i].Spec.PersonalLabels {
			v.keys[key] = true
		}
	}
	for _, p := range s.Cluster.Pods {
		v.learn(p.Labels, &p.Spec)
	}
	for i := range s.Gangs {
		for j := range s.Gangs[i].Pods {
			v.learn(s.Gangs[i].Pods[j].Labels, &s.Gangs[i].Pods[j].Spec)
		}
	}
	for i := range s.Cluster.DaemonSets {
		t := &s.Cluster.DaemonSets[i].Spec.Template
		v.learn(t.Labels, &t.Spec)
	}
	for n, value := range slices.Sorted(maps.Keys(v.names)) {
		v.names[value] = fmt.Sprintf("person-%d", n+1)
	}
	return v
}

func (v *veil) hides(key string) bool {
	return v.keys[key] || slices.ContainsFunc(personal(), func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// learn notes the values that are to be hidden.
func (v *veil) learn(labels map[string]string, spec *corev1.PodSpec) {
	for key, value := range labels {
		v.note(key, value)
	}
	for _, s := range selectors(spec) {
		if s == nil {
			continue
		}
		for key, value := range s.MatchLabels {
			v.note(key, value)
		}
		for _, e := range s.MatchExpressions {
			v.note(e.Key, e.Values...)
		}
	}
}

func (v *veil) note(key string, values ...string) {
	if v.hides(key) {
		for _, value := range values {
			v.names[value] = ""
		}
	}
}

// over hides them, in labels and rules of its own.
func (v *veil) over(labels *map[string]string, spec *corev1.PodSpec) {
	if len(v.names) == 0 {
		return
	}
	*labels = maps.Clone(*labels)
	v.among(*labels)
	spec.Affinity = spec.Affinity.DeepCopy()
	spec.TopologySpreadConstraints = slices.Clone(spec.TopologySpreadConstraints)
	for i := range spec.TopologySpreadConstraints {
		c := &spec.TopologySpreadConstraints[i]
		c.LabelSelector = c.LabelSelector.DeepCopy()
	}
	for _, s := range selectors(spec) {
		if s == nil {
			continue
		}
		v.among(s.MatchLabels)
		for _, e := range s.MatchExpressions {
			for i := range e.Values {
				if v.hides(e.Key) {
					e.Values[i] = v.names[e.Values[i]]
				}
			}
		}
	}
}

func (v *veil) among(labels map[string]string) {
	for key, value := range labels {
		if v.hides(key) {
			labels[key] = v.names[value]
		}
	}
}

// selectors are those by which a pod selects other pods.
func selectors(spec *corev1.PodSpec) []*metav1.LabelSelector {
	var all []*metav1.LabelSelector
	for i := range spec.TopologySpreadConstraints {
		all = append(all, spec.TopologySpreadConstraints[i].LabelSelector)
	}
	if spec.Affinity == nil {
		return all
	}
	var required []corev1.PodAffinityTerm
	var preferred []corev1.WeightedPodAffinityTerm
	if a := spec.Affinity.PodAffinity; a != nil {
		required, preferred = a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution
	}
	if a := spec.Affinity.PodAntiAffinity; a != nil {
		required = slices.Concat(required, a.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred = slices.Concat(preferred, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for _, t := range required {
		all = append(all, t.LabelSelector)
	}
	for _, t := range preferred {
		all = append(all, t.PodAffinityTerm.LabelSelector)
	}
	return all
}
