package ledger

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

//go:embed schema.sql
var schema string

const (
	applicationID = 0x5350574c // "SPWL" in the file's header
	schemaVersion = 1
	busyTimeout   = 10 * time.Second // how long a write waits for another process
	readers       = 4                // connections for reading
	minSQLite     = "3.51.3"         // older ones can corrupt a WAL that two connections use
)

// Open opens the ledger in the file at path, or in the PostgreSQL schema of a URL
// (postgres://...), and creates it when there is none (not with ReadOnly). What is
// broken, can't be written or is no ledger is refused with what is wrong and what to
// do; so is a SQLite library or a server that would not keep what it was told.
func Open(ctx context.Context, path string, o Options) (*Ledger, error) {
	l := &Ledger{database: sqliteFile(), path: Name(path), now: o.Now, turn: make(chan struct{}, 1)}
	if l.now == nil {
		l.now = time.Now
	}
	open := l.openFile
	if isPostgres(path) {
		open = l.openPostgres
	}
	if err := open(ctx, path, o); err != nil {
		if l.read != nil {
			_ = l.read.Close() // the first error is the one to tell
		}
		if l.write != nil {
			_ = l.write.Close()
		}
		if explained := explain(l.path, err); explained != err { //nolint:errorlint // is it the same one
			return nil, explained
		}
		return nil, fmt.Errorf("ledger %s: %w", l.path, err)
	}
	return l, nil
}

// checkPath finds what SQLite would only call "unable to open".
func checkPath(path string, readOnly bool) (abs string, err error) {
	abs, err = filepath.Abs(path)
	if path == "" || err != nil {
		return "", errors.New("this names no file; give the path of the ledger")
	}
	info, err := os.Stat(abs)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return "", fmt.Errorf("this is not a file but %s; give the path of the ledger file", info.Mode().Type())
	case err == nil && readOnly:
		return abs, nil
	case err == nil:
		// SQLite would open it for reading and fail at the first booking. The
		// file must not be opened here: closing it would drop SQLite's locks.
		if err := unix.Faccessat(unix.AT_FDCWD, abs, unix.W_OK, unix.AT_EACCESS); err != nil {
			return "", fmt.Errorf("it can't be written; give this user the right, or open it for reading only: %w", err)
		}
		return abs, nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("it can't be looked at; check the rights on its folder: %w", err)
	case readOnly:
		return "", fmt.Errorf("there is no such file; check the path: %w", err)
	}
	if _, err := os.Stat(filepath.Dir(abs)); err != nil {
		return "", fmt.Errorf("its folder does not exist; create it first: %w", err)
	}
	return abs, nil
}

func (l *Ledger) openFile(ctx context.Context, path string, o Options) error {
	abs, err := checkPath(path, o.ReadOnly)
	if err != nil {
		return err
	}
	if o.ReadOnly {
		return l.openReadOnly(ctx, abs, o)
	}
	// Neither parameter touches the file: what it is gets checked first.
	if l.write, err = sql.Open("sqlite", o.dsn(abs, "mode=rwc", "synchronous(FULL)")); err != nil {
		return err
	}
	l.write.SetMaxOpenConns(1)
	// As SQLite does wherever it is built by its own rules: the time stamps of
	// the file need not be on the disk. An error says that there is no such call.
	_, _ = sqlite.Fdatasync(true)
	if err := checkLibrary(ctx, l.write); err != nil {
		return err
	}
	if _, err := identify(ctx, l.write); err != nil {
		return err
	}
	if err := create(ctx, l.write); err != nil {
		return err
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	if l.read, err = sql.Open("sqlite", o.dsn(abs, "mode=rw", "query_only(1)")); err != nil {
		return err
	}
	l.read.SetMaxOpenConns(readers)
	return l.read.PingContext(ctx)
}

// prepare prepares what every transaction runs.
func (l *Ledger) prepare(ctx context.Context) error {
	statements := []string{selectFrom, l.known, l.seen}
	for _, b := range bulks() {
		for _, size := range bulkSizes() {
			statements = append(statements, b.statement(size))
		}
	}
	l.prepared = make(map[string]*sql.Stmt, len(statements))
	for _, s := range statements {
		var err error
		if l.prepared[s], err = l.write.PrepareContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// openReadOnly also reads a file on a medium or in a folder that can't be
// written, as long as no write-ahead log lies beside it.
func (l *Ledger) openReadOnly(ctx context.Context, abs string, o Options) error {
	var first error
	for _, mode := range []string{"mode=ro", "mode=ro&immutable=1"} {
		var err error
		if l.read, err = sql.Open("sqlite", o.dsn(abs, mode, "query_only(1)")); err != nil {
			return err
		}
		l.read.SetMaxOpenConns(readers)
		if err = checkLibrary(ctx, l.read); err != nil {
			return err
		}
		known, err := identify(ctx, l.read)
		if err == nil && !known {
			return errors.New("this is an empty database, not a ledger; check the path")
		}
		if err == nil {
			return nil
		}
		first = cmp.Or(first, err)
		if _, statErr := os.Stat(abs + "-wal"); statErr == nil || sqliteCode(err) != sqlite3.SQLITE_CANTOPEN {
			return first
		}
		_ = l.read.Close() // nothing was read through it
	}
	return first
}

// dsn builds the name under which the driver opens the file.
func (o Options) dsn(abs, mode, pragma string) string {
	u := url.URL{Scheme: "file", Path: abs}
	if o.vfs != "" {
		mode += "&vfs=" + url.QueryEscape(o.vfs)
	}
	return fmt.Sprintf("%s?%s&_txlock=immediate&_pragma=busy_timeout(%d)&_pragma=%s",
		u.String(), mode, busyTimeout.Milliseconds(), pragma)
}

func checkLibrary(ctx context.Context, db *sql.DB) error {
	var version string
	if err := db.QueryRowContext(ctx, "SELECT sqlite_version()").Scan(&version); err != nil {
		return err
	}
	return checkVersion(version)
}

// checkVersion refuses a SQLite library older than minSQLite.
func checkVersion(version string) error {
	have, want := strings.Split(version, "."), strings.Split(minSQLite, ".")
	for i, w := range want {
		least, _ := strconv.Atoi(w)
		n := 0
		if i < len(have) {
			var err error
			if n, err = strconv.Atoi(have[i]); err != nil {
				return fmt.Errorf("the SQLite library calls itself %q, which is no version; build with the pinned modernc.org/sqlite: %w", version, err)
			}
		}
		if n != least {
			if n < least {
				return fmt.Errorf("the SQLite library is %s, and versions before %s can corrupt the file when two processes use it; build with the pinned modernc.org/sqlite", version, minSQLite)
			}
			return nil
		}
	}
	return nil
}

// identify reports whether the file is a ledger (true) or empty (false); all
// else is an error.
func identify(ctx context.Context, q querier) (bool, error) {
	var application, version, objects int64
	err := q.QueryRowContext(ctx, `SELECT (SELECT application_id FROM pragma_application_id),
(SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_schema)`).Scan(&application, &version, &objects)
	if err != nil {
		return false, err
	}
	switch {
	case application == 0 && objects == 0:
		return false, nil
	case application != applicationID:
		return false, errors.New("this is the database of another program; give the path of the ledger")
	}
	return true, checkLayout(version)
}

// checkLayout refuses a layout that this program does not know.
func checkLayout(version int64) error {
	if version != schemaVersion {
		return fmt.Errorf("its layout has version %d and this program knows version %d; use the Spillway that wrote it, or a newer one", version, schemaVersion)
	}
	return nil
}

// create turns an empty file into a ledger and leaves a ledger as it is. It
// takes the write lock in any case, so that a file that can't be written is
// found now and not at the first reservation.
func create(ctx context.Context, db *sql.DB) error {
	if err := switchToWAL(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit this does nothing
	known, err := identify(ctx, tx)
	if err != nil || known {
		return err
	}
	header := fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d;", applicationID, schemaVersion)
	if _, err := tx.ExecContext(ctx, header+schema); err != nil {
		return err
	}
	return tx.Commit()
}

// switchToWAL turns on the write-ahead log, which the file then keeps. SQLite
// does not wait here when another process is doing the same, so this does.
func switchToWAL(ctx context.Context, db *sql.DB) error {
	retry := time.NewTicker(busyTimeout / 500)
	defer retry.Stop()
	for tries := 0; ; tries++ {
		var mode string
		err := db.QueryRowContext(ctx, "PRAGMA journal_mode=WAL").Scan(&mode)
		switch {
		case err == nil && mode == "wal":
			return nil
		case err == nil:
			return fmt.Errorf("its file system allows no write-ahead log (journal mode is %q); put the ledger on a local disk", mode)
		case sqliteCode(err) != sqlite3.SQLITE_BUSY || tries == 500:
			return err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func sqliteCode(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code() & 0xff // the rest says where in SQLite it happened
	}
	return sqlite3.SQLITE_OK
}

// errBroken marks errors about rows that are not what was once written.
var errBroken = errors.New("the journal was changed")

// sqliteFile is a ledger in a file of its own.
func sqliteFile() *database {
	return &database{
		known: `SELECT j.burst, j.kind, j.key, j.seq, j.intent FROM json_each($1) AS asked CROSS JOIN journal AS j
ON j.burst = asked.value ->> 0 AND j.kind = asked.value ->> 1 AND j.key = asked.value ->> 2 AND j.burst <> ''`,
		seen: `SELECT s.stream, s.n, s.digest FROM json_each($1) AS asked CROSS JOIN usage_seen AS s
ON s.stream = unhex(asked.value ->> 0) AND s.n = asked.value ->> 1`,
		view:   sql.TxOptions{ReadOnly: true},
		guards: sqliteGuards,
		lost:   func(error) bool { return false },
		sound:  "the triggers and indexes that protect the journal are in place, and the file is sound",
	}
}

// explain says in one sentence what is wrong with the file and what to do.
// Refusals that are not about the file pass as they are.
func explain(path string, err error) error {
	say := func(reason, remedy string) error {
		return fmt.Errorf("ledger %s: %s; nothing was booked: %s: %w", path, reason, remedy, err)
	}
	switch sqliteCode(err) {
	case sqlite3.SQLITE_NOTADB:
		return say("this is not a SQLite file", "give the path of the ledger, or restore it from a backup")
	case sqlite3.SQLITE_CORRUPT:
		return say("the file is damaged", "keep a copy of it, restore the newest backup and verify that")
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		return say("the file can't be written", "give this user the right to write the file and its folder")
	case sqlite3.SQLITE_CANTOPEN:
		return say("the file can't be opened", "give this user the right to write the file and its folder")
	case sqlite3.SQLITE_FULL:
		return say("the disk is full", "free some space and try again")
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return say(fmt.Sprintf("another process has held the write lock for %v", busyTimeout), "find the process that has the file open and try again")
	case sqlite3.SQLITE_CONSTRAINT:
		return say("the journal was changed by something that is not a ledger", "verify it, then try again")
	case sqlite3.SQLITE_IOERR:
		return say("the disk reports an error", "check the disk and its free space, then verify the ledger")
	}
	if errors.Is(err, errCut) {
		return say("it lacks rows that this process knows to be booked: a backup or a standby that was behind has taken its place",
			"stop spending, compare it with what the providers list and with signed heads, then start this process again")
	}
	if reason, remedy := explainPostgres(err); reason != "" {
		err = oneLine{err}
		return say(reason, remedy)
	}
	if _, ok := errors.AsType[*unfitError](err); ok || errors.Is(err, errBroken) {
		return fmt.Errorf("ledger %s: %w", path, err)
	}
	return err
}
