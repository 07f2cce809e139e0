// Package ledger is the one place where money is booked: an append-only journal,
// in one SQLite file or a PostgreSQL schema, that only ever says yes after the
// yes is on disk.
//
// Every change is one journal row: what was asked for, the two-sided entries
// that it moved, and a SHA-256 hash that chains it to the row before. Balances
// are not stored anywhere; they are what the rows add up to, and package quota
// does the arithmetic. Rows are never updated or deleted.
//
// What holds at every commit, whoever is killed when:
//   - Sequence numbers have no gap, record times rise, debits equal credits.
//   - No reservation or extension leaves a hard budget above its limit.
//   - A burst is reserved once and settled once; a call with the same key and
//     the same content gets the first answer again, also after a restart, and
//     one with other content gets quota.ErrConflict.
//   - A create permit is given once for (burst, ordinal, epoch).
//   - Only the newest leader writes. The epoch is compared inside the
//     transaction; an older one gets quota.ErrStaleEpoch, even for a repetition.
//
// Writing is serial. In SQLite: one connection, BEGIN IMMEDIATE, WAL with
// synchronous=FULL. In PostgreSQL: one row is the lock, synchronous_commit is on.
// Calls that wait at the same time share a transaction and its sync; a refusal
// concerns only the call that got it, and each is answered after the sync.
// Several processes may open one ledger; each reads up to the newest row inside
// its transaction before it decides. When it can't be read or written
// nothing is booked and the error says so: no answer means no.
//
// A [Ledger] is safe for concurrent use.
package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"spillway.dev/spillway/quota"
)

// ErrReadOnly says that the ledger was opened for reading and can't book.
var ErrReadOnly = errors.New("ledger is open for reading only")

// Options for [Open].
type Options struct {
	// Now is the clock of record times; nil is time.Now. It may jump: record
	// times rise all the same.
	Now func() time.Time
	// ReadOnly opens an existing file and changes nothing in it.
	ReadOnly bool

	vfs string // SQLite's file layer; "" is the system's
}

// Ledger is one open ledger.
type Ledger struct {
	*database
	path  string // as it is told to people
	now   func() time.Time
	read  *sql.DB
	write *sql.DB // one connection; nil when open for reading only

	waiting queue
	turn    chan struct{} // held by whoever commits

	mu       sync.Mutex           // guards what follows
	prepared map[string]*sql.Stmt // on the writing connection, by their text
	head     head                 // the newest row that was read
	newest   head                 // the newest row that is known to be committed
	book     quota.Book
	broken   error // why nothing is written any more
}

// Close ends the use of the file. What was answered with yes is on disk before.
func (l *Ledger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	errs := []error{l.read.Close()}
	if l.write != nil {
		errs = append(errs, l.write.Close()) // closes its statements too
	}
	if err := errors.Join(errs...); err != nil {
		return explain(l.path, err)
	}
	return nil
}

// Book returns the state of all budgets now. The copy belongs to the caller.
func (l *Ledger) Book(ctx context.Context) (quota.Book, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows, err := l.read.QueryContext(ctx, selectFrom, l.head.seq)
	if err := l.catchUp(rows, err); err != nil {
		return quota.Book{}, explain(l.path, err)
	}
	return l.book.Clone(), nil
}

// Account returns the account of a burst, open or settled, or quota.ErrUnknownBurst.
func (l *Ledger) Account(ctx context.Context, burst string) (quota.Account, error) {
	closes, err := l.closes(ctx)
	if err != nil {
		return quota.Account{}, err
	}
	past, err := readHistory(ctx, l.read, burst, closes)
	if err != nil {
		return quota.Account{}, explain(l.path, err)
	}
	if len(past) == 0 {
		return quota.Account{}, fmt.Errorf("account of burst %q: %w", burst, quota.ErrUnknownBurst)
	}
	return past[len(past)-1].receipt.Account, nil
}

// closes are the months that are closed.
func (l *Ledger) closes(ctx context.Context) ([]quota.Closed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows, err := l.read.QueryContext(ctx, selectFrom, l.head.seq)
	if err := l.catchUp(rows, err); err != nil {
		return nil, explain(l.path, err)
	}
	return l.book.Closes, nil
}

// Accounts returns all accounts in the order in which they were reserved.
func (l *Ledger) Accounts(ctx context.Context) ([]quota.Account, error) {
	var all []quota.Account
	err := l.View(ctx, func(v *View) error {
		s, err := v.State(ctx)
		for _, r := range s.Accounts {
			all = append(all, r.Account)
		}
		return err
	})
	return all, err
}
