package ledger_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

func (f *fixture) state() ledger.State {
	f.t.Helper()
	var s ledger.State
	f.must(f.View(f.ctx(), func(v *ledger.View) (err error) {
		s, err = v.State(f.ctx())
		return err
	}))
	return s
}

// What a view adds up to is what the ledger decides on and what Verify finds.
func TestAViewSaysWhatTheLedgerSays(t *testing.T) {
	f := eventful(t)
	s, report := f.state(), f.verified()
	if s.Rows != report.Rows || s.Head != report.Head || !s.Last.Equal(report.Last) {
		t.Errorf("the view is at row %d, %s, %v; the report at %d, %s, %v", s.Rows, s.Head, s.Last, report.Rows, report.Head, report.Last)
	}
	book, err := f.Book(f.ctx())
	f.must(err)
	accounts, err := f.Accounts(f.ctx())
	f.must(err)
	if diff := cmp.Diff(book, s.Book); diff != "" {
		t.Errorf("the book: %s", diff)
	}
	for i, r := range s.Accounts {
		if diff := cmp.Diff(accounts[i], r.Account); diff != "" {
			t.Errorf("account %d: %s", i, diff)
		}
	}
	if last := s.Accounts[0]; last.Kind != quota.KindSettle || last.Seq != 7 {
		t.Errorf("burst one ends with %s in row %d, want its settlement in row 7", last.Kind, last.Seq)
	}
	balances := make(map[quota.AccountName]money.Amount)
	sum := money.Zero("EUR")
	for _, b := range s.Balances {
		balances[b.Account] = b.Balance
		sum, err = sum.Add(b.Balance)
		f.must(err)
	}
	if !sum.IsZero() {
		t.Errorf("all balances add up to %v", sum)
	}
	for name, want := range map[quota.AccountName]money.Amount{
		"burst/two/reserved": eur("4.5"), "tenant/vision/spend": eur("4.5"), "operator/overrun": eur("0.500000007"),
		"provider/ovh/accrued": {Nano: -5_000_000_007, Currency: "EUR"}, "budget/team/2026-10/spent": eur("4.5"),
	} {
		if balances[name] != want {
			t.Errorf("%s is at %v, want %v", name, balances[name], want)
		}
	}
	if _, ok := balances["burst/one/reserved"]; ok {
		t.Error("a settled burst has a balance")
	}
}

// An overrun that was accepted is dated by the journal.
func TestAViewKnowsWhenAnOverrunWasAccepted(t *testing.T) {
	f := eventful(t)
	if s := f.state(); len(s.Accepted) > 0 {
		t.Errorf("accepted: %v, want nothing", s.Accepted)
	}
	f.now = f.now.Add(time.Hour)
	f.must(f.AcceptOverrun(f.ctx(), f.epoch, "EUR", "p-17", "OPS-4711"))
	if s := f.state(); !s.Accepted["EUR"].Equal(f.now) {
		t.Errorf("accepted at %v, want %v", s.Accepted["EUR"], f.now)
	}
}

// All that one view reads is of one moment, whatever is booked meanwhile, and
// it does not keep writers waiting.
func TestAViewIsOneMoment(t *testing.T) {
	f := eventful(t)
	reader, err := ledger.Open(f.ctx(), f.path, ledger.Options{ReadOnly: true})
	f.must(err)
	defer func() { _ = reader.Close() }()
	f.must(reader.View(f.ctx(), func(v *ledger.View) error {
		first, err := v.State(f.ctx())
		f.must(err)
		_, err = f.Settle(f.ctx(), f.epoch, settlement("two", "1"))
		f.must(err)
		f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(3, "2026-10-05 10:00", "2026-10-05 11:00")}))
		second, err := v.State(f.ctx())
		f.must(err)
		hours, err := v.UsageHours(f.ctx(), "vision", f.at("2026-10-05 08:00"), f.at("2026-10-05 12:00"))
		f.must(err)
		if diff := cmp.Diff(first, second); diff != "" || len(hours) != 2 {
			t.Errorf("the view changed; %d hours of usage, want 2: %s", len(hours), diff)
		}
		return nil
	}))
	if s := f.state(); s.Book.Open["two"].State != "" {
		t.Error("the settlement is not in the next view")
	}
	f.verified()
}

// What is not the journal as it was written is not reported on, and not exported.
func TestAViewRefusesAChangedJournal(t *testing.T) {
	base := eventful(t)
	base.must(base.Close())
	for name, tt := range map[string]struct{ forgery, want string }{
		"a row changed": {"UPDATE journal SET entries = replace(entries, '4.50', '4.51') WHERE seq = 3", "row 3: it does not match its hash"},
		"a row dropped": {"DELETE FROM journal WHERE seq = 5", "row 6: it does not follow row 4"},
		"a clock back":  {"UPDATE journal SET recorded = 1 WHERE seq = 4", "row 4: it does not follow row 3"},
	} {
		t.Run(name, func(t *testing.T) {
			f := base.copy(t)
			f.forge(tt.forgery)
			l, err := ledger.Open(f.ctx(), f.path, ledger.Options{ReadOnly: true})
			f.must(err)
			defer func() { _ = l.Close() }()
			for what, read := range map[string]func(*ledger.View) error{
				"state":  func(v *ledger.View) error { _, err := v.State(f.ctx()); return err },
				"export": func(v *ledger.View) error { return v.Export(f.ctx(), io.Discard) },
			} {
				if err := l.View(f.ctx(), read); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want %q", what, err, tt.want)
				}
			}
		})
	}
}
