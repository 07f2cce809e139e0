package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// also has the provider that was added last sell another type of machine.
func (g given) also(gpus int, price string) given {
	o := g.s.Offers[len(g.s.Offers)-1]
	o.InstanceType, o.GPUs = fmt.Sprintf("gpu%d", gpus), gpus
	rate, err := money.ParseRate(price)
	if err != nil {
		panic(err)
	}
	o.Price = rate
	g.s.Offers = append(slices.Clone(g.s.Offers), o)
	return g
}

// purchase writes what one decision buys: "1xgpu4 for 4, 1xgpu1 for 1".
func purchase(d plan.Decision) string {
	if d.Burst == nil {
		return string(d.Code)
	}
	var all []string
	for _, b := range d.Bursts() {
		all = append(all, fmt.Sprintf("%dx%s for %d", b.Machines, b.Offer.InstanceType, len(b.Pods)))
	}
	return strings.Join(all, ", ")
}

func TestMixedTypes(t *testing.T) {
	cloud := site().offer("ovh", 4, "2 EUR").also(1, "0.80 EUR")
	five := func(g given) given { return g.gang("sweep", 1).times(5) }
	for name, c := range map[string]struct {
		g    given
		want string
	}{
		"a large machine and a small one":         {five(cloud), "1xgpu1 for 1, 1xgpu4 for 4"},
		"one type where that is cheapest":         {cloud.gang("sweep", 1).times(4), "1xgpu4 for 4"},
		"a gang has one type":                     {five(cloud).together(), "2xgpu4 for 5"},
		"each burst stages its inputs for itself": {five(cloud).rules(allSources).work(func(w *plan.Gang) { w.Inputs = []string{"s3://b/x/"} }), "2xgpu4 for 5"},
		"not over two zones":                      {five(site().offer("ovh", 4, "2 EUR").also(1, "0.80 EUR").seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) { o.Zone = "b" })), "2xgpu4 for 5"},
		"not over two models":                     {five(site().offer("ovh", 4, "2 EUR").also(1, "0.80 EUR").seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) { o.GPUModel = "H100-80" })), "2xgpu4 for 5"},
		"not over two providers":                  {five(site().offer("ovh", 4, "2 EUR").offer("cleura", 1, "0.80 EUR")), "2xgpu4 for 5"},
		"not with what is sold out":               {five(cloud.soldOut()), "2xgpu4 for 5"},
		"pods of several sizes": {cloud.gang("sweep", 1).times(2).work(func(w *plan.Gang) {
			w.Pods[0].Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = resource.MustParse("4")
		}), "1xgpu1 for 1, 1xgpu4 for 1"},
		"within the provider's limit":      {five(cloud.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Limits.GPUs = new(int32(4)) })), "PROVIDER_QUOTA"},
		"more machines than one burst has": {site().offer("ovh", 1, "0.10 EUR").gang("sweep", 1).times(40), "16xgpu1 for 16, 16xgpu1 for 16, 8xgpu1 for 8"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Decide(c.g.s)
			if got := purchase(p.Decisions[0]); got != c.want {
				t.Errorf("got %s, want %s:\n%s", got, c.want, p.Explain())
			}
		})
	}
}

func allSources(s *v1alpha1.BurstTenantSpec) {
	s.Sources = []v1alpha1.DataSource{{Name: "b", Bucket: "b", DataClass: "internal"}}
}

// All bursts of one owner are paid for, or none is: the budget that carries a
// part of them buys nothing, and another owner's work gets the money.
func TestMixIsPaidWholeOrNotAtAll(t *testing.T) {
	g := site().offer("ovh", 4, "2 EUR").also(1, "0.80 EUR").gang("a", 1).times(5).priority(1).gang("b", 1)
	whole := plan.Decide(g.s).Decisions[0]
	if got := purchase(whole); got != "1xgpu1 for 1, 1xgpu4 for 4" {
		t.Fatalf("it buys %s", got)
	}
	need, err := whole.Bursts()[0].Ceiling.Add(whole.Bursts()[1].Ceiling)
	if err != nil {
		t.Fatal(err)
	}
	need.Nano--
	p := plan.Decide(g.budget("vision-month", need.String()).s)
	if d := p.Decisions[0]; d.Code != plan.BudgetExceeds || len(d.Bursts()) > 0 {
		t.Errorf("the work that the budget can't carry whole: %s", d.Explain())
	}
	if got := purchase(p.Decisions[1]); got != "1xgpu1 for 1" {
		t.Errorf("the other buys %s:\n%s", got, p.Explain())
	}
	if diff := plan.Decide(g.budget("vision-month", whole.Bursts()[1].Ceiling.String()).s).Decisions[0]; strings.Count(diff.Explain(), "ovh/one/gpu1/") > 1 {
		t.Errorf("an offer is refused more than once:\n%s", diff.Explain())
	}
}

// A plan over several types is never dearer than the best of one type, is in one
// place, has every pod once, and no machine that nobody sits on.
func TestMixIsNeverDearer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := site().budget("vision-month", "1000000 EUR").offer("ovh", rapid.IntRange(1, 4).Draw(t, "first"), drawPrice(t))
		for size := range rapid.IntRange(1, 3).Draw(t, "types") {
			g = g.also(5+size, drawPrice(t))
		}
		if rapid.Bool().Draw(t, "hours") {
			g = g.billedBy(time.Hour, 5*time.Minute)
			for i := range g.s.Offers {
				g.s.Offers[i].Meter = g.s.Offers[len(g.s.Offers)-1].Meter
			}
		}
		g = g.gang("sweep", 1).times(rapid.IntRange(1, 12).Draw(t, "pods"))
		if rapid.Bool().Draw(t, "short") {
			g = g.runsFor(7 * time.Minute)
		}
		g = g.work(func(w *plan.Gang) {
			for i := range w.Pods {
				w.Pods[i].Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(rapid.Int64Range(1, 3).Draw(t, "gpus"), resource.DecimalSI)
			}
		})
		g.s.Settings.Machines = rapid.SampledFrom([]int{1, 2, 16}).Draw(t, "machines")
		d := plan.Decide(g.s).Decisions[0]
		for _, only := range g.s.Offers {
			one := g.s
			one.Offers = []providers.Offer{only}
			single := plan.Decide(one).Decisions[0]
			if len(single.Bursts()) > 0 && (len(d.Bursts()) == 0 || expected(d) > expected(single)) {
				t.Errorf("%s costs %d, %s alone %d", purchase(d), expected(d), purchase(single), expected(single))
			}
		}
		checkParts(t, g.s, d)
	})
}

func drawPrice(t *rapid.T) string {
	return fmt.Sprintf("%d.%d EUR", rapid.IntRange(0, 9).Draw(t, "euros"), rapid.IntRange(1, 9).Draw(t, "tenths"))
}

func expected(d plan.Decision) (nano int64) {
	for _, b := range d.Bursts() {
		nano += b.Expected.Nano
	}
	return nano
}

// checkParts looks at all that one decision buys.
func checkParts(t *rapid.T, s plan.State, d plan.Decision) {
	had, names := map[string]bool{}, map[string]bool{}
	for i, b := range d.Bursts() {
		first := d.Bursts()[0]
		if b.Offer.Provider != first.Offer.Provider || b.Offer.Region != first.Offer.Region || b.Offer.Zone != first.Offer.Zone {
			t.Errorf("%s is bought in two places: %s and %s", d.Owner, first.Offer.Key(), b.Offer.Key())
		}
		if i > 0 && b.Together {
			t.Errorf("%s has to start together, and is split", d.Owner)
		}
		if names[b.Name] || b.Attempt != first.Attempt+int32(i) {
			t.Errorf("burst %s is attempt %d, the first is %d", b.Name, b.Attempt, first.Attempt)
		}
		names[b.Name] = true
		if most := s.Settings.Machines; most > 0 && int(b.Machines) > most {
			t.Errorf("%d machines in a burst, %d are allowed", b.Machines, most)
		}
		used := map[int32]bool{}
		for _, seat := range b.Pods {
			if had[seat.Name] {
				t.Errorf("%s has two seats", seat.Name)
			}
			had[seat.Name], used[seat.Machine] = true, true
			if seat.Machine < 0 || seat.Machine >= b.Machines {
				t.Errorf("%s sits on machine %d of %d", seat.Name, seat.Machine, b.Machines)
			}
		}
		if len(used) != int(b.Machines) {
			t.Errorf("%d machines for pods on %d", b.Machines, len(used))
		}
	}
}

// Beyond what is tried one by one, only families are; it works all the same.
func TestManyPodsOnManyOffers(t *testing.T) {
	g := site().budget("vision-month", "100000 EUR").offer("ovh", 1, "1 EUR")
	for size := 2; size <= 80; size++ {
		g = g.also(size, fmt.Sprintf("%d EUR", size))
	}
	for i := range g.s.Offers {
		g.s.Offers[i].MilliCPU, g.s.Offers[i].MemoryMiB = 1_000_000, 1_000_000
	}
	g = g.gang("sweep", 1).times(300).work(func(w *plan.Gang) {
		for i := range w.Pods {
			w.Pods[i].Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(100+i%7), resource.DecimalSI)
		}
	})
	d := plan.Decide(g.s).Decisions[0]
	served, gpus := 0, 0
	for _, b := range d.Bursts() {
		served += len(b.Pods)
		gpus += int(b.Machines) * b.Offer.GPUs
	}
	if served != 300 || gpus != 300 {
		t.Errorf("%d pods are served with %d GPUs: %s", served, gpus, d.Message)
	}
	d = plan.Decide(g.budget("vision-month", "1 EUR").s).Decisions[0]
	if d.Code != plan.BudgetExceeds {
		t.Errorf("without money: %s", d.Reason)
	}
	d = plan.Decide(g.pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "tape"} }).s).Decisions[0]
	if d.Code != plan.NodeSelectorUnsatisfiable || len(d.Refusals) != 80 {
		t.Errorf("what fits nowhere: %s, %d refusals", d.Reason, len(d.Refusals))
	}
}

// inBursts gives the last n bursts pods of the gang that was added last, each one
// in turn.
func (g given) inBursts(n int) given {
	w := g.s.Gangs[len(g.s.Gangs)-1]
	g.s.Bursts = slices.Clone(g.s.Bursts)
	for i := range n {
		b := g.s.Bursts[len(g.s.Bursts)-n+i].DeepCopy()
		b.Spec.Gang.Pods = nil
		for j := i; j < len(w.Pods); j += n {
			b.Spec.Gang.Pods = append(b.Spec.Gang.Pods, v1alpha1.PodReference{Name: w.Pods[j].Name, UID: w.Pods[j].UID})
		}
		g.s.Bursts[len(g.s.Bursts)-n+i] = *b
	}
	return g
}

// Of bursts that were bought together one may fail: its pods are bought for again,
// and nobody else's.
func TestOneOfSeveralBursts(t *testing.T) {
	four := site().offer("ovh", 1, "1 EUR").also(2, "1.50 EUR").offer("cleura", 1, "5 EUR").gang("sweep", 1).times(4)
	failed := []string{"Ending=WorkFailed", v1alpha1.Failed}
	for name, c := range map[string]struct {
		g    given
		want string
	}{
		"both are on their way": {four.burst("sweep", "ovh", v1alpha1.Reserved).burst("sweep", "ovh", v1alpha1.Reserved).inBursts(2), "ALREADY_PLANNED"},
		"one was sold out":      {four.burst("sweep", "ovh", "Ending=SoldOut", v1alpha1.Failed).burst("sweep", "ovh", v1alpha1.Reserved).inBursts(2), "1xgpu2 for 2"},
		"the second was never written": {four.burst("sweep", "ovh", v1alpha1.Reserved).with(func(s *plan.State) {
			s.Bursts[0].Spec.Gang.Pods = s.Bursts[0].Spec.Gang.Pods[:3]
		}), "1xgpu1 for 1"},
		"a pod came later": {four.burst("sweep", "ovh", v1alpha1.Reserved).with(func(s *plan.State) {
			s.Bursts[0].Spec.Gang.Pods = s.Bursts[0].Spec.Gang.Pods[:3]
		}).work(func(w *plan.Gang) { w.Pods[3].CreationTimestamp = at(-30 * time.Minute) }), "ALREADY_PLANNED"},
		"of a gang none is left": {four.together().burst("sweep", "ovh", v1alpha1.Reserved).with(func(s *plan.State) {
			s.Bursts[0].Spec.Gang.Pods = s.Bursts[0].Spec.Gang.Pods[:3]
		}), "ALREADY_PLANNED"},
		"six that failed together are one failure": {four.burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).
			burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).
			with(func(s *plan.State) {
				for i := range s.Bursts {
					s.Bursts[i].CreationTimestamp = at(-2 * time.Hour)
				}
			}), "2xgpu2 for 4"},
		"six that failed one after the other are six": {four.burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).
			burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...).burst("sweep", "ovh", failed...), "ATTEMPTS_EXHAUSTED"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Decide(c.g.s)
			if got := purchase(p.Decisions[0]); got != c.want {
				t.Errorf("got %s, want %s:\n%s", got, c.want, p.Explain())
			}
		})
	}
}

// with changes the state.
func (g given) with(change func(*plan.State)) given {
	bursts := make([]v1alpha1.Burst, len(g.s.Bursts))
	for i := range bursts {
		bursts[i] = *g.s.Bursts[i].DeepCopy()
	}
	g.s.Bursts = bursts
	change(&g.s)
	return g
}
