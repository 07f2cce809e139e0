//go:build !postgres

package ledger_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spillway.dev/spillway/quota/ledger"
)

// The tests of this package hold for every store. This file says what they need
// of SQLite, store_postgres_test.go what they need of PostgreSQL ("make postgres").

// withStore runs the tests; a file needs nothing to run.
func withStore(run func() int) int { return run() }

// fresh names a ledger that does not exist yet.
func fresh(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "ledger.db")
}

// behind opens what a ledger lies in, past all its rules.
func behind(t testing.TB, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", name+"?_pragma=synchronous(OFF)")
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() }) // a second Close is harmless
	return db
}

// twin copies a closed ledger, guards and all.
func twin(t testing.TB, name string) string {
	t.Helper()
	to := fresh(t)
	data, err := os.ReadFile(name)
	if err == nil {
		err = os.WriteFile(to, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// withoutGuards lifts what protects the journal, withGuards puts it back word for word.
func withoutGuards() []string {
	return []string{"DROP TRIGGER journal_no_update", "DROP TRIGGER journal_no_delete", "DROP TRIGGER journal_next"}
}

func withGuards() []string {
	var all []string
	for _, part := range strings.Split(ledger.Schema(), "CREATE TRIGGER ")[1:] {
		body, _, _ := strings.Cut(part, "END;")
		all = append(all, "CREATE TRIGGER "+body+"END;")
	}
	return all
}

// flipped is a hash in a column with its last byte changed.
func flipped(column string) string {
	return "CAST(substr(" + column + ", 1, 31) || iif(substr(" + column + ", 32) = x'00', x'01', x'00') AS BLOB)"
}

// evil adds a trigger of somebody else.
func evil() []string {
	return []string{"CREATE TRIGGER evil AFTER INSERT ON journal BEGIN DELETE FROM usage_seen; END"}
}

// forbidden are statements that the guards refuse, and how.
func forbidden() map[string]string {
	return map[string]string{
		"INSERT INTO journal SELECT 13, recorded, epoch, kind, burst, key, intent, entries, prev, hash FROM journal WHERE seq = 12":         "UNIQUE",
		"INSERT OR REPLACE INTO journal SELECT 12, recorded, epoch, kind, '', key, intent, entries, prev, hash FROM journal WHERE seq = 12": "no gaps",
	}
}
