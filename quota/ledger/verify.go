package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// Verify recomputes everything from the journal alone and compares: the chain,
// the sequence, every balance, the budgets at every commit, each burst's life,
// and the tables that are derived from the journal. It does its own sums and
// does not use the balances of the book that decided. What it finds wrong is in
// the report; the error is for a journal that can't be read at all.
//
// With heads that were kept elsewhere ([ReadHeads]) it also finds a journal that
// was cut off or written anew behind everybody's back, up to the newest of them.
func (l *Ledger) Verify(ctx context.Context, heads ...Head) (Report, error) {
	tx, err := l.read.BeginTx(ctx, &l.view)
	if err != nil {
		return Report{}, explain(l.path, err)
	}
	defer tx.Rollback() //nolint:errcheck // it has only read
	report, err := l.verify(ctx, tx, heads)
	if err != nil {
		return Report{}, explain(l.path, err)
	}
	return report, nil
}

func (l *Ledger) verify(ctx context.Context, q querier, heads []Head) (Report, error) {
	v := newVerifier(l.path)
	v.expect(heads)
	err := readAhead(ctx, q, rowsOf{query: selectAll, read: prepare}, func(p prepared) error {
		v.row(p)
		return nil
	})
	if err != nil {
		return Report{}, err
	}
	if err := v.derived(ctx, q); err != nil {
		return Report{}, err
	}
	if err := l.guards(ctx, q, v); err != nil {
		return Report{}, err
	}
	if err := v.reposts(ctx, q); err != nil {
		return Report{}, err
	}
	return v.finish(l.database), nil
}

// verifier is what one pass over the journal knows so far. It grows with open
// bursts and budget windows, and by a name for every settled burst.
type verifier struct {
	report     Report
	seq        int64
	prev       []byte
	recorded   int64
	epoch      int64
	budgets    quota.Book // only its budgets and closed months are used
	balances   map[account]int64
	overruns   map[money.Currency]bool // open now
	zones      map[string]*time.Location
	lastPeriod map[string]quota.Period // by budget
	bursts     map[string]*life        // nil once settled
	corrected  map[string]int          // how often, by burst
	streams    map[[3]string]*numbers
	digests    int64 // of all usage records, by exclusive or
	totals     map[totalKey]int64
	heads      map[int64][]Head // to come, by row
}

// account is one account in one currency.
type account struct {
	name     quota.AccountName
	currency money.Currency
}

func newVerifier(path string) *verifier {
	return &verifier{
		report:     Report{Path: path, Findings: []Finding{}},
		prev:       make([]byte, sha256.Size),
		balances:   make(map[account]int64),
		overruns:   make(map[money.Currency]bool),
		zones:      make(map[string]*time.Location),
		lastPeriod: make(map[string]quota.Period),
		bursts:     make(map[string]*life),
		corrected:  make(map[string]int),
		streams:    make(map[[3]string]*numbers),
		totals:     make(map[totalKey]int64),
		heads:      make(map[int64][]Head),
	}
}

// found adds a finding about row seq.
func (v *verifier) found(seq int64, format string, args ...any) {
	if len(v.report.Findings) == maxFindings {
		v.report.More++
		return
	}
	v.report.Findings = append(v.report.Findings, Finding{Seq: seq, What: fmt.Sprintf(format, args...)})
}

// row checks one row: first that it is the one that was written, then what it says.
func (v *verifier) row(p prepared) {
	r := &p.row
	v.report.Rows++
	switch {
	case r.seq == v.seq+2:
		v.found(r.seq, "row %d before it is missing", v.seq+1)
	case r.seq != v.seq+1:
		v.found(r.seq, "rows %d to %d before it are missing", v.seq+1, r.seq-1)
	}
	if !bytes.Equal(r.prev, v.prev) {
		v.found(r.seq, "it does not continue the chain: it names another row before it than row %d", v.seq)
	}
	if !bytes.Equal(r.hash, p.sum) {
		v.found(r.seq, "it does not match its hash: it was changed after it was written")
	}
	if r.recorded <= v.recorded {
		v.found(r.seq, "its record time is not after that of row %d", v.seq)
	}
	v.seq, v.prev, v.recorded = r.seq, r.hash, r.recorded
	v.passed(r)
	if p.err != nil {
		v.found(r.seq, "%v", p.err)
		return
	}
	v.event(r, p)
}

// event checks what a row says and moves.
func (v *verifier) event(r *row, p prepared) {
	ev := p.event
	v.report.Entries += int64(len(ev.Entries))
	for _, e := range ev.Entries {
		v.post(r.seq, e)
	}
	if ev.Kind == quota.KindEpoch && ev.Intent.Epoch != nil {
		if ev.Intent.Epoch.Number != v.epoch+1 || len(ev.Entries) > 0 {
			v.found(r.seq, "leader epoch %d follows epoch %d", ev.Intent.Epoch.Number, v.epoch)
		}
		v.epoch = ev.Intent.Epoch.Number
	}
	if r.epoch != v.epoch {
		v.found(r.seq, "written in epoch %d while epoch %d led", r.epoch, v.epoch)
	}
	in := ev.Intent
	switch {
	case ev.Kind == quota.KindEpoch && in.Epoch != nil:
	case ev.Kind == quota.KindBudgets && in.Budgets != nil:
		v.setBudgets(r.seq, ev)
	case ev.Kind == quota.KindAccept && in.Accept != nil:
		v.accept(r.seq, ev)
	case ev.Kind == quota.KindClose && in.Close != nil && ev.Burst == "":
		v.closing(r.seq, ev)
	case ev.Kind == quota.KindCorrect && in.Correct != nil && ev.Burst != "":
		v.correction(r.seq, ev)
	case ev.Kind == quota.KindUsage:
		v.usage(r.seq, p)
	case ev.Burst != "" && (in.Reserve != nil || in.Extend != nil || in.Shrink != nil || in.Permit != nil || in.Settle != nil):
		v.burst(r.seq, ev)
	default:
		v.found(r.seq, "a row of kind %q without what it asked for", ev.Kind)
	}
}

// post adds one entry to the balances of its two accounts.
func (v *verifier) post(seq int64, e quota.Entry) {
	if e.Amount.Nano <= 0 || !e.Amount.Currency.Valid() || e.Debit == e.Credit || e.Debit == "" || e.Credit == "" {
		v.found(seq, "entry of %v from %q to %q is none", e.Amount, e.Credit, e.Debit)
		return
	}
	v.addTo(seq, account{e.Debit, e.Amount.Currency}, e.Amount.Nano)
	v.addTo(seq, account{e.Credit, e.Amount.Currency}, -e.Amount.Nano)
}

func (v *verifier) addTo(seq int64, a account, nano int64) {
	old := v.balances[a]
	if nano > 0 && old > math.MaxInt64-nano || nano < 0 && old < math.MinInt64-nano {
		v.found(seq, "the balance of %s leaves the range of amounts", a.name)
		return
	}
	if a.name == quota.AccountOverrun {
		v.overruns[a.currency] = old+nano != 0
	}
	if v.balances[a] = old + nano; old+nano == 0 {
		delete(v.balances, a)
	}
}

func (v *verifier) setBudgets(seq int64, ev quota.Event) {
	if len(ev.Entries) > 0 || ev.Burst != "" {
		v.found(seq, "a change of budgets moves money")
	}
	if _, _, err := v.budgets.SetBudgets(ev.Intent.Budgets.Budgets); err != nil {
		v.found(seq, "%v", err)
	}
	if _, err := v.budgets.Apply(quota.Event{Kind: ev.Kind, Intent: ev.Intent}); err != nil {
		v.found(seq, "%v", err)
	}
}

func (v *verifier) accept(seq int64, ev quota.Event) {
	open := account{quota.AccountOverrun, ev.Intent.Accept.Amount.Currency}
	moved := len(ev.Entries) == 1 && ev.Entries[0] == quota.Entry{
		Debit: quota.AccountAccepted, Credit: quota.AccountOverrun, Amount: ev.Intent.Accept.Amount,
	}
	if !moved || v.balances[open] != 0 {
		v.found(seq, "it accepts an overrun that was not open in this amount")
	}
}

// withinLimit checks one window of a hard budget behind a row that asked for more.
func (v *verifier) withinLimit(seq int64, h quota.Hold) {
	b, ok := v.budgets.Budgets[h.Budget]
	if !ok || b.Retired {
		v.found(seq, "it promises money of budget %q, which does not exist", h.Budget)
		return
	}
	spent, reserved := v.held(h, b.Limit.Currency)
	if b.Hard && (spent > b.Limit.Nano || reserved > b.Limit.Nano-spent) {
		v.found(seq, "hard budget %q is exceeded in %s: spent %v and reserved %v pass the limit of %v", h.Budget, h.Period,
			money.Amount{Nano: spent, Currency: b.Limit.Currency}, money.Amount{Nano: reserved, Currency: b.Limit.Currency}, b.Limit)
	}
}

// held is what the balances of a window say.
func (v *verifier) held(h quota.Hold, c money.Currency) (spent, reserved int64) {
	return v.balances[account{h.SpentAccount(), c}], v.balances[account{h.ReservedAccount(), c}]
}

// finish makes the checks that need the whole journal.
func (v *verifier) finish(d *database) Report {
	v.missed()
	sums := make(map[money.Currency]int64)
	for a, nano := range v.balances {
		sums[a.currency] += nano
		_, side, ok := a.name.Window()
		if nano < 0 && ok && side != "open" {
			v.found(0, "account %s has the negative balance %v", a.name, money.Amount{Nano: nano, Currency: a.currency})
		}
	}
	for c, nano := range sums {
		if nano != 0 {
			v.found(0, "debits and credits in %s differ by %v", c, money.Amount{Nano: nano, Currency: c})
		}
	}
	for _, b := range v.bursts {
		v.report.Bursts++
		if b != nil {
			v.report.Open++
		}
	}
	v.report.Epoch = v.epoch
	v.report.Head = hex.EncodeToString(v.prev)
	if v.recorded > 0 {
		v.report.Last = time.Unix(0, v.recorded).UTC()
	}
	slices.SortStableFunc(v.report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(uint64(a.Seq-1), uint64(b.Seq-1)), cmp.Compare(a.What, b.What)) // 0 comes last
	})
	v.report.OK = len(v.report.Findings) == 0
	v.report.Checked, v.report.NotChecked = append(checked(v.report), d.sound), append(notChecked(v.report), d.unsound...)
	return v.report
}
