package infra_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fleet builds what a cloud lists.
type fleet struct {
	machines []providers.Machine
	known    infra.Records
}

func newFleet() fleet {
	return fleet{known: infra.Records{Tokens: map[string]bool{}, Reservations: map[string]bool{}}}
}

func (f fleet) machine(id string, age, stamp time.Duration) fleet {
	m := providers.Machine{ID: id, Token: "tok-" + id, Burst: "burst-" + id, Created: noon.Add(-age), Expires: noon.Add(stamp)}
	if stamp == 0 {
		m.Expires = time.Time{}
	}
	f.machines = append(slices.Clone(f.machines), m)
	return f
}

func (f fleet) knownMachine(id string, age, stamp time.Duration) fleet {
	f = f.machine(id, age, stamp)
	f.known.Tokens = maps.Clone(f.known.Tokens)
	f.known.Tokens["tok-"+id] = true
	return f
}

func (f fleet) reserved(id string) fleet {
	f.known.Reservations = maps.Clone(f.known.Reservations)
	f.known.Reservations["burst-"+id] = true
	return f
}

func (f fleet) many(n int) fleet {
	for i := range n {
		f = f.knownMachine(fmt.Sprintf("k%02d", i), time.Hour, time.Hour)
	}
	return f
}

func TestPlanSweep(t *testing.T) {
	const old, young, fresh, past = time.Hour, 5 * time.Minute, 20 * time.Minute, -time.Second
	stamps := infra.DefaultSweepRules()
	stamps.StampsOnly = true
	tests := map[string]struct {
		given  fleet
		rules  infra.SweepRules
		delete []string
		alert  bool
	}{
		"what is known stays":                                     {newFleet().knownMachine("a", old, fresh), infra.DefaultSweepRules(), nil, false},
		"past its stamp it goes, known or not":                    {newFleet().knownMachine("a", old, past).machine("b", old, past), infra.DefaultSweepRules(), []string{"a expired", "b expired"}, false},
		"past its stamp it goes, reservation or not":              {newFleet().machine("a", old, past).reserved("a"), infra.DefaultSweepRules(), []string{"a expired"}, false},
		"one that nobody knows goes":                              {newFleet().machine("a", old, fresh), infra.DefaultSweepRules(), []string{"a unknown"}, false},
		"one that nobody knows yet stays":                         {newFleet().machine("a", young, fresh), infra.DefaultSweepRules(), nil, false},
		"an open reservation protects until the stamp":            {newFleet().machine("a", old, fresh).reserved("a"), infra.DefaultSweepRules(), nil, false},
		"without a stamp it is not past it":                       {newFleet().knownMachine("a", old, 0), infra.DefaultSweepRules(), nil, false},
		"without a stamp, and unknown, it goes":                   {newFleet().machine("a", old, 0), infra.DefaultSweepRules(), []string{"a unknown"}, false},
		"three unknown of many go":                                {newFleet().many(20).machine("a", old, fresh).machine("b", old, fresh).machine("c", old, fresh), infra.DefaultSweepRules(), []string{"a unknown", "b unknown", "c unknown"}, false},
		"four unknown at once look like a lost record":            {newFleet().many(40).machine("a", old, fresh).machine("b", old, fresh).machine("c", old, fresh).machine("d", old, fresh), infra.DefaultSweepRules(), nil, true},
		"two of three unknown look like a lost record":            {newFleet().many(1).machine("a", old, fresh).machine("b", old, fresh), infra.DefaultSweepRules(), nil, true},
		"after a lost record what is past its stamp still goes":   {newFleet().machine("a", old, fresh).machine("b", old, fresh).machine("c", old, past), infra.DefaultSweepRules(), []string{"c expired"}, true},
		"outside the cluster stamps alone count":                  {newFleet().machine("a", old, fresh).machine("b", old, past), stamps, []string{"b expired"}, false},
		"outside the cluster one without a stamp is left to home": {newFleet().machine("a", old, 0), stamps, nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan := infra.PlanSweep(noon, tt.given.machines, tt.given.known, tt.rules)
			var got []string
			for _, d := range plan.Delete {
				got = append(got, d.Machine.ID+" "+d.Reason)
			}
			if diff := cmp.Diff(tt.delete, got); diff != "" {
				t.Errorf("deletes (-want +got):\n%s", diff)
			}
			if (plan.Alert != "") != tt.alert {
				t.Errorf("alert %q, want one: %v", plan.Alert, tt.alert)
			}
		})
	}
}

// A restored etcd or ledger must not delete a fleet, and no known machine ever
// goes before its stamp, in whatever order the cloud lists.
func TestSweepIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFleet()
		for i := range rapid.IntRange(0, 40).Draw(t, "machines") {
			id := fmt.Sprintf("m%02d", i)
			age := time.Duration(rapid.IntRange(0, 60).Draw(t, "age")) * time.Minute
			stamp := time.Duration(rapid.IntRange(-30, 30).Draw(t, "stamp")) * time.Minute
			switch rapid.IntRange(0, 2).Draw(t, "known") {
			case 0:
				f = f.machine(id, age, stamp)
			case 1:
				f = f.knownMachine(id, age, stamp)
			case 2:
				f = f.machine(id, age, stamp).reserved(id)
			}
		}
		rules := infra.DefaultSweepRules()
		plan := infra.PlanSweep(noon, f.machines, f.known, rules)
		unknown := 0
		for _, d := range plan.Delete {
			expired := !d.Machine.Expires.IsZero() && noon.After(d.Machine.Expires)
			safe := f.known.Tokens[d.Machine.Token] || f.known.Reservations[d.Machine.Burst]
			if !expired && safe {
				t.Fatalf("%s is known, before its stamp, and would go as %s", d.Machine.ID, d.Reason)
			}
			if !expired {
				unknown++
			}
		}
		if unknown > rules.MaxUnknown || (unknown > 1 && unknown*100 > rules.MaxShare*len(f.machines)) {
			t.Fatalf("%d unknown of %d would go at once", unknown, len(f.machines))
		}
		shuffled := rapid.Permutation(f.machines).Draw(t, "order")
		if diff := cmp.Diff(plan, infra.PlanSweep(noon, shuffled, f.known, rules)); diff != "" {
			t.Fatalf("another order, another plan (-one +other):\n%s", diff)
		}
	})
}

// cases: D-64 skypilot-org/skypilot#2261, F13 dstackai/dstack#3453: the controller is gone for good, and
// the stamp alone ends the machine.
func TestSweepOutsideTheClusterNeedsTheCloudOnly(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second) // and never again
	foreign := b.cloud.Plant(providers.Machine{Token: "x", Installation: "other", Expires: b.clock.Now().Add(-time.Hour)})
	sweep := func() infra.SweepReport {
		t.Helper()
		report, err := infra.Sweep(t.Context(), b.driver, nil, infra.SweepRules{}, b.clock.Now)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	if report := sweep(); len(report.Asked) > 0 || report.Listed != 1 {
		t.Fatalf("before the stamp: %+v", report)
	}
	b.clock.step(30 * time.Minute)
	if report := sweep(); len(report.Asked) != 1 || report.Asked[0].Reason != infra.DoomedExpired {
		t.Fatalf("after the stamp: %+v", report)
	}
	b.clock.step(time.Minute)
	b.cloud.Tick()
	if left := b.cloud.Billing(); len(left) != 1 || left[0].ID != foreign.ID {
		t.Errorf("billed: %+v, want the foreign machine alone", left)
	}
}

func TestSweepTroubles(t *testing.T) {
	orphan := func(b *bench, stamp time.Duration) {
		now := b.clock.Now()
		b.cloud.Plant(providers.Machine{Token: "orphan", Installation: installation, Created: now.Add(-time.Hour), Expires: now.Add(stamp)})
	}
	records := func(err error) func(context.Context) (infra.Records, error) {
		return func(context.Context) (infra.Records, error) { return infra.Records{}, err }
	}
	tests := map[string]struct {
		set    func(*bench)
		known  func(context.Context) (infra.Records, error)
		asked  int
		failed string
	}{
		"an orphan goes":                            {func(b *bench) { orphan(b, time.Hour) }, records(nil), 1, ""},
		"without our records, no orphan goes":       {func(b *bench) { orphan(b, time.Hour) }, records(errors.New("ledger is locked")), 0, "ledger is locked"},
		"without our records, what is expired goes": {func(b *bench) { orphan(b, -time.Hour) }, records(errors.New("ledger is locked")), 1, "ledger is locked"},
		"a list that fails deletes nothing": {func(b *bench) {
			orphan(b, -time.Hour)
			b.cloud.Script(fake.Fault{Op: "list", Effect: fake.Incomplete})
		}, records(nil), 0, "outcome unknown"},
		"one failed delete does not keep the others": {func(b *bench) {
			orphan(b, -time.Hour)
			orphan(b, -time.Hour)
			b.cloud.Script(fake.Fault{Op: "delete", Effect: fake.ServerError})
		}, records(nil), 1, "backend is down"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tt.set(b)
			report, err := infra.Sweep(t.Context(), b.driver, tt.known, infra.DefaultSweepRules(), b.clock.Now)
			if len(report.Asked) != tt.asked {
				t.Errorf("asked for %d deletes, want %d", len(report.Asked), tt.asked)
			}
			if (tt.failed == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), tt.failed)) {
				t.Errorf("error %v, want one with %q", err, tt.failed)
			}
		})
	}
}
