package ledger_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// month is the statement of a month: of the ledger at its closing, when it is closed.
func (f *fixture) month(id string) quota.Statement {
	f.t.Helper()
	var made quota.Statement
	f.must(f.View(f.ctx(), func(v *ledger.View) error {
		s, err := v.State(f.ctx())
		if closed, ok := s.Book.ClosedMonth(id, ""); ok && err == nil {
			s, err = v.StateUntil(f.ctx(), closed.At)
		}
		if err != nil {
			return err
		}
		p, err := quota.Month("", id)
		if err != nil {
			return err
		}
		hours, err := v.UsageHours(f.ctx(), "vision", p.Start, p.End)
		if err != nil {
			return err
		}
		var accounts []quota.Account
		for _, r := range s.Accounts {
			accounts = append(accounts, r.Account)
		}
		made, err = quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: id, Book: s.Book, Accounts: accounts, Usage: hours})
		return err
	}))
	return made
}

// charged is what a month charges in all.
func (f *fixture) charged(id string) money.Amount {
	if totals := f.month(id).Totals; len(totals) > 0 {
		return totals[0].Charged.Exact
	}
	return money.Zero("EUR")
}

func (f *fixture) spent() money.Amount {
	for _, b := range f.state().Balances {
		if b.Account == quota.SpendAccount("vision") {
			return b.Balance
		}
	}
	return money.Zero("EUR")
}

func (f *fixture) close(month string) (quota.Closing, error) {
	return f.CloseMonth(f.ctx(), f.epoch, month, "", "person-1")
}

func (f *fixture) correct(uid, actual string) (quota.Receipt, error) {
	return f.Correct(f.ctx(), f.epoch, quota.Correction{Burst: uid, Actual: eur(actual), By: "person-1", Reason: "invoice 17"})
}

// cases: C-65 home-assistant/core#114721, C-67 getlago/lago-api#879
func TestAMonthIsClosedOnceAndInOrder(t *testing.T) {
	f := newFixture(t)
	_, err := f.close("2026-10")
	want(t, err, quota.ErrInvalid) // it is not over
	f.now = f.at("2026-10-31 22:59")
	_, err = f.close("2026-10")
	want(t, err, quota.ErrInvalid)
	f.now = f.at("2026-10-31 23:00") // midnight in Berlin
	c, err := f.close("2026-10")
	if f.must(err); !c.End.Equal(f.now) || len(c.Pending) > 0 {
		t.Errorf("closed as %+v", c)
	}
	for _, month := range []string{"2026-10", "2026-09"} {
		_, err = f.close(month)
		want(t, err, quota.ErrConflict)
	}
	f.now = f.at("2026-12-24 12:00")
	_, err = f.CloseMonth(f.ctx(), f.epoch, "2026-11", "Europe/Lisbon", "person-1")
	want(t, err, quota.ErrInvalid)
	_, err = f.CloseMonth(f.ctx(), f.epoch-1, "2026-11", "", "person-1")
	want(t, err, quota.ErrStaleEpoch)
	_, err = f.close("2026-11")
	f.must(err)
	f.verified()
}

func TestAMonthWaitsForWhatIsPending(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	f.now = f.at("2026-11-03 22:59")
	_, err = f.close("2026-10")
	want(t, err, quota.ErrInvalid)
	if !strings.Contains(err.Error(), "1 bursts are not settled, the first of them a: wait for them, or close it after 2026-11-03 23:00Z") {
		t.Errorf("refused with %v", err)
	}
	f.now = f.at("2026-11-03 23:00")
	c, err := f.close("2026-10")
	f.must(err)
	if diff := cmp.Diff([]string{"a"}, c.Pending); diff != "" {
		t.Error(diff)
	}
	f.verified()
}

// What is posted late, and what is corrected, is in the open month; the closed
// one stays as it is, to the byte.
// cases: C-35 formancehq/ledger 5c8910a77, C-58 ccusage#1636
func TestAClosedMonthNeverChanges(t *testing.T) {
	f := newFixture(t)
	for _, uid := range []string{"a", "late"} {
		_, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "4"))
		f.must(err)
	}
	_, err := f.Settle(f.ctx(), f.epoch, settlement("a", "2.50"))
	f.must(err)
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:00", "2026-10-05 09:00")}))
	f.now = f.at("2026-11-04 12:00")
	_, err = f.close("2026-10")
	f.must(err)
	before, err := json.Marshal(f.month("2026-10"))
	f.must(err)

	_, err = f.Settle(f.ctx(), f.epoch, settlement("late", "1.20"))
	f.must(err)
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(2, "2026-10-05 09:00", "2026-10-05 09:30")}))
	r, err := f.correct("a", "2.25")
	f.must(err)
	if r.Spent != eur("2.25") || r.Released != eur("1.75") || len(r.Corrections) != 1 {
		t.Errorf("the corrected account is %+v", r.Account)
	}
	f.reopen()
	after, err := json.Marshal(f.month("2026-10"))
	f.must(err)
	if !bytes.Equal(before, after) {
		t.Errorf("the closed month changed:\n%s", cmp.Diff(string(before), string(after)))
	}
	november := f.month("2026-11")
	if got := november.Totals[0].Charged.Exact; got != eur("0.95") { // 1.20 late, 0.25 back
		t.Errorf("November charges %v", got)
	}
	if got := november.Time.OnPrem.ShareSeconds + november.Time.Burst.ShareSeconds; got != 1800*money.Whole {
		t.Errorf("November has %d share-seconds of late usage", got)
	}
	if sum, err := f.charged("2026-10").Add(f.charged("2026-11")); err != nil || sum != f.spent() {
		t.Errorf("the months charge %v (%v), the tenant has spent %v", sum, err, f.spent())
	}
	if a, err := f.Account(f.ctx(), "late"); err != nil || !a.OpenSince.Equal(f.at("2026-10-31 23:00")) {
		t.Errorf("the late account is %+v, %v", a, err)
	}
	f.verified()
}

// A correction is the old cost back and the new one, as often as it takes; the
// budgets follow, and none is passed by it.
func TestCorrections(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "6"))
	f.must(err)
	_, err = f.correct("a", "1")
	want(t, err, quota.ErrInvalid) // not settled
	_, err = f.correct("z", "1")
	want(t, err, quota.ErrUnknownBurst)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "2.50"))
	f.must(err)
	first, err := f.correct("a", "5")
	f.must(err)
	again, err := f.correct("a", "5")
	if f.must(err); again.Seq != first.Seq || again.Hash != first.Hash {
		t.Errorf("the same correction again is row %d, the first was %d", again.Seq, first.Seq)
	}
	if held := f.state().Book.Windows["team"]["2026-10"]; held.Spent != eur("5") || !held.Reserved.IsZero() {
		t.Errorf("the budget holds %+v", held)
	}
	_, err = f.Reserve(f.ctx(), f.epoch, burst("b", "4.50"))
	f.must(err)
	_, err = f.correct("a", "5.75")
	if err == nil || !strings.Contains(err.Error(), "short by 0.25 EUR") {
		t.Errorf("a correction past the limit: %v", err)
	}
	r, err := f.Correct(f.ctx(), f.epoch, quota.Correction{Burst: "a", Actual: eur("7"), Cause: quota.CauseProviderFault, By: "person-1", Reason: "ticket"})
	f.must(err)
	if r.Spent != money.Zero("EUR") || r.Waived != eur("6") || r.Overrun != eur("1") || len(r.Corrections) != 2 {
		t.Errorf("the waived account is %+v", r.Account)
	}
	_, err = f.correct("a", "2")
	f.must(err)
	a, err := f.Account(f.ctx(), "a")
	if f.must(err); a.Spent != eur("2") || !a.Waived.IsZero() || !a.Overrun.IsZero() || a.Released != eur("4") {
		t.Errorf("the account in the end is %+v", a)
	}
	f.verified()
}

// What somebody would change in closings and corrections.
func TestVerifyFindsForgedBooks(t *testing.T) {
	base := newFixture(t)
	step := func(_ any, err error) { t.Helper(); base.must(err) }
	step(base.Reserve(base.ctx(), base.epoch, burst("a", "4")))        // row 3
	step(base.Reserve(base.ctx(), base.epoch, burst("b", "4")))        // row 4
	step(base.Settle(base.ctx(), base.epoch, settlement("a", "2.50"))) // row 5
	base.now = base.at("2026-11-04 12:00")
	step(base.close("2026-10"))     // row 6
	step(base.correct("a", "2.25")) // row 7
	base.verified()
	base.must(base.Close())
	for name, tt := range map[string]forgery{
		"closed without saying what was pending": {6, replace(`,"pending":["b"]`, ""), 6, "the month was"},
		"closed before its end":                  {6, replace(`"2026-10"`, `"2026-11"`), 6, "close 2026-11"},
		"closed by nobody":                       {6, replace(`"by":"person-1"`, `"by":""`), 6, "person"},
		"a correction of less":                   {7, in("spend\tprovider/ovh/accrued\t2.25", "spend\tprovider/ovh/accrued\t2.20"), 7, "does not take back the old cost and post the new one"},
		"a correction that keeps the old cost":   {7, without("accrued\ttenant/vision/spend"), 7, "does not take back"},
		"a correction of another number":         {7, func(r *ledger.Row) { r.Key = "2" }, 7, "its key is"},
		"a correction of what is not settled":    {7, func(r *ledger.Row) { r.Burst = "b"; replace(`"burst":"a"`, `"burst":"b"`)(r) }, 7, "which is not settled"},
		"a correction past the limit":            {2, replace("10.00 EUR", "8.00 EUR"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := base.copy(t)
			f.rewrite(map[int64]func(*ledger.Row){tt.seq: tt.edit})
			r := f.findings()
			found := slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool { return f.Seq == tt.at && strings.Contains(f.What, tt.what) })
			if (tt.at == 0) != r.OK || tt.at > 0 && !found {
				t.Errorf("want row %d: %s; got\n%s", tt.at, tt.what, r)
			}
		})
	}
}

// TestMonthsAddUp: bursts over five months are reserved, settled late, corrected
// and waived in any order, and months closed in between. A closed month never
// changes again, and all months together charge what the tenant has spent.
func TestMonthsAddUp(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t)
		f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1000000"), Hard: true}}))
		months := []string{"2026-10", "2026-11", "2026-12", "2027-01", "2027-02", "2027-03"}
		closed := map[string]quota.Statement{}
		var open, done []string
		actual := func() string {
			return fmt.Sprintf("%d.%03d", rapid.IntRange(0, 9).Draw(r, "euros"), rapid.IntRange(0, 999).Draw(r, "rest"))
		}
		for n := range rapid.IntRange(5, 30).Draw(r, "moves") {
			f.now = f.now.Add(time.Duration(rapid.IntRange(1, 240).Draw(r, "hours")) * time.Hour)
			if f.now.After(f.at("2027-03-01 00:00")) {
				break
			}
			var err error
			switch move := rapid.IntRange(0, 5).Draw(r, "move"); {
			case move <= 1:
				b := burst(fmt.Sprint("b-", n), "5")
				b.From, b.Until = f.now, f.now.Add(4*time.Hour)
				open = append(open, b.Burst)
				_, err = f.Reserve(f.ctx(), f.epoch, b)
			case move <= 3 && len(open) > 0:
				a, accountErr := f.Account(f.ctx(), open[0])
				f.must(accountErr)
				s := quota.Settlement{Burst: open[0], Actual: eur(actual()), MachineStart: a.Reservation.From}
				s.MachineEnd = s.MachineStart.Add(time.Duration(rapid.IntRange(1, 4*3600).Draw(r, "seconds")) * time.Second)
				if s.Actual.Nano > 5e9 {
					s.Actual = eur("5")
				}
				open, done = open[1:], append(done, open[0])
				_, err = f.Settle(f.ctx(), f.epoch, s)
			case move == 4 && len(done) > 0:
				c := quota.Correction{Burst: rapid.SampledFrom(done).Draw(r, "which"), Actual: eur(actual()), By: "p", Reason: "r"}
				if rapid.Bool().Draw(r, "waive") {
					c.Cause = quota.CauseProviderFault
				}
				_, err = f.Correct(f.ctx(), f.epoch, c)
			case move == 5:
				if _, refused := f.close(months[len(closed)]); refused == nil {
					closed[months[len(closed)]] = f.month(months[len(closed)])
				}
			}
			f.must(err)
		}
		sum := money.Zero("EUR")
		for _, id := range months {
			now := f.month(id)
			if before, ok := closed[id]; ok {
				if diff := cmp.Diff(before, now); diff != "" {
					r.Fatalf("%s was closed and has changed:\n%s", id, diff)
				}
			}
			for _, total := range now.Totals {
				sum.Nano += total.Charged.Exact.Nano
			}
		}
		if spent := f.spent(); sum.Nano != spent.Nano {
			r.Fatalf("the months charge %v, the tenant has spent %v", sum, spent)
		}
		f.verified()
		f.must(f.Close())
	})
}
