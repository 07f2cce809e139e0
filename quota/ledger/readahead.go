package ledger

import (
	"bytes"
	"context"
	"runtime"
	"sync"

	"spillway.dev/spillway/quota"
)

// prepared is a row with all that can be found out from the row alone.
type prepared struct {
	row   row
	sum   []byte // hash of the row, computed
	event quota.Event
	usage []quota.Usage // of a usage row
	err   error         // why it can't be read
}

// prepare reads everything; glance leaves the usage in its row.
func prepare(r row) prepared {
	p := glance(r)
	if p.err == nil && p.event.Kind == quota.KindUsage {
		p.usage, p.err = decodeBatch(r.intent)
	}
	return p
}

func glance(r row) prepared {
	p := prepared{row: r, sum: r.sum()}
	p.event, p.err = r.event()
	return p
}

// rowsOf is a query of rows of the journal, and how they are prepared.
type rowsOf struct {
	query string
	args  []any
	read  func(row) prepared
}

// proven is what the row says, if it matches its own hash and can be read.
func (p prepared) proven() (quota.Event, error) {
	switch {
	case !bytes.Equal(p.sum, p.row.hash):
		return quota.Event{}, p.row.broken("it does not match its hash")
	case p.err != nil:
		return quota.Event{}, p.row.broken(p.err.Error())
	}
	return p.event, nil
}

// pieceSize is how many rows are prepared together.
const pieceSize = 64

// piece is some rows on their way through readAhead; done is closed when all
// are prepared.
type piece struct {
	rows     []row
	prepared []prepared
	done     chan struct{}
}

// readAhead calls f for each row in order, until it returns an error. Reading,
// hashing and decoding run ahead on all cores; f itself is called by one goroutine.
func readAhead(ctx context.Context, q querier, want rowsOf, f func(prepared) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	workers := runtime.GOMAXPROCS(0)
	todo, inOrder := make(chan *piece, workers), make(chan *piece, 4*workers)
	var err error
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(inOrder)
		defer close(todo)
		err = readPieces(ctx, q, want, func(p *piece) error {
			for _, c := range []chan *piece{inOrder, todo} {
				select {
				case c <- p:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	for range workers {
		wg.Go(func() {
			for p := range todo {
				for _, r := range p.rows {
					p.prepared = append(p.prepared, want.read(r))
				}
				close(p.done)
			}
		})
	}
	var refused error
	for p := range inOrder {
		select {
		case <-p.done:
		case <-ctx.Done(): // a piece that was announced but not handed out is never done
			continue
		}
		for _, r := range p.prepared {
			if refused == nil {
				refused = f(r)
			}
		}
		if refused != nil {
			stop()
		}
	}
	wg.Wait()
	if refused != nil {
		return refused
	}
	return err
}

// readPieces cuts the journal into pieces.
func readPieces(ctx context.Context, q querier, want rowsOf, send func(*piece) error) error {
	next := &piece{done: make(chan struct{})}
	rows, err := q.QueryContext(ctx, want.query, want.args...)
	err = scan(rows, err, func(r row) error {
		next.rows = append(next.rows, r)
		if len(next.rows) < pieceSize {
			return nil
		}
		full := next
		next = &piece{done: make(chan struct{})}
		return send(full)
	})
	if err != nil || len(next.rows) == 0 {
		return err
	}
	return send(next)
}
