package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
)

const (
	mebi = 1 << 20
	gibi = 1 << 30
)

// planned stands for the UID of a burst that is not bought yet.
const planned = "planned"

// size finds how many machines of the offer the work needs. All pods get a seat
// or the offer is refused.
func (r *run) size(w *work, c *candidate) *Reason {
	if w.wired != nil && c.fabric() == "" {
		return w.wired
	}
	most := r.Settings.Machines
	if !w.Together {
		most = len(w.pods) // in as many bursts as it takes
	}
	packing, err := r.cluster.Pack(w.batch.InTurns(r.turns(w, c.sale)), c.stock, most)
	switch {
	case err != nil:
		return refusal(undecidable(err))
	case packing.Misfit != nil:
		return refusal(misfit(packing))
	case packing.TooMany:
		return refusal(Reason{
			Code: GangTooLarge, Message: fmt.Sprintf("it needs more than %s of this offer", count(r.Settings.Machines, "machine")),
			Remedy: "make it smaller, or use larger machines",
		})
	}
	c.machines, c.turns, c.packing = int32(packing.Machines), packing.Turns, packing
	if w.Together && c.machines > 1 && len(w.Fabrics) > 0 {
		return w.spans(c)
	}
	if packing.Machines > r.Settings.Machines {
		c.into(parted(c.sale, packing.Turns, packing.Seats(), r.Settings.Machines))
	}
	return nil
}

// virtual is the machine of an offer as it is expected to join: as others of its
// type did, or as predicted.
func virtual(s *sale, settings Settings) placement.Machine {
	return corrected(predicted(s, settings), s.learned())
}

// predicted is the machine that an offer lets expect, less what the kubelet and
// the system keep for themselves.
// cases: H5 aws/karpenter-provider-aws#1905, H8 kubernetes/autoscaler#4082
func predicted(s *sale, settings Settings) placement.Machine {
	kept := func(n int64) int64 { return n - n*int64(settings.ReservePercent)/100 }
	return placement.Machine{
		InstanceType: s.offer.InstanceType, Region: s.offer.Region, Zone: s.offer.Zone, Arch: s.offer.Arch,
		Labels:   s.offer.Labels,
		MilliCPU: s.offer.MilliCPU - int64(settings.ReserveMilliCPU),
		Memory:   kept(s.offer.MemoryMiB * mebi), Disk: kept(s.offer.DiskGiB * gibi),
		GPUResource: s.offer.GPUResource, GPUs: int64(s.offer.GPUs),
		Taints: []corev1.Taint{
			{Key: v1alpha1.BurstTaint, Value: planned, Effect: corev1.TaintEffectNoSchedule},
			{Key: v1alpha1.BurstTaint, Value: planned, Effect: corev1.TaintEffectNoExecute},
		},
	}
}

// gpuAsk is what a pod asks of one GPU resource; of equal asks the first pod's
// stands for all.
type gpuAsk struct {
	pod string
	gpuNeed
}

// gpuAsks also returns the largest need of each pod. Of equal pods the first asks
// for all.
func gpuAsks(pods []*corev1.Pod, equal bool) (asks []gpuAsk, largest []gpuNeed) {
	if equal {
		asks, largest = gpuAsks(pods[:1], false)
		return asks, slices.Repeat(largest, len(pods))
	}
	largest = make([]gpuNeed, len(pods))
	for i, p := range pods {
		needs := gpuRequests(p)
		for _, need := range needs {
			if !slices.ContainsFunc(asks, func(a gpuAsk) bool { return a.gpuNeed == need }) {
				asks = append(asks, gpuAsk{p.Name, need})
			}
		}
		largest[i] = largestOf(needs)
	}
	return asks, largest
}

// largestOf is the largest number of GPUs of one kind.
func largestOf(needs []gpuNeed) gpuNeed {
	var most gpuNeed
	for _, need := range needs {
		if need.count > most.count || need.count == most.count && need.name < most.name {
			most = need
		}
	}
	return most
}

// speaking is what stands against machines by the GPUs that they have.
func (w *work) speaking(variety []gpuNeed) []*Reason {
	whys := make([]*Reason, len(variety))
	for i, has := range variety {
		whys[i] = speaksGPU(w.asks, has)
	}
	return whys
}

// speaksGPU refuses a machine whose GPUs have another name, or are too few in
// one machine, than a pod asks for: the filters would only say "insufficient".
func speaksGPU(asks []gpuAsk, has gpuNeed) *Reason {
	for _, a := range asks {
		switch {
		case a.name != has.name:
			return refusal(Reason{
				Code: ExtendedResourceUnknown, Message: fmt.Sprintf("pod %s asks for %s, the machine has %s", a.pod, a.name, has.name),
				Remedy: "ask for a resource that an offer has",
			})
		case a.count > has.count:
			return refusal(Reason{
				Code: GPUCountPerNode, Message: fmt.Sprintf("pod %s asks for %d %s, one machine has %d", a.pod, a.count, a.name, has.count),
				Remedy: "split the work over more pods, or use a larger machine",
			})
		}
	}
	return nil
}

// misfit turns a filter's words into a reason with a code. A pod that no fresh
// machine of the offer takes is named with what it asks for.
func misfit(packing placement.Packing) Reason {
	p, why := packing.Misfit.Pod, packing.Misfit.Reasons[0]
	message := fmt.Sprintf("pod %s does not fit on a fresh machine: %s", p.Name, why.Message)
	if packing.Daemons > 0 {
		message = fmt.Sprintf("pod %s does not fit on a fresh machine beside %s of DaemonSets: %s", p.Name, count(packing.Daemons, "pod"), why.Message)
	}
	switch why.Plugin {
	case "NodeAffinity":
		if model := wantsModel(p); model != "" {
			return Reason{Code: GPUModelNotOffered, Message: fmt.Sprintf("pod %s wants %s", p.Name, model), Remedy: "ask for a GPU model that is offered"}
		}
		return Reason{Code: NodeSelectorUnsatisfiable, Message: message, Remedy: "relax its node selector or node affinity"}
	case "InterPodAffinity":
		return Reason{Code: PodAffinityOnPrem, Message: message, Remedy: "relax its pod affinity"}
	case "PodTopologySpread":
		return Reason{Code: TopologySpread, Message: message, Remedy: "relax its topology spread constraints"}
	case "VolumeBinding", "VolumeZone", "VolumeRestrictions", "NodeVolumeLimits":
		return Reason{Code: LocalPV, Message: message, Remedy: "read the data from S3 instead"}
	case "NodeResourcesFit":
		if name, lacks := strings.CutPrefix(why.Message, "Insufficient "); lacks && strings.Contains(name, "/") && !IsGPU(corev1.ResourceName(name)) {
			return Reason{Code: ExtendedResourceUnknown, Message: fmt.Sprintf("pod %s asks for more %s than a fresh machine has", p.Name, name), Remedy: "ask for a resource that an offer has"}
		}
		return Reason{Code: MachineTooSmall, Message: message, Remedy: "ask for less, or connect an offer with larger machines"}
	}
	return Reason{Code: OtherReason, Message: message, Remedy: "correct the pod"}
}

// wantsModel returns the GPU label that a pod selects by, with its values.
func wantsModel(p *corev1.Pod) string {
	var wants []string
	for key, value := range p.Spec.NodeSelector {
		if strings.HasPrefix(key, "nvidia.com/") {
			wants = append(wants, key+"="+value)
		}
	}
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				if strings.HasPrefix(e.Key, "nvidia.com/") {
					wants = append(wants, fmt.Sprintf("%s %s %s", e.Key, e.Operator, strings.Join(e.Values, ",")))
				}
			}
		}
	}
	slices.Sort(wants)
	return strings.Join(wants, " and ")
}

func refusal(r Reason) *Reason { return &r }
