package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// samples is where the statements of the generated ledger are shown to people.
func samples(name string) string { return filepath.Join("..", "..", "docs", "samples", name) }

// records is a folder with the certificates of some bursts, and the public key
// that they can be checked against.
func records(t *testing.T, bursts ...string) (dir, trust string) {
	t.Helper()
	dir = t.TempDir()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	trust = filepath.Join(t.TempDir(), "certificate.pub")
	if err := os.WriteFile(trust, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, b := range bursts {
		signed, err := wipe.SignCertificate(key, wipe.Certificate{
			ID: "wipe-" + b, Burst: b, Tenant: "t-7f31", IssuedAt: time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC),
		})
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(signed)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, b), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, b, "certificate.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir, trust
}

// TestStatement holds the statement of a whole month to the samples in docs,
// in both languages and as JSON.
func TestStatement(t *testing.T) {
	b := autumn(t)
	dir, trust := records(t, uid("october"), uid("a"), uid("c"))
	statement := func(t *testing.T, args ...string) string {
		t.Helper()
		out, err := spillway(t, append([]string{
			"ledger", "statement", "--ledger", b.file, "--tenant", "t-7f31", "--month", "2026-11", "--operator", "Example GPU Platform",
		}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for name, args := range map[string][]string{
		"statement-2026-11.en.html": {"--records", dir, "--trust", trust}, "statement-2026-11.de.html": {"--records", dir, "--trust", trust, "--lang", "de"}, "statement-2026-11.json": {"--records", dir, "--trust", trust, "-o", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			out := statement(t, args...)
			golden(t, samples(name), out)
			if again := statement(t, args...); again != out {
				t.Error("the same ledger gives another page")
			}
			if outside := regexp.MustCompile(`(?i)<script|https?://|@import|url\(|<link|<img`).FindString(out); outside != "" {
				t.Errorf("the page is not self-contained: it has %q", outside)
			}
		})
	}
	t.Run("the month has ended in the ledger", func(t *testing.T) {
		if out := statement(t); strings.Contains(out, "Provisional") || !strings.Contains(out, "not looked up") {
			t.Error("a month that is over is called provisional, or certificates were found that nobody looked for")
		}
		out, err := spillway(t, "ledger", "statement", "--ledger", b.file, "--tenant", "t-7f31", "--month", "2026-12")
		if err != nil || !strings.Contains(out, "Provisional") {
			t.Errorf("a month that goes on is not called provisional: %v", err)
		}
	})
}

// TestStatementEscapes: ids come from clusters and clouds; none of them is HTML.
func TestStatementEscapes(t *testing.T) {
	b := newBooks(t)
	b.must(b.SetBudgets(t.Context(), b.epoch, []quota.Budget{{ID: "<u>", Scope: quota.ScopeTenant, Subject: "t<b>", Window: quota.WindowMonth, Limit: amount(t, "9.00 EUR")}}))
	b.burst(rented{
		name: "x", tenant: "t<b>", project: "<script>alert(1)</script>", namespace: `"><img src=x>`, provider: "p&q", offer: "<i>", model: "m",
		gpus: 1, price: "1.00 EUR/h", start: "2026-11-02 10:00:00", end: "2026-11-02 11:00:00", granularity: 1, cause: "</table>",
	})
	out, err := spillway(t, "ledger", "statement", "--ledger", b.file, "--tenant", "t<b>", "--month", "2026-11")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"<script", "<img", "<b>b", "</table></td>", "<i></span>", "<u>"} {
		if strings.Contains(out, bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if !strings.Contains(out, "&lt;script&gt;") {
		t.Error("the project is not on the page")
	}
}

// TestStatementOfTwoCurrencies: they stand beside one another and are never
// added up. cases: C-61 kubecost docs#1128, #923
func TestStatementOfTwoCurrencies(t *testing.T) {
	b := newBooks(t)
	for _, currency := range []string{"EUR", "CHF"} {
		b.must(b.SetBudgets(t.Context(), b.epoch, []quota.Budget{
			{ID: "t/" + currency, Scope: quota.ScopeTenant, Subject: "t", Window: quota.WindowMonth, Limit: amount(t, "90.00 "+currency), Hard: true},
		}))
		b.burst(rented{
			name: currency, tenant: "t", provider: "p", gpus: 1, price: "1.00 " + currency + "/h",
			start: "2026-11-02 10:00:00", end: "2026-11-02 17:00:00", granularity: 1, cause: "Succeeded",
		})
	}
	out, err := spillway(t, "ledger", "statement", "--ledger", b.file, "--tenant", "t", "--month", "2026-11")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<b>7.00\u00a0EUR</b>", "<b>7.00\u00a0CHF</b>", "Cost by day, EUR", "Cost by day, CHF", "7.00\u00a0CHF<br>7.00\u00a0EUR"} {
		if !strings.Contains(out, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(out, "14.00\u00a0") {
		t.Error("the page adds two currencies up")
	}
}

// TestStatementOfNothing: a known tenant without use gets a page that says so,
// and no chart of nothing.
func TestStatementOfNothing(t *testing.T) {
	b := newBooks(t)
	b.must(b.SetBudgets(t.Context(), b.epoch, []quota.Budget{{ID: "t/m", Scope: quota.ScopeTenant, Subject: "t", Window: quota.WindowMonth, Limit: amount(t, "9.00 EUR")}}))
	out, err := spillway(t, "ledger", "statement", "--ledger", b.file, "--tenant", "t", "--month", "2026-11")
	if err != nil || !strings.Contains(out, "No burst was charged in this month.") || strings.Contains(out, "<svg") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestCertificatesAreChecked: a file that is not the burst's own certificate,
// or was changed, stops the statement.
func TestCertificatesAreChecked(t *testing.T) {
	b := autumn(t)
	for name, tt := range map[string]struct {
		change func(file string, data []byte) error
		want   string
	}{
		"of another burst": {func(file string, _ []byte) error {
			other, _ := records(t, uid("other"))
			data, err := os.ReadFile(filepath.Join(other, uid("other"), "certificate.json"))
			if err != nil {
				return err
			}
			return os.WriteFile(file, data, 0o600)
		}, "it is the certificate of burst"},
		"changed": {func(file string, data []byte) error {
			return os.WriteFile(file, bytes.Replace(data, []byte("t-7f31"), []byte("t-7f32"), 1), 0o600)
		}, "signature"},
		"no JSON": {func(file string, _ []byte) error { return os.WriteFile(file, []byte("wiped, honestly"), 0o600) }, "certificate.json"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, trust := records(t, uid("a"))
			file := filepath.Join(dir, uid("a"), "certificate.json")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.change(file, data); err != nil {
				t.Fatal(err)
			}
			_, err = spillway(t, "ledger", "statement", "--ledger", b.file, "--tenant", "t-7f31", "--month", "2026-11", "--records", dir, "--trust", trust)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want an error with %q", err, tt.want)
			}
		})
	}
}

// TestNumbersOfThePage: grouped and pointed as each language does, nothing lost.
func TestNumbersOfThePage(t *testing.T) {
	for _, tt := range []struct {
		lang string
		n    int64
		want string
	}{
		{"en", 0, "0.00"}, {"en", 5, "0.05"}, {"de", 123456, "1.234,56"}, {"en", 123456789, "1,234,567.89"}, {"de", -100000, "-1.000,00"}, {"de", 99999, "999,99"},
	} {
		if got := (page{Lang: tt.lang}).decimal(tt.n); got != tt.want {
			t.Errorf("%d is %q in %s, want %q", tt.n, got, tt.lang, tt.want)
		}
	}
	// A point would make thousands of it.
	if got := (page{Lang: "de"}).exact(amount(t, "58.531875 EUR")); got != "58,531875 EUR" {
		t.Errorf("58.531875 EUR is %q in German", got)
	}
	for key := range english() {
		if german()[key] == "" {
			t.Errorf("%q has no German word", key)
		}
	}
	if len(german()) != len(english()) {
		t.Error("German has words that English has not")
	}
}
