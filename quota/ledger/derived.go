package ledger

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"spillway.dev/spillway/quota"
)

// numbers is a set of record numbers, kept as spans: a writer that counts
// costs one span, whatever it has written.
type numbers struct {
	spans []span // ascending, not touching
}

type span struct{ first, last int64 }

// add puts n into the set and reports whether it was new.
func (s *numbers) add(n int64) bool {
	i, found := s.find(n)
	if found {
		return false
	}
	joinsLeft := i > 0 && s.spans[i-1].last == n-1
	joinsRight := i < len(s.spans) && s.spans[i].first == n+1
	switch {
	case joinsLeft && joinsRight:
		s.spans[i-1].last = s.spans[i].last
		s.spans = slices.Delete(s.spans, i, i+1)
	case joinsLeft:
		s.spans[i-1].last = n
	case joinsRight:
		s.spans[i].first = n
	default:
		s.spans = slices.Insert(s.spans, i, span{n, n})
	}
	return true
}

// find returns the first span that does not end before n, and whether n is in it.
func (s *numbers) find(n int64) (int, bool) {
	i, _ := slices.BinarySearchFunc(s.spans, n, func(sp span, n int64) int {
		if sp.last < n {
			return -1
		}
		return 1
	})
	return i, i < len(s.spans) && s.spans[i].first <= n
}

// usage checks a row of usage records.
func (v *verifier) usage(seq int64, p prepared) {
	if len(p.event.Entries) > 0 || p.event.Burst != "" || len(p.usage) == 0 {
		v.found(seq, "a row of usage moves money or holds no usage")
	}
	for _, u := range p.usage {
		v.report.Usage++
		if err := u.Validate(); err != nil {
			v.found(seq, "%v", err)
			continue
		}
		writer := [3]string{u.Node, u.Boot, u.Journal}
		known := v.streams[writer]
		if known == nil {
			known = &numbers{}
			v.streams[writer] = known
		}
		if !known.add(u.Seq) {
			v.found(seq, "usage record %d of node %q, boot %q is booked a second time", u.Seq, u.Node, u.Boot)
		}
		v.digests ^= digest(u)
		addTotals(v.totals, u, v.budgets.ClosedUntil())
	}
}

// derived compares the tables that are built from the journal with what they
// should be.
func (v *verifier) derived(ctx context.Context, q querier) error {
	if err := v.derivedSeen(ctx, q); err != nil {
		return err
	}
	return v.derivedTotals(ctx, q)
}

func (v *verifier) derivedSeen(ctx context.Context, q querier) error {
	known := make(map[stream]*numbers, len(v.streams))
	for w, n := range v.streams {
		known[streamOf(quota.Usage{Node: w[0], Boot: w[1], Journal: w[2]})] = n
	}
	rows, err := q.QueryContext(ctx, "SELECT stream, n, digest FROM usage_seen")
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	var count, digests int64
	for rows.Next() {
		var id []byte
		var n, sum int64
		if err := rows.Scan(&id, &n, &sum); err != nil {
			return err
		}
		count++
		digests ^= sum
		var s stream
		copy(s[:], id)
		if set := known[s]; set == nil || len(id) != len(s) {
			v.found(0, "table usage_seen holds record %d of a writer that the journal does not know", n)
		} else if _, ok := set.find(n); !ok {
			v.found(0, "table usage_seen holds record %d of a writer, the journal does not", n)
		}
	}
	if count != v.report.Usage || digests != v.digests {
		v.found(0, "table usage_seen holds %d records, the journal holds %d, or their contents differ", count, v.report.Usage)
	}
	return rows.Err()
}

func (v *verifier) derivedTotals(ctx context.Context, q querier) error {
	rows, err := q.QueryContext(ctx, "SELECT hour, tenant, burst, namespace, owner, pod, node, model, phase, source, share_seconds FROM usage_total")
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	for rows.Next() {
		var k totalKey
		var n int64
		if err := rows.Scan(&k.hour, &k.tenant, &k.burst, &k.namespace, &k.owner, &k.pod, &k.node, &k.model, &k.phase, &k.source, &n); err != nil {
			return err
		}
		if want := v.totals[k]; want != n {
			v.found(0, "table usage_total says %d share-seconds for tenant %q, node %q, pod %q in the hour from %d; the journal says %d", n, k.tenant, k.node, k.pod, k.hour, want)
		}
		delete(v.totals, k)
	}
	for k, want := range v.totals {
		v.found(0, "table usage_total lacks %d share-seconds of tenant %q, node %q, pod %q in the hour from %d", want, k.tenant, k.node, k.pod, k.hour)
	}
	return rows.Err()
}

// sqliteGuards checks that the file still has the triggers and indexes that protect
// the journal, word for word, and that SQLite finds its own structures sound.
func sqliteGuards(ctx context.Context, q querier, v *verifier) error {
	rows, err := q.QueryContext(ctx, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
	if err != nil {
		return err
	}
	defer rows.Close() //nolint:errcheck // Err says it
	present := make(map[string]string)
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return err
		}
		present[name] = text
		if !strings.Contains(schema, text) {
			v.found(0, "%s is not part of a ledger, or was changed: %.80s", name, text)
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, name := range []string{"journal_once", "journal_no_update", "journal_no_delete", "journal_next"} {
		if present[name] == "" {
			v.found(0, "the guard %s is missing: rows may have been changed past it", name)
		}
	}
	var result string
	if err := q.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&result); err != nil {
		return fmt.Errorf("check the file's structure: %w", err)
	}
	if result != "ok" {
		v.found(0, "SQLite finds the file damaged: %s", result)
	}
	return nil
}
