package plan

import (
	"fmt"
	"maps"
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

// size finds how many machines of the offer the work needs: each pod goes on
// the first virtual machine that takes it, and where none does, one more is
// added. All pods get a seat or the offer is refused. Nothing of it stays in
// the simulated cluster: a burst's machines are there for its own gang only.
func (r *run) size(w *work, s sale) (candidate, *Reason) {
	c := candidate{sale: s}
	if why := speaksGPU(w, s); why != nil {
		return c, why
	}
	r.cluster.Fork()
	defer r.cluster.Revert()
	var machines []string
	for _, p := range placement.LargestFirst(w.pods) {
		at, why := r.seat(w, s, p, &machines)
		if why != nil {
			return c, why
		}
		c.seats = append(c.seats, Seat{Name: p.Name, UID: p.UID, Machine: at})
	}
	c.machines = int32(len(machines))
	slices.SortFunc(c.seats, func(a, b Seat) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

// seat places one pod and returns the number of its machine. The machines that
// are there already are tried first; a fresh one that does not take the pod
// means that none ever will.
func (r *run) seat(w *work, s sale, p *corev1.Pod, machines *[]string) (int32, *Reason) {
	toleration := corev1.Toleration{Key: v1alpha1.BurstTaint, Operator: corev1.TolerationOpEqual, Value: string(w.Owner.UID)}
	ask := placement.Ask{Pods: []*corev1.Pod{p}, Tolerate: []corev1.Toleration{toleration}, Nodes: *machines}
	if len(*machines) > 0 {
		if answer, err := r.cluster.Fit(ask); err != nil {
			return 0, refusal(undecidable(err))
		} else if answer.OK() {
			return int32(slices.Index(*machines, answer.Placed[0].Node)), nil
		}
	}
	if len(*machines) == r.Settings.Machines {
		return 0, refusal(Reason{
			Code: GangTooLarge, Message: fmt.Sprintf("it needs more than %s of this offer", count(len(*machines), "machine")),
			Remedy: "make it smaller, or use larger machines",
		})
	}
	fresh := r.virtual(s, len(*machines))
	fresh.Taint = corev1.Taint{Key: toleration.Key, Value: toleration.Value, Effect: corev1.TaintEffectNoSchedule}
	if err := r.cluster.AddNode(fresh.Node()); err != nil {
		return 0, refusal(undecidable(err))
	}
	ask.Nodes = []string{fresh.Name}
	answer, err := r.cluster.Fit(ask)
	switch {
	case err != nil:
		return 0, refusal(undecidable(err))
	case !answer.OK():
		return 0, refusal(misfit(p, answer.Misfit[0]))
	}
	*machines = append(*machines, fresh.Name)
	return int32(len(*machines) - 1), nil
}

// virtual is the machine of an offer as it is expected to join, less what the
// kubelet and the system keep for themselves.
// cases: H5 aws/karpenter-provider-aws#1905, H8 kubernetes/autoscaler#4082
func (r *run) virtual(s sale, number int) placement.Machine {
	kept := func(n int64) int64 { return n - n*int64(r.Settings.ReservePercent)/100 }
	return placement.Machine{
		Name:         fmt.Sprintf("%soffer-%d", v1alpha1.NodePrefix, number),
		InstanceType: s.offer.InstanceType, Region: s.offer.Region, Zone: s.offer.Zone, Arch: s.offer.Arch,
		Labels:   s.offer.Labels,
		MilliCPU: s.offer.MilliCPU - int64(r.Settings.ReserveMilliCPU),
		Memory:   kept(s.offer.MemoryMiB * mebi), Disk: kept(s.offer.DiskGiB * gibi),
		GPUResource: s.offer.GPUResource, GPUs: int64(s.offer.GPUs),
	}
}

// speaksGPU refuses an offer whose GPUs have another name, or are too few in
// one machine, than a pod asks for: the filters would only say "insufficient".
func speaksGPU(w *work, s sale) *Reason {
	for _, p := range w.pods {
		need := gpuRequests(p)
		for _, name := range slices.Sorted(maps.Keys(need)) {
			switch n := need[name]; {
			case string(name) != s.offer.GPUResource:
				return refusal(Reason{
					Code: ExtendedResourceUnknown, Message: fmt.Sprintf("pod %s asks for %s, the machine has %s", p.Name, name, s.offer.GPUResource),
					Remedy: "ask for a resource that an offer has",
				})
			case n > int64(s.offer.GPUs):
				return refusal(Reason{
					Code: GPUCountPerNode, Message: fmt.Sprintf("pod %s asks for %d %s, one machine has %d", p.Name, n, name, s.offer.GPUs),
					Remedy: "split the work over more pods, or use a larger machine",
				})
			}
		}
	}
	return nil
}

// misfit turns a filter's words into a reason with a code. A pod that no fresh
// machine of the offer takes is named with what it asks for.
func misfit(p *corev1.Pod, m placement.Misfit) Reason {
	why := m.Reasons[0]
	message := fmt.Sprintf("pod %s does not fit on a fresh machine: %s", p.Name, why.Message)
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
