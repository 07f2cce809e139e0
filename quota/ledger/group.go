package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	sqlite3 "modernc.org/sqlite/lib"
)

// maxGroup is how many calls one transaction takes at most.
const maxGroup = 256

// ErrOutcomeUnknown says that a commit was cut short: what was asked for may be
// booked or not. Asking again with the same key is safe and gives the answer.
var ErrOutcomeUnknown = errors.New("it is not known whether it was booked")

// call is one caller's change on its way to the disk. Calls that wait at the
// same time share one transaction and one sync; each is answered after the sync.
type call struct {
	ctx   context.Context
	key   onceKey // under which it may have been answered before; looked up ahead
	alone bool    // shares its transaction with nobody
	// run does the work. It runs again when its transaction had to be given up.
	run  func(*txn) error
	err  error
	done chan struct{} // closed when err is final
}

func (c *call) answer(err error) {
	c.err = err
	close(c.done)
}

// queue holds the calls that no transaction has taken yet, oldest first.
type queue struct {
	mu    sync.Mutex
	calls []*call
}

func (q *queue) add(c *call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, c)
}

// remove takes c out and reports whether it was still waiting.
func (q *queue) remove(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.calls, c)
	if i >= 0 {
		q.calls = slices.Delete(q.calls, i, i+1)
	}
	return i >= 0
}

// take takes out the calls of the next transaction.
func (q *queue) take() []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < min(len(q.calls), maxGroup) && (n == 0 || !q.calls[n].alone && !q.calls[0].alone) {
		n++
	}
	group := slices.Clone(q.calls[:n])
	q.calls = slices.Delete(q.calls, 0, n)
	return group
}

// submit hands c over and returns its answer. There is no writer of its own:
// whoever waits and finds the turn free commits for all who wait by then.
// A call that a transaction has taken is not cut short by its context: its end
// would be unknown.
func (l *Ledger) submit(c *call) error {
	if l.write == nil {
		return fmt.Errorf("ledger %s: %w: open it for writing", l.path, ErrReadOnly)
	}
	c.done = make(chan struct{})
	l.waiting.add(c)
	for {
		select {
		case <-c.done:
			return c.err
		case l.turn <- struct{}{}:
			l.commitNext()
			<-l.turn
		case <-c.ctx.Done():
			if l.waiting.remove(c) {
				return l.cancelled(c)
			}
			<-c.done
			return c.err
		}
	}
}

func (l *Ledger) cancelled(c *call) error {
	return fmt.Errorf("ledger %s: nothing was booked: %w", l.path, context.Cause(c.ctx))
}

// commitNext runs one transaction with those who wait, and answers them. A call
// that fails behind something that it has written takes the transaction with
// it; the others then run again without it.
func (l *Ledger) commitNext() {
	l.mu.Lock()
	defer l.mu.Unlock()
	group := slices.DeleteFunc(l.waiting.take(), func(c *call) bool {
		gone := c.ctx.Err() != nil
		if gone {
			c.answer(l.cancelled(c))
		}
		return gone
	})
	for len(group) > 0 {
		failed, err := l.commit(group)
		if failed == nil {
			for _, c := range group {
				if err != nil {
					c.err = err
				}
				c.answer(c.err)
			}
			return
		}
		failed.answer(explain(l.path, err))
		group = slices.DeleteFunc(group, func(c *call) bool { return c == failed })
	}
}

// commit runs a group in one transaction. Refusals are in the calls; the error
// is for the whole group, or for the one call that has to be left out.
func (l *Ledger) commit(group []*call) (failed *call, err error) {
	if l.broken != nil {
		return nil, l.broken
	}
	t, err := l.begin(group)
	if err != nil && l.lost(err) {
		t, err = l.begin(group) // the connection was from before the server's restart
	}
	if err != nil {
		return nil, l.stopIfCut(explain(l.path, err))
	}
	defer t.end()
	for _, c := range group {
		before := t.writes
		c.err = c.run(t)
		if c.err != nil && t.writes > before {
			l.forget()
			return c, c.err
		}
	}
	if t.writes == 0 {
		return nil, nil
	}
	if err = t.flush(); err != nil {
		l.forget()
		return nil, explain(l.path, err)
	}
	if err = t.tx.Commit(); err != nil {
		if err = l.unsure(t.head, err); err != nil {
			l.forget()
			return nil, err
		}
	}
	l.newest = t.head
	return nil, nil
}

// stopIfCut ends the writing on a journal that has lost rows. Going on would
// book on top of the loss, and nobody would see it.
func (l *Ledger) stopIfCut(err error) error {
	if errors.Is(err, errCut) {
		l.broken = err
	}
	return err
}

// unsure explains a commit of the rows up to last that failed; nil says that it
// took place all the same.
//
// When the disk reports that a sync failed, nobody knows what it holds: the
// kernel may drop what it could not write and report success the next time. So
// nothing is written any more until the file is opened and read anew.
func (l *Ledger) unsure(last head, err error) error {
	switch {
	case sqliteCode(err) == sqlite3.SQLITE_IOERR:
		l.broken = fmt.Errorf("ledger %s: an earlier write could not be synced to the disk; nothing was booked: check the disk, start this process again, and verify the ledger: %w", l.path, err)
		return fmt.Errorf("ledger %s: the disk reports that it could not sync: %w; check the disk, start this process again, verify the ledger, and ask again with the same key: %w", l.path, ErrOutcomeUnknown, err)
	case l.lost(err):
		return l.outcome(last, err)
	}
	return explain(l.path, err)
}

// outcome finds out what became of a commit whose answer was lost: it takes the
// write lock, which waits for that transaction to end, and looks for its row.
func (l *Ledger) outcome(last head, lost error) error {
	ctx, stop := context.WithTimeout(context.Background(), l.patience)
	defer stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		booked, err := l.has(ctx, last)
		switch {
		case err == nil && booked:
			return nil
		case err == nil:
			return fmt.Errorf("ledger %s: the connection broke before the commit; nothing was booked: try again: %w", l.path, oneLine{lost})
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("ledger %s: the connection broke in the commit: %w; when the server answers again, ask again with the same key: %w", l.path, ErrOutcomeUnknown, oneLine{errors.Join(lost, err)})
		}
	}
}

// has reports whether the journal holds a row.
func (l *Ledger) has(ctx context.Context, last head) (bool, error) {
	tx, err := l.write.BeginTx(ctx, &l.database.begin)
	if err != nil {
		return false, err
	}
	defer tx.Rollback() //nolint:errcheck // it only reads
	if _, err := tx.ExecContext(ctx, l.lock); err != nil {
		return false, err
	}
	var hash []byte
	err = tx.QueryRowContext(ctx, "SELECT hash FROM journal WHERE seq = $1", last.seq).Scan(&hash)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return bytes.Equal(hash, last.hash), err
}
