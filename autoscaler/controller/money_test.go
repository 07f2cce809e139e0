package controller

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

func newTreasury(t *testing.T, path, holder string) (*treasury, *[]error) {
	t.Helper()
	l, err := ledger.Open(t.Context(), path, ledger.Options{Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	var fenced []error
	return &treasury{ledger: l, holder: holder, log: slog.New(slog.DiscardHandler), fenced: func(err error) { fenced = append(fenced, err) }}, &fenced
}

// The ledger lies in the data folder, or where the configuration says; one that
// can't be reached keeps the process from starting, and its password is not told.
func TestWhereTheLedgerLies(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "money.db")
	for setting, file := range map[string]string{"": filepath.Join(dir, "ledger.db"), elsewhere: elsewhere} {
		p := &process{Config: Config{DataDir: dir, Ledger: setting}}
		if err := p.openData(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.treasury.ledger.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("setting %q: %v", setting, err)
		}
	}
	p := &process{Config: Config{DataDir: dir, Ledger: "postgres://owner:se-cret@127.0.0.1:1/money"}}
	err := p.openData(t.Context())
	if err == nil || strings.Contains(err.Error(), "se-cret") || !strings.HasPrefix(err.Error(), "ledger postgres://owner@127.0.0.1:1/money: the database can't be reached") {
		t.Errorf("a ledger that can't be reached: %v", err)
	}
}

// TestAFencedLeaderEnds: one that was elected, stood still, and opens its epoch
// late fences the leader that came after it. That one must not stay: it would
// hold the lead and could book nothing, for ever.
func TestAFencedLeaderEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	second, fenced := newTreasury(t, path, "second")
	if _, err := second.book(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	first, _ := newTreasury(t, path, "first, late")
	if _, err := first.leads(t.Context()); err != nil {
		t.Fatal(err)
	}
	calls := map[string]func() error{
		"permit":  func() error { return second.Permit(t.Context(), "b", 0) },
		"reserve": func() error { _, err := second.Reserve(t.Context(), reservation()); return err },
		"settle":  func() error { _, err := second.Settle(t.Context(), quota.Settlement{Burst: "b"}); return err },
		"usage":   func() error { return second.RecordUsage(t.Context(), []quota.Usage{{}}) },
		"budgets": func() error {
			_, err := second.book(t.Context(), nil, []v1alpha1.BurstTenant{tenant("t", v1alpha1.TenantBudget{Limit: "1.00 EUR", Window: "month"})})
			return err
		},
	}
	for name, call := range calls {
		*fenced = nil
		if err := call(); !errors.Is(err, quota.ErrStaleEpoch) || len(*fenced) != 1 {
			t.Errorf("%s: %v, the process was told %v; want a stale epoch, told once", name, err, *fenced)
		}
	}
}

func reservation() quota.Reservation {
	now := time.Now().UTC()
	return quota.Reservation{
		Burst: "b", Tenant: "t", Provider: "west", Namespace: "team", Owner: "job", Budgets: []string{"t/m"}, Mode: "safe",
		Amount: money.Amount{Nano: 1, Currency: "EUR"}, From: now, Until: now.Add(time.Hour),
	}
}

func tenant(id string, budget v1alpha1.TenantBudget) v1alpha1.BurstTenant {
	budget.Name, budget.Hard = "m", true
	t := v1alpha1.BurstTenant{}
	t.Name, t.Spec.ID, t.Spec.Burst.Budgets = id, id, []v1alpha1.TenantBudget{budget}
	return t
}

// TestOneTenantsBudgetStopsNobodyElse: a budget that can't be taken (a time zone
// that does not exist, a window that was changed under running money, an id that
// another tenant has) leaves its tenant without one.
//
// cases: H-24 kubernetes-sigs/kueue#5937: a budget that is removed means no new
// bursts.
func TestOneTenantsBudgetStopsNobodyElse(t *testing.T) {
	good := v1alpha1.TenantBudget{Limit: "5.00 EUR", Window: "month", TimeZone: "Europe/Berlin"}
	tests := map[string]struct {
		then v1alpha1.BurstTenant
		want []string
	}{
		"a time zone that does not exist": {tenant("bad", v1alpha1.TenantBudget{Limit: "1.00 EUR", Window: "month", TimeZone: "Europe/Nowhere"}), []string{"good/m"}},
		"a window that was changed":       {tenant("bad", v1alpha1.TenantBudget{Limit: "5.00 EUR", Window: "day", TimeZone: "Europe/Berlin"}), []string{"good/m"}},
		"an id that is taken":             {tenant("good", good), []string{"good/m"}},
		"a limit that was raised: may":    {tenant("bad", v1alpha1.TenantBudget{Limit: "9.00 EUR", Window: "month", TimeZone: "Europe/Berlin"}), []string{"bad/m", "good/m"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tr, _ := newTreasury(t, filepath.Join(t.TempDir(), "ledger.db"), "one")
			if _, err := tr.book(t.Context(), nil, []v1alpha1.BurstTenant{tenant("good", good), tenant("bad", good)}); err != nil {
				t.Fatal(err)
			}
			book, err := tr.book(t.Context(), nil, []v1alpha1.BurstTenant{tenant("good", good), tt.then})
			if err != nil {
				t.Fatal(err)
			}
			var open []string
			for _, id := range slices.Sorted(maps.Keys(book.Budgets)) {
				if !book.Budgets[id].Retired {
					open = append(open, id)
				}
			}
			if diff := cmp.Diff(tt.want, open); diff != "" {
				t.Errorf("budgets that may be spent from (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSpendPerDayOfAProvider: what one provider may cost a day holds for all
// tenants together, and a limit that is no amount lets nothing through.
func TestSpendPerDayOfAProvider(t *testing.T) {
	for name, tt := range map[string]struct{ limit, want string }{
		"a limit":              {"7.50 EUR", "provider/west/day/EUR 7.50 EUR"},
		"another currency":     {"7.50 CHF", "provider/west/day/CHF 7.50 CHF"},
		"none":                 {"", ""},
		"one that is no money": {"much", "provider/west/day/EUR 0.00 EUR"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := v1alpha1.BurstProvider{}
			cloud.Name, cloud.Spec.Limits.SpendPerDay = "west", v1alpha1.Money(tt.limit)
			tr, _ := newTreasury(t, filepath.Join(t.TempDir(), "ledger.db"), "one")
			book, err := tr.book(t.Context(), []v1alpha1.BurstProvider{cloud}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for id, b := range book.Budgets {
				if b.Hard && b.Scope == quota.ScopeProvider && b.Window == quota.WindowDay {
					got += id + " " + b.Limit.String()
				}
			}
			if got != tt.want {
				t.Errorf("budgets %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPlannerKeepsTheOthersTimes: a longer wipe is reserved for.
func TestPlannerKeepsTheOthersTimes(t *testing.T) {
	c := Defaults()
	c.Life.WipeDeadline, c.Life.BuyDeadline, c.SweepEvery = 2*time.Hour, time.Hour, 7*time.Minute
	c.oneClock()
	if p := c.Planning; p.Wipe != 2*time.Hour || p.Buy != time.Hour || p.Sweep != 7*time.Minute || p.Ready != c.Life.ReadyDeadline || p.DeadMan != c.Life.DeadMan || p.Collect != c.Life.CollectDeadline {
		t.Errorf("the planner reserves for %+v, the lifecycle takes %+v", p, c.Life)
	}
}
