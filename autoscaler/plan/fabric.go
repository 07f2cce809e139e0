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

// fabricResources are how device plugins name a way into a fast fabric: those of
// the RDMA shared device plugin and of SR-IOV (rdma/...), NVIDIA's network
// operator and AWS's EFA. A name that ends in a slash stands for all below it.
var fabricResources = []string{"rdma/", "nvidia.com/hostdev", "vpc.amazonaws.com/efa"}

// fabric refuses an offer for a gang over several machines that needs a fast
// fabric between them, where the offer has none. Over plain Ethernet such work
// would run, and take a multiple of the time that its price was reckoned with.
// What pods ask of a resource they need on one machine, too.
func (w *work) fabric(c *candidate) *Reason {
	if !w.Together {
		return nil
	}
	has := c.offer.Labels[v1alpha1.FabricAnnotation]
	for _, p := range w.pods {
		if name := fabricRequest(p); name != "" && has == "" {
			return lacksFabric(fmt.Sprintf("pod %s asks for %s, and the offer has no fast fabric", p.Name, name))
		}
	}
	if c.machines < 2 {
		return nil
	}
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

// fabricRequest is the resource by which a pod asks for a fabric.
func fabricRequest(p *corev1.Pod) string {
	var names []string
	for i := range p.Spec.Containers {
		for name := range p.Spec.Containers[i].Resources.Requests {
			if slices.ContainsFunc(fabricResources, func(known string) bool {
				return string(name) == known || strings.HasSuffix(known, "/") && strings.HasPrefix(string(name), known)
			}) {
				names = append(names, string(name))
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}
