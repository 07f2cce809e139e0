package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// leased is one machine at 0.001 EUR a second, with 10 minutes to stop in; its
// first slice reaches an hour far.
func leased(uid string) quota.Reservation {
	r := burst(uid, "3.60")
	r.Mode, r.Ceiling, r.Until = quota.ModeLease, eur("9"), r.From.Add(time.Hour)
	r.Price = money.Rate{NanoPerHour: 3_600_000_000, Currency: "EUR"}
	r.Terms = quota.Terms{Machines: 1, Stop: 10 * time.Minute}
	return r
}

// slice books what lets a lease reach so far.
func (f *fixture) slice(uid, hard string) (quota.Extension, quota.Receipt, error) {
	f.t.Helper()
	a, err := f.Account(f.ctx(), uid)
	f.must(err)
	x, ok, err := a.Next(f.at(hard))
	if err != nil || !ok {
		f.t.Fatalf("no next slice: %t, %v", ok, err)
	}
	receipt, err := f.Extend(f.ctx(), f.epoch, uid, x.Key, x.More, x.Until)
	return x, receipt, err
}

// sliced is a closed ledger with a life in slices: rows 1 epoch, 2 budgets,
// 3 reserve, 4 and 5 slices, 6 settle.
func sliced(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, leased("a"))
	f.must(err)
	for _, hard := range []string{"2026-10-05 09:20", "2026-10-05 09:50"} {
		_, _, err := f.slice("a", hard)
		f.must(err)
	}
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "3.60"))
	f.must(err)
	f.verified()
	f.must(f.Close())
	return f
}

// A slice is booked once, whoever repeats it, also behind the next one; and none
// is booked out of its order. cases: C-1 kubernetes-sigs/kueue#9322
func TestASliceIsBookedOnce(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, leased("a"))
	f.must(err)
	x, first, err := f.slice("a", "2026-10-05 09:20")
	f.must(err)
	_, _, err = f.slice("a", "2026-10-05 09:50")
	f.must(err)
	f.reopen()
	f.lead()
	again, err := f.Extend(f.ctx(), f.epoch, "a", x.Key, x.More, x.Until)
	if err != nil || again.Hash != first.Hash || again.Pending != eur("5.40") {
		t.Errorf("the first slice again: %+v, %v", again, err)
	}
	_, err = f.Extend(f.ctx(), f.epoch, "a", "4", x.More, x.Until.Add(2*time.Hour))
	want(t, err, quota.ErrInvalid)
	_, err = f.Extend(f.ctx(), f.epoch-1, "a", "3", x.More, x.Until.Add(2*time.Hour))
	want(t, err, quota.ErrStaleEpoch)
	if r := f.verified(); r.Rows != 6 {
		t.Errorf("the ledger has %d rows", r.Rows)
	}
}

// Sixteen bursts ask for slices at once until the budget refuses each: it is
// reached to the last slice that fits, and never passed.
// cases: C-23 garrytan/gbrain#4365, C-24 BerriAI/litellm#34732
func TestSlicesReachTheLimitAndNeverPassIt(t *testing.T) {
	f := newFixture(t) // 10 EUR
	const bursts = 16
	for i := range bursts {
		r := leased(fmt.Sprint(i))
		r.Price.NanoPerHour, r.Amount = 360_000_000, eur("0.36")
		_, err := f.Reserve(f.ctx(), f.epoch, r)
		f.must(err)
	}
	var booked atomic.Int64
	var all sync.WaitGroup
	for i := range bursts {
		all.Go(func() {
			for {
				a, err := f.Account(f.ctx(), fmt.Sprint(i))
				if err != nil {
					t.Error(err)
					return
				}
				x, _, err := a.Next(a.LeaseBy().Add(30 * time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := f.Extend(f.ctx(), f.epoch, x.Burst, x.Key, x.More, x.Until); err != nil {
					if _, short := errors.AsType[*quota.ShortError](err); !short {
						t.Error(err)
					}
					return
				}
				booked.Add(1)
			}
		})
	}
	all.Wait()
	// 16 times 0.36 EUR first; then 23 slices of 0.18 EUR fit and 24 do not.
	if held := f.state().Book.Windows["team"]["2026-10"]; booked.Load() != 23 || held.Reserved != eur("9.90") {
		t.Errorf("%d slices are booked, the budget holds %v", booked.Load(), held.Reserved)
	}
	f.verified()
}

// A lowered budget refuses the next slice, and what runs keeps its money.
func TestALoweredBudgetRefusesTheNextSlice(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, leased("a"))
	f.must(err)
	f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
		{ID: "team", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: eur("3"), Hard: true},
	}))
	_, _, err = f.slice("a", "2026-10-05 09:20")
	if err == nil || !strings.Contains(err.Error(), "short by 2.40 EUR") {
		t.Errorf("the slice: %v", err)
	}
	if a, err := f.Account(f.ctx(), "a"); err != nil || a.Pending != eur("3.60") {
		t.Errorf("account %+v, %v", a, err)
	}
	f.verified()
}

// What somebody would change to let a machine run without money behind it.
func TestVerifyFindsSlicesThatDoNotPay(t *testing.T) {
	base := sliced(t)
	for name, tt := range map[string]forgery{
		"a slice of less":                   {4, replace("1.80 EUR", "1.70 EUR"), 4, "its slices add up to 5.30 EUR"},
		"a slice of more":                   {4, replace("1.80 EUR", "1.90 EUR"), 4, "its slices add up to 5.50 EUR"},
		"a slice that reaches further":      {4, replace("09:30:00Z", "09:40:00Z"), 4, "its slices add up to 5.40 EUR"},
		"a slice out of its order":          {5, func(r *ledger.Row) { r.Key = "3"; replace(`"key":"2"`, `"key":"3"`)(r) }, 5, `slice "3" of burst "a" is booked where slice "2" is the next`},
		"a slice above the ceiling":         {3, replace(`"ceiling":"9.00 EUR"`, `"ceiling":"6.00 EUR"`), 5, "it passes the ceiling"},
		"a reservation that pays for less":  {3, replace(`"machines":1`, `"machines":2`), 3, "its machines can cost 7.20 EUR"},
		"a cheaper price than was reserved": {3, replace("3.60 EUR/h", "3.00 EUR/h"), 3, "its machines can cost 3.00 EUR"},
		"a window that holds less": {4, func(r *ledger.Row) {
			r.Entries = strings.Replace(r.Entries, "open\t1.80", "open\t1.00", 1)
		}, 4, "does not hold 1.80 EUR"},
	} {
		t.Run(name, func(t *testing.T) {
			f := base.copy(t)
			f.rewrite(map[int64]func(*ledger.Row){tt.seq: tt.edit})
			r := f.findings()
			if !slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool { return f.Seq == tt.at && strings.Contains(f.What, tt.what) }) {
				t.Errorf("want row %d: %s; got\n%s", tt.at, tt.what, r)
			}
		})
	}
}
