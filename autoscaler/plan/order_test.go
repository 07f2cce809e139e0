package plan_test

import (
	"math/rand"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// Maps inside the objects, and things that look alike, have one order too: the
// answer is one, text included.
// cases: H-15 volcano-sh/volcano#5249
func TestNothingIsLeftToChance(t *testing.T) {
	full := site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2)
	twins := full.offer("cleura", 2, "2 EUR")
	twin := twins.s.Offers[0]
	twin.MilliCPU, twin.GPUModel, twin.Meter = 64_000, "H100-80", providers.MeterRule{Granularity: time.Hour}
	twins.s.Offers = append(twins.s.Offers, twin)
	for name, g := range map[string]given{
		"a pod that asks for two kinds of GPU": full.offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) {
			r := p.Spec.Containers[0].Resources.Requests
			r["nvidia.com/gpu"], r["nvidia.com/mig-1g.5gb"], r["nvidia.com/mig-2g.10gb"] = resource.MustParse("9"), resource.MustParse("1"), resource.MustParse("1")
		}),
		"two offers of one key, seen at one time for one price": twins,
	} {
		t.Run(name, func(t *testing.T) {
			want := plan.Decide(g.s).Explain()
			r := rand.New(rand.NewSource(1))
			for range 50 {
				if diff := cmp.Diff(want, plan.Decide(shuffled(g.s, r)).Explain()); diff != "" {
					t.Fatalf("it explains differently:\n%s", diff)
				}
			}
		})
	}
}
