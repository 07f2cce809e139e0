//go:build postgres

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spillway.dev/spillway/e2e/postgres"
)

// TestPostgresLedger takes a ledger from its file into PostgreSQL and back with
// the commands alone: reports, statements and exports are the same to the byte,
// writing works there, and no output holds the password.
func TestPostgresLedger(t *testing.T) {
	server, err := postgres.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	url := server.URL("postgres", postgres.Superuser)
	b := autumn(t)
	b.must(b.Close())
	say := func(args ...string) string {
		t.Helper()
		out, err := spillway(t, append([]string{"ledger"}, args...)...)
		if strings.Contains(out, postgres.Password) || err != nil && strings.Contains(err.Error(), postgres.Password) {
			t.Errorf("%s prints the password: %s %v", args[0], out, err)
		}
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	exported := filepath.Join(t.TempDir(), "ledger.jsonl")
	b.must(os.WriteFile(exported, []byte(say("export", "--ledger", b.file)), 0o600))
	head := strings.SplitAfter(say("import", "--ledger", url, exported), "\n")[1]

	back := filepath.Join(t.TempDir(), "back.db")
	again := filepath.Join(t.TempDir(), "again.jsonl")
	b.must(os.WriteFile(again, []byte(say("export", "--ledger", url)), 0o600))
	if out := say("import", "--ledger", back, again); !strings.HasSuffix(out, head) {
		t.Errorf("back in a file it says %q, want %q", out, head)
	}
	for _, args := range [][]string{
		{"export"},
		{"balance"},
		{"budget"},
		{"usage"},
		{"exposure", "-o", "csv"},
		{"statement", "--tenant", "t-7f31", "--month", "2026-11"},
		{"export", "--format", "focus", "--month", "2026-11", "--operator", "Example"},
	} {
		file, there := say(append(args, "--ledger", b.file)...), say(append(args, "--ledger", url)...)
		if file != there {
			t.Errorf("%v differs:\n%s\nin PostgreSQL:\n%s", args, file, there)
		}
	}
	shown := "postgres://" + postgres.Superuser + "@" + server.Address() + "/postgres"
	if out := say("verify", "--ledger", url); !strings.Contains(out, "ledger "+shown+"\n") || !strings.Contains(out, "verified\n") {
		t.Errorf("verify says\n%s", out)
	}
	say("close", "--ledger", url, "--month", "2026-10", "--by", "p-17")
	_, err = spillway(t, "ledger", "close", "--ledger", url, "--month", "2026-10", "--by", "p-17")
	if err == nil || !strings.Contains(err.Error(), "ledger "+shown) || strings.Contains(err.Error(), postgres.Password) {
		t.Errorf("closed again: %v", err)
	}
}
