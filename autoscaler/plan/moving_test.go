package plan_test

import (
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// reads has the gang that was added last read inputs of so many bytes; less than
// none is an amount that nobody knows.
func (g given) reads(bytes int64) given {
	g = g.rules(func(t *v1alpha1.BurstTenantSpec) {
		t.Sources = []v1alpha1.DataSource{{Name: "store", Endpoint: "http://store.example", Bucket: "data", Secret: "store"}}
	})
	return g.work(func(w *plan.Gang) {
		w.Inputs = []string{"s3://data/set/"}
		if bytes >= 0 {
			w.InputBytes = &bytes
		}
	})
}

// line is the transfer of the provider that was added last.
func (g given) line(rate int32, price v1alpha1.Money) given {
	return g.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
		p.Spec.Transfer = &v1alpha1.Transfer{MiBPerSecond: rate, PricePerGiB: price}
	})
}

func eur(t *testing.T, amount string) money.Amount {
	t.Helper()
	a, err := money.Parse(amount + " EUR")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// What it takes to move inputs counts in the bill by which offers are ranked, and
// in the time until the work can begin.
func TestMovingInputs(t *testing.T) {
	const gib = 1 << 30
	two := func(bytes int64, cheapRate int32, cheapPrice v1alpha1.Money) given {
		g := site()
		g.s.Settings.Staging = 2 * time.Hour
		return g.gang("train", 1).budget("vision-month", "1000 EUR").
			offer("cheap", 1, "2 EUR").line(cheapRate, cheapPrice).offer("near", 1, "2.50 EUR").line(1000, "").reads(bytes)
	}
	tests := map[string]struct {
		g    given
		want string // provider and words of the summary
	}{
		"few bytes: the cheaper machine wins":              {two(gib, 1000, "0.10 EUR"), "cheap: (1 GiB) takes 2s and is 0.10 EUR of it"},
		"many: their price turns the choice":               {two(100*gib, 1000, "0.10 EUR"), "near: (100 GiB) takes 1m43s;"},
		"many: the wait of the machine turns the choice":   {two(100*gib, 30, ""), "near: (100 GiB) takes 1m43s;"},
		"a part of a MiB is a whole one":                   {two(1, 1000, "1024 EUR"), "near: (1 bytes) takes 1s;"},
		"what is not known is said":                        {two(-1, 1000, "0.10 EUR"), "cheap: not reckoned with: how much they are is not known"},
		"so is a line that nobody states":                  {site().gang("train", 1).budget("vision-month", "1000 EUR").offer("cheap", 1, "2 EUR").reads(gib), "cheap: not reckoned with: provider cheap states no transfer"},
		"no bytes take no time":                            {two(0, 1000, "0.10 EUR"), "cheap: (0 bytes) takes 0s;"},
		"prices in another currency are no bill":           {two(gib, 1000, "0.10 USD"), "near: (1 GiB) takes 2s;"},
		"an unreadable price is no bill, not a free line":  {two(gib, 1000, "cheap"), "near: (1 GiB) takes 2s;"},
		"a negative price is none":                         {two(gib, 1000, "-1 EUR"), "near: (1 GiB) takes 2s;"},
		"more than an int64 holds is refused, not wrapped": {two(1<<62, 100_000, "9000000000 EUR"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := plan.Decide(tt.g.s)
			bursts := p.Bursts()
			if tt.want == "" {
				if len(bursts) > 0 {
					t.Errorf("bought:\n%s", p.Explain())
				}
				return
			}
			provider, words, _ := strings.Cut(tt.want, ": ")
			if len(bursts) != 1 || bursts[0].Offer.Provider != provider || !strings.Contains(p.Decisions[0].Message, words) {
				t.Errorf("want %s, got\n%s", tt.want, p.Explain())
			}
		})
	}
}

// A burst is ready when its machine is, or when its inputs are, whichever is later.
func TestReadyWhenInputsAre(t *testing.T) {
	g := site().gang("train", 1).budget("vision-month", "1000 EUR").offer("ovh", 1, "3.60 EUR").line(64, "0.50 EUR")
	g = g.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Join.BootTime.Duration = 2 * time.Minute })
	bare := plan.Decide(g.s).Bursts()[0]
	loaded := plan.Decide(g.reads(36 << 30).s).Bursts()[0] // 576 s
	if took := loaded.ReadyAt.Sub(loaded.From); took != 576*time.Second {
		t.Errorf("ready in %s", took)
	}
	waits := loaded.ReadyAt.Sub(bare.ReadyAt)
	want, err := bare.Expected.Add(eur(t, "18"))
	if err != nil {
		t.Fatal(err)
	}
	want.Nano += int64(waits/time.Second) * 1_000_000 // 0.001 EUR is a second at 3.60 an hour
	if loaded.Expected != want || loaded.Ceiling != bare.Ceiling {
		t.Errorf("expected %s at most %s, want %s at most %s", loaded.Expected, loaded.Ceiling, want, bare.Ceiling)
	}
}
