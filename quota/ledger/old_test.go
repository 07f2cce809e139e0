//go:build !postgres

package ledger_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota/ledger"
)

// TestAnOldLedgerStillVerifies: testdata/old.db was written before there were
// slices, closed months and corrections (with two leaders, day and month budgets,
// bursts over a month end that were extended, shrunk, settled, waived, one of
// them in mode lease, and one that is open). It verifies, it comes to the same
// accounts, and it can be written on.
func TestAnOldLedgerStillVerifies(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "old.db"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, path: filepath.Join(t.TempDir(), "ledger.db")}
	f.must(os.WriteFile(f.path, data, 0o600))
	f.now = f.at("2026-11-05 12:00")
	f.Ledger = f.open()
	if r := f.verified(); r.Rows != 24 || r.Open != 1 {
		t.Errorf("the old ledger has %d rows and %d open bursts:\n%s", r.Rows, r.Open, r)
	}
	got := map[string]string{}
	for _, a := range f.state().Accounts {
		got[a.Reservation.Burst] = a.Spent.String() + ", " + a.Waived.String() + ", " + a.Overrun.String() + ", " + a.Released.String()
	}
	want := map[string]string{
		"a": "2.50 EUR, 0.00 EUR, 0.00 EUR, 3.50 EUR", "b": "1.00 EUR, 0.00 EUR, 0.25 EUR, 6.50 EUR",
		"c": "8.123456789 EUR, 0.00 EUR, 0.00 EUR, 0.876543211 EUR", "d": "0.00 EUR, 2.00 EUR, 0.00 EUR, 7.00 EUR",
		"open": "0.00 EUR, 0.00 EUR, 0.00 EUR, 0.00 EUR",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spent, waived, overrun and released (-want +got):\n%s", diff)
	}
	f.lead()
	_, err = f.Reserve(f.ctx(), f.epoch, leased("new"))
	f.must(err)
	_, err = f.Settle(f.ctx(), f.epoch, settlement("open", "2"))
	f.must(err)
	_, err = f.close("2026-10")
	f.must(err)
	_, err = f.correct("c", "8")
	f.must(err)
	f.verified()
	var out bytes.Buffer
	f.must(f.View(f.ctx(), func(v *ledger.View) error { return v.Export(f.ctx(), &out) }))
	copied, err := ledger.Open(f.ctx(), filepath.Join(t.TempDir(), "copy.db"), ledger.Options{})
	f.must(err)
	defer func() { _ = copied.Close() }()
	if r, err := copied.Import(f.ctx(), &out); err != nil || r.Head != f.verified().Head {
		t.Errorf("imported: %v, %s", err, r)
	}
	if c, err := copied.Account(f.ctx(), "c"); err != nil || len(c.Corrections) != 1 {
		t.Errorf("account c in the copy is %+v, %v", c, err)
	}
}
