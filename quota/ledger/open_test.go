//go:build !postgres

package ledger_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

func TestSQLiteMustBeNewEnough(t *testing.T) {
	for version, ok := range map[string]bool{
		"3.51.3": true, "3.51.4": true, "3.54.1": true, "4.0.0": true, "3.52": true,
		"3.51.2": false, "3.7.0": false, "3.51": false, "2.99.99": false, "unknown": false,
	} {
		t.Run(version, func(t *testing.T) {
			if err := ledger.CheckVersion(version); (err == nil) != ok {
				t.Errorf("CheckVersion(%s) = %v", version, err)
			}
		})
	}
}

// What Open refuses, in one sentence with thing, reason and remedy, and leaves as it is.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign := func(name string, statements ...string) string {
		path := filepath.Join(dir, name)
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range statements {
			if _, err := db.Exec(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	torn := newFixture(t)
	torn.must(torn.Close())
	data, err := os.ReadFile(torn.path)
	torn.must(err)
	tests := map[string]struct {
		path     string
		readOnly bool
		want     string
	}{
		"no path":                    {"", false, "names no file"},
		"a folder":                   {dir, false, "this is not a file"},
		"a folder that is not there": {filepath.Join(dir, "no", "ledger.db"), false, "create it first"},
		"a file that is not there":   {filepath.Join(dir, "none.db"), true, "there is no such file; check the path"},
		"a text file":                {file("text", strings.Repeat("hello\n", 200)), false, "this is not a SQLite file; nothing was booked: give the path of the ledger, or restore it"},
		"a text file for reading":    {file("text2", strings.Repeat("hello\n", 200)), true, "this is not a SQLite file"},
		"another database":           {foreign("foreign.db", "CREATE TABLE t (x)"), false, "database of another program"},
		"another application":        {foreign("app.db", "CREATE TABLE t (x)", "PRAGMA application_id=77"), false, "database of another program"},
		"a newer layout":             {foreign("newer.db", "CREATE TABLE t (x)", "PRAGMA application_id=1397769805", "PRAGMA user_version=9"), false, "database of another program"},
		"our newer layout":           {foreign("ours.db", "CREATE TABLE t (x)", fmt.Sprintf("PRAGMA application_id=%d", 0x5350574c), "PRAGMA user_version=9"), false, "its layout has version 9 and this program knows version 1"},
		"an empty database":          {foreign("empty.db", "CREATE TABLE t (x)", "DROP TABLE t"), true, "this is an empty database, not a ledger"},
		"a torn file":                {file("torn.db", string(data[:5000])), false, "the file is damaged"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before, _ := os.ReadFile(tt.path)
			l, err := ledger.Open(context.Background(), tt.path, ledger.Options{ReadOnly: tt.readOnly})
			if err == nil {
				_ = l.Close()
				t.Fatal("it was opened")
			}
			if text := err.Error(); !strings.Contains(text, tt.want) || !strings.HasPrefix(text, "ledger ") || strings.Contains(text, "\n") {
				t.Errorf("error is %q, want one line with %q", text, tt.want)
			}
			if after, _ := os.ReadFile(tt.path); string(after) != string(before) {
				t.Error("the file was changed")
			}
		})
	}
}

func TestOddPathsNameTheFileThatTheySay(t *testing.T) {
	for _, name := range []string{"a b.db", "a?mode=memory.db", "a#b.db", "a%41.db", "äö.db"} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			l, err := ledger.Open(context.Background(), path, ledger.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.BeginEpoch(context.Background(), "a"); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("the ledger lies elsewhere: %v", err)
			}
		})
	}
}

// A full disk books nothing, says so, and everything goes on when there is room.
func TestAFullDisk(t *testing.T) {
	f := newFixture(t)
	f.must(f.LimitPages(f.ctx(), 1)) // the size that it has
	accepted := 0
	var err error
	for i := 0; i < 500 && err == nil; i++ {
		if _, err = f.Reserve(f.ctx(), f.epoch, burst(fmt.Sprint(i), "0.001")); err == nil {
			accepted++
		}
	}
	if err == nil || !strings.Contains(err.Error(), "the disk is full; nothing was booked: free some space and try again") {
		t.Fatalf("error is %v", err)
	}
	book, err := f.Book(f.ctx())
	f.must(err)
	if len(book.Open) != accepted {
		t.Errorf("%d reservations were answered with yes, %d stand", accepted, len(book.Open))
	}
	f.must(f.LimitPages(f.ctx(), 1_000_000))
	_, err = f.Reserve(f.ctx(), f.epoch, burst("room", "0.001"))
	f.must(err)
	if r := f.verified(); r.Open != int64(accepted)+1 {
		t.Errorf("%d bursts are open, want %d", r.Open, accepted+1)
	}
}

func TestAFileThatCantBeWritten(t *testing.T) {
	f := newFixture(t)
	f.must(f.ForbidWrites(f.ctx()))
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "1"))
	if err == nil || !strings.Contains(err.Error(), "the file can't be written; nothing was booked: give this user the right") {
		t.Errorf("error is %v", err)
	}
	_, err = f.Account(f.ctx(), "a")
	want(t, err, quota.ErrUnknownBurst)
}

func TestAWriteProtectedFile(t *testing.T) {
	f := newFixture(t)
	f.must(f.Close())
	data, err := os.ReadFile(f.path)
	f.must(err)
	dir, err := os.MkdirTemp("", "ledger") // t.TempDir lies in a folder of its user alone
	f.must(err)
	t.Cleanup(func() { f.must(os.RemoveAll(dir)) })
	path := filepath.Join(dir, "ledger.db")
	f.must(os.WriteFile(path, data, 0o400))
	if os.Geteuid() == 0 { // file modes do not bind root
		const nobody = 65534
		f.must(errors.Join(os.Chown(dir, nobody, nobody), os.Chown(path, nobody, nobody), syscall.Seteuid(nobody)))
		defer func() { f.must(syscall.Seteuid(0)) }()
	}
	_, err = ledger.Open(f.ctx(), path, ledger.Options{})
	if err == nil || !strings.Contains(err.Error(), "can't be written") {
		t.Errorf("error is %v", err)
	}
}

func TestReadingACopy(t *testing.T) {
	f := newFixture(t)
	_, err := f.Reserve(f.ctx(), f.epoch, burst("a", "4"))
	f.must(err)
	f.must(f.Close())
	data, err := os.ReadFile(f.path)
	f.must(err)
	path := filepath.Join(t.TempDir(), "copy.db")
	f.must(os.WriteFile(path, data, 0o400))
	f.readsOnly(t, path)
}

func TestTheFileIsDurable(t *testing.T) {
	f := newFixture(t)
	journal, synchronous, err := f.Pragmas(f.ctx())
	f.must(err)
	if journal != "wal" || synchronous != 2 {
		t.Errorf("journal_mode=%s, synchronous=%d; want wal and 2 (FULL)", journal, synchronous)
	}
}
