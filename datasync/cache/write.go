package cache

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"spillway.dev/spillway/datasync/s3wire"
)

// bodyLimit bounds what is kept of the small documents that are read along
// (a list of 10,000 parts has about 1.5 MiB).
const bodyLimit = 8 << 20

// write passes on every request that is not a GET, unchanged, and watches
// what it does: objects that come to be are recorded, local copies of what
// it touches are forgotten, whatever the answer.
func (f *Front) write(w http.ResponseWriter, r *http.Request, t s3wire.Target) {
	watch := f.watchFor(r, t)
	if watch == nil {
		f.plain(w, r)
		return
	}
	defer watch.seen(watch.forget) // cases: C5 s3fs#1047 (also after an error)
	resp, err := f.forward(r, func(out *http.Request) {
		if out.Body != http.NoBody {
			out.Body = &watchedBody{ReadCloser: out.Body, by: watch}
		}
	})
	if err != nil {
		f.unreachable(w, r, err)
		return
	}
	// What the answer tells is recorded before the job has the whole of it:
	// also a front that is killed in between has not lost a result.
	var answer limitedBuffer
	known := resp.StatusCode/100 != 2
	learn := func() {
		if !known {
			watch.seen(func() { known = watch.done(resp.Header, answer.Bytes()) })
		}
	}
	if watch.atOnce {
		learn()
	}
	f.answer(w, resp, func(p []byte) {
		answer.add(p)
		if bytes.HasSuffix(bytes.TrimSpace(p), []byte(">")) { // it may be a whole document
			learn()
		}
	})
}

// plain passes on a request that changes no object.
func (f *Front) plain(w http.ResponseWriter, r *http.Request) {
	resp, err := f.forward(r, nil)
	if err != nil {
		f.unreachable(w, r, err)
		return
	}
	f.answer(w, resp, nil)
}

// watcher follows one writing request.
type watcher struct {
	request io.Writer // sees the body as it is sent
	forget  func()    // after any outcome
	// done learns from a 2xx. It is called again with more of the answer until
	// it returns true.
	done   func(header http.Header, answer []byte) bool
	atOnce bool // done needs the header only

	mu sync.Mutex // a store may answer while the body is still being sent
}

// seen runs f, which looks at what request has seen.
func (w *watcher) seen(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// watchFor returns nil for requests that change no object.
func (f *Front) watchFor(r *http.Request, t s3wire.Target) *watcher {
	query, names, err := s3wire.SubResources(r)
	if err != nil {
		return nil // the gate refuses it
	}
	upload := query.Get("uploadId")
	forget := func() { f.shelf.invalidate(place{t.Bucket, t.Key}) }
	switch {
	case r.Method == http.MethodPost && t.Key == "" && query.Has("delete"):
		return f.watchDeletes(t)
	case t.Key == "":
		return nil
	case r.Method == http.MethodPut && upload != "":
		return f.watchPart(r, upload, query.Get("partNumber"))
	case r.Method == http.MethodPost && upload != "":
		return f.watchComplete(t, upload, forget)
	case r.Method == http.MethodDelete && upload != "":
		return &watcher{
			request: io.Discard, forget: func() {}, atOnce: true,
			done: func(http.Header, []byte) bool { f.uploads.abort(upload); return true },
		}
	case len(names) > 0 && !query.Has("versionId"):
		return &watcher{request: io.Discard, forget: forget, done: func(http.Header, []byte) bool { return true }}
	case r.Method == http.MethodPut:
		return f.watchPut(r, t, forget)
	case r.Method == http.MethodDelete:
		return &watcher{
			request: io.Discard, forget: forget, atOnce: true,
			done: func(http.Header, []byte) bool { f.uploads.remove(place{t.Bucket, t.Key}); return true },
		}
	}
	return nil
}

func (f *Front) watchPut(r *http.Request, t s3wire.Target, forget func()) *watcher {
	up := Upload{Bucket: t.Bucket, Key: t.Key, Size: -1}
	if _, copied, _ := s3wire.ReadCopySource(r); copied {
		return &watcher{request: io.Discard, forget: forget, done: func(_ http.Header, answer []byte) bool {
			etag, done, err := readResult(answer, "CopyObjectResult")
			if done {
				up.ETag, up.At = etag, f.cfg.Now()
				f.uploads.record(up)
			}
			return err == nil
		}}
	}
	body := newPayload(r)
	return &watcher{request: body, forget: forget, atOnce: true, done: func(h http.Header, _ []byte) bool {
		up.Size, up.SHA256 = body.sum()
		up.ETag, up.At = unquote(h.Get("Etag")), f.cfg.Now()
		f.uploads.record(up)
		return true
	}}
}

func (f *Front) watchPart(r *http.Request, upload, number string) *watcher {
	if _, copied, _ := s3wire.ReadCopySource(r); copied {
		return nil // its bytes don't pass here: the upload's digest stays unknown
	}
	body := newPayload(r)
	return &watcher{request: body, forget: func() {}, atOnce: true, done: func(h http.Header, _ []byte) bool {
		size, sum := body.sum()
		f.uploads.part(upload, partID{number, unquote(h.Get("Etag"))}, size, sum)
		return true
	}}
}

func (f *Front) watchComplete(t s3wire.Target, upload string, forget func()) *watcher {
	var asked limitedBuffer
	return &watcher{request: &asked, forget: forget, done: func(_ http.Header, answer []byte) bool {
		etag, done, err := readResult(answer, "CompleteMultipartUploadResult")
		if err != nil || !done {
			return err == nil
		}
		var list struct {
			Part []struct{ PartNumber, ETag string }
		}
		_ = xml.Unmarshal(asked.Bytes(), &list) // unreadable: no parts, and the digest stays unknown
		var ids []partID
		for _, p := range list.Part {
			ids = append(ids, partID{p.PartNumber, unquote(p.ETag)})
		}
		up := Upload{Bucket: t.Bucket, Key: t.Key, ETag: cmp.Or(etag, joinedETag(ids)), At: f.cfg.Now()}
		f.uploads.complete(upload, up, ids)
		return true
	}}
}

// readResult reads a document that says that an object came to be. done is
// false for any other whole document: a store may answer 200 first and with an
// <Error> later. The ETag may be empty, as it is on Ceph RGW 16.2.
//
// cases: A10 aws-sdk-java-v2#7068, bun#34044
func readResult(answer []byte, name string) (etag string, done bool, err error) {
	var result struct {
		XMLName xml.Name
		ETag    string
	}
	if err := xml.Unmarshal(answer, &result); err != nil {
		return "", false, err
	}
	return unquote(result.ETag), result.XMLName.Local == name, nil
}

// joinedETag is the ETag of a multipart object where its store follows the
// usual rule: the MD5 of the parts' MD5s, and their number. It is empty when a
// part's ETag is no MD5.
func joinedETag(ids []partID) string {
	sum := md5.New()
	for _, id := range ids {
		part, err := hex.DecodeString(id.etag)
		if err != nil || len(part) != md5.Size {
			return ""
		}
		_, _ = sum.Write(part) // a hash never fails
	}
	return fmt.Sprintf("%x-%d", sum.Sum(nil), len(ids))
}

// watchDeletes follows a DeleteObjects request.
func (f *Front) watchDeletes(t s3wire.Target) *watcher {
	var asked limitedBuffer
	keys := func() []place {
		var list struct {
			Object []struct{ Key string }
		}
		_ = xml.Unmarshal(asked.Bytes(), &list) // the store refuses what can't be read
		var out []place
		for _, o := range list.Object {
			out = append(out, place{t.Bucket, o.Key})
		}
		return out
	}
	return &watcher{
		request: &asked,
		forget: func() {
			for _, p := range keys() {
				f.shelf.invalidate(p)
			}
		},
		done: func(_ http.Header, answer []byte) bool {
			var result struct {
				Error []struct{ Key string }
			}
			if xml.Unmarshal(answer, &result) != nil {
				return false
			}
			kept := map[string]bool{}
			for _, e := range result.Error {
				kept[e.Key] = true // cases: F13
			}
			for _, p := range keys() {
				if !kept[p.key] {
					f.uploads.remove(p)
				}
			}
			return true
		},
	}
}

// watchedBody shows a request body to its watcher as it is read.
type watchedBody struct {
	io.ReadCloser
	by *watcher
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.by.seen(func() { _, _ = b.by.request.Write(p[:n]) }) // what watches in this package never fails
	return n, err
}

// limitedBuffer keeps the first bytes written to it, up to bodyLimit.
type limitedBuffer struct{ bytes.Buffer }

func (b *limitedBuffer) add(p []byte) { _, _ = b.Write(p) }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if room := bodyLimit - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func unquote(etag string) string { return strings.Trim(etag, `"`) }
