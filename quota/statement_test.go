package quota_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// closed is a settled burst of the tenant "vision".
func closed(uid, from, until string, nano int64) quota.Account {
	start, end := at(from), at(until)
	return quota.Account{
		Reservation: quota.Reservation{
			Burst: uid, Tenant: "vision", Project: "maps", Namespace: "team", Provider: "ovh", Offer: "l40s", Budgets: []string{"maps/year"},
			Amount: money.Amount{Nano: nano, Currency: "EUR"}, From: start,
		},
		State: quota.Settled, Until: end, SettledAt: end.Add(time.Minute),
		Spent: money.Amount{Nano: nano, Currency: "EUR"}, Waived: money.Zero("EUR"), Overrun: money.Zero("EUR"),
		Settlement: quota.Settlement{Burst: uid, MachineStart: start, MachineEnd: end, Seconds: int64(end.Sub(start) / time.Second), Cause: "Succeeded"},
	}
}

func hour(t, namespace, burst string, shareSeconds int64) quota.UsageHour {
	return quota.UsageHour{Hour: at(t), Namespace: namespace, Burst: burst, GPUModel: "H100", ShareSeconds: shareSeconds}
}

func statement(t *testing.T, month string, book quota.Book, accounts []quota.Account, usage []quota.UsageHour) quota.Statement {
	t.Helper()
	s, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: month, Book: book, Accounts: accounts, Usage: usage})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A month holds what fell into it by the local clock: on-prem hours on their
// day, bursts with their part, other tenants not at all.
func TestStatement(t *testing.T) {
	book, err := quota.NewBook(
		quota.Budget{ID: "maps/year", Scope: quota.ScopeProject, Window: quota.WindowFixed, Limit: money.Amount{Nano: 90e9, Currency: "EUR"}, Start: at("2026-01-01 00:00"), End: at("2027-01-01 00:00")},
		quota.Budget{ID: "vision/month", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: money.Amount{Nano: 50e9, Currency: "EUR"}, Hard: true},
		quota.Budget{ID: "maps/month", Scope: quota.ScopeProject, Subject: "maps", Window: quota.WindowMonth, Limit: money.Amount{Nano: 20e9, Currency: "EUR"}},
		quota.Budget{ID: "others", Scope: quota.ScopeProject, Subject: "roads", Window: quota.WindowMonth, Limit: money.Amount{Nano: 20e9, Currency: "EUR"}},
		quota.Budget{ID: "ovh/month", Scope: quota.ScopeProvider, Subject: "ovh", Window: quota.WindowMonth, Limit: money.Amount{Nano: 20e9, Currency: "EUR"}},
		quota.Budget{ID: "speech/month", Scope: quota.ScopeTenant, Subject: "speech", Window: quota.WindowMonth, Limit: money.Amount{Nano: 50e9, Currency: "EUR"}, Hard: true},
	)
	if err != nil {
		t.Fatal(err)
	}
	other := closed("other", "2026-11-02 10:00", "2026-11-02 11:00", 7e9)
	other.Reservation.Tenant = "speech"
	running := closed("running", "2026-11-30 20:00", "2026-12-01 02:00", 3e9)
	running.State, running.Pending = quota.Reserved, running.Spent
	failed := closed("failed", "2026-11-03 10:00", "2026-11-03 11:00", 2e9)
	failed.Spent, failed.Waived, failed.Settlement.Cause = money.Zero("EUR"), failed.Spent, quota.CauseProviderFault
	accounts := []quota.Account{
		// Two hours before the month, one in it.
		closed("month end", "2026-10-31 21:00", "2026-11-01 00:00", 9e9), closed("plain", "2026-11-02 10:00", "2026-11-02 12:00", 4_005_000_001),
		other, running, failed, closed("before", "2026-10-20 10:00", "2026-10-20 12:00", 4e9),
	}
	s := statement(t, "2026-11", book, accounts, []quota.UsageHour{
		hour("2026-10-31 23:00", "team", "", 3600*840), hour("2026-11-02 10:00", "team", "plain", 2*3600*840), hour("2026-11-02 10:00", "lab", "", 1800*840),
		hour("2026-11-02 11:00", "team", "plain", 2*3600*840),
	})
	eur := func(nano int64) money.Amount { return money.Amount{Nano: nano, Currency: "EUR"} }
	cost := func(exact, rounded int64) quota.Cost { return quota.Cost{Exact: eur(exact), Rounded: eur(rounded)} }
	want := []quota.StatementTotal{{Charged: cost(7_005_000_001, 7_010_000_000), Waived: cost(2e9, 2e9), Overrun: cost(0, 0)}}
	if diff := cmp.Diff(want, s.Totals); diff != "" {
		t.Error(diff)
	}
	time := func(seconds int64) quota.GPUTime {
		return quota.GPUTime{ShareSeconds: seconds * 840, Hundredths: seconds / 36}
	}
	plain := cost(7_005_000_001, 7_010_000_000)
	lines := []quota.StatementLine{
		{Namespace: "lab", Place: quota.OnPrem, GPUModel: "H100", Time: time(1800), Charged: []*quota.Cost{}},
		{Namespace: "team", Place: quota.OnPrem, GPUModel: "H100", Time: time(3600), Charged: []*quota.Cost{}},
		{Project: "maps", Namespace: "team", Place: "ovh", Charged: []*quota.Cost{{Exact: eur(3e9), Rounded: eur(3e9)}}}, // no usage, so no model is known
		{Project: "maps", Namespace: "team", Place: "ovh", GPUModel: "H100", Time: time(4 * 3600), Charged: []*quota.Cost{{Exact: eur(4_005_000_001), Rounded: eur(4_010_000_000)}}},
	}
	if diff := cmp.Diff(lines, s.Lines); diff != "" {
		t.Error(diff)
	}
	if len(s.Days) != 30 || s.Days[0].Time.OnPrem != time(3600) || s.Days[1].Time.Burst != time(4*3600) || s.Days[0].Charged[0].Exact != eur(3e9) {
		t.Errorf("days are %v", s.Days[:2])
	}
	if s.Time.OnPrem != time(5400) || s.Time.Burst != time(4*3600) || s.Hours != 720 || plain != s.Totals[0].Charged {
		t.Errorf("%v in %d hours", s.Time, s.Hours)
	}
	var bursts, budgets []string
	for _, b := range s.Bursts {
		bursts = append(bursts, fmt.Sprint(b.Burst, " ", b.Charged.Exact, " ", b.Part))
	}
	if diff := cmp.Diff([]string{"month end 3.00 EUR true", "plain 4.005000001 EUR false", "failed 0.00 EUR false"}, bursts); diff != "" {
		t.Error(diff)
	}
	for _, b := range s.Budgets {
		budgets = append(budgets, fmt.Sprint(b.Budget, " ", b.Window, " ", b.Free))
	}
	if diff := cmp.Diff([]string{"maps/month 2026-11 20.00 EUR", "vision/month 2026-11 50.00 EUR"}, budgets); diff != "" {
		t.Error(diff)
	}
	if len(s.Open) != 1 || s.Open[0].Burst != "running" || s.Open[0].Pending != eur(3e9) {
		t.Errorf("open is %v", s.Open)
	}
}

// Whatever was booked, every table of a statement adds up to its totals,
// exactly and in cents, and neighbouring months to what was booked (I13 of the
// ledger's invariants). cases: C-62 useautumn/autumn#3407, C-54 opencost#1124
func TestStatementsAddUp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		start := at("2026-10-28 00:00")
		var accounts []quota.Account
		var usage []quota.UsageHour
		booked := make(map[money.Currency]int64)
		for i := range rapid.IntRange(0, 8).Draw(r, "bursts") {
			from := start.Add(time.Duration(rapid.Int64Range(0, 6*24*3600).Draw(r, "from")) * time.Second)
			a := closed(fmt.Sprint("b", i), "2026-10-28 00:00", "2026-10-28 00:01", rapid.Int64Range(0, 1e12).Draw(r, "nano"))
			a.Settlement.MachineStart, a.Settlement.MachineEnd = from, from.Add(time.Duration(rapid.Int64Range(0, 4*24*3600).Draw(r, "seconds"))*time.Second)
			c := rapid.SampledFrom([]money.Currency{"EUR", "CHF"}).Draw(r, "currency")
			a.Spent.Currency, a.Waived.Currency, a.Overrun.Currency = c, c, c
			a.Reservation.Project = rapid.SampledFrom([]string{"", "maps", "roads"}).Draw(r, "project")
			accounts = append(accounts, a)
			booked[a.Spent.Currency] += a.Spent.Nano
		}
		for range rapid.IntRange(0, 8).Draw(r, "usage") {
			usage = append(usage, quota.UsageHour{
				Hour: start.Add(time.Duration(rapid.IntRange(0, 240).Draw(r, "hour")) * time.Hour), Namespace: rapid.SampledFrom([]string{"a", "b"}).Draw(r, "namespace"),
				Burst: rapid.SampledFrom([]string{"", "b0", "b1", "gone"}).Draw(r, "burst"), ShareSeconds: rapid.Int64Range(0, 8*3600*840).Draw(r, "share"),
			})
		}
		charged := make(map[money.Currency]int64)
		for _, m := range []string{"2026-10", "2026-11"} {
			s, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: m, Accounts: accounts, Usage: usage})
			if err != nil {
				r.Fatal(err)
			}
			checkSums(r, s)
			for _, total := range s.Totals {
				charged[total.Charged.Exact.Currency] += total.Charged.Exact.Nano
			}
		}
		for c, nano := range booked {
			if charged[c] != nano {
				r.Fatalf("two months charge %d nano %s, booked were %d", charged[c], c, nano)
			}
		}
	})
}

// checkSums checks that the parts of each table add up.
func checkSums(r *rapid.T, s quota.Statement) {
	var byLine, byDay, byBurst, total sums
	for _, l := range s.Lines {
		byLine.take(l.Charged...)
		byLine.time += l.Time.Hundredths
	}
	for _, d := range s.Days {
		byDay.take(d.Charged...)
		byDay.time += d.Time.OnPrem.Hundredths + d.Time.Burst.Hundredths
	}
	for _, b := range s.Bursts {
		byBurst.take(&b.Charged)
	}
	for _, t := range s.Totals {
		total.take(&t.Charged)
	}
	total.time = s.Time.OnPrem.Hundredths + s.Time.Burst.Hundredths
	byBurst.time = total.time
	for name, got := range map[string]sums{"lines": byLine, "days": byDay, "bursts": byBurst} {
		if got != total {
			r.Fatalf("the %s add up to %v, the total is %v", name, got, total)
		}
	}
}

// sums are exact and rounded nano-units, of EUR and CHF, and hundredths of hours.
type sums struct{ eur, chf, roundEUR, roundCHF, time int64 }

func (s *sums) take(costs ...*quota.Cost) {
	for _, c := range costs {
		if c.Exact.Currency == "EUR" {
			s.eur, s.roundEUR = s.eur+c.Exact.Nano, s.roundEUR+c.Rounded.Nano
		} else {
			s.chf, s.roundCHF = s.chf+c.Exact.Nano, s.roundCHF+c.Rounded.Nano
		}
	}
}

// A month in which the clock changes loses no hour and has none twice. cases:
// C-65 home-assistant/core#114721
func TestStatementsOverAChangeOfTheClock(t *testing.T) {
	for month, want := range map[string]struct {
		hours int64
		day   int
		long  int64
	}{"2026-10": {745, 25, 25}, "2027-03": {743, 28, 23}, "2026-11": {720, 1, 24}} {
		t.Run(month, func(t *testing.T) {
			p, err := quota.Month("", month)
			if err != nil {
				t.Fatal(err)
			}
			var usage []quota.UsageHour
			for at := p.Start.Add(-48 * time.Hour); at.Before(p.End.Add(48 * time.Hour)); at = at.Add(time.Hour) {
				usage = append(usage, quota.UsageHour{Hour: at, ShareSeconds: 3600 * money.Whole})
			}
			s := statement(t, month, quota.Book{}, nil, usage)
			if s.Hours != want.hours || s.Time.OnPrem.Hundredths != 100*want.hours || s.Days[want.day-1].Time.OnPrem.Hundredths != 100*want.long {
				t.Errorf("%d hours, %d hundredths used, %d on the %dth; want %d, all used, %d", s.Hours, s.Time.OnPrem.Hundredths, s.Days[want.day-1].Time.OnPrem.Hundredths, want.day, want.hours, want.long)
			}
		})
	}
}

// Four quarters of a GPU for an hour are one GPU-hour, however they are cut.
// cases: C-51 opencost#3828, HAMi#3073
func TestFourQuartersAreOneGPUHour(t *testing.T) {
	var quarters []quota.UsageHour
	for i := range 4 {
		quarters = append(quarters, hour("2026-11-02 10:00", fmt.Sprint("ns", i), "", 3600*210))
	}
	s := statement(t, "2026-11", quota.Book{}, nil, quarters)
	if s.Time.OnPrem.Hundredths != 100 || s.Lines[0].Time.Hundredths != 25 || s.Days[1].Time.OnPrem.Hundredths != 100 {
		t.Errorf("%d hundredths of a GPU-hour, %d in a quarter", s.Time.OnPrem.Hundredths, s.Lines[0].Time.Hundredths)
	}
}

// What ran at home stands before what was rented for the same work.
func TestHomeComesFirst(t *testing.T) {
	a := closed("b", "2026-11-02 10:00", "2026-11-02 11:00", 1e9)
	a.Reservation.Project, a.Reservation.Provider = "", "aruba"
	s := statement(t, "2026-11", quota.Book{}, []quota.Account{a}, []quota.UsageHour{hour("2026-11-02 09:00", "team", "", 840), hour("2026-11-02 10:00", "team", "b", 840)})
	if len(s.Lines) != 2 || s.Lines[0].Place != quota.OnPrem || s.Lines[1].Place != "aruba" {
		t.Errorf("lines are %v", s.Lines)
	}
}

// Usage is summed up by UTC hour, so days that start on half hours have no exact usage.
func TestStatementsNeedWholeHours(t *testing.T) {
	_, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: "2026-11", Zone: "Asia/Kolkata"})
	if !errors.Is(err, quota.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// What is taken back in a month that charges nothing else is rounded like any
// other cost: the lines add up to the total.
func TestWhatIsTakenBackIsRoundedTogether(t *testing.T) {
	october := at("2026-10-31 23:00") // its end in Berlin
	var accounts []quota.Account
	for _, uid := range []string{"a", "b", "c"} {
		a := closed(uid, "2026-10-05 08:00", "2026-10-05 09:00", 1e9)
		back := money.Amount{Nano: -4e6, Currency: "EUR"}
		a.Spent.Nano += back.Nano
		zero := money.Zero("EUR")
		a.Corrections = []quota.Posting{{At: at("2026-11-05 08:00"), Spent: back, Waived: zero, Overrun: zero, Since: october}}
		accounts = append(accounts, a)
	}
	s := statement(t, "2026-11", quota.Book{}, accounts, nil)
	if got := s.Totals[0].Charged; got.Exact.Nano != -12e6 || got.Rounded.Nano != -1e7 {
		t.Errorf("November takes back %+v", got)
	}
	var sum int64
	for _, b := range s.Bursts {
		if sum += b.Charged.Rounded.Nano; !b.Corrected {
			t.Errorf("burst %s is not called corrected", b.Burst)
		}
	}
	if sum != -1e7 || s.Days[0].Charged[0].Rounded.Nano != -1e7 {
		t.Errorf("the bursts add up to %d, the first day says %+v", sum, s.Days[0].Charged[0])
	}
}
