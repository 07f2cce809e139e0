package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/providers"
)

// Learn puts together what machines of a type turned out to be, from the nodes
// of one burst: what all of them have.
func Learn(instanceType string, nodes []*corev1.Node) v1alpha1.LearnedMachine {
	m := v1alpha1.LearnedMachine{InstanceType: instanceType}
	for i, n := range nodes {
		has := n.Status.Allocatable
		least := func(into *int64, value int64) {
			if i == 0 || value < *into {
				*into = value
			}
		}
		least(&m.MilliCPU, has.Cpu().MilliValue())
		least(&m.Memory, has.Memory().Value())
		least(&m.Disk, has.StorageEphemeral().Value())
		least(&m.Pods, has.Pods().Value())
		if i == 0 {
			m.Labels = gpuLabels(n.Labels)
		}
		maps.DeleteFunc(m.Labels, func(key, value string) bool { return n.Labels[key] != value })
	}
	return m
}

// gpuLabels are the labels that tell what GPUs a node has, without those that
// are another on every node or at every time.
func gpuLabels(labels map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range labels {
		vendor, name, _ := strings.Cut(key, "/")
		if (vendor == "nvidia.com" || vendor == "amd.com") && !strings.Contains(name, "timestamp") && !strings.Contains(name, "deploy") {
			kept[key] = value
		}
	}
	return kept
}

// learned returns what is known of an offer's machines, nil for nothing.
func (s *sale) learned() *v1alpha1.LearnedMachine {
	if s.provider == nil {
		return nil
	}
	i := slices.IndexFunc(s.provider.Status.Learned, func(m v1alpha1.LearnedMachine) bool { return m.InstanceType == s.offer.InstanceType })
	if i < 0 {
		return nil
	}
	return &s.provider.Status.Learned[i]
}

// corrected is the machine as it turned out to be. Nothing known of a size, or
// of a label, leaves what was predicted.
func corrected(m placement.Machine, is *v1alpha1.LearnedMachine) placement.Machine {
	if is == nil {
		return m
	}
	for _, f := range []struct {
		into *int64
		is   int64
	}{{&m.MilliCPU, is.MilliCPU}, {&m.Memory, is.Memory}, {&m.Disk, is.Disk}, {&m.Pods, is.Pods}} {
		if f.is > 0 {
			*f.into = f.is
		}
	}
	labels := maps.Clone(m.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, is.Labels)
	m.Labels = labels
	return m
}

// Differences says of each type of machine that a provider sells and that has
// been seen as a node what it lacks of what its offer had let expect: sorted
// sentences, none when all is as predicted.
func Differences(p *v1alpha1.BurstProvider, offers []providers.Offer, settings Settings) []string {
	settings = settings.withDefaults()
	var all []string
	for _, o := range offers {
		s := &sale{offer: o, provider: p}
		is := s.learned()
		if is == nil {
			continue
		}
		if lacks := lacking(predicted(s, settings), is); len(lacks) > 0 {
			all = append(all, o.InstanceType+" has "+strings.Join(lacks, ", "))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func lacking(m placement.Machine, is *v1alpha1.LearnedMachine) []string {
	var lacks []string
	less := func(what, unit string, is, was int64) {
		if is > 0 && is < was {
			lacks = append(lacks, fmt.Sprintf("%s %d%s instead of %d%s", what, is, unit, was, unit))
		}
	}
	less("cpu", "m", is.MilliCPU, m.MilliCPU)
	less("memory", "Mi", is.Memory/mebi, m.Memory/mebi)
	less("disk", "Mi", is.Disk/mebi, m.Disk/mebi)
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		if value, told := is.Labels[key]; told && value != m.Labels[key] {
			lacks = append(lacks, fmt.Sprintf("label %s %q instead of %q", key, value, m.Labels[key]))
		}
	}
	return lacks
}
