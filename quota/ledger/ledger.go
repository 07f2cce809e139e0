// Package ledger is the one place where money is booked: an append-only journal
// in one SQLite file that only ever says yes after the yes is on disk.
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
// Writing is serial: one connection, BEGIN IMMEDIATE, WAL with synchronous=FULL.
// Several processes may open one file; each reads up to the newest row inside
// its transaction before it decides. When the file can't be read or written
// nothing is booked and the error says so: no answer means no.
//
// A [Ledger] is safe for concurrent use.
package ledger

import (
	"context"
	"errors"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// ErrReadOnly: the ledger was opened for reading and can't book.
var ErrReadOnly = errors.New("ledger is open for reading only")

// Options for [Open].
type Options struct {
	// Now is the clock of record times; nil is time.Now. It may jump: record
	// times rise all the same.
	Now func() time.Time
	// ReadOnly opens an existing file and changes nothing in it.
	ReadOnly bool
}

// Ledger is one open ledger file.
type Ledger struct{}

// Open opens the ledger in the file at path and creates it when there is none
// (not with ReadOnly). A file that is broken, write-protected or not a ledger is
// refused with what is wrong and what to do; so is a SQLite library that is too old.
func Open(ctx context.Context, path string, o Options) (*Ledger, error) { panic("soon") }

// Close ends the use of the file. What was answered with yes is on disk before.
func (l *Ledger) Close() error { panic("soon") }

// BeginEpoch starts the term of a new leader and returns its number. From then
// on every write with an older number is refused.
func (l *Ledger) BeginEpoch(ctx context.Context, holder string) (int64, error) { panic("soon") }

// SetBudgets replaces the set of budgets; see [quota.Book.SetBudgets]. A set
// that exists already writes nothing.
func (l *Ledger) SetBudgets(ctx context.Context, epoch int64, budgets []quota.Budget) error {
	panic("soon")
}

// Reserve books the worst case of a burst against every budget on its path, or
// says why not: see [quota.Book.Reserve]. The key is r.Burst; a repetition
// returns the first receipt, also when the burst has moved on since.
func (l *Ledger) Reserve(ctx context.Context, epoch int64, r quota.Reservation) (quota.Receipt, error) {
	panic("soon")
}

// Permit allows one create call. Nil is given once for (burst, ordinal, epoch);
// the second call is quota.ErrPermitUsed.
func (l *Ledger) Permit(ctx context.Context, epoch int64, burst string, ordinal int) error {
	panic("soon")
}

// Extend adds money and time to an open reservation; key makes it idempotent
// within the burst. A zero until leaves the end where it is.
func (l *Ledger) Extend(ctx context.Context, epoch int64, burst, key string, more money.Amount, until time.Time) (quota.Receipt, error) {
	panic("soon")
}

// Shrink lowers a reservation to what can still be charged and ends the buying
// for this burst. Repeating it changes nothing.
func (l *Ledger) Shrink(ctx context.Context, epoch int64, burst string, to money.Amount, reason string) (quota.Receipt, error) {
	panic("soon")
}

// Settle closes the account of a burst; see [quota.Book.Settle]. Call it on
// proof that its machines are gone, also for a burst that bought nothing.
func (l *Ledger) Settle(ctx context.Context, epoch int64, s quota.Settlement) (quota.Receipt, error) {
	panic("soon")
}

// AcceptOverrun takes the open overrun in a currency off the operator's account
// in the name of a person, so that new bursts may start.
func (l *Ledger) AcceptOverrun(ctx context.Context, epoch int64, c money.Currency, by, reason string) error {
	panic("soon")
}

// RecordUsage books usage once per (Node, Boot, Journal, Seq), whatever is sent
// again and in whatever order. Records that are invalid, or that differ from
// what the same key said before, are not booked and are the returned error
// (quota.ErrInvalid, quota.ErrConflict); the others of the batch are booked.
func (l *Ledger) RecordUsage(ctx context.Context, epoch int64, batch []quota.Usage) error {
	panic("soon")
}

// Book returns the state of all budgets now. The copy belongs to the caller.
func (l *Ledger) Book(ctx context.Context) (quota.Book, error) { panic("soon") }

// Account returns the account of a burst, open or settled, or quota.ErrUnknownBurst.
func (l *Ledger) Account(ctx context.Context, burst string) (quota.Account, error) { panic("soon") }

// Accounts returns all accounts in the order in which they were reserved.
func (l *Ledger) Accounts(ctx context.Context) ([]quota.Account, error) { panic("soon") }

// UsageSeconds sums up usage by pod, node and phase, sorted.
func (l *Ledger) UsageSeconds(ctx context.Context, f quota.UsageFilter) ([]quota.UsageTotal, error) {
	panic("soon")
}

// Verify recomputes everything from the journal alone. What it finds wrong is
// in the report; the error is for a journal that can't be read at all.
func (l *Ledger) Verify(ctx context.Context) (Report, error) { panic("soon") }
