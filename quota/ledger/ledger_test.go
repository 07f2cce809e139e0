package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// fixture is a ledger with one leader and one hard budget of 10 EUR a month.
type fixture struct {
	*ledger.Ledger
	t     testing.TB
	path  string
	epoch int64
	now   time.Time
}

func (fixture) at(text string) time.Time {
	at, err := time.Parse("2006-01-02 15:04Z", text+"Z")
	if err != nil {
		panic(err)
	}
	return at
}

func eur(text string) money.Amount {
	a, err := money.Parse(text + " EUR")
	if err != nil {
		panic(err)
	}
	return a
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, path: fresh(t), now: time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)}
	f.Ledger = f.open()
	f.lead()
	f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
		{ID: "team", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: eur("10"), Hard: true},
	}))
	return f
}

// open opens the fixture's ledger once more, as another process would.
func (f *fixture) open() *ledger.Ledger {
	f.t.Helper()
	l, err := ledger.Open(f.ctx(), f.path, ledger.Options{Now: func() time.Time { return f.now }})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = l.Close() }) // a second Close is harmless
	return l
}

// reopen is a restart.
func (f *fixture) reopen() {
	f.t.Helper()
	f.must(f.Close())
	f.Ledger = f.open()
}

func (f *fixture) lead() {
	f.t.Helper()
	epoch, err := f.BeginEpoch(f.ctx(), "controller-0")
	f.must(err)
	f.epoch = epoch
}

func (f *fixture) ctx() context.Context { return context.Background() }

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// verified fails the test unless the whole ledger verifies.
func (f *fixture) verified() ledger.Report {
	f.t.Helper()
	r, err := f.Verify(f.ctx())
	f.must(err)
	if !r.OK {
		f.t.Fatalf("the ledger does not verify:\n%s", r)
	}
	return r
}

func burst(uid, amount string) quota.Reservation {
	from := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	return quota.Reservation{
		Burst: uid, Tenant: "vision", Project: "train", Provider: "ovh", Owner: "job-1", Amount: eur(amount), From: from, Until: from.Add(4 * time.Hour),
	}
}

func settlement(uid, actual string) quota.Settlement {
	from := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	return quota.Settlement{Burst: uid, Actual: eur(actual), MachineStart: from, MachineEnd: from.Add(time.Hour), Seconds: 3600, Cause: "done"}
}

func want(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("error is %v, want %v", err, target)
	}
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

func TestALifeOfABurst(t *testing.T) {
	f := newFixture(t)
	reserved, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	f.must(f.Permit(f.ctx(), f.epoch, "a", 0))
	f.now = f.now.Add(time.Hour)
	_, err = f.Extend(f.ctx(), f.epoch, "a", "1", eur("2"), f.at("2026-10-05 14:00"))
	f.must(err)
	settled, err := f.Settle(f.ctx(), f.epoch, settlement("a", "2.50"))
	f.must(err)
	if reserved.Seq != 3 || reserved.State != quota.Reserved || !reserved.At.Equal(f.at("2026-10-05 08:00").Add(2)) {
		t.Errorf("first receipt is %+v", reserved)
	}
	a, err := f.Account(f.ctx(), "a")
	f.must(err)
	if diff := cmp.Diff(settled.Account, a); diff != "" {
		t.Errorf("the account differs from the receipt:\n%s", diff)
	}
	if a.Reserved != eur("6") || a.Spent != eur("2.50") || a.Released != eur("3.50") || a.State != quota.Settled || !a.SettledAt.Equal(f.now) && a.SettledAt.Before(f.now) {
		t.Errorf("account is %+v", a)
	}
	book, err := f.Book(f.ctx())
	f.must(err)
	if w := book.Windows["team"]["2026-10"]; w.Spent != eur("2.50") || !w.Reserved.IsZero() {
		t.Errorf("budget holds %+v", w)
	}
	if r := f.verified(); r.Bursts != 1 || r.Open != 0 || r.Rows != 6 || r.Epoch != 1 {
		t.Errorf("report is %+v", r)
	}
}

// cases: C-31 formancehq/ledger#351, C-32 formancehq/ledger#1607
func TestARepetitionGetsTheFirstAnswerAlsoAfterARestart(t *testing.T) {
	f := newFixture(t)
	reserve := func() (quota.Receipt, error) { return f.Reserve(f.ctx(), f.epoch, burst("a", "4")) }
	extend := func() (quota.Receipt, error) {
		return f.Extend(f.ctx(), f.epoch, "a", "1", eur("2"), f.at("2026-10-05 14:00"))
	}
	shrink := func() (quota.Receipt, error) { return f.Shrink(f.ctx(), f.epoch, "a", eur("1"), "sold out") }
	settle := func() (quota.Receipt, error) { return f.Settle(f.ctx(), f.epoch, settlement("a", "0.50")) }
	var first []quota.Receipt
	for _, call := range []func() (quota.Receipt, error){reserve, extend, shrink, shrink, settle} {
		r, err := call()
		f.must(err)
		first = append(first, r)
	}
	if first[2].Seq != first[3].Seq {
		t.Errorf("a second shrink to the same amount was booked again, in row %d", first[3].Seq)
	}
	rows := f.verified().Rows
	for name, restart := range map[string]func(){"at once": func() {}, "after a restart": f.reopen, "to the next leader": f.lead} {
		t.Run(name, func(t *testing.T) {
			restart()
			for i, call := range []func() (quota.Receipt, error){reserve, extend, nil, nil, settle} {
				if call == nil {
					continue
				}
				again, err := call()
				f.must(err)
				if diff := cmp.Diff(first[i], again); diff != "" {
					t.Errorf("call %d (-first +again):\n%s", i, diff)
				}
			}
		})
	}
	if got := f.verified().Rows; got != rows+1 { // one new leader
		t.Errorf("repetitions added %d rows", got-rows-1)
	}
}

func TestTheSameKeyWithOtherContentIsAConflict(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	_, err = f.Extend(f.ctx(), f.epoch, "a", "1", eur("2"), time.Time{})
	f.must(err)
	_, err = f.Reserve(f.ctx(), f.epoch, burst("a", "4.01"))
	want(t, err, quota.ErrConflict)
	_, err = f.Extend(f.ctx(), f.epoch, "a", "1", eur("3"), time.Time{})
	want(t, err, quota.ErrConflict)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "2"))
	f.must(err)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "3"))
	want(t, err, quota.ErrConflict)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "2"))
	f.must(err) // the conflict has not taken the place of the first answer
	f.verified()
}

// The order in which budgets are named, zones and monotonic clocks are no content.
// cases: C-37 formancehq/ledger#287, #1614, #1572
func TestOnlyWhatWasAskedForIsCompared(t *testing.T) {
	f := newFixture(t)
	f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
		{ID: "x", Scope: quota.ScopeProject, Window: quota.WindowMonth, Limit: eur("10")},
		{ID: "y", Scope: quota.ScopeProject, Window: quota.WindowMonth, Limit: eur("10")},
	}))
	r := burst("a", "4")
	r.Budgets = []string{"x", "y"}
	first, err := f.Reserve(f.ctx(), f.epoch, r)
	f.must(err)
	r.Budgets, r.Mode = []string{"y", "x", "y"}, quota.ModeSafe
	r.From = r.From.In(time.FixedZone("", 7200))
	again, err := f.Reserve(f.ctx(), f.epoch, r)
	f.must(err)
	if first.Seq != again.Seq {
		t.Errorf("rows %d and %d", first.Seq, again.Seq)
	}
}

func TestAStaleLeaderCanDoNothing(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	other := f.open()
	next, err := other.BeginEpoch(f.ctx(), "controller-1")
	f.must(err)
	for name, epoch := range map[string]int64{"old": f.epoch, "never begun": next + 1, "none": 0, "negative": -1} {
		t.Run(name, func(t *testing.T) {
			_, err := f.Reserve(f.ctx(), epoch, burst("b", "1"))
			want(t, err, quota.ErrStaleEpoch)
			_, err = f.Reserve(f.ctx(), epoch, burst("a", "4")) // also a repetition
			want(t, err, quota.ErrStaleEpoch)
			want(t, f.Permit(f.ctx(), epoch, "a", 0), quota.ErrStaleEpoch)
			_, err = f.Extend(f.ctx(), epoch, "a", "1", eur("1"), time.Time{})
			want(t, err, quota.ErrStaleEpoch)
			_, err = f.Shrink(f.ctx(), epoch, "a", eur("1"), "r")
			want(t, err, quota.ErrStaleEpoch)
			_, err = f.Settle(f.ctx(), epoch, settlement("a", "1"))
			want(t, err, quota.ErrStaleEpoch)
			want(t, f.RecordUsage(f.ctx(), epoch, nil), quota.ErrStaleEpoch)
			want(t, f.SetBudgets(f.ctx(), epoch, nil), quota.ErrStaleEpoch)
			want(t, f.AcceptOverrun(f.ctx(), epoch, "EUR", "p", "r"), quota.ErrStaleEpoch)
		})
	}
	if err := f.Permit(f.ctx(), f.epoch, "a", 0); !strings.Contains(err.Error(), "stale leader epoch 1: epoch 2 leads (controller-1); stop acting on this ledger") {
		t.Errorf("message is %q", err)
	}
	f.must(other.Permit(f.ctx(), next, "a", 0))
	f.verified()
}

// cases: H-1 kubernetes-sigs/karpenter#1448
func TestAPermitIsGivenOnce(t *testing.T) {
	f := newFixture(t)
	want(t, f.Permit(f.ctx(), f.epoch, "a", 0), quota.ErrUnknownBurst)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	f.must(f.Permit(f.ctx(), f.epoch, "a", 0))
	f.must(f.Permit(f.ctx(), f.epoch, "a", 1))
	want(t, f.Permit(f.ctx(), f.epoch, "a", 0), quota.ErrPermitUsed)
	f.reopen()
	want(t, f.Permit(f.ctx(), f.epoch, "a", 0), quota.ErrPermitUsed)
	f.lead()
	f.must(f.Permit(f.ctx(), f.epoch, "a", 0))
	_, err = f.Shrink(f.ctx(), f.epoch, "a", eur("1"), "sold out")
	f.must(err)
	want(t, f.Permit(f.ctx(), f.epoch, "a", 2), quota.ErrDraining)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("a", "1"))
	f.must(err)
	want(t, f.Permit(f.ctx(), f.epoch, "a", 2), quota.ErrSettled)
	f.verified()
}

// cases: C-22 SchedMD/slurm d62c31da95, 6f8cd92e10, 889615a6f4; H-21 kubernetes-sigs/kueue#14811
func TestNothingIsBookedOnASettledBurst(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	_, err = f.Settle(f.ctx(), f.epoch, quota.Settlement{Burst: "a", Cause: "refused"})
	f.must(err)
	_, err = f.Extend(f.ctx(), f.epoch, "a", "1", eur("1"), time.Time{})
	want(t, err, quota.ErrSettled)
	_, err = f.Shrink(f.ctx(), f.epoch, "a", eur("1"), "r")
	want(t, err, quota.ErrSettled)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("b", "1"))
	want(t, err, quota.ErrUnknownBurst)
	book, err := f.Book(f.ctx())
	f.must(err)
	if len(book.Open) != 0 || !book.Windows["team"]["2026-10"].Reserved.IsZero() {
		t.Errorf("something is left over: %+v", book)
	}
	f.verified()
}

// cases: C-40 formancehq/ledger#1684
func TestARefusalLeavesNoRow(t *testing.T) {
	f := newFixture(t)
	before := f.verified()
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "10.01"))
	if s, ok := errors.AsType[*quota.ShortError](err); !ok || s.Missing != eur("0.01") {
		t.Errorf("error is %v, want short by 0.01", err)
	}
	if after := f.verified(); after.Rows != before.Rows || after.Head != before.Head {
		t.Errorf("journal went from %d rows to %d", before.Rows, after.Rows)
	}
}

func TestRecordTimesRiseWhenTheClockDoesNot(t *testing.T) {
	f := newFixture(t)
	var last time.Time
	for i := range 5 {
		r, err := f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint(i), "1"))
		f.must(err)
		if !r.At.After(last) {
			t.Errorf("row %d has %v, after %v", r.Seq, r.At, last)
		}
		last = r.At
		f.now = f.now.Add(-time.Hour)
	}
	f.verified()
}

func TestAccountsComeInTheirOrder(t *testing.T) {
	f := newFixture(t)
	for _, uid := range []string{"c", "a", "b"} {
		_, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "1"))
		f.must(err)
	}
	_, err := f.Settle(f.ctx(), f.epoch, settlement("c", "1"))
	f.must(err)
	all, err := f.Accounts(f.ctx())
	f.must(err)
	var got []string
	for _, a := range all {
		got = append(got, a.Reservation.Burst+" "+string(a.State))
	}
	if diff := cmp.Diff([]string{"c settled", "a reserved", "b reserved"}, got); diff != "" {
		t.Error(diff)
	}
	_, err = f.Account(f.ctx(), "x")
	want(t, err, quota.ErrUnknownBurst)
}

// The view for people splits entries rightly, whatever the ids look like.
func TestTheEntryViewReadsLikeTheJournal(t *testing.T) {
	f := newFixture(t)
	f.must(f.SetBudgets(f.ctx(), f.epoch, []quota.Budget{
		{ID: `odd "id" 'x'`, Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("10")},
	}))
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	db := behind(t, f.path)
	var debit, credit, amount string
	f.must(db.QueryRow("SELECT debit, credit, amount FROM entry WHERE debit LIKE 'budget/%'").Scan(&debit, &credit, &amount))
	if debit != `budget/odd "id" 'x'/2026-10/reserved` || credit != `budget/odd "id" 'x'/2026-10/open` || amount != "4.00 EUR" {
		t.Errorf("the view says %s, %s, %s", debit, credit, amount)
	}
}

func TestACancelledCallBooksNothing(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	_, err := f.Reserve(ctx, f.epoch, burst("a", "1"))
	want(t, err, context.Canceled)
	_, err = f.Account(f.ctx(), "a")
	want(t, err, quota.ErrUnknownBurst)
}

// readsOnly checks what a ledger with 4 EUR reserved for burst a says to who may only read.
func (f *fixture) readsOnly(t *testing.T, path string) {
	t.Helper()
	l, err := ledger.Open(f.ctx(), path, ledger.Options{ReadOnly: true})
	f.must(err)
	defer l.Close()
	_, err = l.Reserve(f.ctx(), f.epoch, burst("b", "1"))
	want(t, err, ledger.ErrReadOnly)
	a, err := l.Account(f.ctx(), "a")
	f.must(err)
	r, err := l.Verify(f.ctx())
	if err != nil || !r.OK || a.Pending != eur("4") {
		t.Errorf("account %+v, report %v, %v", a, r, err)
	}
}

func TestReadingOnlyBesideAWriter(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	f.readsOnly(t, f.path)
}
