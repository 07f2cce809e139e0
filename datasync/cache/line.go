package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
)

// answerPatience is how long a read waits for the first word of the store.
const answerPatience = 30 * time.Second

var errSilent = fmt.Errorf("the store has not answered for %v", answerPatience)

// read is forward for a GET, which may be tried again: it fails when no answer
// comes, as on a line that has gone dead, and its body when nothing more comes.
func (f *Front) read(r *http.Request, change func(*http.Request)) (*http.Response, error) {
	ctx, stop := context.WithCancelCause(r.Context())
	silence := time.AfterFunc(answerPatience, func() { stop(errSilent) })
	defer silence.Stop()
	resp, err := f.forward(r.WithContext(ctx), change)
	if err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		stop(nil)
		return nil, err
	}
	resp.Body = s3wire.Watch(stop, resp.Body)
	return resp, nil
}

// resume is the body of o from byte sent on, which is taken up where it breaks
// off, as long as the store still has that version and allows it.
func (f *Front) resume(r *http.Request, o datasync.Object, sent int64, body io.ReadCloser) io.ReadCloser {
	return s3wire.Resume(o.Size-sent, body, func(offset int64) (io.ReadCloser, error) {
		f.cfg.Log.Info("an object broke off on its way from home; the rest is asked for", "at", sent+offset, "of", o.Size)
		return f.rest(r, o, sent+offset)
	})
}

// rest asks for an object from an offset on with the client's own request, to
// which two headers are added that no signature covers.
func (f *Front) rest(r *http.Request, o datasync.Object, offset int64) (io.ReadCloser, error) {
	resp, err := f.read(r, func(out *http.Request) { from(out, offset, o.ETag) })
	if err != nil {
		return nil, err
	}
	return onward(resp, offset, o.Size)
}

// from makes a request one for the bytes from an offset on of one version.
func from(r *http.Request, offset int64, etag string) {
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	r.Header.Set("If-Match", `"`+etag+`"`)
}

// onward is the body of an answer to [from], if it is just that.
func onward(resp *http.Response, offset, size int64) (io.ReadCloser, error) {
	want := fmt.Sprintf("bytes %d-%d/%d", offset, size-1, size)
	if got := resp.Header.Get("Content-Range"); resp.StatusCode != http.StatusPartialContent || got != want {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("asked for %s, the store answers %s %s", want, resp.Status, got)
	}
	return resp.Body, nil
}

// staged reads a presigned URL, to the end also over a line that breaks.
func (f *Front) staged(ctx context.Context, url string) (io.ReadCloser, error) {
	resp, err := f.getURL(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("staging store %s answers %s", resp.Request.URL.Host, resp.Status)
	}
	etag, size := unquote(resp.Header.Get("Etag")), resp.ContentLength
	if etag == "" || size < 0 {
		return resp.Body, nil
	}
	return s3wire.Resume(size, resp.Body, func(offset int64) (io.ReadCloser, error) {
		resp, err := f.getURL(ctx, url, func(r *http.Request) { from(r, offset, etag) })
		if err != nil {
			return nil, err
		}
		return onward(resp, offset, size)
	}), nil
}

// getURL asks for a presigned URL; its errors leave out the URL, which is as
// good as a credential.
func (f *Front) getURL(ctx context.Context, url string, change func(*http.Request)) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := time.AfterFunc(s3wire.Patience, func() { cancel(s3wire.ErrStalled) })
	defer stall.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		cancel(nil)
		return nil, errors.New("the manifest holds a URL that is none")
	}
	req.Header.Set("Accept-Encoding", "identity")
	if change != nil {
		change(req)
	}
	resp, err := f.cfg.Fetch.Do(req)
	if err != nil {
		err = fmt.Errorf("staging store %s: %w", req.URL.Host, cmp.Or(context.Cause(ctx), errors.Unwrap(err)))
		cancel(nil)
		return nil, err
	}
	resp.Body = s3wire.Watch(cancel, resp.Body)
	return resp, nil
}
