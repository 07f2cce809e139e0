package plan_test

import (
	"math"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// A time that no arithmetic holds is refused, and never wraps to a short one.
// cases: C-4 kubernetes-sigs/kueue#11139, #11137, #11182, #14112, #14108
func TestEndlessRunsAreRefused(t *testing.T) {
	full := site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2).offer("cleura", 2, "2 EUR")
	for name, g := range map[string]given{
		"two to the 64 nanoseconds and a bit": full.work(func(w *plan.Gang) { w.MaxRun = plan.Seconds(18_446_744_074) }),
		"the longest that a Job can state":    full.work(func(w *plan.Gang) { w.MaxRun = plan.Seconds(math.MaxInt64) }),
		"a tenant without end": full.endless().rules(func(s *v1alpha1.BurstTenantSpec) {
			s.Burst.MaxRunTime = &metav1.Duration{Duration: math.MaxInt64}
		}),
		"two years": full.work(func(w *plan.Gang) { w.MaxRun = 2 * 366 * 24 * time.Hour }),
	} {
		t.Run(name, func(t *testing.T) {
			if got := outcomes(plan.Decide(g.s)); got != "train: refuse CEILING_OUT_OF_RANGE\n" {
				t.Errorf("Decide = %s", got)
			}
		})
	}
}

// What a provider states counts when it is a time at all: the reconciler, too,
// takes its own default for one that is not.
func TestANegativeTimeLowersNoCeiling(t *testing.T) {
	g := site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2).offer("cleura", 2, "2 EUR")
	ceiling := func(g given) money.Amount {
		bursts := plan.Decide(g.s).Bursts()
		if len(bursts) != 1 {
			t.Fatalf("nothing is bought:\n%s", plan.Decide(g.s).Explain())
		}
		return bursts[0].Ceiling
	}
	odd := g.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
		p.Spec.Join.ReadyDeadline.Duration, p.Spec.Join.BootTime.Duration = -20*time.Minute, -time.Hour
	})
	if plain, got := ceiling(g), ceiling(odd); got != plain {
		t.Errorf("the ceiling with negative times is %s, without them %s", got, plain)
	}
	odd = g
	odd.s.Settings = plan.Settings{Staging: -time.Hour, Wipe: -time.Hour, Collect: -time.Hour, Delete: -time.Minute}
	if plain, got := ceiling(g), ceiling(odd); got != plain {
		t.Errorf("the ceiling with negative settings is %s, without them %s", got, plain)
	}
}

// life draws how one machine of a burst may live and end, in the worst ways
// that the deadlines of a burst allow, and returns when its meter started and
// stopped.
func life(t *rapid.T, b plan.Burst, s plan.Settings, ready time.Duration) providers.Machine {
	upTo := func(what string, most time.Duration) time.Duration {
		return time.Duration(rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(most)), rapid.Int64Range(0, int64(most))).Draw(t, what))
	}
	asked := b.From.Add(upTo("staging", s.Staging))
	m := providers.Machine{Created: asked.Add(upTo("buying", s.Buy))}
	m.Started = m.Created.Add(upTo("booting", ready))
	switch rapid.SampledFrom([]string{"done", "never ready", "nobody is left"}).Draw(t, "end") {
	case "done": // results and proof, each counted from the end of the work
		end := m.Started.Add(upTo("running", b.Deadline.Sub(m.Started)))
		end = end.Add(max(upTo("collecting", s.Collect), upTo("wiping", s.Wipe)))
		m.Deleted = end.Add(upTo("deleting", s.Delete))
	case "never ready": // the first lease, written into the machine, ends with the deadline for GPUs
		stamp := asked.Add(s.Buy + ready + s.DeadMan)
		m.Deleted = stamp.Add(upTo("sweeping", s.Sweep) + upTo("deleting", s.Delete))
	default: // the last lease reaches to the deadline at most
		stamp := m.Started.Add(upTo("leased", b.Deadline.Sub(m.Started))).Add(s.DeadMan)
		m.Deleted = stamp.Add(upTo("sweeping", s.Sweep) + upTo("deleting", s.Delete))
	}
	return m
}

// The ceiling bounds the bill of every way in which a burst can go, by every
// meter rule, wherever the provider's clock stands, and the money's time
// reaches to the end of every machine.
// cases: C-14 kubernetes-sigs/kueue KEP-6143, C-29 SchedMD/slurm non-safe mode
func TestNoBillPassesTheCeiling(t *testing.T) {
	minutes := func(t *rapid.T, what string, most int64) time.Duration {
		return time.Duration(rapid.Int64Range(1, most*int64(time.Minute)).Draw(t, what))
	}
	rapid.Check(t, func(t *rapid.T) {
		g := site().node("rack1", 1).running("old", "rack1", 1, 0).gang("train", 2).times(rapid.IntRange(1, 3).Draw(t, "pods")).
			offer("cleura", 2, money.Amount{Nano: rapid.Int64Range(1, 20e9).Draw(t, "price"), Currency: "EUR"}.String()).
			work(func(w *plan.Gang) { w.MaxRun = minutes(t, "run", 300) }).budget("vision-month", "1000000 EUR").
			later(time.Duration(rapid.OneOf( // right before a full hour, right before midnight, or anywhere
				rapid.Just(int64(time.Hour-1)), rapid.Just(int64(14*time.Hour-1)), rapid.Int64Range(0, int64(26*time.Hour))).Draw(t, "clock")))
		ready := minutes(t, "ready", 60)
		rule := providers.MeterRule{
			Start:       rapid.SampledFrom([]providers.MeterEvent{"", providers.MeterCreated, providers.MeterStarted}).Draw(t, "start"),
			Granularity: rapid.SampledFrom([]time.Duration{0, time.Second, 7 * time.Second, time.Minute, time.Hour, 24 * time.Hour}).Draw(t, "granularity"),
			Minimum:     minutes(t, "minimum", 200), ClockAligned: rapid.Bool().Draw(t, "aligned"),
		}
		g = g.seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) {
			o.Meter = rule
			p.Spec.Join.ReadyDeadline.Duration = ready
		})
		g.s.Settings = plan.Settings{
			Staging: minutes(t, "stagingTime", 60), Buy: minutes(t, "buyTime", 20), Collect: minutes(t, "collectTime", 40), Wipe: minutes(t, "wipeTime", 40),
			DeadMan: minutes(t, "deadManTime", 10), Sweep: minutes(t, "sweepTime", 10), Delete: minutes(t, "deleteTime", 20),
		}
		bursts := plan.Decide(g.s).Bursts()
		if len(bursts) != 1 {
			t.Fatalf("nothing is bought:\n%s", plan.Decide(g.s).Explain())
		}
		b := bursts[0]
		bill := money.Zero("EUR")
		for range b.Machines {
			m := life(t, b, g.s.Settings, ready)
			if m.Deleted.After(b.Until) {
				t.Fatalf("a machine is gone at %s, the money reaches to %s", m.Deleted, b.Until)
			}
			billed := rule.Billed(rule.Window(m, m.Deleted))
			one, err := b.Offer.Price.For(int64((billed+time.Second-1)/time.Second), money.Whole)
			if err != nil {
				t.Fatal(err)
			}
			if bill, err = bill.Add(one); err != nil {
				t.Fatal(err)
			}
		}
		if bill.Nano > b.Ceiling.Nano {
			t.Fatalf("the bill is %s, the ceiling %s: %+v", bill, b.Ceiling, rule)
		}
	})
}

// Work whose end nobody states is reserved slice by slice, and so is all work of
// a tenant that wants it so; where the first slice is the whole, nothing is sliced.
func TestWhoIsReservedSliceBySlice(t *testing.T) {
	full := site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2).offer("cleura", 2, "3.60 EUR")
	lease := func(s *v1alpha1.BurstTenantSpec) { s.Burst.Reserve = "lease" }
	for name, tt := range map[string]struct {
		given given
		want  string
	}{
		"it states its run":                 {full, "safe"},
		"it states nothing":                 {full.endless(), "lease"},
		"its owner ends it by a time":       {full.endless().work(func(w *plan.Gang) { w.EndsBy = now().Add(3 * time.Hour) }), "safe"},
		"its pod has a deadline":            {full.endless().pods(func(p *corev1.Pod) { s := int64(600); p.Spec.ActiveDeadlineSeconds = &s }), "safe"},
		"its tenant wants slices":           {full.rules(lease), "lease"},
		"a first slice that is the whole":   {full.rules(lease).seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) { o.Meter.Granularity = 24 * time.Hour }), "safe"},
		"its tenant's slices, it says when": {full.rules(lease).work(func(w *plan.Gang) { w.EndsBy = now().Add(3 * time.Hour) }), "lease"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan.Decide(tt.given.s)
			if len(p.Bursts()) != 1 || p.Bursts()[0].Mode != tt.want {
				t.Errorf("want mode %s: %+v\n%s", tt.want, p.Bursts(), p.Explain())
			}
		})
	}
}

// The first slice covers every wait until the GPUs are ready, and the whole way
// to stop; it is what the budgets are asked for, and the ledger for the very same.
func TestTheFirstSlice(t *testing.T) {
	g := site().node("rack1", 2).running("old", "rack1", 2, 0).gang("train", 2).endless().offer("cleura", 2, "3.60 EUR")
	b := plan.Decide(g.budget("vision-month", "4.08 EUR").s).Bursts()
	d := plan.Defaults()
	until := now().Add(d.Staging + d.Buy + d.Ready + max(d.Collect, d.Wipe) + d.DeadMan + d.Sweep + d.Delete)
	if len(b) != 1 || b[0].First != amount("4.08 EUR") || !b[0].FirstUntil.Equal(until) || b[0].Ceiling != amount("7.68 EUR") {
		t.Fatalf("bought %+v, want a first slice of 4.08 EUR until %s", b, until)
	}
	p := plan.Decide(g.budget("vision-month", "4.07 EUR").s)
	if got, want := p.Explain(), "the first slice of 4.08 EUR is 0.01 EUR more than budget"; !strings.Contains(got, want) {
		t.Errorf("the refusal does not say %q:\n%s", want, got)
	}
	first := metav1.NewTime(b[0].FirstUntil)
	res, err := plan.ReservationOf(&v1alpha1.Burst{
		ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b", CreationTimestamp: metav1.NewTime(now())},
		Spec: v1alpha1.BurstSpec{
			TenantID: "vision", Offer: v1alpha1.OfferReference{Provider: "cleura", PricePerHour: "3.60 EUR"}, Machines: 1, Mode: b[0].Mode,
			Ceiling: "7.68 EUR", Deadline: metav1.NewTime(b[0].Deadline), Until: metav1.NewTime(b[0].Until), FirstUntil: &first,
		},
	})
	if err != nil || res.Validate() != nil || res.Amount != b[0].First || res.Ceiling != b[0].Ceiling {
		t.Errorf("the ledger is asked for %+v: %v, %v", res, err, res.Validate())
	}
}
