package quota_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// world is a book and what was last said no to; each step reads as a sentence.
type world struct {
	t    *testing.T
	book quota.Book
	err  error
}

func given(t *testing.T, budgets ...quota.Budget) *world {
	t.Helper()
	b, err := quota.NewBook(budgets...)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, book: b}
}

func hard(id string, scope quota.Scope, subject, limit string) quota.Budget {
	return quota.Budget{ID: id, Scope: scope, Subject: subject, Window: quota.WindowMonth, Limit: eur(limit), Hard: true}
}

func burst(uid, amount string) quota.Reservation {
	return quota.Reservation{
		Burst: uid, Tenant: "vision", Project: "train", Provider: "ovh", Amount: eur(amount),
		From: at("2026-10-05 08:00"), Until: at("2026-10-05 12:00"),
	}
}

func (w *world) apply(ev quota.Event, err error) *world {
	w.t.Helper()
	if w.err = err; err == nil {
		if _, err := w.book.Apply(ev); err != nil {
			w.t.Fatalf("an event that was proposed can't be applied: %v", err)
		}
	}
	return w
}

func (w *world) reserve(r quota.Reservation) *world { w.t.Helper(); return w.apply(w.book.Reserve(r)) }

func (w *world) settle(s quota.Settlement) *world { w.t.Helper(); return w.apply(w.book.Settle(s)) }

func (w *world) accepted() *world {
	w.t.Helper()
	if w.err != nil {
		w.t.Fatalf("refused: %v", w.err)
	}
	return w
}

func (w *world) refused(want error) *world {
	w.t.Helper()
	if !errors.Is(w.err, want) {
		w.t.Fatalf("error is %v, want %v", w.err, want)
	}
	return w
}

// short checks the first short budget and the amount that it is short by.
func (w *world) short(budget, missing string) *world {
	w.t.Helper()
	s, ok := errors.AsType[*quota.ShortError](w.err)
	if !ok || s.Budget != budget || s.Missing != eur(missing) {
		w.t.Fatalf("error is %v, want %q short by %s", w.err, budget, missing)
	}
	return w
}

// holds checks what one window of one budget holds.
func (w *world) holds(budget, window, spent, reserved string) *world {
	w.t.Helper()
	got := w.book.Windows[budget][window]
	if got.Spent != eur(spent) || got.Reserved != eur(reserved) {
		w.t.Fatalf("budget %s in %s: spent %v, reserved %v; want %s and %s", budget, window, got.Spent, got.Reserved, spent, reserved)
	}
	return w
}

func TestAReservationMustFitEveryBudgetOnItsPath(t *testing.T) {
	given(t,
		hard("all", quota.ScopeGlobal, "", "100"),
		hard("cloud", quota.ScopeProvider, "ovh", "20"),
		hard("team", quota.ScopeTenant, "vision", "10"),
		hard("other", quota.ScopeTenant, "speech", "1"),
	).
		reserve(burst("a", "8")).accepted().
		holds("all", "2026-10", "0", "8").holds("cloud", "2026-10", "0", "8").holds("team", "2026-10", "0", "8").
		reserve(burst("b", "3.50")).short("team", "1.50").
		holds("all", "2026-10", "0", "8").holds("team", "2026-10", "0", "8").
		reserve(burst("c", "2")).accepted().
		reserve(burst("d", "0.000000001")).short("team", "0.000000001")
}

func TestEveryShortBudgetIsNamedTheShortestFirst(t *testing.T) {
	w := given(t, hard("all", quota.ScopeGlobal, "", "5"), hard("team", quota.ScopeTenant, "vision", "2")).
		reserve(burst("a", "6")).short("team", "4.00")
	want := `reserve 6.00 EUR for burst "a": budget "team" is short by 4.00 EUR in 2026-10 (limit 2.00 EUR, spent 0.00 EUR, reserved 0.00 EUR, asked 6.00 EUR): ` +
		`raise its limit by 4.00 EUR, wait until reserved money is released or the next window begins, or ask for less; ` +
		`budget "all" is short by 1.00 EUR in 2026-10 (limit 5.00 EUR, spent 0.00 EUR, reserved 0.00 EUR, asked 6.00 EUR): ` +
		`raise its limit by 1.00 EUR, wait until reserved money is released or the next window begins, or ask for less`
	if w.err.Error() != want {
		t.Errorf("message is\n%v\nwant\n%v", w.err, want)
	}
}

func TestWhoeverHasNoBudgetIsRefused(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10"))
	r := burst("a", "1")
	r.Tenant = "speech"
	w.reserve(r).refused(quota.ErrNoBudget)
	r.Tenant, r.Budgets = "vision", []string{"gone"}
	w.reserve(r).refused(quota.ErrNoBudget)
}

// A budget can't be left out by not naming it.
func TestABudgetAppliesWhetherNamedOrNot(t *testing.T) {
	named := hard("extra", quota.ScopeTenant, "", "3")
	w := given(t, hard("team", quota.ScopeTenant, "vision", "5"), named)
	r := burst("a", "4")
	r.Budgets = []string{"extra"}
	w.reserve(r).short("extra", "1")
	r.Budgets = nil
	w.reserve(r).accepted().reserve(burst("b", "2")).short("team", "1")
}

func TestASoftBudgetCountsAndNeverRefuses(t *testing.T) {
	soft := hard("team", quota.ScopeTenant, "vision", "1")
	soft.Hard = false
	given(t, soft).reserve(burst("a", "5")).accepted().holds("team", "2026-10", "0", "5")
}

// cases: C-23 garrytan/gbrain#4365
func TestOutstandingReservationsCountInTheCheck(t *testing.T) {
	w := given(t, hard("cap", quota.ScopeGlobal, "", "5.00")).
		reserve(burst("before", "4.752720")).accepted().
		settle(quota.Settlement{Burst: "before", Actual: eur("4.752720"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 09:00")}).accepted()
	started := 0
	for _, uid := range []string{"a", "b", "c", "d"} {
		if w.reserve(burst(uid, "0.0884")); w.err == nil {
			started++
		}
	}
	if started != 2 {
		t.Errorf("%d of 4 calls were let through, want 2", started)
	}
}

// cases: C-4 kubernetes-sigs/kueue#11139, #11137, #11182, #14112, #14108; C-5 kubernetes-sigs/kueue#12838
func TestHugeAndNegativeAmountsAreRefused(t *testing.T) {
	huge := burst("a", "1")
	huge.Amount.Nano = math.MaxInt64
	soft := hard("soft", quota.ScopeGlobal, "", "1")
	soft.Hard = false
	w := given(t, soft).reserve(huge).accepted().reserve(burst("b", "1")).refused(money.ErrOverflow)
	for name, nano := range map[string]int64{"zero": 0, "negative": -1, "most negative": math.MinInt64} {
		t.Run(name, func(t *testing.T) {
			r := burst("c", "1")
			r.Amount.Nano = nano
			w.t = t
			w.reserve(r).refused(quota.ErrInvalid)
		})
	}
}

func TestCurrenciesAreNeverConverted(t *testing.T) {
	r := burst("a", "1")
	r.Amount.Currency = "USD"
	given(t, hard("all", quota.ScopeGlobal, "", "10")).reserve(r).refused(money.ErrCurrency)
}

func TestSettlementPostsWhatWasReservedAndReleasesTheRest(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "8")).accepted()
	ev, err := w.book.Settle(quota.Settlement{
		Burst: "a", Actual: eur("3"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 09:00"), Seconds: 3600, Cause: "done",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []quota.Entry{
		{Debit: "tenant/vision/spend", Credit: "provider/ovh/accrued", Amount: eur("3")},
		{Debit: "tenant/vision/committed", Credit: "burst/a/reserved", Amount: eur("8")},
		{Debit: "budget/team/2026-10/spent", Credit: "budget/team/2026-10/reserved", Amount: eur("3")},
		{Debit: "budget/team/2026-10/open", Credit: "budget/team/2026-10/reserved", Amount: eur("5")},
	}
	if diff := cmp.Diff(want, ev.Entries); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	a, err := w.book.Apply(ev)
	if err != nil {
		t.Fatal(err)
	}
	if a.State != quota.Settled || a.Reserved != eur("8") || a.Spent != eur("3") || a.Released != eur("5") || !a.Pending.IsZero() || !a.Overrun.IsZero() {
		t.Errorf("account is %+v", a)
	}
	w.holds("team", "2026-10", "3", "0").settle(quota.Settlement{Burst: "a"}).refused(quota.ErrUnknownBurst)
}

func TestCostBeyondTheReservationIsTheOperatorsAndBlocksNewBursts(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).
		reserve(burst("a", "8")).accepted().
		reserve(burst("b", "1")).accepted().
		settle(quota.Settlement{Burst: "a", Actual: eur("9.25"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 20:00")}).accepted().
		holds("team", "2026-10", "8", "1").
		reserve(burst("c", "1")).refused(quota.ErrOverrun)
	if got := w.book.Overrun["EUR"]; got != eur("1.25") {
		t.Errorf("overrun is %v, want 1.25", got)
	}
	w.settle(quota.Settlement{Burst: "b"}).accepted().
		apply(w.book.Accept("EUR", "person-17", "deleted by hand, ticket 4711")).accepted().
		reserve(burst("c", "1")).accepted().
		apply(w.book.Accept("EUR", "person-17", "again")).refused(quota.ErrInvalid)
}

func TestAProviderFaultIsPaidByTheOperator(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "8")).accepted()
	ev, err := w.book.Settle(quota.Settlement{
		Burst: "a", Actual: eur("3"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 09:00"), Cause: quota.CauseProviderFault,
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := w.book.Apply(ev)
	if err != nil || a.Waived != eur("3") || !a.Spent.IsZero() || a.Released != eur("5") {
		t.Errorf("account is %+v, %v", a, err)
	}
	w.holds("team", "2026-10", "0", "0")
}

// cases: C-46 cloudfoundry-incubator/cf-abacus#709, C-70 go-gitea/gitea#39322
func TestSettlementsThatCantBeAreRefused(t *testing.T) {
	start := at("2026-10-05 08:00")
	for name, s := range map[string]quota.Settlement{
		"negative cost":            {Actual: eur("-1")},
		"negative duration":        {Actual: eur("1"), MachineStart: start, MachineEnd: start.Add(-time.Second)},
		"an end without a start":   {Actual: eur("1"), MachineEnd: start},
		"a start without an end":   {Actual: eur("1"), MachineStart: start},
		"negative machine seconds": {Seconds: -1},
	} {
		t.Run(name, func(t *testing.T) {
			s.Burst = "a"
			given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "8")).accepted().
				settle(s).refused(quota.ErrInvalid).holds("team", "2026-10", "0", "8")
		})
	}
}

func TestARunOverMonthEndCountsInBothAndIsSettledByTime(t *testing.T) {
	r := burst("a", "9")
	r.From, r.Until = at("2026-10-31 22:00"), at("2026-11-01 01:00") // November begins at 23:00Z
	given(t, hard("team", quota.ScopeTenant, "vision", "10")).
		reserve(r).accepted().
		holds("team", "2026-10", "0", "9").holds("team", "2026-11", "0", "9").
		settle(quota.Settlement{Burst: "a", Actual: eur("6"), MachineStart: at("2026-10-31 22:00"), MachineEnd: at("2026-11-01 01:00")}).accepted().
		holds("team", "2026-10", "2", "0").holds("team", "2026-11", "4", "0")
}

// A machine that ran on into a window that promised nothing is posted where it was promised.
func TestTimeOutsideTheReservedWindowsPostsToTheNearest(t *testing.T) {
	given(t, hard("team", quota.ScopeTenant, "vision", "10")).
		reserve(burst("a", "9")).accepted().
		settle(quota.Settlement{Burst: "a", Actual: eur("9"), MachineStart: at("2026-10-31 08:00"), MachineEnd: at("2026-11-02 08:00")}).accepted().
		holds("team", "2026-10", "9", "0")
	r := burst("b", "9")
	r.From, r.Until = at("2026-10-31 22:00"), at("2026-11-01 01:00")
	given(t, hard("team", quota.ScopeTenant, "vision", "10")).
		reserve(r).accepted(). // one hour before October, 745 h of it, 720 h of November, 24 h of December
		settle(quota.Settlement{Burst: "b", Actual: eur("1.49"), MachineStart: at("2026-09-30 21:00"), MachineEnd: at("2026-12-01 23:00")}).accepted().
		holds("team", "2026-10", "0.746", "0").holds("team", "2026-11", "0.744", "0")
}

func TestExtendAsksTheWindowsThatItTouches(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "4")).accepted()
	w.apply(w.book.Extend(quota.Extension{Burst: "a", Key: "1", More: eur("2")})).accepted().holds("team", "2026-10", "0", "6").
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "2", More: eur("5")})).short("team", "1").
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "3", More: eur("1"), Until: at("2026-11-01 12:00")})).accepted().
		holds("team", "2026-10", "0", "7").holds("team", "2026-11", "0", "7").
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "4", Until: at("2026-10-05 12:00")})).refused(quota.ErrInvalid).
		apply(w.book.Extend(quota.Extension{Burst: "x", Key: "1", More: eur("1")})).refused(quota.ErrUnknownBurst)
}

// What was extended in time while nothing was reserved counts in the new window
// as soon as there is something again.
func TestAnExtensionOfNothingIsNotForgotten(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "4")).accepted()
	w.apply(w.book.Shrink(quota.Reduction{Burst: "a", To: eur("0"), Reason: "sold out"})).accepted().
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "1", Until: at("2026-11-01 12:00")})).accepted().
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "2", More: eur("3")})).accepted().
		holds("team", "2026-10", "0", "3").holds("team", "2026-11", "0", "3")
}

func TestAFixedWindowThatWasCutShortLetsNothingGrow(t *testing.T) {
	once := quota.Budget{
		ID: "once", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowFixed, Limit: eur("10"), Hard: true,
		Start: at("2026-10-01 00:00"), End: at("2026-10-06 00:00"),
	}
	w := given(t, once).reserve(burst("a", "4")).accepted()
	once.End = at("2026-10-05 10:00")
	ev, _, err := w.book.SetBudgets([]quota.Budget{once})
	w.apply(ev, err).accepted().
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "1", More: eur("1")})).refused(quota.ErrNoBudget).
		settle(quota.Settlement{Burst: "a", Actual: eur("4"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 12:00")}).accepted().
		holds("once", "fixed", "4", "0")
}

func TestTheCeilingBoundsAllExtensions(t *testing.T) {
	r := burst("a", "4")
	r.Mode, r.Ceiling = quota.ModeLease, eur("6")
	w := given(t, hard("team", quota.ScopeTenant, "vision", "100")).reserve(r).accepted()
	w.apply(w.book.Extend(quota.Extension{Burst: "a", Key: "1", More: eur("2")})).accepted().
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "2", More: eur("0.01")})).refused(quota.ErrInvalid)
}

func TestShrinkReleasesAndEndsTheBuying(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "8")).accepted()
	w.apply(w.book.Permit(quota.Permit{Burst: "a", Ordinal: 0, Epoch: 1})).accepted().
		apply(w.book.Permit(quota.Permit{Burst: "a", Ordinal: 0, Epoch: 1})).refused(quota.ErrPermitUsed).
		apply(w.book.Permit(quota.Permit{Burst: "a", Ordinal: 0, Epoch: 2})).accepted().
		apply(w.book.Shrink(quota.Reduction{Burst: "a", To: eur("0.10"), Reason: "sold out"})).accepted().
		holds("team", "2026-10", "0", "0.10").
		apply(w.book.Permit(quota.Permit{Burst: "a", Ordinal: 1, Epoch: 2})).refused(quota.ErrDraining).
		apply(w.book.Shrink(quota.Reduction{Burst: "a", To: eur("0.20"), Reason: "more"})).refused(quota.ErrInvalid).
		settle(quota.Settlement{Burst: "a", Actual: eur("0.04"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 08:05")}).accepted().
		holds("team", "2026-10", "0.04", "0")
}

// cases: H-24 kubernetes-sigs/kueue#5937
func TestARemovedBudgetAllowsNoNewBurstsAndBillsRunningOnes(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "8")).accepted()
	ev, changed, err := w.book.SetBudgets([]quota.Budget{hard("all", quota.ScopeGlobal, "", "100")})
	if !changed {
		t.Fatal("nothing changed")
	}
	named := burst("b", "1")
	named.Budgets = []string{"team"}
	w.apply(ev, err).accepted().
		reserve(named).refused(quota.ErrNoBudget).
		apply(w.book.Extend(quota.Extension{Burst: "a", Key: "1", More: eur("1")})).refused(quota.ErrNoBudget).
		settle(quota.Settlement{Burst: "a", Actual: eur("2"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 09:00")}).accepted().
		holds("team", "2026-10", "2", "0")
}

// cases: C-17 volcano-sh/volcano#4684, #5911
func TestALoweredLimitBlocksNewWorkAndLeavesTheRest(t *testing.T) {
	other := hard("speech", quota.ScopeTenant, "speech", "5")
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10"), other).reserve(burst("a", "8")).accepted()
	ev, _, err := w.book.SetBudgets([]quota.Budget{hard("team", quota.ScopeTenant, "vision", "3"), other})
	foreign := burst("c", "5")
	foreign.Tenant = "speech"
	w.apply(ev, err).accepted().holds("team", "2026-10", "0", "8").
		reserve(burst("b", "1")).short("team", "6").
		reserve(foreign).accepted().
		settle(quota.Settlement{Burst: "a", Actual: eur("8"), MachineStart: at("2026-10-05 08:00"), MachineEnd: at("2026-10-05 09:00")}).accepted()
}

func TestWhatABudgetMeansNeverChanges(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10"))
	for name, change := range map[string]func(*quota.Budget){
		"window":   func(b *quota.Budget) { b.Window = quota.WindowDay },
		"zone":     func(b *quota.Budget) { b.Zone = "UTC" },
		"currency": func(b *quota.Budget) { b.Limit.Currency = "USD" },
		"subject":  func(b *quota.Budget) { b.Subject = "speech" },
	} {
		t.Run(name, func(t *testing.T) {
			b := hard("team", quota.ScopeTenant, "vision", "10")
			change(&b)
			if _, _, err := w.book.SetBudgets([]quota.Budget{b}); !errors.Is(err, quota.ErrConflict) {
				t.Errorf("error is %v, want ErrConflict", err)
			}
		})
	}
	if _, changed, err := w.book.SetBudgets([]quota.Budget{hard("team", quota.ScopeTenant, "vision", "10")}); changed || err != nil {
		t.Errorf("the same set again: changed %v, %v", changed, err)
	}
	if _, _, err := w.book.SetBudgets([]quota.Budget{hard("x", quota.ScopeGlobal, "", "1"), hard("x", quota.ScopeGlobal, "", "2")}); !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("one id twice: %v, want ErrInvalid", err)
	}
}

// A plan is tried on a copy; the original, and what the copy shares with it, stay.
func TestTryOnAWorkingCopy(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10")).reserve(burst("a", "4")).accepted()
	before, err := json.Marshal(w.book)
	if err != nil {
		t.Fatal(err)
	}
	plan := w.book.Clone()
	for range 3 {
		if err := plan.Try(burst("", "2")); err != nil {
			t.Fatal(err)
		}
	}
	w.err = plan.Try(burst("", "2"))
	w.short("team", "2")
	w.err = plan.Try(burst("plan-2", "0"))
	w.refused(quota.ErrInvalid)
	if after, err := json.Marshal(w.book); err != nil || string(after) != string(before) {
		t.Errorf("the original changed from\n%s to\n%s, %v", before, after, err)
	}
	var captured quota.Book
	if err := json.Unmarshal(before, &captured); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w.book, captured); diff != "" {
		t.Errorf("a captured book differs (-live +captured):\n%s", diff)
	}
}

func TestStandingsShowTheWindowOfTheMoment(t *testing.T) {
	day := hard("cloud", quota.ScopeProvider, "ovh", "5")
	day.Window = quota.WindowDay
	w := given(t, hard("team", quota.ScopeTenant, "vision", "10"), day).reserve(burst("a", "4")).accepted()
	got, err := w.book.Standings(at("2026-10-06 08:00"))
	if err != nil || len(got) != 2 {
		t.Fatalf("Standings = %v, %v", got, err)
	}
	if s := got[0]; s.Budget.ID != "cloud" || s.Window.ID != "2026-10-06" || s.Free != eur("5") {
		t.Errorf("the next day of the day budget is %+v", s)
	}
	if s := got[1]; s.Budget.ID != "team" || s.Reserved != eur("4") || s.Free != eur("6") {
		t.Errorf("the month budget is %+v", s)
	}
}

// Machines that are named are all of the bill, each once and within its time.
func TestTheMachinesAreTheBill(t *testing.T) {
	start, end := at("2026-10-05 08:00"), at("2026-10-05 10:00")
	bill := func(id, cost string, seconds int64) quota.MachineBill {
		return quota.MachineBill{ID: id, Start: start, End: end, Seconds: seconds, Cost: eur(cost)}
	}
	for name, tt := range map[string]struct {
		machines []quota.MachineBill
		want     error
	}{
		"none is named":        {nil, nil},
		"all":                  {[]quota.MachineBill{bill("i-1", "2", 7200), bill("i-2", "1", 3600)}, nil},
		"one is missing":       {[]quota.MachineBill{bill("i-1", "2", 7200)}, quota.ErrInvalid},
		"one twice":            {[]quota.MachineBill{bill("i-1", "2", 7200), bill("i-1", "1", 3600)}, quota.ErrInvalid},
		"too few seconds":      {[]quota.MachineBill{bill("i-1", "2", 7200), bill("i-2", "1", 3599)}, quota.ErrInvalid},
		"one gives money back": {[]quota.MachineBill{bill("i-1", "4", 7200), bill("i-2", "-1", 3600)}, quota.ErrInvalid},
		"another currency": {[]quota.MachineBill{bill("i-1", "2", 7200), {
			ID: "i-2", Start: start, End: end, Seconds: 3600, Cost: money.Amount{Nano: 1e9, Currency: "USD"},
		}}, money.ErrCurrency},
		"outside the time": {[]quota.MachineBill{bill("i-1", "2", 7200), {ID: "i-2", Start: start, End: end.Add(1), Seconds: 3600, Cost: eur("1")}}, quota.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := quota.Settlement{Burst: "a", Actual: eur("3"), MachineStart: start, MachineEnd: end, Seconds: 10800, Machines: tt.machines}
			if err := s.Validate(); !errors.Is(err, tt.want) {
				t.Errorf("Validate = %v, want %v", err, tt.want)
			}
		})
	}
}
