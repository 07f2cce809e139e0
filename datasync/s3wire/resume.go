package s3wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// Patience is how long a store may send nothing in the middle of a body.
const Patience = 10 * time.Second

// ErrStalled says that a store has sent nothing for [Patience].
var ErrStalled = fmt.Errorf("it has sent nothing for %v", Patience)

// Watch makes a body end with [ErrStalled] when nothing more comes. cancel ends
// the request which it answers; closing the body does that too.
func Watch(cancel context.CancelCauseFunc, body io.ReadCloser) io.ReadCloser {
	w := &watched{ReadCloser: body, cancel: cancel}
	w.stall = time.AfterFunc(Patience, func() {
		w.stalled.Store(true)
		cancel(ErrStalled)
	})
	w.stall.Stop()
	return w
}

type watched struct {
	io.ReadCloser
	cancel  context.CancelCauseFunc
	stall   *time.Timer
	stalled atomic.Bool
}

// Read implements [io.Reader].
func (w *watched) Read(p []byte) (int, error) {
	w.stall.Reset(Patience)
	n, err := w.ReadCloser.Read(p)
	w.stall.Stop() // time that our own side takes does not count
	if err != nil && w.stalled.Load() {
		err = ErrStalled
	}
	return n, err
}

// Close implements [io.Closer].
func (w *watched) Close() error {
	w.stall.Stop()
	w.cancel(nil)
	return w.ReadCloser.Close()
}

// resumeTries is how often a body is taken up again without a byte in between.
const resumeTries = 3

// Resume returns a body of exactly size bytes, of which body is the beginning.
// When that ends early or breaks, again is asked for the bytes from offset on,
// of the same version of the same object; its error is final. A body that gives
// not a byte several times in a row has broken for good.
//
// cases: A1 minio-go#1451, A13 s5cmd#414
func Resume(size int64, body io.ReadCloser, again func(offset int64) (io.ReadCloser, error)) io.ReadCloser {
	return &resumed{body: body, size: size, again: again}
}

type resumed struct {
	body  io.ReadCloser
	size  int64
	done  int64
	idle  int // times that it was taken up since the last byte
	again func(int64) (io.ReadCloser, error)
}

// Read implements [io.Reader].
func (r *resumed) Read(p []byte) (int, error) {
	for {
		n, err := r.body.Read(p)
		if n > 0 {
			r.done += int64(n)
			r.idle = 0
			if r.done > r.size {
				return 0, fmt.Errorf("a body of %d bytes goes on behind its end", r.size)
			}
			return n, nil // if it has broken, the next read says so
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF) && r.done == r.size:
			return 0, io.EOF
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		if r.idle++; r.idle > resumeTries {
			return 0, fmt.Errorf("broke off at byte %d of %d: %w", r.done, r.size, err)
		}
		next, openErr := r.again(r.done)
		if openErr != nil {
			return 0, fmt.Errorf("broke off at byte %d of %d: %w; not taken up again: %w", r.done, r.size, err, openErr)
		}
		_ = r.body.Close()
		r.body = next
	}
}

// Close implements [io.Closer].
func (r *resumed) Close() error { return r.body.Close() }
