package ledger_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// wild draws a change that a confused caller may ask for: any end, nothing at
// all, windows that were cut short or removed meanwhile.
type wild struct {
	*rapid.T
	f *fixture
	n int
}

func (w *wild) time(what string) time.Time {
	return w.f.at("2026-10-30 12:00").Add(time.Duration(rapid.IntRange(0, 96).Draw(w.T, what)) * time.Hour)
}

func (w *wild) amount(what string) money.Amount {
	return money.Amount{Nano: rapid.Int64Range(0, 4).Draw(w.T, what) * 1e9, Currency: "EUR"}
}

func (w *wild) uid() string { return fmt.Sprint("burst-", rapid.IntRange(0, 2).Draw(w.T, "burst")) }

func (w *wild) budgets() error {
	all := []quota.Budget{
		{ID: "month", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: eur("12"), Hard: true},
		{ID: "day", Scope: quota.ScopeProvider, Subject: "ovh", Window: quota.WindowDay, Zone: "UTC", Limit: eur("9"), Hard: true},
		{ID: "once", Scope: quota.ScopeGlobal, Window: quota.WindowFixed, Start: w.f.at("2026-10-01 00:00"), End: w.time("fixed end"), Limit: eur("15"), Hard: true},
		{ID: "soft", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1")},
	}
	var set []quota.Budget
	for _, b := range all {
		if rapid.IntRange(0, 3).Draw(w.T, "keep "+b.ID) > 0 {
			set = append(set, b)
		}
	}
	return w.f.SetBudgets(w.f.ctx(), w.f.epoch, set)
}

// step asks for one change. What was said no to left nothing behind, so only
// an error that is no refusal is one here.
func (w *wild) step() error {
	w.n++
	var err error
	switch rapid.IntRange(0, 7).Draw(w.T, "move") {
	case 0, 1:
		r := burst(w.uid(), "1")
		r.Amount, r.From, r.Until = w.amount("amount"), w.time("from"), w.time("until")
		_, err = w.f.Reserve(w.f.ctx(), w.f.epoch, r)
	case 2, 3:
		until := time.Time{}
		if rapid.Bool().Draw(w.T, "moves its end") {
			until = w.time("new end")
		}
		_, err = w.f.Extend(w.f.ctx(), w.f.epoch, w.uid(), fmt.Sprint(w.n), w.amount("more"), until)
	case 4:
		_, err = w.f.Shrink(w.f.ctx(), w.f.epoch, w.uid(), w.amount("to"), "sold out")
	case 5:
		start := w.time("start")
		_, err = w.f.Settle(w.f.ctx(), w.f.epoch, quota.Settlement{
			Burst: w.uid(), Actual: w.amount("actual"), MachineStart: start, MachineEnd: start.Add(time.Duration(rapid.IntRange(0, 50).Draw(w.T, "ran")) * time.Hour),
			Cause: rapid.SampledFrom([]string{"done", quota.CauseProviderFault}).Draw(w.T, "cause"),
		})
	case 6:
		err = w.f.Permit(w.f.ctx(), w.f.epoch, w.uid(), 0)
	default:
		err = w.budgets()
	}
	return err
}

// Whatever callers ask for, the ledger never books what its own verifier does
// not accept: both judge every row, and neither sees the other's sums.
func TestWhatIsBookedVerifies(t *testing.T) {
	refusals := []error{
		quota.ErrInvalid, quota.ErrConflict, quota.ErrUnknownBurst, quota.ErrSettled, quota.ErrDraining, quota.ErrPermitUsed,
		quota.ErrNoBudget, quota.ErrOverrun,
	}
	rapid.Check(t, func(r *rapid.T) {
		w := &wild{T: r, f: newFixture(t)}
		w.f.must(w.f.Close())
		w.f.path = fresh(t)
		w.f.Ledger = w.f.open()
		w.f.lead()
		w.f.must(w.budgets())
		steps := rapid.IntRange(5, 40).Draw(r, "steps")
		for range steps {
			err := w.step()
			_, short := errors.AsType[*quota.ShortError](err)
			known := err == nil || short
			for _, refusal := range refusals {
				known = known || errors.Is(err, refusal)
			}
			if !known {
				r.Fatalf("neither booked nor refused: %v", err)
			}
		}
		report, err := w.f.Verify(w.f.ctx())
		if err != nil || !report.OK {
			r.Fatalf("%v\n%s", err, report)
		}
		w.reported(report)
		w.f.must(w.f.Close())
	})
}

// reported checks that whatever was booked, the reports say what the balances
// say, and that the journal can be taken to another file as it is.
func (w *wild) reported(report ledger.Report) {
	s := w.f.state()
	balances := make(map[quota.AccountName]int64)
	var sum int64
	for _, b := range s.Balances {
		balances[b.Account] = b.Balance.Nano
		sum += b.Balance.Nano
	}
	var accounts []quota.Account
	for _, a := range s.Accounts {
		accounts = append(accounts, a.Account)
	}
	x, err := quota.Expose(w.f.now, accounts, s.Accepted)
	w.f.must(err)
	var pending, overrun, charged int64
	for _, t := range x.Totals {
		pending, overrun = pending+t.Pending.Nano, overrun+t.Overrun.Nano
	}
	for _, month := range []string{"2026-10", "2026-11"} {
		m, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: month, Book: s.Book, Accounts: accounts})
		w.f.must(err)
		for _, t := range m.Totals {
			charged += t.Charged.Exact.Nano
		}
	}
	if sum != 0 || s.Head != report.Head || pending != -balances["tenant/vision/committed"] || overrun != balances["operator/overrun"] || charged != balances["tenant/vision/spend"] {
		w.Fatalf("pending %d, overrun %d, charged %d at head %s; the balances are %v at %s", pending, overrun, charged, s.Head, balances, report.Head)
	}
	l, err := ledger.Open(w.f.ctx(), fresh(w.f.t), ledger.Options{})
	w.f.must(err)
	imported, err := l.Import(w.f.ctx(), bytes.NewReader(w.f.exported()))
	if err != nil || imported.Head != report.Head {
		w.Fatalf("imported: %v, head %s, want %s", err, imported.Head, report.Head)
	}
	w.f.must(l.Close())
}
