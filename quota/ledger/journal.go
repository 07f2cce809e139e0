package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// hashDomain opens every hashed row, so that no hash of ours means anything else.
const hashDomain = "spillway.dev/ledger/v1\n"

const (
	columns = "seq, recorded, epoch, kind, burst, key, intent, entries, prev, hash"

	selectRows  = "SELECT " + columns + " FROM journal"
	selectAll   = selectRows + " ORDER BY seq"
	selectFrom  = selectRows + " WHERE seq >= $1 ORDER BY seq" // the head first, which must be there
	selectBurst = selectRows + " WHERE burst = $1 AND burst <> '' ORDER BY seq"
)

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// row is one row of the journal, as it is stored.
type row struct {
	seq      int64
	recorded int64 // Unix nanoseconds
	epoch    int64
	kind     string
	burst    string
	key      string
	intent   string
	entries  string
	prev     []byte
	hash     []byte
}

// head is the newest row that is known.
type head struct {
	seq      int64
	recorded int64
	hash     []byte
}

// newRow writes ev as the row behind h. Record times rise even when the clock
// does not.
func newRow(h head, epoch int64, now time.Time, ev quota.Event, intent string) row {
	r := row{
		seq: h.seq + 1, recorded: max(now.UnixNano(), h.recorded+1), epoch: epoch,
		kind: string(ev.Kind), burst: ev.Burst, key: ev.Key, intent: intent, entries: encodeEntries(ev.Entries),
		prev: h.hash,
	}
	if r.prev == nil {
		r.prev = make([]byte, sha256.Size)
	}
	r.hash = r.sum()
	return r
}

// encodeIntent is the text under which an intent is stored and compared. Go
// writes the fields of a struct in their order, so equal intents give equal
// texts. Fields that are added later must be omitted when they are zero.
func encodeIntent(in quota.Intent) (string, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return "", fmt.Errorf("write intent: %w", err)
	}
	return string(text), nil
}

// sum is the hash over the canonical encoding of r: the domain, the hash of the
// row before, three big-endian numbers, then each text behind its length.
func (r *row) sum() []byte {
	buf := make([]byte, 0, 256+len(r.intent)+len(r.entries))
	buf = append(buf, hashDomain...)
	buf = append(buf, r.prev...)
	for _, n := range []int64{r.seq, r.recorded, r.epoch} {
		buf = binary.BigEndian.AppendUint64(buf, uint64(n))
	}
	for _, text := range []string{r.kind, r.burst, r.key, r.intent, r.entries} {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(text)))
		buf = append(buf, text...)
	}
	sum := sha256.Sum256(buf)
	return sum[:]
}

// event reads r back. The intent of a usage row is a batch of its own kind and
// stays unread here.
func (r *row) event() (quota.Event, error) {
	ev := quota.Event{Kind: quota.Kind(r.kind), Burst: r.burst, Key: r.key, At: time.Unix(0, r.recorded).UTC()}
	if ev.Kind != quota.KindUsage {
		if err := json.Unmarshal([]byte(r.intent), &ev.Intent); err != nil {
			return quota.Event{}, fmt.Errorf("its intent can't be read: %w", err)
		}
	}
	var err error
	ev.Entries, err = decodeEntries(r.entries)
	return ev, err
}

// encodeEntries writes one line for each entry: debit, tab, credit, tab, amount.
// Ids hold neither tabs nor line ends; package quota sees to that.
func encodeEntries(entries []quota.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		b.WriteString(string(e.Debit) + "\t" + string(e.Credit) + "\t" + e.Amount.String() + "\n")
	}
	return b.String()
}

func decodeEntries(text string) ([]quota.Entry, error) {
	entries := make([]quota.Entry, 0, strings.Count(text, "\n"))
	for text != "" {
		line, rest, end := strings.Cut(text, "\n")
		debit, sides, first := strings.Cut(line, "\t")
		credit, number, second := strings.Cut(sides, "\t")
		amount, err := money.Parse(number)
		if err != nil || !end || !first || !second {
			return nil, fmt.Errorf("its entry %q can't be read", line)
		}
		entries = append(entries, quota.Entry{Debit: quota.AccountName(debit), Credit: quota.AccountName(credit), Amount: amount})
		text = rest
	}
	return entries, nil
}

// replay applies r to a book and returns what it says and the account behind it,
// given the one before it. A row that does not match its own hash is refused.
func (r *row) replay(b *quota.Book, before quota.Account) (quota.Event, quota.Account, error) {
	ev, err := r.proven()
	if err != nil {
		return ev, quota.Account{}, err
	}
	a, err := r.apply(b, ev, before)
	return ev, a, err
}

// apply is replay of what r is known to say.
func (r *row) apply(b *quota.Book, ev quota.Event, before quota.Account) (quota.Account, error) {
	a, err := b.Apply(ev)
	if err == nil && ev.Kind == quota.KindCorrect {
		a, err = before.Corrected(ev, b.OpenSince(ev.At))
	}
	if err != nil {
		return quota.Account{}, r.broken(err.Error())
	}
	return a, nil
}

// take applies r to a book, where nobody asks for the account behind it.
func (r *row) take(b *quota.Book) (quota.Event, error) {
	ev, err := r.proven()
	if err != nil {
		return ev, err
	}
	if _, err := b.Apply(ev); err != nil {
		return ev, r.broken(err.Error())
	}
	return ev, nil
}

// proven reads r back if it matches its own hash.
func (r *row) proven() (quota.Event, error) { return glance(*r).proven() }

// follows returns why r is not the row behind h.
func (r *row) follows(h head) error {
	prev := h.hash
	if prev == nil {
		prev = make([]byte, sha256.Size)
	}
	if r.seq != h.seq+1 || r.recorded <= h.recorded || !bytes.Equal(r.prev, prev) {
		return r.broken(fmt.Sprintf("it does not follow row %d", h.seq))
	}
	return nil
}

// head is r as the newest row that is known.
func (r *row) head() head { return head{seq: r.seq, recorded: r.recorded, hash: r.hash} }

// broken is the error for a row that is not what was once written.
func (r *row) broken(why string) error {
	return fmt.Errorf("%w at row %d: %s; nothing was booked: verify the ledger and restore it from a backup", errBroken, r.seq, why)
}

// receipt is the answer for the change that r records.
func (r *row) receipt(a quota.Account) quota.Receipt {
	return quota.Receipt{
		Account: a, Kind: quota.Kind(r.kind), Seq: r.seq,
		At: time.Unix(0, r.recorded).UTC(), Hash: hex.EncodeToString(r.hash),
	}
}

// scan calls f for each row that a query of all columns selects, in its order.
func scan(rows *sql.Rows, err error, f func(row) error) error {
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	for rows.Next() {
		var r row
		if err := rows.Scan(&r.seq, &r.recorded, &r.epoch, &r.kind, &r.burst, &r.key, &r.intent, &r.entries, &r.prev, &r.hash); err != nil {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
	}
	return rows.Err()
}

// answer is one past change of a burst: its row, what that says, and what was
// answered then.
type answer struct {
	row     row
	event   quota.Event
	receipt quota.Receipt
}

// readHistory returns all that was booked on a burst, oldest first, given the
// months that were closed.
func readHistory(ctx context.Context, q querier, burst string, closes []quota.Closed) ([]answer, error) {
	var (
		book = quota.Book{Closes: closes}
		last quota.Account
		past []answer
	)
	rows, err := q.QueryContext(ctx, selectBurst, burst)
	err = scan(rows, err, func(r row) error {
		var ev quota.Event
		var err error
		if ev, last, err = r.replay(&book, last); err != nil {
			return err
		}
		past = append(past, answer{r, ev, r.receipt(last)})
		return nil
	})
	return past, err
}
