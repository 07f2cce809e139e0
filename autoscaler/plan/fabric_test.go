package plan_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// A gang over several machines goes only where its fabric is; on one machine, and
// as pods that don't talk, the same work goes anywhere.
func TestGangNeedsFabric(t *testing.T) {
	ring := func(n int, fabrics ...string) given {
		return site().gang("ring", 4).times(n).together().work(func(g *plan.Gang) { g.Fabrics = fabrics })
	}
	asking := func(name corev1.ResourceName) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = *newQuantity(1) }
	}
	with := func(g given, fabric string) given {
		return g.offer("cleura", 4, "2 EUR").seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) {
			o.Labels = map[string]string{v1alpha1.FabricAnnotation: fabric}
		})
	}
	const needs, buys = string(plan.GangNeedsFabric), string(plan.Bursts)
	for name, c := range map[string]struct {
		given given
		want  string
	}{
		"two machines, no fabric":               {ring(2, "infiniband").offer("cleura", 4, "2 EUR"), needs},
		"two machines, another fabric":          {with(ring(2, "infiniband"), "roce"), needs},
		"two machines, one of two fabrics":      {with(ring(2, "infiniband", "roce"), "roce"), needs},
		"two machines, whichever, none":         {ring(2, "any").offer("cleura", 4, "2 EUR"), needs},
		"two machines, whichever, one":          {with(ring(2, "any"), "roce"), buys},
		"two machines, that fabric":             {with(ring(2, "infiniband"), "infiniband"), buys},
		"two machines that nobody asks to":      {ring(2).offer("cleura", 4, "2 EUR"), buys},
		"one machine takes both":                {ring(2, "infiniband").offer("cleura", 8, "4 EUR"), buys},
		"pods that don't talk":                  {site().gang("sweep", 4).times(2).work(func(g *plan.Gang) { g.Fabrics = []string{"infiniband"} }).offer("cleura", 4, "2 EUR"), buys},
		"RDMA resources":                        {ring(2).pods(asking("rdma/hca")).offer("cleura", 8, "4 EUR"), needs},
		"EFA":                                   {ring(2).pods(asking("vpc.amazonaws.com/efa")).offer("cleura", 8, "4 EUR"), needs},
		"RDMA resources that a machine lacks":   {with(ring(2).pods(asking("rdma/hca")), "infiniband"), string(plan.ExtendedResourceUnknown)},
		"one pod with a resource of no machine": {site().gang("one", 4).pods(asking("example.com/fpga")).offer("cleura", 4, "2 EUR"), string(plan.ExtendedResourceUnknown)},
	} {
		d := plan.Decide(c.given.s).Decisions[0]
		if got := string(d.Code); got != c.want {
			t.Errorf("%s: %s, want %s: %s", name, got, c.want, d.Message)
		}
	}
}
