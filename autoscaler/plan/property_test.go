package plan_test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// draw makes a small site at random: a few gangs of three tenants, on-prem
// nodes that are mostly full, offers good and bad, and a past.
func draw(t *rapid.T) given {
	g := site().rules(func(s *v1alpha1.BurstTenantSpec) { s.Namespaces = []string{"vision", "also"} })
	for i := range rapid.IntRange(0, 3).Draw(t, "nodes") {
		name := fmt.Sprintf("rack%d", i)
		g = g.node(name, 2)
		if rapid.Bool().Draw(t, "busy") {
			ends := rapid.SampledFrom([]time.Duration{0, 5 * time.Minute, 5 * time.Hour}).Draw(t, "ends")
			g = g.running("old-"+name, name, rapid.Int64Range(1, 2).Draw(t, "used"), ends)
		}
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "offers") {
		price := rapid.SampledFrom([]string{"", "0.50 EUR", "2 EUR", "2 EUR", "9.99 EUR", "1 CHF"}).Draw(t, "price")
		g = g.offer(fmt.Sprintf("p%d", i), rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "size"), price)
		switch rapid.SampledFrom([]string{"", "", "", "american", "sold out", "abroad", "no papers", "benched"}).Draw(t, "flaw") {
		case "american":
			g = g.american()
		case "sold out":
			g = g.soldOut()
		case "abroad":
			g = g.seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) { p.Spec.Country, o.Country = "US", "US" })
		case "no papers":
			g = g.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.ProcessingAgreement = nil })
		case "benched":
			g = g.bench(fmt.Sprintf("p%d", i), time.Hour)
		}
		if rapid.Bool().Draw(t, "second type") {
			g = g.also(8, rapid.SampledFrom([]string{"3 EUR", "8 EUR", "1 CHF"}).Draw(t, "second price"))
		}
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "gangs") {
		name := fmt.Sprintf("job%d", i)
		g = g.gangOf(rapid.SampledFrom([]string{"vision", "also", "nobody"}).Draw(t, "namespace"), name, rapid.Int64Range(1, 4).Draw(t, "gpus")).
			times(rapid.SampledFrom([]int{1, 2, 3, 7}).Draw(t, "pods")).priority(int32(rapid.IntRange(0, 1).Draw(t, "priority"))).
			waiting(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "waiting"))
		if rapid.Bool().Draw(t, "together") {
			g = g.together()
		}
		if rapid.Bool().Draw(t, "endless") {
			g = g.endless()
		}
		if past := rapid.SampledFrom([]string{"", "", "", "Reserved", "Ending=SoldOut", "Failed", "Complete"}).Draw(t, "past"); past != "" {
			g = g.burst(name, "p0", past)
		}
	}
	g = g.budget("vision-month", rapid.SampledFrom([]string{"0 EUR", "5 EUR", "20 EUR", "1000 EUR"}).Draw(t, "budget"))
	return g.mode(rapid.SampledFrom([]string{v1alpha1.ModeOn, v1alpha1.ModeOn, v1alpha1.ModeObserve}).Draw(t, "mode"))
}

// shuffled returns the state with every list in another order.
func shuffled(s plan.State, r *rand.Rand) plan.State {
	mix(r, &s.Gangs)
	for i := range s.Gangs {
		mix(r, &s.Gangs[i].Pods)
		mix(r, &s.Gangs[i].Inputs)
		mix(r, &s.Gangs[i].Fabrics)
	}
	mix(r, &s.Cluster.Nodes)
	mix(r, &s.Cluster.Pods)
	mix(r, &s.Cluster.Claims)
	mix(r, &s.Cluster.Volumes)
	mix(r, &s.Tenants)
	mix(r, &s.Providers)
	mix(r, &s.Offers)
	mix(r, &s.Bursts)
	return s
}

func mix[T any](r *rand.Rand, list *[]T) {
	*list = slices.Clone(*list)
	r.Shuffle(len(*list), func(i, j int) { (*list)[i], (*list)[j] = (*list)[j], (*list)[i] })
}

// A rich state decides the same in 1,000 orders of its lists: the plan as data,
// and as text.
func TestShuffledStateGivesOnePlan(t *testing.T) {
	g := rich()
	want := plan.Decide(g.s)
	if got := len(want.Bursts()); got < 3 {
		t.Fatalf("the state is too plain: it buys %d bursts\n%s", got, want.Explain())
	}
	rounds := 1000
	if testing.Short() {
		rounds = 50
	}
	r := rand.New(rand.NewSource(1))
	for i := range rounds {
		got := plan.Decide(shuffled(g.s, r))
		if text, first := got.Explain(), want.Explain(); text != first {
			t.Fatalf("round %d explains differently:\n%s", i, cmp.Diff(first, text))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("round %d decides differently:\n%s", i, diff)
		}
	}
}

// rich is a state in which every kind of outcome happens.
func rich() given {
	g := site().node("rack1", 2).node("rack2", 4).node("rack3", 2).
		running("old1", "rack1", 2, 8*time.Minute).running("old2", "rack2", 3, 0).running("old3", "rack2", 1, 3*time.Hour).
		offer("cleura", 2, "2 EUR").offer("ovh", 2, "2 EUR").offer("hetzner", 4, "3 EUR").offer("scaleway", 2, "1 EUR").soldOut().
		offer("aws", 4, "0.50 EUR").american().offer("free", 4, "")
	for i := range 3 {
		g = g.gang(fmt.Sprintf("equal-%d", i), 2)
	}
	g = g.gang("sweep", 1).times(5).work(func(w *plan.Gang) { w.Inputs = []string{"s3://b/x/", "s3://a/y/", "s3://a/z/"} }).
		gang("sweep2", 1).times(5).gang("ring", 2).times(3).together().priority(5).
		gang("fresh", 2).waiting(time.Second).gangOf("nobody", "stray", 2).gang("again", 2).
		gang("gated", 1).times(3).pods(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "b"}, {Name: "a"}} }).
		gang("wired", 2).times(3).together().work(func(w *plan.Gang) { w.Fabrics = []string{"roce", "infiniband", "any"} }).
		gang("tired", 2)
	for i, why := range []string{"JoinDeadline", "MachineLost", "WorkFailed", "ReadyDeadline", "BuyDeadline"} {
		g = g.burst("tired", []string{"ovh", "cleura"}[i%2], "Ending="+why, v1alpha1.Failed)
	}
	return g.burst("again", "ovh", "Ending=JoinDeadline", v1alpha1.Failed).burst("equal-1", "cleura", v1alpha1.Reserved).
		rules(func(s *v1alpha1.BurstTenantSpec) {
			s.Sources = []v1alpha1.DataSource{{Name: "a", Bucket: "a"}}
		}).budget("vision-month", "60 EUR")
}

// At any state: no hard budget is exceeded, nothing is bought twice, nothing is
// bought where the rules forbid it, every gang has exactly one outcome with a
// reason, and no machine is for nobody.
func TestPlanKeepsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t).s
		p := plan.Decide(s)
		if len(p.Decisions) != len(s.Gangs) {
			t.Fatalf("%d decisions on %d gangs", len(p.Decisions), len(s.Gangs))
		}
		for _, d := range p.Decisions {
			if d.Code == "" || d.Code == plan.Undecidable {
				t.Errorf("%s has no reason: %s", d.Owner, d.Explain())
			}
		}
		checkBudgets(t, s, p)
		checkOnce(t, s, p)
		for _, d := range p.Decisions {
			checkParts(t, s, d)
			for _, b := range d.Bursts() {
				checkPlace(t, s, b)
			}
		}
	})
}

// checkBudgets adds up by itself what is reserved first: ceilings, or the first
// slices of them, bought ones, and those of bursts under way that the ledger has
// not booked.
func checkBudgets(t *rapid.T, s plan.State, p plan.Plan) {
	limit := s.Book.Budgets["vision-month"].Limit
	total := money.Zero("EUR")
	bought := false
	for _, b := range p.Bursts() {
		bought = true
		var err error
		first := b.Ceiling
		if b.Mode == quota.ModeLease {
			first = b.First
		}
		if total, err = total.Add(first); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range s.Bursts {
		over := slices.ContainsFunc(b.Status.Conditions, func(c condition) bool { return c.Type == v1alpha1.Failed || c.Type == v1alpha1.Complete })
		if next, err := total.Add(amount(string(b.Spec.Ceiling))); err == nil && !over && next.Nano <= limit.Nano {
			total = next
		}
	}
	if bought && total.Nano > limit.Nano {
		t.Errorf("what is reserved adds up to %s, the hard limit is %s\n%s", total, limit, p.Explain())
	}
}

func checkOnce(t *rapid.T, s plan.State, p plan.Plan) {
	for _, b := range p.Bursts() {
		for _, old := range s.Bursts {
			if old.Spec.Gang.UID == b.Owner.UID && len(old.Status.Conditions) > 0 && old.Status.Conditions[0].Type == v1alpha1.Reserved {
				t.Errorf("%s is bought again while burst %s is on its way", b.Owner, old.Name)
			}
		}
	}
	owners := map[string]bool{}
	for _, d := range p.Decisions {
		if owners[d.Owner.String()] {
			t.Errorf("%s has two outcomes", d.Owner)
		}
		owners[d.Owner.String()] = true
	}
}

// checkPlace looks at the facts of the provider, whatever the price.
func checkPlace(t *rapid.T, s plan.State, b plan.Burst) {
	for _, p := range s.Providers {
		if p.Name != b.Offer.Provider {
			continue
		}
		switch {
		case len(p.Spec.Legal.SubjectTo) > 0:
			t.Errorf("%s goes to %s, which is subject to %v", b.Owner, p.Name, p.Spec.Legal.SubjectTo)
		case p.Spec.Country != "DE":
			t.Errorf("%s goes to %s", b.Owner, p.Spec.Country)
		case p.Spec.ProcessingAgreement == nil:
			t.Errorf("%s goes to %s without a processing agreement", b.Owner, p.Name)
		case slices.ContainsFunc(p.Status.Unavailable, func(u v1alpha1.UnavailableOffer) bool { return u.Offer == b.Offer.Key() }):
			t.Errorf("%s goes to %s, which is on the bench", b.Owner, b.Offer.Key())
		}
	}
	if b.Offer.SoldOut || b.Offer.Price.IsZero() || b.Ceiling.Sign() <= 0 {
		t.Errorf("%s buys a sold-out or unpriced offer: %+v", b.Owner, b.Offer)
	}
}

// Prices decide which of the allowed offers is taken, and never which offers
// are allowed.
func TestNoPriceChangesARule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := draw(t).s
		s.Offers = slices.Clone(s.Offers)
		codes := func() string {
			text := ""
			for _, d := range plan.Decide(s).Decisions {
				for _, f := range d.Refusals {
					switch f.Code {
					case "JURISDICTION_LAW", "REGION_EXCLUDED", "PROVIDER_AGREEMENT_MISSING":
						text += d.Owner.Name + " " + f.Offer + " " + string(f.Code) + "\n"
					}
				}
			}
			return text
		}
		for i := range s.Offers {
			s.Offers[i].Price = money.Rate{NanoPerHour: 1, Currency: "EUR"}
		}
		cheap := codes()
		for i := range s.Offers {
			s.Offers[i].Price.NanoPerHour = rapid.Int64Range(1, 1e13).Draw(t, "price")
		}
		if diff := cmp.Diff(cheap, codes()); diff != "" {
			t.Errorf("prices changed a rule:\n%s", diff)
		}
	})
}

// A state that was written down and read again decides the same.
func TestCapturedStateDecidesAlike(t *testing.T) {
	s := rich().s
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var again plan.State
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Decide(s).Explain(), plan.Decide(again).Explain()); diff != "" {
		t.Errorf("the captured state decides differently:\n%s", diff)
	}
	written, err := json.Marshal(plan.Decide(s))
	if err != nil {
		t.Fatal(err)
	}
	var read plan.Plan
	if err := json.Unmarshal(written, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Decide(s).Explain(), read.Explain()); diff != "" {
		t.Errorf("the written plan reads differently:\n%s", diff)
	}
}

// Decide sorts and edits copies: the caller's lists keep order and content.
func TestStateIsLeftAsItWas(t *testing.T) {
	s := shuffled(rich().s, rand.New(rand.NewSource(7)))
	before, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	plan.Decide(s)
	after, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("Decide changed its input:\n%s", diff)
	}
}
