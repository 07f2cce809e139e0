package ledger

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"spillway.dev/spillway/quota"
)

// portableFormat names the format in the first line of an export.
const portableFormat = "spillway.dev/ledger/v1"

// ErrNotEmpty says that a journal can't be imported: the ledger has rows.
var ErrNotEmpty = errors.New("ledger is not empty")

// portableLine is one line of an export, a JSON object: first the format, then
// one line for each row of the journal with the very texts that its hash covers,
// last the number of rows and the hash of the last one.
type portableLine struct {
	Format string `json:"format,omitzero"`

	Seq      int64     `json:"seq,omitzero"`
	Recorded time.Time `json:"recorded,omitzero"`
	Epoch    int64     `json:"epoch,omitzero"`
	Kind     string    `json:"kind,omitzero"`
	Burst    string    `json:"burst,omitzero"`
	Key      string    `json:"key,omitzero"`
	Intent   string    `json:"intent,omitzero"`
	Entries  string    `json:"entries,omitzero"`
	Prev     string    `json:"prev,omitzero"` // hex, as Hash
	Hash     string    `json:"hash,omitzero"`

	Rows *int64 `json:"rows,omitzero"`
	Head string `json:"head,omitzero"`
}

// Export writes the whole journal as JSON lines, from which [Ledger.Import]
// makes the same ledger again. It stops at a row that breaks the chain.
func (v *View) Export(ctx context.Context, w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	if err := out.Encode(portableLine{Format: portableFormat}); err != nil {
		return fmt.Errorf("export ledger %s: %w", v.path, err)
	}
	var last head
	rows, err := v.tx.QueryContext(ctx, selectAll)
	err = scan(rows, err, func(r row) error {
		if err := r.follows(last); err != nil {
			return err
		}
		if _, err := r.proven(); err != nil {
			return err
		}
		last = r.head()
		return out.Encode(portableLine{
			Seq: r.seq, Recorded: time.Unix(0, r.recorded).UTC(), Epoch: r.epoch, Kind: r.kind, Burst: r.burst, Key: r.key,
			Intent: r.intent, Entries: r.entries, Prev: hex.EncodeToString(r.prev), Hash: hex.EncodeToString(r.hash),
		})
	})
	if err == nil {
		err = out.Encode(portableLine{Rows: &last.seq, Head: hex.EncodeToString(last.hash)})
	}
	if err != nil {
		return explain(v.path, fmt.Errorf("export: %w", err))
	}
	return nil
}

// Import makes an empty ledger the one that an export was made of: the same
// rows, the same hashes, the same head. All of it is verified as
// [Ledger.Verify] does before it is committed; at the first thing that is wrong
// the ledger stays empty. A ledger with rows is [ErrNotEmpty].
func (l *Ledger) Import(ctx context.Context, from io.Reader) (Report, error) {
	var report Report
	err := l.submit(&call{ctx: ctx, alone: true, run: func(t *txn) error {
		if t.head.seq > 0 {
			return fmt.Errorf("ledger %s: %w: it has %d rows; import into a new file", l.path, ErrNotEmpty, t.head.seq)
		}
		if err := t.take(ctx, json.NewDecoder(from)); err != nil {
			return fmt.Errorf("import into ledger %s: %w; nothing was imported", l.path, err)
		}
		err := t.flush()
		if err == nil {
			report, err = l.verify(t.ctx, t.tx, nil)
		}
		if err == nil && !report.OK {
			err = fmt.Errorf("import into ledger %s: %s; nothing was imported", l.path, report.Findings[0])
		}
		return err
	}})
	return report, err
}

// take appends all rows of an export.
func (t *txn) take(ctx context.Context, in *json.Decoder) error {
	in.DisallowUnknownFields()
	var first portableLine
	if err := in.Decode(&first); err != nil || first.Format != portableFormat {
		return fmt.Errorf("this is no exported ledger: its first line must name the format %s", portableFormat)
	}
	for {
		var line portableLine
		switch err := in.Decode(&line); {
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the export ends behind row %d without its last line: it was cut off", t.head.seq)
		case err != nil:
			return fmt.Errorf("the line behind row %d can't be read: %w", t.head.seq, err)
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if line.Rows != nil {
			return t.complete(line, in)
		}
		r, err := line.row()
		if err == nil {
			err = t.takeRow(r)
		}
		if err != nil {
			return err
		}
	}
}

// complete checks the last line of an export.
func (t *txn) complete(last portableLine, in *json.Decoder) error {
	if *last.Rows != t.head.seq || last.Head != hex.EncodeToString(t.head.hash) {
		return fmt.Errorf("the export says that it has %d rows up to hash %s, but has %d up to %s", *last.Rows, last.Head, t.head.seq, hex.EncodeToString(t.head.hash))
	}
	if err := in.Decode(&portableLine{}); !errors.Is(err, io.EOF) {
		return errors.New("the export goes on behind its last line")
	}
	return nil
}

// row reads a line back. Whether it is the row that was once written, its hash
// says.
func (p portableLine) row() (row, error) {
	r := row{
		seq: p.Seq, recorded: p.Recorded.UnixNano(), epoch: p.Epoch, kind: p.Kind, burst: p.Burst, key: p.Key,
		intent: p.Intent, entries: p.Entries,
	}
	var err error
	if r.prev, err = hex.DecodeString(p.Prev); err == nil {
		r.hash, err = hex.DecodeString(p.Hash)
	}
	if err != nil {
		return row{}, fmt.Errorf("row %d: its hashes can't be read: %w", p.Seq, err)
	}
	return r, nil
}

// takeRow appends a row as it is, and what is derived from it.
func (t *txn) takeRow(r row) error {
	if err := r.follows(t.head); err != nil {
		return err
	}
	if _, err := r.take(&t.book); err != nil {
		return err
	}
	if t.stage(r); len(t.rows) == maxGroup {
		if err := t.flush(); err != nil {
			return err
		}
	}
	if quota.Kind(r.kind) != quota.KindUsage {
		return nil
	}
	records, err := decodeBatch(r.intent)
	if err != nil {
		return r.broken(err.Error())
	}
	fresh, _, err := t.see(records)
	if err != nil {
		return err
	}
	for i, u := range records {
		if i >= len(fresh) || fresh[i] != u {
			return r.broken(fmt.Sprintf("it books usage record %d of node %q a second time", u.Seq, u.Node))
		}
	}
	return t.sumUp(records)
}
