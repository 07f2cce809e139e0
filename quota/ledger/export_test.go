package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"time"
)

// CheckVersion is checkVersion, for the versions that no build has.
func CheckVersion(version string) error { return checkVersion(version) }

// OnDisk is o for a ledger on a file layer of SQLite that a test has registered.
func (o Options) OnDisk(vfs string) Options {
	o.vfs = vfs
	return o
}

// Waiting is how many calls no transaction has taken yet.
func (l *Ledger) Waiting() int {
	l.waiting.mu.Lock()
	defer l.waiting.mu.Unlock()
	return len(l.waiting.calls)
}

// FailBehindARow is a call that writes a row and fails then.
func (l *Ledger) FailBehindARow(ctx context.Context, failure error) error {
	return l.submit(&call{ctx: ctx, run: func(t *txn) error {
		ev, err := t.book.Begin("nobody")
		if err == nil {
			err = t.appendIntent(ev)
		}
		return cmp.Or(err, failure)
	}})
}

// Patient lets the outcome of a commit be looked for so long.
func (l *Ledger) Patient(d time.Duration) { l.patience = d }

// LimitPages lets the file grow to n pages and no further, like a full disk.
func (l *Ledger) LimitPages(ctx context.Context, n int) error {
	_, err := l.write.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count=%d", n))
	return err
}

// ForbidWrites makes the writing connection find a file that can't be written.
func (l *Ledger) ForbidWrites(ctx context.Context) error {
	_, err := l.write.ExecContext(ctx, "PRAGMA query_only=1")
	return err
}

// Pragmas reads back how durable the writing connection is.
func (l *Ledger) Pragmas(ctx context.Context) (journal string, synchronous int, err error) {
	if err := l.write.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return "", 0, err
	}
	err = l.write.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous)
	return journal, synchronous, err
}

// Schema is the text of schema.sql.
func Schema() string { return schema }

// PostgresSchema is the text of postgres.sql.
func PostgresSchema() string { return postgresSchema }

// Row is what a forger may change in a row before the chain is made anew.
type Row struct {
	Kind, Burst, Key, Intent, Entries string
	Epoch, Recorded                   int64 // Recorded in Unix nanoseconds
}

// Forge rewrites the journal in db with the edited rows and a chain that fits,
// as somebody could who has the file and this program.
func Forge(ctx context.Context, db *sql.DB, edit map[int64]func(*Row)) error {
	var all []row
	rows, err := db.QueryContext(ctx, selectAll)
	if err := scan(rows, err, func(r row) error { all = append(all, r); return nil }); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "DELETE FROM journal"); err != nil {
		return err
	}
	var h head
	for _, r := range all {
		if change := edit[r.seq]; change != nil {
			e := Row{r.kind, r.burst, r.key, r.intent, r.entries, r.epoch, r.recorded}
			change(&e)
			r.kind, r.burst, r.key, r.intent, r.entries, r.epoch, r.recorded = e.Kind, e.Burst, e.Key, e.Intent, e.Entries, e.Epoch, e.Recorded
		}
		if h.hash != nil {
			r.prev = h.hash
		}
		r.hash = r.sum()
		h.hash = r.hash
		if _, err := db.ExecContext(ctx, intoJournal().statement(1), r.seq, r.recorded, r.epoch, r.kind, r.burst, r.key, r.intent, r.entries, r.prev, r.hash); err != nil {
			return err
		}
	}
	return nil
}
