package cache_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/seal"
)

// Nothing is believed for a time: each read of an object asks the store, also
// the first behind a write through the same front, and what was written at home
// in between is what it gets.
//
// cases: H16 hybrid-cache 2.0.0
func TestEveryReadAsks(t *testing.T) {
	g := newRig(t)
	g.stage(t)
	job := g.job(t)
	for round, body := range [][]byte{blob(50_000, "first"), blob(50_000, "other"), blob(70_000, "third")} {
		if _, err := job.Client.PutObject(t.Context(), "data", "k", bytes.NewReader(body), int64(len(body)), minio.PutObjectOptions{DisableMultipart: true}); err != nil {
			t.Fatal(err)
		}
		before := len(g.seen(t, "k", 1))
		for n := 1; n <= 3; n++ {
			mustRead(t, job, "k", body)
			if asked := len(g.seen(t, "k", before+n)) - before; asked != n {
				t.Errorf("round %d: %d reads, and the store was asked %d times", round, n, asked)
			}
		}
		home := blob(50_000, "from home")
		g.put(t, "k", home)
		mustRead(t, job, "k", home)
	}
	if g.front.Stats().Hits == 0 {
		t.Error("nothing was ever answered from the disk")
	}
}

// deaf is the address of a listener whose queue is full: a connection to it is
// neither taken nor refused.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 3 { // until the queue is full
		if c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	return addr
}

// Where nobody answers a connection, as behind a Service without endpoints, the
// job hears soon that it should try again.
//
// cases: E7 k8s#121371 (connect hangs for 129 s)
func TestAGateThatTakesNoConnection(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	f, err := cache.New(cache.Config{
		Burst: burst, Gate: &url.URL{Scheme: "https", Host: deaf(t)}, Hosts: []string{storeName}, Dir: t.TempDir() + "/cache", Random: rand.Reader, Now: time.Now,
		Transport: cache.Transport(nil, ca.pool),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	began, w := time.Now(), newRecorder()
	r := newRequest(t, http.MethodGet, "/data/k")
	r.RemoteAddr = "127.0.0.1:1"
	f.ServeHTTP(w, r)
	if took := time.Since(began); took > 25*time.Second || w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "try again") {
		t.Errorf("after %v: %d %s", took, w.Code, w.Body)
	}
}

// A line that has gone dead, which nobody is told of, does not hold a job for
// ever either: its read ends as one that may be tried again.
//
// cases: E7 k8s#121371
func TestAStoreThatNeverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := cache.New(cache.Config{
			Burst: burst, Gate: &url.URL{Scheme: "https", Host: "gate"}, Hosts: []string{storeName}, Dir: t.TempDir() + "/cache", Random: rand.Reader, Now: time.Now,
			Transport: silent{},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
			t.Fatal(err)
		}
		began, w := time.Now(), newRecorder()
		r := newRequest(t, http.MethodGet, "/data/k")
		r.RemoteAddr = "127.0.0.1:1"
		f.ServeHTTP(w, r)
		if took := time.Since(began); took != 30*time.Second || w.Code != http.StatusServiceUnavailable {
			t.Errorf("after %v: %d %s", took, w.Code, w.Body)
		}
	})
}

// silent is a line on which nothing comes back.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}
