package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// anyFabric is what pods declare that need a fast fabric, whichever.
const anyFabric = "any"

// fabric is the fast fabric between machines of an offer, or nothing.
func (s *sale) fabric() string { return s.offer.Labels[v1alpha1.FabricAnnotation] }

// wiring is what stands against offers without a fast fabric for a gang that asks
// for a resource of one. Nothing would plug it in there.
func (w *work) wiring() *Reason {
	if !w.Together || len(w.pods) < 2 {
		return nil
	}
	pods := w.pods
	if w.batch.Equal() {
		pods = pods[:1] // it speaks for all
	}
	for _, p := range pods {
		if name := fabricRequest(p); name != "" {
			return lacksFabric(fmt.Sprintf("pod %s asks for %s, and the offer has no fast fabric", p.Name, name))
		}
	}
	return nil
}

// spans refuses an offer for a gang over several machines that says which fabric
// they have to talk over, where the offer has none or another. Over plain Ethernet
// it would run, and take a multiple of the time that its price was reckoned with.
func (w *work) spans(c *candidate) *Reason {
	has := c.fabric()
	for _, wants := range w.Fabrics {
		switch {
		case has == wants || has != "" && wants == anyFabric:
		case has == "":
			return lacksFabric(fmt.Sprintf("its %d machines would have to talk over a fast fabric (%s), and the offer has none", c.machines, wants))
		default:
			return lacksFabric(fmt.Sprintf("its %d machines would have to talk over %s, and the offer has %s", c.machines, wants, has))
		}
	}
	return nil
}

func lacksFabric(message string) *Reason {
	return refusal(Reason{
		Code: GangNeedsFabric, Message: message,
		Remedy: "run it on-prem, make it fit on one machine, or drop what it says about the fabric (annotation " + v1alpha1.FabricAnnotation + ")",
	})
}

// wires reports whether a resource is a way into a fast fabric, as device plugins
// name it: those of the RDMA shared device plugin and of SR-IOV (rdma/...), of
// NVIDIA's network operator, and of AWS's EFA.
func wires(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), "rdma/") || name == "nvidia.com/hostdev" || name == "vpc.amazonaws.com/efa"
}

// fabricRequest is the resource by which a pod asks for a fabric.
func fabricRequest(p *corev1.Pod) string {
	var names []string
	for i := range p.Spec.Containers {
		for name := range p.Spec.Containers[i].Resources.Requests {
			if wires(name) {
				names = append(names, string(name))
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
