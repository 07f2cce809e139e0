//go:build postgres

package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"spillway.dev/spillway/e2e/postgres"
	"spillway.dev/spillway/quota/ledger"
)

// The whole suite of this package runs on a real server, with "make postgres".
// Each ledger is a schema of its own.

var (
	server  *postgres.Server // of all tests but those that break theirs
	schemas atomic.Int64
)

func withStore(run func() int) int {
	var err error
	if server, err = postgres.Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = server.Stop() }() // it dies with this process in any case
	return run()
}

func fresh(t testing.TB) string {
	t.Helper()
	return schemaOn(t, server)
}

// schemaOn makes an empty schema on a server and returns its URL.
func schemaOn(t testing.TB, s *postgres.Server) string {
	t.Helper()
	schema := fmt.Sprintf("l%d", schemas.Add(1))
	db := behind(t, s.URL("postgres", postgres.Superuser))
	_, err := db.ExecContext(context.Background(), "CREATE SCHEMA "+schema)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return s.URL("postgres", postgres.Superuser) + "?search_path=" + schema
}

func schemaOf(t testing.TB, name string) string {
	t.Helper()
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query().Get("search_path")
}

func behind(t testing.TB, name string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(name)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["synchronous_commit"] = "off" // what a test does there may be lost
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = db.Close() }) // a second Close is harmless
	return db
}

func twin(t testing.TB, name string) string {
	t.Helper()
	to := fresh(t)
	db := behind(t, to)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	statements := append([]string{ledger.PostgresSchema()}, withoutGuards()...)
	for _, table := range []string{"journal", "usage_seen", "usage_total"} {
		statements = append(statements, fmt.Sprintf("INSERT INTO %s SELECT * FROM %s.%s", table, schemaOf(t, name), table))
	}
	for _, s := range slices.Concat(statements, withGuards()) {
		if _, err := tx.ExecContext(context.Background(), s); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(tx.Commit(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return to
}

func withoutGuards() []string { return []string{"ALTER TABLE journal DISABLE TRIGGER USER"} }

func withGuards() []string { return []string{"ALTER TABLE journal ENABLE TRIGGER USER"} }

func flipped(column string) string {
	return fmt.Sprintf("set_byte(%s, 31, (get_byte(%s, 31) + 1) %% 256)", column, column)
}

func evil() []string {
	return []string{
		"CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM usage_seen; RETURN NEW; END'",
		"CREATE TRIGGER evil AFTER INSERT ON journal FOR EACH ROW EXECUTE FUNCTION evil()",
	}
}

func forbidden() map[string]string {
	return map[string]string{
		"INSERT INTO journal SELECT 13, recorded, epoch, kind, burst, key, intent, entries, prev, hash FROM journal WHERE seq = 12":                                                         "journal_once",
		"INSERT INTO journal SELECT 12, recorded, epoch, kind, '', key, intent, entries, prev, hash FROM journal WHERE seq = 12 ON CONFLICT (seq) DO UPDATE SET entries = excluded.entries": "no gaps",
		"TRUNCATE journal": "append-only",
	}
}
