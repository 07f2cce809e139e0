package ledger

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"spillway.dev/spillway/quota"
)

// maxRefused is how many bad records of a batch are told one by one.
const maxRefused = 5

// maxBatch is how many usage records one journal row holds at most.
const maxBatch = 1000

// batch is how usage is written into a journal row: each text once, in the
// order of its first use, and the numbers of all records in one list.
type batch struct {
	Texts   []string `json:"texts"`
	Records intList  `json:"records"`
}

// intList is a JSON array of integers. Reading one is most of the work of
// verifying usage, so it is done by hand.
type intList []int64

// UnmarshalJSON reads what encoding/json has checked to be JSON.
func (l *intList) UnmarshalJSON(text []byte) error {
	inner, open := bytes.CutPrefix(text, []byte("["))
	inner, closed := bytes.CutSuffix(inner, []byte("]"))
	if !open || !closed {
		return errors.New("not a list of integers")
	}
	*l = make(intList, 0, bytes.Count(inner, []byte(","))+1)
	for len(inner) > 0 {
		digits := 0
		n := int64(0)
		for digits < len(inner) && inner[digits] != ',' {
			c := inner[digits]
			if c < '0' || c > '9' || digits == 18 {
				return errors.New("not a list of integers from 0 to 1e18")
			}
			n = n*10 + int64(c-'0')
			digits++
		}
		*l = append(*l, n)
		inner = inner[min(digits+1, len(inner)):]
	}
	return nil
}

// usageFields is how many numbers a record has: node, boot, journal, seq,
// tenant, namespace, pod, owner, burst, model, device, share, start and end in
// Unix seconds, phase, source. Texts are given by their index.
const usageFields = 16

func encodeBatch(records []quota.Usage) (string, error) {
	b := batch{Records: make(intList, 0, len(records)*usageFields)}
	index := make(map[string]int64)
	text := func(s string) int64 {
		i, ok := index[s]
		if !ok {
			i = int64(len(b.Texts))
			index[s] = i
			b.Texts = append(b.Texts, s)
		}
		return i
	}
	for _, u := range records {
		b.Records = append(b.Records,
			text(u.Node), text(u.Boot), text(u.Journal), u.Seq, text(u.Tenant), text(u.Namespace), text(u.PodUID), text(u.Owner),
			text(u.Burst), text(u.GPUModel), text(u.Device), u.Share, u.Start.Unix(), u.End.Unix(), text(u.Phase), text(u.Source))
	}
	out, err := json.Marshal(b)
	if err != nil {
		return "", fmt.Errorf("write usage: %w", err)
	}
	return string(out), nil
}

func decodeBatch(intent string) ([]quota.Usage, error) {
	var b batch
	if err := json.Unmarshal([]byte(intent), &b); err != nil {
		return nil, fmt.Errorf("its usage can't be read: %w", err)
	}
	bad := false
	text := func(i int64) string {
		if i < 0 || i >= int64(len(b.Texts)) {
			bad = true
			return ""
		}
		return b.Texts[i]
	}
	if len(b.Records)%usageFields != 0 {
		return nil, fmt.Errorf("its usage has %d numbers, which is no multiple of %d", len(b.Records), usageFields)
	}
	records := make([]quota.Usage, 0, len(b.Records)/usageFields)
	for n := range slices.Chunk(b.Records, usageFields) {
		records = append(records, quota.Usage{
			Node: text(n[0]), Boot: text(n[1]), Journal: text(n[2]), Seq: n[3], Tenant: text(n[4]), Namespace: text(n[5]),
			PodUID: text(n[6]), Owner: text(n[7]), Burst: text(n[8]), GPUModel: text(n[9]), Device: text(n[10]), Share: n[11],
			Start: time.Unix(n[12], 0).UTC(), End: time.Unix(n[13], 0).UTC(), Phase: text(n[14]), Source: text(n[15]),
		})
	}
	if bad {
		return nil, errors.New("its usage names a text that is not there")
	}
	return records, nil
}

// stream identifies the journal of one writer.
type stream [16]byte

func streamOf(u quota.Usage) stream {
	sum := sha256.Sum256(appendTexts(nil, u.Node, u.Boot, u.Journal))
	return stream(sum[:16])
}

// digest tells records with one key apart.
func digest(u quota.Usage) int64 {
	buf := appendTexts(make([]byte, 0, 512), u.Node, u.Boot, u.Journal, u.Tenant, u.Namespace, u.PodUID, u.Owner,
		u.Burst, u.GPUModel, u.Device, u.Phase, u.Source)
	for _, n := range []int64{u.Seq, u.Share, u.Start.Unix(), u.End.Unix()} {
		buf = binary.BigEndian.AppendUint64(buf, uint64(n))
	}
	sum := sha256.Sum256(buf)
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

func appendTexts(buf []byte, texts ...string) []byte {
	for _, s := range texts {
		buf = binary.BigEndian.AppendUint64(buf, uint64(len(s)))
		buf = append(buf, s...)
	}
	return buf
}

// totalKey is one line of the hourly totals.
type totalKey struct {
	hour                                                             int64
	tenant, burst, namespace, owner, pod, node, model, phase, source string
}

// addTotals adds u to the UTC hours that it touches. What was used in a month that
// is closed by now counts in the first open hour.
func addTotals(totals map[totalKey]int64, u quota.Usage, closed time.Time) {
	k := totalKey{
		tenant: u.Tenant, burst: u.Burst, namespace: u.Namespace, owner: u.Owner, pod: u.PodUID,
		node: u.Node, model: u.GPUModel, phase: u.Phase, source: u.Source,
	}
	const hour = 3600
	open := int64(0)
	if !closed.IsZero() {
		open = closed.Unix()
	}
	for at, end := u.Start.Unix(), u.End.Unix(); at < end; {
		next := min(end, at-at%hour+hour)
		k.hour = max(open, at-at%hour)
		totals[k] += (next - at) * u.Share
		at = next
	}
}

// RecordUsage books usage once per (Node, Boot, Journal, Seq), whatever is sent
// again and in whatever order. Records that are invalid, or that differ from
// what the same key said before, are not booked and are the returned error
// (quota.ErrInvalid, quota.ErrConflict); the others of the batch are booked, and
// sending the batch again would change nothing: acknowledge it and tell somebody.
func (l *Ledger) RecordUsage(ctx context.Context, epoch int64, records []quota.Usage) error {
	var invalid, conflicts []error
	valid := make([]quota.Usage, 0, len(records))
	for _, u := range records {
		if err := u.Validate(); err != nil {
			invalid = append(invalid, err)
			continue
		}
		valid = append(valid, u.Normal())
	}
	err := l.asLeader(ctx, epoch, onceKey{}, func(t *txn) error {
		var fresh []quota.Usage
		var err error
		if fresh, conflicts, err = t.see(valid); err != nil {
			return err
		}
		for part := range slices.Chunk(fresh, maxBatch) {
			if err := t.appendUsage(part); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	refused := slices.Concat(invalid, conflicts)
	if n := len(refused); n > maxRefused {
		refused = append(refused[:maxRefused], fmt.Errorf("and %d more", n-maxRefused))
	}
	return errors.Join(refused...)
}

// seenKey is the key of a usage record.
type seenKey struct {
	writer stream
	n      int64
}

// see notes the keys of records and returns those that are new, in their order,
// and why some are refused: what their key said before was something else.
func (t *txn) see(records []quota.Usage) (fresh []quota.Usage, refused []error, err error) {
	keys := seenKeys(records)
	before, err := t.seenBefore(keys)
	if err != nil {
		return nil, nil, err
	}
	var noted []seenKey
	for i, u := range records {
		sum := digest(u)
		switch old, seen := before[keys[i]]; {
		case !seen:
			before[keys[i]] = sum
			fresh, noted = append(fresh, u), append(noted, keys[i])
		case old != sum:
			refused = append(refused, fmt.Errorf("usage record %d of node %q, boot %q: %w; the first one stands", u.Seq, u.Node, u.Boot, quota.ErrConflict))
		}
	}
	return fresh, refused, t.insert(intoSeen(), len(noted), func(i int) []any {
		return []any{noted[i].writer[:], noted[i].n, before[noted[i]]}
	})
}

// seenKeys are the keys of records; each writer's name is hashed once.
func seenKeys(records []quota.Usage) []seenKey {
	writers := make(map[[3]string]stream)
	keys := make([]seenKey, 0, len(records))
	for _, u := range records {
		name := [3]string{u.Node, u.Boot, u.Journal}
		writer, known := writers[name]
		if !known {
			writer = streamOf(u)
			writers[name] = writer
		}
		keys = append(keys, seenKey{writer, u.Seq})
	}
	return keys
}

// seenBefore looks up the digests of records that are in the journal.
func (t *txn) seenBefore(keys []seenKey) (map[seenKey]int64, error) {
	before := make(map[seenKey]int64, len(keys))
	var list strings.Builder
	for i, k := range keys {
		fmt.Fprintf(&list, "%c[\"%x\",%d]", "[,"[min(i, 1)], k.writer, k.n)
	}
	if len(keys) == 0 {
		return before, nil
	}
	rows, err := t.query(t.seen, list.String()+"]")
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	for rows.Next() {
		var id []byte
		var k seenKey
		var sum int64
		if err := rows.Scan(&id, &k.n, &sum); err != nil {
			return nil, err
		}
		copy(k.writer[:], id)
		before[k] = sum
	}
	return before, rows.Err()
}

// appendUsage appends one row of records that are all new, and sums them up.
func (t *txn) appendUsage(records []quota.Usage) error {
	intent, err := encodeBatch(records)
	if err != nil {
		return err
	}
	if _, err := t.append(quota.Event{Kind: quota.KindUsage}, intent); err != nil {
		return err
	}
	return t.sumUp(records)
}

// sumUp adds records to the hourly totals.
func (t *txn) sumUp(records []quota.Usage) error {
	totals := make(map[totalKey]int64)
	for _, u := range records {
		addTotals(totals, u, t.book.ClosedUntil())
	}
	keys := slices.SortedFunc(maps.Keys(totals), compareTotals)
	return t.insert(intoTotal(), len(keys), func(i int) []any {
		k := keys[i]
		return []any{k.hour, k.tenant, k.namespace, k.owner, k.pod, k.burst, k.node, k.model, k.phase, k.source, totals[k]}
	})
}

// compareTotals orders as the primary key of usage_total does.
func compareTotals(a, b totalKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.burst, b.burst), cmp.Compare(a.hour, b.hour),
		cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.owner, b.owner), cmp.Compare(a.pod, b.pod),
		cmp.Compare(a.node, b.node), cmp.Compare(a.model, b.model), cmp.Compare(a.phase, b.phase), cmp.Compare(a.source, b.source))
}

const (
	selectTotals = `SELECT tenant, namespace, owner, pod, burst, node, model, phase, source, sum(share_seconds) FROM usage_total
WHERE ($1 = '' OR tenant = $1) AND ($2 = '' OR namespace = $2) AND ($3 = '' OR owner = $3) AND ($4 = '' OR burst = $4)
AND ($5 = '' OR node = $5) AND hour >= $6 AND hour < $7 GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 ORDER BY 1, 2, 3, 4, 5, 6, 7, 8, 9`
)

// UsageSeconds sums up usage by pod, node and phase, sorted. Usage of no length
// has no line.
func (l *Ledger) UsageSeconds(ctx context.Context, f quota.UsageFilter) ([]quota.UsageTotal, error) {
	all, err := usageTotals(ctx, l.read, f)
	if err != nil {
		return nil, explain(l.path, err)
	}
	return all, nil
}

func usageTotals(ctx context.Context, q querier, f quota.UsageFilter) ([]quota.UsageTotal, error) {
	from, until, err := hours(f)
	if err != nil {
		return nil, err
	}
	rows, err := q.QueryContext(ctx, selectTotals, f.Tenant, f.Namespace, f.Owner, f.Burst, f.Node, from, until)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	var all []quota.UsageTotal
	for rows.Next() {
		var u quota.UsageTotal
		if err := rows.Scan(&u.Tenant, &u.Namespace, &u.Owner, &u.PodUID, &u.Burst, &u.Node, &u.GPUModel, &u.Phase, &u.Source, &u.ShareSeconds); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, rows.Err()
}

// hours returns the bounds of a filter in Unix seconds.
func hours(f quota.UsageFilter) (from, until int64, err error) {
	until = int64(1) << 62
	for _, bound := range []struct {
		at     time.Time
		target *int64
	}{{f.From, &from}, {f.Until, &until}} {
		t, target := bound.at, bound.target
		if t.IsZero() {
			continue
		}
		if *target = t.Unix(); *target%3600 != 0 || t.Nanosecond() != 0 {
			return 0, 0, fmt.Errorf("usage from %v until %v: %w: usage is summed up by UTC hour; give whole hours", f.From, f.Until, quota.ErrInvalid)
		}
	}
	return from, until, nil
}
