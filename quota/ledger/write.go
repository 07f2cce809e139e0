package ledger

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// txn is one write transaction, begun and caught up with the journal. It serves
// a group of calls one after another, each on what those before it have left.
type txn struct {
	*Ledger
	ctx    context.Context
	tx     *sql.Tx
	stop   context.CancelFunc
	known  map[onceKey]firstAnswer // what was answered before under the keys of this group
	rows   []row                   // appended, not inserted yet
	writes int                     // how often something was written, in whatever table
}

// onceKey is under what a change may be asked for once.
type onceKey struct{ burst, kind, key string }

// firstAnswer is the row of the journal that holds the first answer to a key.
type firstAnswer struct {
	seq    int64
	intent string
}

// asLeader runs f in a write transaction unless somebody else than the leader
// of epoch leads by now.
func (l *Ledger) asLeader(ctx context.Context, epoch int64, key onceKey, f func(*txn) error) error {
	return l.submit(&call{ctx: ctx, key: key, run: func(t *txn) error {
		if newest := t.book.Epoch; epoch != newest.Number || epoch < 1 {
			return fmt.Errorf("%w %d: epoch %d leads (%s); stop acting on this ledger", quota.ErrStaleEpoch, epoch, newest.Number, newest.Holder)
		}
		return f(t)
	}})
}

// begin begins a transaction for a group, takes in what others have written,
// and looks up what was answered before.
func (l *Ledger) begin(group []*call) (*txn, error) {
	t := &txn{Ledger: l, ctx: context.WithoutCancel(group[0].ctx), stop: func() {}}
	if l.patience > 0 && !group[0].alone {
		t.ctx, t.stop = context.WithTimeout(t.ctx, l.patience)
	}
	var err error
	if t.tx, err = l.write.BeginTx(t.ctx, &l.database.begin); err != nil {
		t.stop()
		return nil, err
	}
	if l.lock != "" {
		_, err = t.tx.ExecContext(t.ctx, l.lock)
	}
	if err == nil {
		var rows *sql.Rows
		rows, err = t.query(selectFrom, l.head.seq)
		err = l.catchUp(rows, err)
	}
	if err == nil {
		err = t.lookUp(group)
	}
	if err != nil {
		t.end() // the first error is the one to tell
		return nil, err
	}
	return t, nil
}

// end gives up what is not committed.
func (t *txn) end() {
	_ = t.tx.Rollback() // after a commit this does nothing
	t.stop()
}

// lookUp finds the first answers to all keys of a group at once.
func (t *txn) lookUp(group []*call) error {
	t.known = make(map[onceKey]firstAnswer)
	var keys [][3]string
	for _, c := range group {
		if c.key.burst != "" {
			keys = append(keys, [3]string{c.key.burst, c.key.kind, c.key.key})
		}
	}
	if len(keys) == 0 {
		return nil
	}
	list, err := json.Marshal(keys)
	if err != nil {
		return fmt.Errorf("write keys: %w", err)
	}
	rows, err := t.query(t.Ledger.known, string(list))
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	for rows.Next() {
		var k onceKey
		var a firstAnswer
		if err := rows.Scan(&k.burst, &k.kind, &k.key, &a.seq, &a.intent); err != nil {
			return err
		}
		t.known[k] = a
	}
	return rows.Err()
}

// query runs one of the statements that were prepared when the ledger was opened.
func (t *txn) query(statement string, args ...any) (*sql.Rows, error) {
	return t.tx.StmtContext(t.ctx, t.prepared[statement]).QueryContext(t.ctx, args...)
}

// forget drops what was read, so that the next use reads the journal anew.
func (l *Ledger) forget() {
	l.head, l.book = head{}, quota.Book{}
}

// errCut says that rows which were committed are not there any more.
var errCut = errors.New("the journal has lost rows that were booked")

// catchUp takes in the rows from the head on, by whichever process they were
// committed. It refuses rows that do not continue the chain, and a journal that
// lacks what this process knows to be committed: a backup or a standby that was
// behind has taken its place.
func (l *Ledger) catchUp(rows *sql.Rows, err error) error {
	atHead := l.head.seq > 0
	err = scan(rows, err, func(r row) error {
		if r.seq == l.newest.seq && !bytes.Equal(r.hash, l.newest.hash) {
			return errCut
		}
		if atHead && r.seq == l.head.seq {
			atHead = false
			return nil
		}
		if err := r.follows(l.head); err != nil {
			return err
		}
		if _, err := r.take(&l.book); err != nil {
			return err
		}
		l.head = r.head()
		return nil
	})
	if err == nil && l.head.seq < l.newest.seq || atHead && err == nil {
		err = errCut
	}
	if err != nil {
		l.forget()
		return err
	}
	l.newest = l.head
	return nil
}

// append writes ev behind the newest row. It is on disk only after the commit.
func (t *txn) append(ev quota.Event, intent string) (quota.Receipt, error) {
	epoch := t.book.Epoch.Number
	if ev.Intent.Epoch != nil {
		epoch = ev.Intent.Epoch.Number
	}
	r := newRow(t.head, epoch, t.now(), ev, intent)
	t.stage(r)
	t.known[onceKey{r.burst, r.kind, r.key}] = firstAnswer{r.seq, r.intent}
	ev.At = time.Unix(0, r.recorded).UTC()
	a, err := t.book.Apply(ev)
	if err != nil {
		return quota.Receipt{}, err
	}
	return r.receipt(a), nil
}

// stage makes r the newest row. It is inserted with all others of its group, or
// before somebody reads the journal.
func (t *txn) stage(r row) {
	t.writes++
	t.rows = append(t.rows, r)
	t.head = r.head()
}

// flush inserts the rows that are not in the table yet.
func (t *txn) flush() error {
	rows := t.rows
	t.rows = nil
	return t.insert(intoJournal(), len(rows), func(i int) []any {
		r := &rows[i]
		return []any{r.seq, r.recorded, r.epoch, r.kind, r.burst, r.key, r.intent, r.entries, r.prev, r.hash}
	})
}

// insert inserts n rows, as few statements as may be.
func (t *txn) insert(into bulk, n int, values func(i int) []any) error {
	for done := 0; done < n; {
		size := into.fits(n - done)
		args := make([]any, 0, size*into.columns)
		for i := range size {
			args = append(args, values(done+i)...)
		}
		t.writes++
		if _, err := t.tx.StmtContext(t.ctx, t.prepared[into.statement(size)]).ExecContext(t.ctx, args...); err != nil {
			return err
		}
		done += size
	}
	return nil
}

// bulk is a statement that inserts some rows at once.
type bulk struct {
	table    string // and its columns
	columns  int
	conflict string // what to do about rows that exist
}

// bulks are all that a ledger inserts.
func bulks() []bulk { return []bulk{intoJournal(), intoSeen(), intoTotal()} }

func intoJournal() bulk { return bulk{table: "journal (" + columns + ")", columns: 10} }

func intoSeen() bulk { return bulk{table: "usage_seen (stream, n, digest)", columns: 3} }

func intoTotal() bulk {
	return bulk{
		table:   "usage_total (hour, tenant, namespace, owner, pod, burst, node, model, phase, source, share_seconds)",
		columns: 11,
		conflict: `ON CONFLICT (tenant, burst, hour, namespace, owner, pod, node, model, phase, source)
DO UPDATE SET share_seconds = usage_total.share_seconds + excluded.share_seconds`,
	}
}

// bulkSizes are the numbers of rows for which a statement is prepared.
func bulkSizes() []int { return []int{64, 8, 1} }

// fits is the largest size that n rows fill.
func (b bulk) fits(n int) int {
	sizes := bulkSizes()
	return sizes[slices.IndexFunc(sizes, func(size int) bool { return size <= n })]
}

func (b bulk) statement(rows int) string {
	var s strings.Builder
	s.WriteString("INSERT INTO " + b.table + " VALUES ")
	for i := range rows * b.columns {
		switch {
		case i%b.columns > 0:
			s.WriteString(", ")
		case i > 0:
			s.WriteString("), (")
		default:
			s.WriteString("(")
		}
		s.WriteString("$" + strconv.Itoa(i+1))
	}
	s.WriteString(") " + b.conflict)
	return s.String()
}

// BeginEpoch starts the term of a new leader and returns its number. From then
// on every write with an older number is refused.
func (l *Ledger) BeginEpoch(ctx context.Context, holder string) (int64, error) {
	var number int64
	err := l.submit(&call{ctx: ctx, run: func(t *txn) error {
		ev, err := t.book.Begin(holder)
		if err != nil {
			return err
		}
		number = ev.Intent.Epoch.Number
		return t.appendIntent(ev)
	}})
	if err != nil {
		return 0, err
	}
	return number, nil
}

// SetBudgets replaces the set of budgets; see [quota.Book.SetBudgets]. A set
// that exists already writes nothing.
func (l *Ledger) SetBudgets(ctx context.Context, epoch int64, budgets []quota.Budget) error {
	return l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
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
	return l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
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
