package cache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
)

// A herd on one cold object costs one body, and each member its own request:
// whom the store refuses gets that refusal and no byte.
func TestHerdCostsOneBody(t *testing.T) {
	const members, strangers = 100, 5
	g := newRig(t)
	body := blob(3<<20, "herd")
	g.put(t, "cold", body)
	g.stage(t)
	clients := map[string]*minio.Core{"job": g.job(t), "stranger": g.client(t, g.addr(), "stranger", "strangersecret")}
	var all sync.WaitGroup
	var wrong atomic.Int64
	begin := make(chan struct{})
	ask := func(who string, good func([]byte, error) bool) {
		all.Go(func() {
			<-begin
			if got, _, err := read(t, clients[who], "cold", minio.GetObjectOptions{}); !good(got, err) {
				wrong.Add(1)
				t.Errorf("%s: %d bytes, %v", who, len(got), err)
			}
		})
	}
	for range members {
		ask("job", func(got []byte, err error) bool { return err == nil && bytes.Equal(got, body) })
	}
	for range strangers {
		ask("stranger", func(got []byte, err error) bool {
			return len(got) == 0 && minio.ToErrorResponse(err).StatusCode == http.StatusForbidden
		})
	}
	close(begin)
	all.Wait()
	var bodies, words, refusals int
	var sent int64
	for _, e := range g.seen(t, "cold", members+strangers+1) { // one line is the put
		switch {
		case e.Method != http.MethodGet:
		case e.Status == http.StatusForbidden:
			refusals++
		case e.Status == http.StatusOK && e.BytesSent > 0:
			bodies++
			sent += e.BytesSent
		case e.Status == g.store.Same() && e.BytesSent == 0:
			words++
		}
	}
	if bodies != 1 || words != members-1 || refusals != strangers || sent != int64(len(body)) {
		t.Errorf("the store sent %d bodies of %d bytes, said the same %d times and refused %d, want one body of %d and one request for each of %d",
			bodies, sent, words, refusals, len(body), members+strangers)
	}
}

// half is a home that sends the first half of an object to whoever comes first
// and then waits; who knows the version gets 304, who asks for the rest gets it.
type half struct {
	body   []byte
	held   chan struct{} // closed when the first half is out
	stop   chan struct{} // ends the first answer in the middle
	onward chan struct{} // lets it go on to its end
	asked  sync.Map      // the headers of later requests, by kind
}

func newHalf(n int) *half {
	return &half{body: blob(n, "half"), held: make(chan struct{}), stop: make(chan struct{}), onward: make(chan struct{})}
}

func (h *half) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Etag", `"e"`)
	switch {
	case r.Header.Get("If-None-Match") == `"e"`:
		h.asked.Store("conditional", true)
		w.WriteHeader(http.StatusNotModified)
		return
	case r.Header.Get("Range") != "":
		var from int
		_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
		h.asked.Store("rest", r.Header.Get("If-Match"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(h.body)-1, len(h.body)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(h.body[from:])
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(h.body)))
	_, _ = w.Write(h.body[:len(h.body)/2])
	_ = http.NewResponseController(w).Flush()
	close(h.held)
	select {
	case <-h.stop:
		panic(http.ErrAbortHandler)
	case <-h.onward:
		_, _ = w.Write(h.body[len(h.body)/2:])
	case <-r.Context().Done():
	}
}

// get reads an object through a front; some gets the first bytes as soon as
// they are here.
func get(ctx context.Context, addr string, some func()) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // nobody waits for a test that failed
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/data/a", nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: dialTo(addr)}).Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	first := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		return nil, err
	}
	some()
	rest, err := io.ReadAll(resp.Body)
	return append(first, rest...), err
}

// Who joins gets the first bytes while the object still comes in, and the whole
// of it also when the one that brings it goes away, or the way breaks.
//
// cases: A1 minio-go#1451, A13 s5cmd#414
func TestWhoJoins(t *testing.T) {
	for name, end := range map[string]func(h *half, leave func()){
		"and it comes in whole":             func(h *half, _ func()) { close(h.onward) },
		"and the one that brings it leaves": func(_ *half, leave func()) { leave() },
		"and the way breaks":                func(h *half, _ func()) { close(h.stop) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHalf(400_000)
			f, front := fakeHome(t, h.serve)
			if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
				t.Fatal(err)
			}
			addr := front.Listener.Addr().String()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			led := make(chan struct{})
			go func() {
				defer close(led)
				_, _ = get(ctx, addr, func() {}) // it may be cut: that is the test
			}()
			<-h.held
			within(t, 30*time.Second, "the joiner", func() {
				got, err := get(t.Context(), addr, func() { end(h, leave) })
				if err != nil || !bytes.Equal(got, h.body) {
					t.Errorf("the joiner got %d of %d bytes: %v", len(got), len(h.body), err)
				}
			})
			<-led
			if _, ok := h.asked.Load("conditional"); !ok {
				t.Error("the joiner sent no request of its own")
			}
			match, resumed := h.asked.Load("rest")
			if resumed != !strings.Contains(name, "whole") || resumed && match != `"e"` {
				t.Errorf("the rest was asked for: %v, of version %v", resumed, match)
			}
		})
	}
}

// A wipe ends those who joined as it ends everybody, with an error.
func TestWipeEndsWhoJoined(t *testing.T) {
	h := newHalf(400_000)
	f, front := fakeHome(t, h.serve)
	if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	addr := front.Listener.Addr().String()
	var all sync.WaitGroup
	for i := range 3 {
		if i > 0 {
			<-h.held
		}
		some := make(chan struct{})
		all.Go(func() {
			if got, err := get(t.Context(), addr, func() { close(some) }); err == nil {
				t.Errorf("%d bytes and no error after a wipe", len(got))
			} else if errors.Is(err, io.EOF) {
				t.Errorf("it looks like an end: %v", err)
			}
		})
		<-some
	}
	within(t, 30*time.Second, "the wipe", func() {
		if _, err := f.Wipe(); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
}
