package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// storied is a closed ledger in which everything has happened once: rows 1
// epoch, 2 budgets, 3 reserve, 4 permit, 5 extend, 6 settle, 7 usage,
// 8 reserve, 9 shrink, 10 settle with overrun, 11 accept, 12 reserve.
func storied(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	step := func(_ any, err error) { t.Helper(); f.must(err) }
	step(f.Reserve(f.ctx(), f.epoch, burst("a", "4")))
	f.must(f.Permit(f.ctx(), f.epoch, "a", 0))
	step(f.Extend(f.ctx(), f.epoch, "a", "1", eur("2"), f.at("2026-10-05 14:00")))
	step(f.Settle(f.ctx(), f.epoch, settlement("a", "2.50")))
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:00", "2026-10-05 09:00"), usage(2, "2026-10-05 09:00", "2026-10-05 09:30")}))
	step(f.Reserve(f.ctx(), f.epoch, burst("b", "7.50")))
	step(f.Shrink(f.ctx(), f.epoch, "b", eur("1"), "sold out"))
	step(f.Settle(f.ctx(), f.epoch, settlement("b", "1.25")))
	f.must(f.AcceptOverrun(f.ctx(), f.epoch, "EUR", "person-1", "checked"))
	step(f.Reserve(f.ctx(), f.epoch, burst("c", "5")))
	if r := f.verified(); r.Rows != 12 || r.Findings == nil {
		t.Fatalf("the story has %d rows", r.Rows)
	}
	f.must(f.Close())
	return f
}

// forge changes a ledger past all guards.
func (f *fixture) forge(statements ...string) {
	f.t.Helper()
	db := behind(f.t, f.path)
	tx, err := db.Begin()
	f.must(err)
	for _, s := range slices.Concat(withoutGuards(), statements, withGuards()) {
		if _, err := tx.Exec(s); err != nil {
			f.t.Fatalf("%s: %v", s, err)
		}
	}
	f.must(tx.Commit())
	f.must(db.Close())
}

func (f *fixture) findings() ledger.Report {
	f.t.Helper()
	l, err := ledger.Open(f.ctx(), f.path, ledger.Options{ReadOnly: true})
	f.must(err)
	defer l.Close()
	r, err := l.Verify(f.ctx())
	f.must(err)
	return r
}

func names(r ledger.Report, seq int64) bool {
	return slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool { return f.Seq == seq })
}

// Whatever field of whatever row is changed by whatever little, Verify names
// the row, and the ledger books nothing more on it.
func TestVerifyNamesEveryChangedField(t *testing.T) {
	base := storied(t)
	for _, column := range []string{"recorded", "epoch", "kind", "burst", "key", "intent", "entries", "prev", "hash"} {
		for seq := int64(1); seq <= 12; seq++ {
			t.Run(fmt.Sprintf("%s of row %d", column, seq), func(t *testing.T) {
				f := base.copy(t)
				change := column + " || 'x'"
				switch column {
				case "recorded", "epoch":
					change = column + " + 1"
				case "prev", "hash":
					change = flipped(column)
				case "intent", "entries": // change one character in the middle
					change = "substr(" + column + ", 1, length(" + column + ") / 2) || '~' || substr(" + column + ", length(" + column + ") / 2 + 2)"
				}
				f.forge(fmt.Sprintf("UPDATE journal SET %s = %s WHERE seq = %d", column, change, seq))
				r := f.findings()
				if r.OK || !names(r, seq) && !(column == "hash" && names(r, seq+1)) {
					t.Fatalf("row %d is not named:\n%s", seq, r)
				}
				if column == "entries" {
					f.refusesToBook()
				}
			})
		}
	}
}

func (f *fixture) copy(t *testing.T) *fixture {
	t.Helper()
	c := *f
	c.t, c.path = t, twin(t, f.path)
	return &c
}

func (f *fixture) refusesToBook() {
	f.t.Helper()
	l := f.open()
	defer l.Close()
	if _, err := l.BeginEpoch(f.ctx(), "controller-1"); err == nil || !strings.Contains(err.Error(), "verify the ledger and restore it from a backup") {
		f.t.Errorf("it books on: %v", err)
	}
}

func TestVerifyNamesRowsThatAreGoneSwappedOrDoubled(t *testing.T) {
	base := storied(t)
	tests := map[string]struct {
		forge []string
		seq   int64
		what  string
	}{
		"a row is dropped":     {[]string{"DELETE FROM journal WHERE seq = 5"}, 6, "row 5 before it is missing"},
		"rows are dropped":     {[]string{"DELETE FROM journal WHERE seq IN (4, 5)"}, 6, "rows 4 to 5 before it are missing"},
		"a gap is closed":      {[]string{"DELETE FROM journal WHERE seq = 11", "UPDATE journal SET seq = 11 WHERE seq = 12"}, 11, "does not continue the chain"},
		"rows are swapped":     {[]string{"UPDATE journal SET seq = 99 WHERE seq = 4", "UPDATE journal SET seq = 4 WHERE seq = 5", "UPDATE journal SET seq = 5 WHERE seq = 99"}, 4, "does not continue the chain"},
		"a row is doubled":     {[]string{"DROP INDEX journal_once", "INSERT INTO journal SELECT 13, recorded, epoch, kind, burst, key, intent, entries, prev, hash FROM journal WHERE seq = 12"}, 13, "does not match its hash"},
		"a guard is missing":   {[]string{"DROP INDEX journal_once"}, 0, "the guard journal_once is missing"},
		"a foreign trigger":    {evil(), 0, "evil is not part of a ledger"},
		"usage is forgotten":   {[]string{"DELETE FROM usage_seen WHERE n = 2"}, 0, "usage_seen holds 1 records, the journal holds 2"},
		"usage is known early": {[]string{"INSERT INTO usage_seen SELECT stream, 3, 0 FROM usage_seen WHERE n = 2"}, 0, "usage_seen holds record 3"},
		"a total is changed":   {[]string{"UPDATE usage_total SET share_seconds = share_seconds + 1 WHERE share_seconds = 3600 * 840"}, 0, "usage_total says 3024001 share-seconds"},
		"a total is gone":      {[]string{"DELETE FROM usage_total"}, 0, "usage_total lacks"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := base.copy(t)
			f.forge(tt.forge...)
			r := f.findings()
			if r.OK || !slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool { return f.Seq == tt.seq && strings.Contains(f.What, tt.what) }) {
				t.Errorf("want row %d: %s; got\n%s", tt.seq, tt.what, r)
			}
		})
	}
}

// Whichever row is dropped, swapped with the next or doubled, and whether or not
// the rows behind it are numbered anew: the chain says so at the first row that
// is out of its place. A drop of the last row is what signed heads are for
// ([TestSignedHeadsFindWhatAChainCant]).
func TestVerifyNamesWhateverRowIsGoneSwappedOrDoubled(t *testing.T) {
	base := storied(t)
	type cut struct {
		forge []string
		at    int64 // the first row out of its place
	}
	renumber := func(from, by int64) (all []string) {
		for n := from; n <= 12; n++ {
			seq := n
			if by > 0 {
				seq = 12 + from - n // from the end, so that no number is taken
			}
			all = append(all, fmt.Sprintf("UPDATE journal SET seq = %d WHERE seq = %d", seq+by, seq))
		}
		return all
	}
	for seq := int64(1); seq <= 12; seq++ {
		tests := map[string]cut{
			"doubled": {slices.Concat([]string{"DROP INDEX journal_once"}, renumber(seq+1, 1), []string{fmt.Sprintf(
				"INSERT INTO journal SELECT %d, recorded, epoch, kind, burst, key, intent, entries, prev, hash FROM journal WHERE seq = %d", seq+1, seq)}), seq + 1},
		}
		if seq < 12 {
			drop := fmt.Sprintf("DELETE FROM journal WHERE seq = %d", seq)
			move := func(from, to int64) string {
				return fmt.Sprintf("UPDATE journal SET seq = %d WHERE seq = %d", to, from)
			}
			tests["dropped"] = cut{[]string{drop}, seq + 1}
			tests["dropped, the gap closed"] = cut{append([]string{drop}, renumber(seq+1, -1)...), seq}
			tests["swapped"] = cut{[]string{move(seq, 99), move(seq+1, seq), move(99, seq+1)}, seq}
		}
		for name, tt := range tests {
			t.Run(fmt.Sprintf("row %d %s", seq, name), func(t *testing.T) {
				f := base.copy(t)
				f.forge(tt.forge...)
				r := f.findings()
				if r.OK || r.Findings[0].Seq != tt.at || !slices.ContainsFunc(r.Findings, func(f ledger.Finding) bool {
					return f.Seq == tt.at && strings.Contains(f.What, "chain")
				}) {
					t.Errorf("want a broken chain at row %d; got\n%s", tt.at, r)
				}
			})
		}
	}
}

func TestTheGuardsForbidWhatTheyShould(t *testing.T) {
	f := storied(t)
	db := behind(t, f.path)
	statements := forbidden()
	statements["UPDATE journal SET entries = '' WHERE seq = 3"] = "append-only"
	statements["DELETE FROM journal WHERE seq = 12"] = "append-only"
	statements["INSERT INTO journal SELECT 14, recorded, epoch, kind, '', key, intent, entries, prev, hash FROM journal WHERE seq = 12"] = "no gaps"
	for statement, want := range statements {
		t.Run(statement, func(t *testing.T) {
			if _, err := db.ExecContext(context.Background(), statement); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q", err, want)
			}
		})
	}
	if r := f.findings(); !r.OK {
		t.Error(r)
	}
}

// Rows that vanish under a running ledger, because a backup or a standby that was
// behind has taken its place, end the writing: the money that they promised is not
// free. What is there now can be looked at, and a new start takes it as it is.
func TestRowsThatVanishUnderARunningLedger(t *testing.T) {
	for name, forgery := range map[string][]string{
		"the newest": {"DELETE FROM journal WHERE seq = 4"},
		"all":        {"DELETE FROM journal"},
		"others have taken their place": {
			"UPDATE journal SET hash = " + flipped("hash") + " WHERE seq = 4",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for _, uid := range []string{"a", "b"} {
				_, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "4"))
				f.must(err)
			}
			f.forge(forgery...)
			for range 2 {
				_, err := f.Reserve(f.ctx(), f.epoch, burst("c", "1"))
				if err == nil || !strings.Contains(err.Error(), "it lacks rows that this process knows to be booked") || !strings.Contains(err.Error(), "nothing was booked: stop spending") {
					t.Errorf("error is %v", err)
				}
			}
			if _, err := f.Book(f.ctx()); err == nil || !strings.Contains(err.Error(), "it lacks rows") {
				t.Errorf("the book is read with %v", err)
			}
			f.Ledger = f.open()
			if _, err := f.BeginEpoch(f.ctx(), "controller-0"); (err == nil) != (name != "others have taken their place") {
				t.Errorf("a new start: %v", err)
			}
		})
	}
}
