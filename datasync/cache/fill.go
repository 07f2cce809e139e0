package cache

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/seal"
)

// miss sends the client's request as it is, and keeps a sealed copy of what
// comes back.
func (f *Front) miss(w http.ResponseWriter, r *http.Request, t s3wire.Target, key seal.DataKey) {
	resp, err := f.read(r, nil)
	if err != nil {
		f.unreachable(w, r, err)
		return
	}
	f.keep(w, r, t, resp, key)
}

// keep passes an answer on and keeps a copy, unless another does so.
func (f *Front) keep(w http.ResponseWriter, r *http.Request, t s3wire.Target, resp *http.Response, key seal.DataKey) {
	c, first := f.shelf.begin(f, place{t.Bucket, t.Key})
	if !first {
		f.count.misses.Add(1)
		f.count.notCached("being filled")
		f.answer(w, resp, nil)
		return
	}
	defer c.discard() // also when the answer breaks off; cases: H7
	f.tee(w, r, t, resp, c, key)
}

// tee passes an answer on and tees a whole object into the cache.
func (f *Front) tee(w http.ResponseWriter, r *http.Request, t s3wire.Target, resp *http.Response, c *fill, key seal.DataKey) {
	f.count.misses.Add(1)
	if why := c.start(r, t, resp, key); why != "" {
		f.count.notCached(why)
		c.discard()
		f.answer(w, resp, nil)
		return
	}
	resp.Body = f.resume(r, c.entry.object, 0, resp.Body)
	f.answer(w, resp, c.write)
	if err := c.commit(); err != nil {
		f.cfg.Log.Warn("answer not kept", "err", err)
	}
}

// fill is a sealed copy in the making.
type fill struct {
	front    *Front
	place    place
	known    chan struct{} // closed when entry is set, or never will be
	entry    *entry        // nil: there is nothing to join
	temp     *os.File
	seal     *seal.Writer
	got      int64
	kept     bool
	over     bool
	err      error
	progress progress
}

// start makes the copy's file; the reason, if the answer can't be kept.
func (c *fill) start(r *http.Request, t s3wire.Target, resp *http.Response, key seal.DataKey) string {
	etag := resp.Header.Get("Etag")
	switch {
	case resp.StatusCode != http.StatusOK:
		return "status"
	case resp.ContentLength < 0:
		return "length unknown"
	case len(etag) < 3 || etag[0] != '"' || etag[len(etag)-1] != '"':
		return "no strong etag"
	case resp.Header.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") != "":
		return "sse-c"
	case r.Header.Get("Range") != "":
		return "range"
	case c.front.shelf.pins(c.place):
		return "pinned" // another version is the one to be served
	}
	e := c.front.newEntry(r, t, resp, etag[1:len(etag)-1], key)
	temp, err := os.CreateTemp(c.front.cfg.Dir, "*"+partSuffix)
	if err != nil { // cases: F14 kserve#4852 (no room: pass through, don't fail)
		return "disk"
	}
	c.temp = temp
	if c.seal, err = seal.NewWriter(c, key, e.context, c.front.cfg.Random); err != nil {
		return "disk"
	}
	c.entry = e
	close(c.known)
	return ""
}

// newEntry describes the object in a whole answer of the source store.
func (f *Front) newEntry(r *http.Request, t s3wire.Target, resp *http.Response, etag string, key seal.DataKey) *entry {
	o := datasync.Object{
		Bucket: t.Bucket, Key: t.Key, ETag: etag, VersionID: resp.Header.Get("X-Amz-Version-Id"),
		Size: resp.ContentLength, ContentType: resp.Header.Get("Content-Type"), Metadata: objectHeaders(resp.Header),
	}
	o.LastModified, _ = http.ParseTime(resp.Header.Get("Last-Modified")) // zero when absent
	return &entry{
		object: o, file: filepath.Join(f.cfg.Dir, key.Name("cache", o.Bucket, o.Key, o.VersionID, o.ETag)),
		sealed: seal.Size(o.Size), checksums: wantsChecksums(r), fetching: make(chan struct{}, 1),
		context: seal.Context{
			Burst: f.cfg.Burst, Direction: seal.Cache, Bucket: o.Bucket, Key: o.Key, Version: o.VersionID, ETag: o.ETag,
		},
	}
}

func (c *fill) write(p []byte) {
	if c.err == nil {
		c.got += int64(len(p))
		_, c.err = c.seal.Write(p)
	}
}

// commit puts the copy in place if it is whole.
func (c *fill) commit() error {
	if c.err == nil && c.got != c.entry.object.Size {
		c.err = fmt.Errorf("got %d of %d bytes", c.got, c.entry.object.Size)
	}
	if c.err == nil {
		c.err = c.seal.Close()
	}
	if c.err == nil {
		c.err = c.temp.Close()
	}
	if c.err == nil && c.front.ctx.Err() != nil {
		c.err = errors.New("the front is wiped")
	}
	if c.err == nil {
		c.err = c.front.shelf.keep(c.entry, c.temp.Name())
		c.kept = c.err == nil
	}
	return c.err
}

// discard ends the fill, once, and removes what was not committed.
func (c *fill) discard() {
	if c.over {
		return
	}
	c.over = true
	if c.temp != nil && !c.kept { // else the name may belong to another by now
		_ = c.temp.Close()
		_ = os.Remove(c.temp.Name())
	}
	c.front.shelf.end(c.place)
	if c.entry == nil {
		close(c.known)
	}
	c.progress.update(func() { c.progress.ended, c.progress.whole = true, c.kept })
}

// fetchAgain is how long after a failed try to fetch a staged entry jobs are
// served from home at once.
const fetchAgain = 30 * time.Second

// bring makes the ciphertext of e local: once, however many ask. It ends with
// ctx or with the front, and is not tried when it failed less than a pause
// ago.
func (f *Front) bring(ctx context.Context, e *entry, key seal.DataKey, pause time.Duration) error {
	select {
	case e.fetching <- struct{}{}:
		defer func() { <-e.fetching }()
	case <-ctx.Done():
		return fmt.Errorf("wait for a staged entry: %w", ctx.Err())
	}
	switch {
	case f.shelf.isLocal(e):
		return nil
	case !e.staged || e.object.URL == "":
		return errors.New("entry is neither on the disk nor staged")
	case f.cfg.Now().Sub(e.failed) < pause:
		return errors.New("entry could not be fetched a moment ago")
	}
	err := f.fetchInto(ctx, e, key)
	if err != nil {
		e.failed = f.cfg.Now()
		if errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrWrongKey) {
			f.count.damaged.Add(1)
		}
		return fmt.Errorf("fetch staged entry: %w", err)
	}
	return nil
}

// fetchInto fetches e and puts it on the shelf.
func (f *Front) fetchInto(ctx context.Context, e *entry, key seal.DataKey) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.ctx, cancel)()
	temp, err := os.CreateTemp(f.cfg.Dir, "*"+partSuffix)
	if err != nil {
		return err
	}
	err = f.fetch(ctx, e, key, temp)
	if cerr := temp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = f.shelf.keep(e, temp.Name())
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return err
}

// fetch copies the staged ciphertext to dst and opens it on the way: what
// gets there has passed every tag and the manifest's digest.
func (f *Front) fetch(ctx context.Context, e *entry, key seal.DataKey, dst io.Writer) error {
	body, err := f.staged(ctx, e.object.URL)
	if err != nil {
		return err
	}
	defer body.Close()
	sum := sha256.New()
	src := io.TeeReader(body, io.MultiWriter(dst, tally{&f.count.bytesStaged}))
	n, err := io.Copy(sum, seal.NewOpener(src, key, e.context))
	if err != nil {
		return err
	}
	if n != e.object.Size {
		return fmt.Errorf("%w: it holds %d bytes, the manifest says %d", seal.ErrDamaged, n, e.object.Size)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); e.object.SHA256 != "" && got != e.object.SHA256 {
		return fmt.Errorf("%w: its digest is not that of the manifest", seal.ErrDamaged)
	}
	return nil
}

// Manifest fetches a sealed manifest by presigned URL, checks its digest (hex
// SHA-256 of the sealed bytes) and the signature by signer, and opens it.
func (f *Front) Manifest(ctx context.Context, url, digest string, key seal.DataKey, signer ed25519.PublicKey) (datasync.Manifest, error) {
	body, err := f.staged(ctx, url)
	if err != nil {
		return datasync.Manifest{}, fmt.Errorf("fetch manifest: %w", err)
	}
	defer body.Close()
	sealed, err := io.ReadAll(io.LimitReader(body, f.cfg.MaxManifest+1))
	if err != nil {
		return datasync.Manifest{}, fmt.Errorf("fetch manifest: %w", err)
	}
	if int64(len(sealed)) > f.cfg.MaxManifest {
		return datasync.Manifest{}, fmt.Errorf("fetch manifest: it is larger than %d bytes", f.cfg.MaxManifest)
	}
	if sum := sha256.Sum256(sealed); hex.EncodeToString(sum[:]) != digest {
		return datasync.Manifest{}, fmt.Errorf("%w: what lies in the staging store is not what was announced", datasync.ErrManifest)
	}
	return datasync.OpenManifest(sealed, f.cfg.Burst, key, signer)
}

// prefetchers is how many staged entries come in at the same time.
const prefetchers = 4

// Prefetch brings all staged entries to the disk; it returns when they are
// there or ctx ends. Entries that can't be had are named by count; jobs still
// read them, from home.
func (f *Front) Prefetch(ctx context.Context) error {
	work := make(chan *entry)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed int
	var first error
	for range prefetchers {
		wg.Go(func() {
			for e := range work {
				if err := f.bringOne(ctx, e); err != nil {
					mu.Lock()
					failed++
					first = cmp.Or(first, err)
					mu.Unlock()
				}
			}
		})
	}
	missing := f.shelf.missing()
	for _, e := range missing {
		work <- e
	}
	close(work)
	wg.Wait()
	if failed > 0 {
		return fmt.Errorf("prefetch: %d of %d staged objects are not here: %w", failed, len(missing), first)
	}
	return nil
}

func (f *Front) bringOne(ctx context.Context, e *entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	key, open := f.vault.take()
	if !open {
		return errors.New("the front has no key")
	}
	defer f.vault.users.Done()
	return f.bring(ctx, e, key, 0)
}
