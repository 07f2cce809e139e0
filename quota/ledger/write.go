package ledger

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// txn is one write transaction, begun and caught up with the journal.
type txn struct {
	*Ledger
	ctx   context.Context
	tx    *sql.Tx
	dirty bool // something was appended
}

// asLeader runs f in a write transaction unless somebody else than the leader
// of epoch leads by now.
func (l *Ledger) asLeader(ctx context.Context, epoch int64, f func(*txn) error) error {
	return l.inTx(ctx, func(t *txn) error {
		if newest := t.book.Epoch; epoch != newest.Number || epoch < 1 {
			return fmt.Errorf("%w %d: epoch %d leads (%s); stop acting on this ledger", quota.ErrStaleEpoch, epoch, newest.Number, newest.Holder)
		}
		return f(t)
	})
}

// inTx runs f in a write transaction and commits when f has appended something.
// A transaction that has begun is not cut short by ctx: its end would be unknown.
func (l *Ledger) inTx(ctx context.Context, f func(*txn) error) error {
	if l.write == nil {
		return fmt.Errorf("ledger %s: %w: open it for writing", l.path, ErrReadOnly)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ledger %s: nothing was booked: %w", l.path, err)
	}
	ctx = context.WithoutCancel(ctx)
	tx, err := l.write.BeginTx(ctx, nil)
	if err != nil {
		return explain(l.path, err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit this does nothing
	t := &txn{Ledger: l, ctx: ctx, tx: tx}
	rows, err := tx.StmtContext(ctx, l.stmt.after).QueryContext(ctx, l.head.seq)
	if err = l.catchUp(rows, err); err == nil {
		err = f(t)
	}
	if err == nil && t.dirty {
		err = tx.Commit()
	}
	if err != nil {
		if t.dirty {
			l.forget()
		}
		return explain(l.path, err)
	}
	return nil
}

// forget drops what is known, so that the next use reads the journal anew.
func (l *Ledger) forget() {
	l.head, l.book = head{}, quota.Book{}
}

// catchUp takes in the rows that were committed behind the head, by whichever
// process. It refuses rows that do not continue the chain.
func (l *Ledger) catchUp(rows *sql.Rows, err error) error {
	err = scan(rows, err, func(r row) error {
		if err := r.follows(l.head); err != nil {
			return err
		}
		if _, err := r.take(&l.book); err != nil {
			return err
		}
		l.head = r.head()
		return nil
	})
	if err != nil {
		l.forget()
	}
	return err
}

// append writes ev behind the newest row. It is on disk only after the commit.
func (t *txn) append(ev quota.Event, intent string) (quota.Receipt, error) {
	epoch := t.book.Epoch.Number
	if ev.Intent.Epoch != nil {
		epoch = ev.Intent.Epoch.Number
	}
	r := newRow(t.head, epoch, t.now(), ev, intent)
	t.dirty = true
	if err := t.insert(r); err != nil {
		return quota.Receipt{}, err
	}
	ev.At = time.Unix(0, r.recorded).UTC()
	a, err := t.book.Apply(ev)
	if err != nil {
		return quota.Receipt{}, err
	}
	t.head = r.head()
	return r.receipt(a), nil
}

func (t *txn) insert(r row) error {
	_, err := t.tx.StmtContext(t.ctx, t.stmt.insert).ExecContext(t.ctx,
		r.seq, r.recorded, r.epoch, r.kind, r.burst, r.key, r.intent, r.entries, r.prev, r.hash)
	return err
}

// BeginEpoch starts the term of a new leader and returns its number. From then
// on every write with an older number is refused.
func (l *Ledger) BeginEpoch(ctx context.Context, holder string) (int64, error) {
	var number int64
	err := l.inTx(ctx, func(t *txn) error {
		ev, err := t.book.Begin(holder)
		if err != nil {
			return err
		}
		number = ev.Intent.Epoch.Number
		return t.appendIntent(ev)
	})
	if err != nil {
		return 0, err
	}
	return number, nil
}

// SetBudgets replaces the set of budgets; see [quota.Book.SetBudgets]. A set
// that exists already writes nothing.
func (l *Ledger) SetBudgets(ctx context.Context, epoch int64, budgets []quota.Budget) error {
	return l.asLeader(ctx, epoch, func(t *txn) error {
		ev, changed, err := t.book.SetBudgets(budgets)
		if err != nil || !changed {
			return err
		}
		return t.appendIntent(ev)
	})
}

// AcceptOverrun takes the open overrun in a currency off the operator's account
// in the name of a person, so that new bursts may start.
func (l *Ledger) AcceptOverrun(ctx context.Context, epoch int64, c money.Currency, by, reason string) error {
	return l.asLeader(ctx, epoch, func(t *txn) error {
		ev, err := t.book.Accept(c, by, reason)
		if err != nil {
			return err
		}
		return t.appendIntent(ev)
	})
}

// appendIntent appends ev where nobody waits for a receipt.
func (t *txn) appendIntent(ev quota.Event) error {
	intent, err := encodeIntent(ev.Intent)
	if err != nil {
		return err
	}
	_, err = t.append(ev, intent)
	return err
}
