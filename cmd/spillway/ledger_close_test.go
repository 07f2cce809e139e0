package main

import (
	"encoding/json"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
)

// TestCloseAndCorrect: the statement of a closed month stays as it is, to the
// byte; what is corrected later is in the open month, in the statement, in FOCUS
// and in the balances alike.
func TestCloseAndCorrect(t *testing.T) {
	b := autumn(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := spillway(t, append([]string{"ledger", "--ledger", b.file}, args...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	statement := func(month string) string {
		return run("statement", "--tenant", "t-7f31", "--month", month, "-o", "json")
	}
	focus := func(month string) string {
		return run("export", "--format", "focus", "--month", month, "--tenant", "t-7f31", "--operator", "x")
	}
	if out := run("close", "--month", "2026-10", "--by", "p-17"); out != "2026-10 is closed, from 2026-09-30T22:00:00Z until 2026-10-31T23:00:00Z, by p-17\n" {
		t.Errorf("close says %q", out)
	}
	page, rows := statement("2026-10"), focus("2026-10")
	for _, c := range []struct{ name, actual, more, want string }{
		{"october", "20.93 EUR", "", "now costs its tenant 20.93 EUR, the operator 0.00 EUR for faults"},
		{"a", "29.90 EUR", "--waive", "now costs its tenant 0.00 EUR, the operator 29.90 EUR for faults"},
		{"a", "26.91 EUR", "", "now costs its tenant 26.91 EUR, the operator 0.00 EUR for faults"},
	} {
		args := []string{"correct", "--burst", uid(c.name), "--actual", c.actual, "--by", "p-17", "--reason", "invoice 17"}
		if c.more != "" {
			args = append(args, c.more)
		}
		if out := run(args...); !strings.Contains(out, c.want) {
			t.Errorf("correct says %q, want %q", out, c.want)
		}
	}
	if november := run("statement", "--tenant", "t-7f31", "--month", "2026-11"); !strings.Contains(november, "corrected") || strings.Contains(november, "The month was closed at") {
		t.Error("the page of November does not say what was corrected, or that it is closed")
	}
	if october := run("statement", "--tenant", "t-7f31", "--month", "2026-10", "--lang", "de"); !strings.Contains(october, "Der Monat wurde abgeschlossen am") || strings.Contains(october, "berichtigt") {
		t.Error("the page of October does not say that it is closed, or that something was corrected")
	}
	if again := statement("2026-10"); again != page || focus("2026-10") != rows {
		t.Errorf("the closed month has changed:\n%s\n%s", page, again)
	}
	months := new(big.Rat)
	for _, month := range []string{"2026-10", "2026-11", "2026-12"} {
		var d document
		if err := json.Unmarshal([]byte(statement(month)), &d); err != nil {
			t.Fatal(err)
		}
		charged := big.NewRat(d.Statement.Totals[0].Charged.Exact.Nano, 1_000_000_000)
		months.Add(months, charged)
		if billed := sumOf(t, focus(month), "BilledCost"); charged.Cmp(billed) != 0 {
			t.Errorf("%s: the statement says %s, FOCUS %s", month, charged.FloatString(9), billed.FloatString(9))
		}
	}
	if spent := "tenant/t-7f31/spend," + strings.TrimRight(months.FloatString(9), "0") + ",EUR\n"; !strings.Contains(run("balance", "-o", "csv"), spent) {
		t.Errorf("the balances lack %s:\n%s", spent, run("balance", "-o", "csv"))
	}
	if !strings.Contains(focus("2026-11"), ",Correction,") {
		t.Error("November's FOCUS file has no row of class Correction")
	}
	if out := run("verify"); !strings.HasSuffix(out, "verified\n") {
		t.Errorf("verify says\n%s", out)
	}
}

func TestCloseAndCorrectRefuse(t *testing.T) {
	b := autumn(t)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"close", "--month", "2026-10"}, "--ledger, --month and --by are needed"},
		{[]string{"close", "--month", "October", "--by", "p"}, "write it like 2026-11"},
		{[]string{"close", "--month", "2026-11", "--by", "p"}, "1 bursts are not settled, the first of them " + uid("m")},
		{[]string{"close", "--month", "2126-11", "--by", "p"}, "it ends at 2126-11-30 23:00Z"},
		{[]string{"correct", "--burst", uid("m"), "--actual", "1 EUR", "--by", "p", "--reason", "r"}, "it is not settled yet"},
		{[]string{"correct", "--burst", "nobody", "--actual", "1 EUR", "--by", "p", "--reason", "r"}, "no reservation for this burst"},
		{[]string{"correct", "--burst", uid("a"), "--actual", "a lot", "--by", "p", "--reason", "r"}, "--actual"},
		{[]string{"correct", "--burst", uid("a"), "--actual", "1 EUR", "--by", "p"}, "--by and --reason are needed"},
	} {
		_, err := spillway(t, append([]string{"ledger", "--ledger", b.file}, tt.args...)...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
	}
	absent := filepath.Join(t.TempDir(), "absent.db")
	if _, err := spillway(t, "ledger", "--ledger", absent, "close", "--month", "2026-10", "--by", "p"); err == nil {
		t.Error("a ledger that is not there was closed")
	}
	if found, _ := filepath.Glob(absent + "*"); len(found) > 0 {
		t.Errorf("it made %v", found)
	}
}
