package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// The texts are what people read in events, in `why` and in the Burst; a change
// of wording is a change of the interface. Run with -update to accept one.
func TestExplain(t *testing.T) {
	full := site().node("rack1", 2).running("old", "rack1", 2, 3*time.Hour).gang("train", 2)
	market := full.offer("aws", 2, "0.90 EUR").american().
		seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.ProcessingAgreement = nil }).
		offer("ovh", 2, "1.95 EUR").soldOut().offer("cleura", 2, "2.10 EUR")
	tests := map[string]given{
		"burst":         market,
		"would-burst":   market.mode(v1alpha1.ModeObserve),
		"over-budget":   market.budget("vision-month", "3 EUR"),
		"local-eta":     site().node("rack1", 2).running("old", "rack1", 2, 8*time.Minute).gang("train", 2).offer("cleura", 2, "2.10 EUR"),
		"local-chance":  market.waiting(2 * time.Minute),
		"nobody-may":    full.offer("aws", 2, "0.90 EUR").american().offer("paris", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) { p.Spec.Country, o.Country = "CH", "CH" }),
		"everything":    rich(),
		"second-choice": market.bench("cleura", 10*time.Minute).offer("hetzner", 4, "5 EUR").burst("train", "hetzner", "Ending=ReadyDeadline", v1alpha1.Failed),
	}
	for name, g := range tests {
		t.Run(name, func(t *testing.T) {
			golden(t, filepath.Join("testdata", name+".txt"), plan.Decide(g.s).Explain())
		})
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if update := flag.Lookup("update"); update != nil && update.Value.String() == "true" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the text changed (-want +got):\n%s", diff)
	}
}

// Nothing that a person can act on has changed, so nothing is written again.
// cases: H-15 volcano-sh/volcano#5249
func TestTextStandsStill(t *testing.T) {
	for name, g := range map[string]given{
		"refused":  site().gang("train", 2).offer("ovh", 2, "2 EUR").budget("vision-month", "3 EUR"),
		"observed": site().gang("train", 2).offer("ovh", 2, "2 EUR").mode(v1alpha1.ModeObserve),
		"waiting":  site().node("rack1", 2).running("old", "rack1", 2, 8*time.Minute).gang("train", 2).offer("ovh", 2, "2 EUR"),
		"sold out": site().gang("train", 2).offer("ovh", 2, "2 EUR").soldOut(),
		"deadline": site().gang("train", 2).offer("ovh", 2, "2 EUR").mode(v1alpha1.ModeObserve).work(func(w *plan.Gang) { w.MaxRun, w.EndsBy = time.Hour, now().Add(time.Hour) }),
	} {
		t.Run(name, func(t *testing.T) {
			later := g.later(37 * time.Second)
			later.s.Offers[0].Seen = later.s.Now
			if diff := cmp.Diff(plan.Decide(g.s).Explain(), plan.Decide(later.s).Explain()); diff != "" {
				t.Errorf("37 seconds later it reads:\n%s", diff)
			}
		})
	}
}
