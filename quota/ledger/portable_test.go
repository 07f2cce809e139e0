package ledger_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// exported is what a ledger with some of everything exports.
func (f *fixture) exported() []byte {
	f.t.Helper()
	var out bytes.Buffer
	f.must(f.View(f.ctx(), func(v *ledger.View) error { return v.Export(f.ctx(), &out) }))
	return out.Bytes()
}

// eventful books some of everything.
func eventful(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	for _, uid := range []string{"one", "two"} {
		_, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "4.5"))
		f.must(err)
	}
	f.must(f.Permit(f.ctx(), f.epoch, "one", 0))
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{
		usage(1, "2026-10-05 08:30", "2026-10-05 09:30"), usage(2, "2026-10-05 09:30", "2026-10-05 10:00"),
	}))
	_, err := f.Settle(f.ctx(), f.epoch, settlement("one", "5.000000007"))
	f.must(err)
	f.lead()
	return f
}

// into imports an export into a new ledger.
func into(t *testing.T, export []byte) (*ledger.Ledger, ledger.Report, error) {
	t.Helper()
	l, err := ledger.Open(t.Context(), fresh(t), ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	report, err := l.Import(context.Background(), bytes.NewReader(export))
	return l, report, err
}

// An imported ledger is the same: head, balances, usage, idempotency, and
// another export. cases: C-31 formancehq/ledger#351, C-32 formancehq/ledger#1607
func TestAnImportedLedgerIsTheSame(t *testing.T) {
	f := eventful(t)
	export, before := f.exported(), f.verified()
	l, report, err := into(t, export)
	f.must(err)
	if !report.OK || report.Head != before.Head || report.Rows != before.Rows || report.Usage != before.Usage {
		t.Errorf("imported is %s, want the head of %s", report, before)
	}
	copied := &fixture{Ledger: l, t: t, epoch: f.epoch}
	copied.verified()
	if again := copied.exported(); !bytes.Equal(export, again) {
		t.Errorf("the second export differs:\n%s\n%s", export, again)
	}
	// What was answered before is answered the same again, and usage is known.
	r, err := l.Settle(t.Context(), f.epoch, settlement("one", "5.000000007"))
	if err != nil || r.Overrun != eur("0.500000007") {
		t.Errorf("a repeated settlement is answered with %v, %v", r.Overrun, err)
	}
	_, err = l.Reserve(t.Context(), f.epoch, burst("two", "4"))
	want(t, err, quota.ErrConflict)
	f.must(l.RecordUsage(t.Context(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:30", "2026-10-05 09:30")}))
	if got := copied.verified(); got.Head != before.Head {
		t.Errorf("repetitions wrote rows up to %s", got.Head)
	}
	if _, err := l.Import(t.Context(), bytes.NewReader(export)); err == nil || !strings.Contains(err.Error(), "import into a new file") {
		t.Errorf("a second import: %v", err)
	} else {
		want(t, err, ledger.ErrNotEmpty)
	}
}

// A backup is an export that is taken while others write, and an import is its
// check: it is one moment of the journal, whole, and the running ledger goes on
// from just there.
// cases: C-49 benbjohnson/litestream#752, #781, #1164
func TestABackupBesideWriters(t *testing.T) {
	f := newFixture(t)
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				uid := fmt.Sprintf("%d-%d", w, i)
				_, err := f.Reserve(f.ctx(), f.epoch, burst(uid, "1"))
				if err == nil {
					_, err = f.Settle(f.ctx(), f.epoch, settlement(uid, "0"))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for backups, last := 0, int64(0); backups < 5 && !t.Failed(); {
		_, backup, err := into(t, f.exported())
		f.must(err)
		if backup.Rows > last {
			backups, last = backups+1, backup.Rows
		}
		now, err := f.Verify(f.ctx(), ledger.Head{Rows: backup.Rows, Hash: backup.Head, At: backup.Last})
		if f.must(err); !now.OK || now.Rows < backup.Rows {
			t.Fatalf("a backup of %d rows is not where the ledger was:\n%s", backup.Rows, now)
		}
	}
	stop()
	writers.Wait()
}

// What is not the whole journal as it was written is not imported, not a row of it.
func TestWhatWasChangedIsNotImported(t *testing.T) {
	f := eventful(t)
	lines := strings.SplitAfter(string(f.exported()), "\n")
	for name, tt := range map[string]struct {
		change func([]string) []string
		want   string
	}{
		"an amount":        {func(l []string) []string { l[3] = strings.Replace(l[3], "4.50", "4.51", 1); return l }, "does not match its hash"},
		"a row dropped":    {func(l []string) []string { return append(l[:3:3], l[4:]...) }, "does not follow row 2"},
		"two rows swapped": {func(l []string) []string { l[3], l[4] = l[4], l[3]; return l }, "does not follow row 2"},
		"a row doubled":    {func(l []string) []string { return append(l[:4:4], l[3:]...) }, "does not follow row 3"},
		"cut off":          {func(l []string) []string { return l[:5] }, "it was cut off"},
		"rows at the end cut off": {func(l []string) []string {
			return append(l[:5:5], l[len(l)-2])
		}, "but has 4 up to"},
		"another number of rows": {func(l []string) []string {
			l[len(l)-2] = strings.Replace(l[len(l)-2], `"rows":8`, `"rows":9`, 1)
			return l
		}, "says that it has 9 rows"},
		"more behind the end": {func(l []string) []string { return append(l, l[1]) }, "goes on behind its last line"},
		"no header":           {func(l []string) []string { return l[1:] }, "this is no exported ledger"},
		"no JSON":             {func(l []string) []string { l[4] = "{\n"; return l }, "can't be read"},
		"an unknown field":    {func(l []string) []string { l[2] = strings.Replace(l[2], `"seq"`, `"sequence"`, 1); return l }, "can't be read"},
		"nothing":             {func([]string) []string { return nil }, "this is no exported ledger"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := tt.change(append([]string{}, lines...))
			l, _, err := into(t, []byte(strings.Join(changed, "")))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("import says %v, want %q", err, tt.want)
			}
			if r, err := l.Verify(t.Context()); err != nil || r.Rows != 0 || !r.OK {
				t.Errorf("the new ledger is not empty: %s, %v", r, err)
			}
		})
	}
}

// A journal with a whole chain that says what can't be is not imported.
func TestAForgedExportIsNotImported(t *testing.T) {
	f := eventful(t)
	f.rewrite(map[int64]func(*ledger.Row){
		3: func(r *ledger.Row) { r.Entries = strings.Split(r.Entries, "\n")[0] + "\n" }, // promised, and on no budget
	})
	f.reopen()
	_, _, err := into(t, f.exported())
	if err == nil || !strings.Contains(err.Error(), "row 3") || !strings.Contains(err.Error(), "nothing was imported") {
		t.Errorf("import says %v, want what is wrong with row 3", err)
	}
}

// Anybody can check an export with what docs/ledger.md says about the format
// and no code of ours.
func TestAnExportCanBeCheckedByAnybody(t *testing.T) {
	var prev string
	lines := strings.Split(strings.TrimSpace(string(eventful(t).exported())), "\n")
	for _, line := range lines[1 : len(lines)-1] {
		var row struct {
			Seq, Epoch                                    int64
			Recorded                                      time.Time
			Kind, Burst, Key, Intent, Entries, Prev, Hash string
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatal(err)
		}
		before, err := hex.DecodeString(row.Prev)
		if err != nil {
			t.Fatal(err)
		}
		text := append([]byte("spillway.dev/ledger/v1\n"), before...)
		for _, n := range []int64{row.Seq, row.Recorded.UnixNano(), row.Epoch} {
			text = binary.BigEndian.AppendUint64(text, uint64(n))
		}
		for _, s := range []string{row.Kind, row.Burst, row.Key, row.Intent, row.Entries} {
			text = append(binary.BigEndian.AppendUint64(text, uint64(len(s))), s...)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(text)); sum != row.Hash || prev != "" && row.Prev != prev {
			t.Errorf("row %d has hash %s behind %s, want %s behind %s", row.Seq, row.Hash, row.Prev, sum, prev)
		}
		prev = row.Hash
	}
	if last := lines[len(lines)-1]; last != fmt.Sprintf(`{"rows":8,"head":"%s"}`, prev) {
		t.Errorf("the last line is %s", last)
	}
}
