package cache_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/seal"
)

// within fails the test when f takes longer than it may: somebody else's
// stall must not become ours.
func within(t *testing.T, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s takes longer than %v", what, d)
	}
}

// A wipe waits neither for a store that has stopped sending nor for a client
// that has stopped reading: the key goes all the same.
//
// cases: F11
func TestWipeWaitsForNobody(t *testing.T) {
	const length = 64 << 20
	tests := map[string]http.HandlerFunc{
		"the store sends no more": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Etag", `"e"`)
			w.Header().Set("Content-Length", fmt.Sprint(length))
			_, _ = w.Write(make([]byte, 100_000))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
		"the store does not answer": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"the job reads no more": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"e"`)
			w.Header().Set("Content-Length", fmt.Sprint(length))
			_, _ = w.Write(make([]byte, length))
		},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			asked := make(chan struct{}, 1)
			f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				answer(w, r)
			})
			if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", front.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			if _, err := io.WriteString(c, "GET /data/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			<-asked
			if name != "the store does not answer" {
				if _, err := bufio.NewReaderSize(c, 16).Peek(8); err != nil {
					t.Fatal(err)
				}
			}
			within(t, 30*time.Second, "the wipe", func() {
				if _, err := f.Wipe(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// stagedFront is a front with one staged object at url, whose home answers
// with 304 to those who know the version.
func stagedFront(t *testing.T, url string) (*cache.Front, *httptest.Server) {
	t.Helper()
	f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"e"`)
		if r.Header.Get("If-None-Match") == `"e"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, "from home")
	})
	o := datasync.Object{Bucket: "data", Key: "a", ETag: "e", Size: 100_000, Staged: "x", StagedSize: seal.Size(100_000), URL: url}
	if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst, Objects: []datasync.Object{o}}); err != nil {
		t.Fatal(err)
	}
	return f, front
}

// A staging store that stops in mid-object holds up nobody: the job gets its
// object from home, and the filling of the cache ends with an error.
//
// cases: H-32 benbjohnson/litestream#1083
func TestStagingThatStalls(t *testing.T) {
	stalled := make(chan struct{})
	staging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/late") {
			<-stalled
		}
		_, _ = w.Write(make([]byte, 40))
		_ = http.NewResponseController(w).Flush()
		<-stalled
	}))
	t.Cleanup(staging.Close)
	t.Cleanup(func() { close(stalled) }) // before the server waits for its requests
	for _, path := range []string{"/late", "/half"} {
		t.Run(path, func(t *testing.T) {
			f, front := stagedFront(t, staging.URL+path)
			filled := make(chan error, 1)
			go func() { filled <- f.Prefetch(context.Background()) }()
			for range 2 {
				within(t, time.Minute, "the read", func() {
					if code, body := send(t, "GET", front.URL+"/data/a", ""); code != 200 || body != "from home" {
						t.Errorf("%d %q", code, body)
					}
				})
			}
			within(t, time.Minute, "the filling", func() {
				if err := <-filled; err == nil || strings.Contains(err.Error(), path) {
					t.Errorf("Prefetch: %v, want an error that does not tell the URL", err)
				}
			})
		})
	}
}

// A presigned URL is asked at the store that it names and nowhere else.
func TestStagingLeadsNowhereElse(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the staging store led the node elsewhere")
	}))
	t.Cleanup(elsewhere.Close)
	staging := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(staging.Close)
	f, _ := stagedFront(t, staging.URL)
	if err := f.Prefetch(t.Context()); err == nil || !strings.Contains(err.Error(), "307") {
		t.Errorf("Prefetch: %v", err)
	}
}

// What a staging store sends for a manifest is bounded.
func TestEndlessManifest(t *testing.T) {
	staging := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for piece := make([]byte, 1<<20); r.Context().Err() == nil; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	t.Cleanup(staging.Close)
	n := newNode(t)
	n.maxManifest = 4 << 20
	f := n.front(t, n.key)
	within(t, time.Minute, "the manifest", func() {
		if _, err := f.Manifest(t.Context(), staging.URL, "", seal.DataKey{1}, nil); err == nil || !strings.Contains(err.Error(), "larger than") {
			t.Errorf("Manifest: %v", err)
		}
	})
}

// A thousand reads take as many connections to the gate as read at a time.
//
// cases: E8 mimir#13841, versitygw PR#353, s3fs PR#404
func TestConnectionsAreUsedAgain(t *testing.T) {
	var opened atomic.Int64
	home := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"e"`)
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, "an object")
	}))
	home.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	home.Start()
	t.Cleanup(home.Close)
	n := newNode(t)
	n.home = home
	f := n.front(t, n.key)
	const jobs = 8
	var all sync.WaitGroup
	for job := range jobs {
		all.Go(func() {
			for i := range 125 {
				write(t, f, []string{"GET", "GET", "PUT"}[i%3], fmt.Sprint(job, "/", i%5))
			}
		})
	}
	all.Wait()
	if got := opened.Load(); got > 4*jobs {
		t.Errorf("%d connections for %d jobs", got, jobs)
	}
}
