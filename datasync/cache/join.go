package cache

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/seal"
)

// cold answers a read of an object that the cache does not have. Of many at a
// time one brings the body, the others join it: each sends its own request as
// soon as the version is known, and gets what the store allows.
func (f *Front) cold(w http.ResponseWriter, r *http.Request, t s3wire.Target, key seal.DataKey) {
	for range 2 { // whom the store refused brings nothing; then another tries, once
		c, first := f.shelf.begin(f, place{t.Bucket, t.Key})
		if first {
			f.lead(w, r, t, c, key)
			return
		}
		if f.join(w, r, c, key) {
			return
		}
	}
	f.miss(w, r, t, key)
}

func (f *Front) lead(w http.ResponseWriter, r *http.Request, t s3wire.Target, c *fill, key seal.DataKey) {
	defer c.discard() // also when the answer breaks off; cases: H7
	resp, err := f.read(r, nil)
	if err != nil {
		f.unreachable(w, r, err)
		return
	}
	f.tee(w, r, t, resp, c, key)
}

// join answers from a fill that is under way, if there is something to join.
func (f *Front) join(w http.ResponseWriter, r *http.Request, c *fill, key seal.DataKey) bool {
	select {
	case <-c.known:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler) // the client is gone
	}
	if c.entry == nil || !c.entry.checksums && wantsChecksums(r) {
		return false
	}
	file, err := c.open()
	if err != nil {
		return false
	}
	defer file.Close()
	resp, verdict, err := f.ask(r, c.entry.object)
	switch {
	case err != nil:
		f.unreachable(w, r, err)
	case verdict == answered:
		f.answer(w, resp, nil) // a refusal, or another version by now
	case verdict == changed:
		return false
	default:
		f.count.hits.Add(1)
		f.follow(w, r, c, &tail{ctx: r.Context(), fill: c, file: file}, key, resp.Header)
	}
	return true
}

// follow sends an object while it comes in. Where the one that brings it stops,
// the rest comes from home, if it is still the same version.
func (f *Front) follow(w http.ResponseWriter, r *http.Request, c *fill, sealed io.Reader, key seal.DataKey, fresh http.Header) {
	o := c.entry.object
	writeHead(w, r, c.entry, span{length: o.Size}, fresh)
	out := &sink{to: w}
	sent, err := io.CopyBuffer(out, io.TeeReader(seal.NewOpener(sealed, key, c.entry.context), tally{&f.count.served}), make([]byte, pieceSize))
	if err == nil && sent == o.Size {
		return
	}
	if r.Context().Err() != nil || out.gone || sent >= o.Size {
		panic(http.ErrAbortHandler) // the client is gone, or the front is wiped
	}
	f.cfg.Log.Info("an object that came in broke off; the rest is read from home", "sent", sent, "of", o.Size, "err", err)
	rest, err := f.rest(r, o, sent)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rest = f.resume(r, o, sent, rest)
	defer rest.Close()
	if _, err := io.Copy(out, io.TeeReader(rest, tally{&f.count.upstream})); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// sink is a client, without the shortcuts of its writer, which would read what
// is not checked yet.
type sink struct {
	to   io.Writer
	gone bool
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	s.gone = s.gone || err != nil
	return n, err
}

// progress is how far the ciphertext of a fill is on the disk.
type progress struct {
	mu      sync.Mutex
	bytes   int64
	ended   bool
	whole   bool
	changed chan struct{} // closed and replaced at each change
}

func (p *progress) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// Write implements [io.Writer] behind the file.
func (c *fill) Write(p []byte) (int, error) {
	n, err := c.temp.Write(p)
	c.progress.update(func() { c.progress.bytes += int64(n) })
	return n, err
}

// open opens the ciphertext, wherever it is by now.
func (c *fill) open() (*os.File, error) {
	file, err := os.Open(c.temp.Name())
	if errors.Is(err, os.ErrNotExist) {
		return os.Open(c.entry.file)
	}
	return file, err
}

var errBrokeOff = errors.New("the object did not come in whole")

// tail reads the ciphertext of a fill as it comes in.
type tail struct {
	ctx  context.Context
	fill *fill
	file *os.File
	off  int64
}

// Read implements [io.Reader]. Whoever brings the object may be slow or gone:
// when nothing comes for as long as a store may be silent, that is an error.
func (t *tail) Read(p []byte) (int, error) {
	stall := time.NewTimer(s3wire.Patience)
	defer stall.Stop()
	for {
		g := &t.fill.progress
		g.mu.Lock()
		ready, ended, whole, changed := g.bytes-t.off, g.ended, g.whole, g.changed
		g.mu.Unlock()
		switch {
		case ready > 0:
			n, err := t.file.ReadAt(p[:min(int64(len(p)), ready)], t.off)
			t.off += int64(n)
			return n, err
		case ended && whole:
			return 0, io.EOF
		case ended:
			return 0, errBrokeOff
		}
		select {
		case <-changed:
		case <-stall.C:
			return 0, s3wire.ErrStalled
		case <-t.ctx.Done():
			return 0, t.ctx.Err()
		}
	}
}
