package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/csv"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// golden compares text with a file that UPDATE_GOLDEN=1 writes anew.
func golden(t *testing.T, file, text string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s: UPDATE_GOLDEN=1 go test ./cmd/spillway writes it anew:\n%s", file, diff)
	}
}

// TestLedgerReports holds what people read of a ledger to golden files. Reading
// fences nobody: the controller's epoch goes on.
func TestLedgerReports(t *testing.T) {
	b := autumn(t)
	for name, args := range map[string][]string{
		"balance":  {"balance"},
		"budget":   {"budget", "--at", "2026-11-30T12:00:00Z"},
		"usage":    {"usage", "--tenant", "t-7f31", "--month", "2026-11"},
		"exposure": {"exposure", "--at", "2026-12-01T12:00:00Z"},
		"bursts":   {"exposure", "--at", "2026-12-01T12:00:00Z", "--bursts"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"ledger", "--ledger", b.file}, args...)
			text, err := spillway(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "ledger", name+".txt"), text)
			table, err := spillway(t, append(args, "-o", "csv")...)
			if err != nil {
				t.Fatal(err)
			}
			rows, err := csv.NewReader(strings.NewReader(table)).ReadAll()
			if lines := strings.Count(text, "\n"); err != nil || len(rows) > lines || len(rows) < lines-1 { // one line may be a note
				t.Errorf("%d rows of CSV beside %d lines: %v", len(rows), lines, err)
			}
			data, err := spillway(t, append(args, "-o", "json")...)
			if err != nil || !json.Valid([]byte(data)) {
				t.Errorf("JSON: %v\n%s", err, data)
			}
		})
	}
	if err := b.SetBudgets(t.Context(), b.epoch, nil); err != nil {
		t.Errorf("reading has fenced the controller off: %v", err)
	}
}

// sumOf adds up one column of a table in CSV, exactly.
func sumOf(t *testing.T, text, column string) *big.Rat {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	sum, i := new(big.Rat), slices.Index(rows[0], column)
	for _, row := range rows[1:] {
		n, ok := new(big.Rat).SetString(row[i])
		if !ok {
			t.Fatalf("%s is %q", column, row[i])
		}
		sum.Add(sum, n)
	}
	return sum
}

// TestReportsAgree: FOCUS, statement, budget and balance are the same money,
// to the nano-unit.
func TestReportsAgree(t *testing.T) {
	b := autumn(t)
	run := func(args ...string) string {
		t.Helper()
		out, err := spillway(t, append([]string{"ledger", "--ledger", b.file}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	months := new(big.Rat)
	for _, month := range []string{"2026-10", "2026-11", "2026-12"} {
		var d document
		if err := json.Unmarshal([]byte(run("statement", "--tenant", "t-7f31", "--month", month, "-o", "json")), &d); err != nil {
			t.Fatal(err)
		}
		charged := big.NewRat(d.Statement.Totals[0].Charged.Exact.Nano, 1_000_000_000)
		months.Add(months, charged)
		rows := sumOf(t, run("export", "--format", "focus", "--month", month, "--tenant", "t-7f31", "--operator", "x"), "BilledCost")
		limit := big.NewRat(d.Statement.Budgets[0].Spent.Nano, 1_000_000_000)
		if charged.Cmp(rows) != 0 || charged.Cmp(limit) != 0 {
			t.Errorf("%s: the statement says %s, FOCUS %s, the budget %s", month, charged.FloatString(9), rows.FloatString(9), limit.FloatString(9))
		}
	}
	if spent := "tenant/t-7f31/spend," + strings.TrimRight(months.FloatString(9), "0") + ",EUR\n"; !strings.Contains(run("balance", "-o", "csv"), spent) {
		t.Errorf("the balances lack %s", spent)
	}
	accrued := new(big.Rat)
	for _, month := range []string{"2026-10", "2026-11", "2026-12"} {
		accrued.Add(accrued, sumOf(t, run("export", "--format", "focus", "--month", month, "--view", "provider"), "BilledCost"))
	}
	if want := "924.032596529"; accrued.FloatString(9) != want { // all that the balances say is owed to providers
		t.Errorf("the providers' rows add up to %s, want %s", accrued.FloatString(9), want)
	}
}

// TestFiltersChangeNoTotals: what two filters let through adds up to what there
// is. cases: C-54 opencost#1124
func TestFiltersChangeNoTotals(t *testing.T) {
	b := autumn(t)
	sum := func(args ...string) *big.Rat {
		t.Helper()
		out, err := spillway(t, append([]string{"ledger", "--ledger", b.file, "usage", "-o", "csv"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return sumOf(t, out, "share_seconds")
	}
	all, parts := sum(), new(big.Rat)
	for _, args := range [][]string{
		{"--tenant", "t-9c02"},
		{"--tenant", "t-7f31", "--month", "2026-10"},
		{"--tenant", "t-7f31", "--month", "2026-12"},
		{"--namespace", "team-speech", "--month", "2026-11"},
		{"--namespace", "team-vision", "--month", "2026-11"},
	} {
		parts.Add(parts, sum(args...))
	}
	if all.Cmp(parts) != 0 || all.Sign() == 0 {
		t.Errorf("the parts add up to %s, all is %s", parts.FloatString(0), all.FloatString(0))
	}
}

// TestTimesWithAnOffset: 02:00 at +04:00 is still November in Berlin. cases:
// C-68 formancehq/ledger#1398
func TestTimesWithAnOffset(t *testing.T) {
	b := autumn(t)
	at := func(text string) string {
		t.Helper()
		out, err := spillway(t, "ledger", "budget", "--ledger", b.file, "--at", text)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if got, want := at("2026-12-01T02:00:00+04:00"), at("2026-11-30T22:00:00Z"); got != want || !strings.Contains(got, "2026-11") {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestEmptyLedger: a ledger without rows says so in one sentence, in JSON and
// CSV it is an empty list.
func TestEmptyLedger(t *testing.T) {
	file := filepath.Join(t.TempDir(), "empty.db")
	out, err := spillway(t, "ledger", "import", "--ledger", file, filepath.Join("testdata", "ledger", "empty.jsonl"))
	if err != nil || !strings.Contains(out, "0 rows imported") {
		t.Fatalf("%q, %v", out, err)
	}
	for name, want := range map[string]string{
		"balance": "moves no money", "budget": "nothing can be reserved", "usage": "has no usage", "exposure": "has nothing open",
	} {
		t.Run(name, func(t *testing.T) {
			out, err := spillway(t, "ledger", name, "--ledger", file)
			if err != nil || !strings.Contains(out, want) || strings.Count(out, "\n") != 1 {
				t.Errorf("%q, %v, want one sentence with %q", out, err, want)
			}
			if out, err := spillway(t, "ledger", name, "--ledger", file, "-o", "csv"); err != nil || strings.Count(out, "\n") != 1 {
				t.Errorf("CSV is %q, %v, want a header", out, err)
			}
			if out, err := spillway(t, "ledger", name, "--ledger", file, "-o", "json"); err != nil || strings.Contains(out, "null") {
				t.Errorf("JSON is %q, %v", out, err)
			}
		})
	}
	if _, err := spillway(t, "ledger", "statement", "--ledger", file, "--tenant", "t-1", "--month", "2026-11"); err == nil || !strings.Contains(err.Error(), `knows no tenant "t-1"`) {
		t.Errorf("a statement of nobody: %v", err)
	}
}

// TestExportAndImport: a ledger moves with its chain intact, into an empty
// file only.
func TestExportAndImport(t *testing.T) {
	b := autumn(t)
	export, err := spillway(t, "ledger", "export", "--ledger", b.file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	from, to := filepath.Join(dir, "ledger.jsonl"), filepath.Join(dir, "moved.db")
	if err := os.WriteFile(from, []byte(export), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := spillway(t, "ledger", "import", from, "--ledger", to)
	report, verr := b.Verify(t.Context())
	if err != nil || verr != nil || !strings.Contains(out, report.Head) {
		t.Fatalf("%q, %v, %v, want head %s", out, err, verr, report.Head)
	}
	if again, err := spillway(t, "ledger", "export", "--ledger", to); err != nil || again != export {
		t.Errorf("the second export differs: %v", err)
	}
	if _, err := spillway(t, "ledger", "import", from, "--ledger", b.file); err == nil || !strings.Contains(err.Error(), "import into a new file") {
		t.Errorf("imported into a ledger with rows: %v", err)
	}
	if err := os.WriteFile(from, []byte(export[:len(export)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := spillway(t, "ledger", "import", from, "--ledger", filepath.Join(dir, "half.db")); err == nil || !strings.Contains(err.Error(), "nothing was imported") {
		t.Errorf("half of an export: %v", err)
	}
}

// TestHeads: what was signed once can't be rewritten unseen. The ledger is
// replaced by another one whose chain and sense are whole.
func TestHeads(t *testing.T) {
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	key := write("heads.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	trust := write("heads.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub}))

	b := newBooks(t)
	lead := func() {
		t.Helper()
		b.now = b.now.Add(time.Hour)
		if b.epoch, err = b.BeginEpoch(t.Context(), "controller-1"); err != nil {
			t.Fatal(err)
		}
	}
	lead()
	line, err := spillway(t, "ledger", "head", "--ledger", b.file, "--key", key)
	if err != nil {
		t.Fatal(err)
	}
	heads := write("heads.jsonl", []byte(line))
	verify := func(file string) (string, error) {
		return spillway(t, "ledger", "verify", "--ledger", file, "--heads", heads, "--trust", trust)
	}
	lead()
	if out, err := verify(b.file); err != nil || !strings.Contains(out, "signed heads (1): up to row 2") {
		t.Errorf("%v\n%s", err, out)
	}
	other := autumn(t)
	if out, err := verify(other.file); err == nil || !strings.Contains(out, "the journal was written anew up to here") {
		t.Errorf("another journal: %v\n%s", err, out)
	}
	write("heads.jsonl", []byte(strings.Replace(line, `"rows":2`, `"rows":3`, 1)))
	if _, err := verify(b.file); err == nil || !strings.Contains(err.Error(), "is not signed by the trusted key") {
		t.Errorf("a changed head: %v", err)
	}
	if _, err := spillway(t, "ledger", "head", "--ledger", b.file, "--key", trust); err == nil || !strings.Contains(err.Error(), "heads.pub") {
		t.Errorf("signed with a public key: %v", err)
	}
}

// TestFocusExport holds one month in both versions to golden files. What is not
// settled is said on standard error.
func TestFocusExport(t *testing.T) {
	b := autumn(t)
	for name, args := range map[string][]string{
		"focus-1.4-tenant": {"--operator", "Example GPU Platform"}, "focus-1.2-provider": {"--profile", "1.2", "--view", "provider", "--tenant", "t-9c02"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := spillway(t, append([]string{"ledger", "export", "--ledger", b.file, "--format", "focus", "--month", "2026-11"}, args...)...)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "ledger", name+".csv"), out)
		})
	}
}
