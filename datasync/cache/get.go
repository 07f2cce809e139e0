package cache

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/seal"
)

// span is the part of an object that a request asks for.
type span struct {
	off, length int64
	partial     bool
}

// get answers a GET that may be cached.
func (f *Front) get(w http.ResponseWriter, r *http.Request, t s3wire.Target) {
	key, open := f.vault.take()
	if !open {
		f.pass(w, r, "locked")
		return
	}
	defer f.vault.users.Done()
	r, done := f.underWipe(w, r)
	defer done()
	e, local := f.shelf.find(place{t.Bucket, t.Key})
	wantsRange := r.Header.Get("Range") != ""
	who := f.askerOf(r)
	switch {
	case e != nil && e.pinned && who.known():
		f.getPinned(w, r, e, who, key)
		return
	case e == nil && wantsRange, e != nil && wantsRange && !local:
		f.pass(w, r, "range not local") // cases: C7 nginx-s3-gateway#188
		return
	case e == nil:
		f.cold(w, r, t, key)
		return
	case !e.checksums && wantsChecksums(r):
		f.miss(w, r, t, key)
		return
	}
	part, ok := readSpan(r.Header["Range"], e.object.Size)
	if !ok {
		f.pass(w, r, "range")
		return
	}
	if f.shelf.counts(e, who, f.cfg.Now()) {
		f.count.unasked.Add(1)
		if f.deliver(w, r, e, part, key, nil) {
			return
		}
	}
	f.revalidate(w, r, t, e, part, key)
}

// underWipe lets a request that works with the key end at once when the front
// is wiped, whether it waits for the store or for its client.
func (f *Front) underWipe(w http.ResponseWriter, r *http.Request) (*http.Request, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(f.ctx, cancel)
	rc := http.NewResponseController(w)
	f.active.Store(rc, nil)
	if f.ctx.Err() != nil { // the wipe may not have seen it
		_ = rc.SetWriteDeadline(time.Unix(1, 0))
	}
	return r.WithContext(ctx), func() {
		f.active.Delete(rc)
		stop()
		cancel()
	}
}

// revalidate asks the source store about the known version, with the
// client's own request.
func (f *Front) revalidate(w http.ResponseWriter, r *http.Request, t s3wire.Target, e *entry, part span, key seal.DataKey) {
	at := f.cfg.Now()
	resp, verdict, err := f.ask(r, e.object)
	switch {
	case err != nil:
		f.unreachable(w, r, err)
	case verdict == same:
		f.shelf.grant(e, f.askerOf(r), at)
		if f.deliver(w, r, e, part, key, resp.Header) {
			return
		}
		// The local copy is no good. The client has no byte yet: its own
		// request, sent once more without our header, brings the object.
		f.miss(w, r, t, key)
	case verdict == changed:
		f.shelf.outdate(e)
		f.miss(w, r, t, key)
	case resp.StatusCode == http.StatusOK:
		f.shelf.outdate(e) // cases: C1 mountpoint#785, C2 goofys#633
		f.keep(w, r, t, resp, key)
	case resp.StatusCode == http.StatusPartialContent:
		f.shelf.outdate(e)
		f.answer(w, resp, nil)
	default:
		// A refusal or a 404 is the store's answer. The entry stays: each
		// use of it is authorised anew, and a stranger must not be able to
		// empty the cache. cases: C4 fluid#4179, Alluxio#9865
		f.answer(w, resp, nil)
	}
}

// deliver answers from the disk. It returns false, with nothing sent, when
// the local copy can't be used; a chunk that turns out damaged later aborts
// the connection.
func (f *Front) deliver(w http.ResponseWriter, r *http.Request, e *entry, part span, key seal.DataKey, fresh http.Header) bool {
	if err := f.bring(r.Context(), e, key, fetchAgain); err != nil {
		f.cfg.Log.Warn("cache entry not usable", "err", err)
		f.shelf.drop(e, false)
		return false
	}
	body, first, err := f.openEntry(e, part, key)
	if err != nil {
		f.lose(e, err)
		return false
	}
	defer body.file.Close()
	f.count.hits.Add(1)
	writeHead(w, r, e, part, fresh)
	f.send(w, e, body, part, first)
	return true
}

// sealedBody is an open entry.
type sealedBody struct {
	file *os.File
	at   *seal.ReaderAt
	buf  []byte
}

// openEntry opens the ciphertext and the first piece of the part, so that
// most damage shows before anything is sent.
func (f *Front) openEntry(e *entry, part span, key seal.DataKey) (*sealedBody, int, error) {
	file, err := os.Open(e.file)
	if err != nil {
		return nil, 0, fmt.Errorf("open cache entry: %w", err)
	}
	at, err := seal.NewReaderAt(file, e.sealed, key, e.context)
	if err == nil && at.Size() != e.object.Size {
		err = fmt.Errorf("%w: it holds %d bytes, not %d", seal.ErrDamaged, at.Size(), e.object.Size)
	}
	b := &sealedBody{file: file, at: at, buf: make([]byte, min(part.length, pieceSize))}
	n := 0
	if err == nil {
		n, err = at.ReadAt(b.buf[:firstPiece(part)], part.off)
	}
	if err != nil {
		_ = file.Close()
		return nil, 0, fmt.Errorf("open cache entry: %w", err)
	}
	return b, n, nil
}

// pieceSize is how much is opened at a time: whole chunks.
const pieceSize = 8 * seal.ChunkSize

// firstPiece ends at a chunk border, so that the pieces behind it are opened
// in place.
func firstPiece(part span) int64 {
	return min(part.length, pieceSize-part.off%seal.ChunkSize)
}

// send writes the opened body piece by piece. first bytes are opened already.
func (f *Front) send(w http.ResponseWriter, e *entry, b *sealedBody, part span, first int) {
	done := int64(0)
	for n := first; ; {
		if n > 0 {
			if _, err := w.Write(b.buf[:n]); err != nil {
				panic(http.ErrAbortHandler) // the client is gone
			}
			done += int64(n)
			f.count.served.Add(int64(n))
		}
		if done == part.length {
			return
		}
		if f.ctx.Err() != nil {
			panic(http.ErrAbortHandler)
		}
		var err error
		n, err = b.at.ReadAt(b.buf[:min(int64(len(b.buf)), part.length-done)], part.off+done)
		if err != nil {
			f.lose(e, err)
			panic(http.ErrAbortHandler)
		}
	}
}

// lose drops an entry whose ciphertext is not what it should be.
func (f *Front) lose(e *entry, err error) {
	if errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrWrongKey) {
		f.count.damaged.Add(1)
	}
	f.cfg.Log.Warn("cache entry dropped", "err", err)
	f.shelf.drop(e, false)
}

// writeHead sends status and headers: those of the object as they were
// pinned, those of the answer as the store just sent them.
func writeHead(w http.ResponseWriter, r *http.Request, e *entry, part span, fresh http.Header) {
	h := w.Header()
	for _, name := range []string{"Date", "Server", "X-Amz-Request-Id", "X-Amz-Id-2"} {
		if v, ok := fresh[name]; ok {
			h[name] = v
		}
	}
	for name, value := range e.object.Metadata {
		if strings.HasPrefix(name, "X-Amz-Checksum-") && (part.length < e.object.Size || !wantsChecksums(r)) {
			continue
		}
		h[s3wire.AnswerName(name)] = []string{value}
	}
	h["Content-Type"] = nil
	if e.object.ContentType != "" {
		h["Content-Type"] = []string{e.object.ContentType}
	}
	if e.object.VersionID != "" {
		h["X-Amz-Version-Id"] = []string{e.object.VersionID}
	}
	h["Etag"] = []string{`"` + e.object.ETag + `"`} // cases: B2 cloud37#215
	if !e.object.LastModified.IsZero() {            // a store that says nothing is not spoken for
		h["Last-Modified"] = []string{e.object.LastModified.UTC().Format(http.TimeFormat)}
	}
	h["Content-Length"] = []string{strconv.FormatInt(part.length, 10)}
	if !part.partial {
		w.WriteHeader(http.StatusOK)
		return
	}
	h["Content-Range"] = []string{fmt.Sprintf("bytes %d-%d/%d", part.off, part.off+part.length-1, e.object.Size)}
	w.WriteHeader(http.StatusPartialContent)
}

func wantsChecksums(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("X-Amz-Checksum-Mode"), "ENABLED")
}

// readSpan reads one satisfiable byte range, or the whole object without a
// Range. Everything else is false and goes to the store, whose reading of it
// is the one that counts.
func readSpan(header []string, size int64) (span, bool) {
	if len(header) == 0 {
		return span{length: size}, true
	}
	spec, ok := strings.CutPrefix(header[0], "bytes=")
	from, to, dash := strings.Cut(spec, "-")
	if !ok || !dash || len(header) > 1 {
		return span{}, false
	}
	if from == "" { // the last n bytes
		n, ok := readOffset(to)
		n = min(n, size)
		return span{off: size - n, length: n, partial: true}, ok && n > 0
	}
	a, ok := readOffset(from)
	if !ok || a >= size {
		return span{}, false
	}
	b := size - 1
	if to != "" {
		if b, ok = readOffset(to); !ok || b < a {
			return span{}, false
		}
	}
	b = min(b, size-1)
	return span{off: a, length: b - a + 1, partial: true}, true
}

// readOffset reads plain digits; blanks and signs are not part of a range.
func readOffset(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
