package cache_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/seal"
)

// node is a burst node's disk, on which one front after another runs.
type node struct {
	home        *httptest.Server
	dir         string
	key         seal.DataKey
	maxManifest int64
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), key: seal.DataKey{7}}
	n.home = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"e"`)
	}))
	t.Cleanup(n.home.Close)
	return n
}

func (n *node) results() string { return filepath.Join(n.dir, "results") }

func (n *node) front(t *testing.T, key seal.DataKey) *cache.Front {
	t.Helper()
	gate, err := url.Parse(n.home.URL)
	if err != nil {
		t.Fatal(err)
	}
	f, err := cache.New(cache.Config{
		Burst: burst, Gate: gate, Transport: cache.Transport(nil, nil), Hosts: []string{storeName}, Dir: filepath.Join(n.dir, "cache"),
		Results: n.results(), Random: rand.Reader, Now: time.Now, MaxManifest: n.maxManifest,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Unlock(key, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	return f
}

func write(t *testing.T, f *cache.Front, method, key string) {
	t.Helper()
	r := httptest.NewRequest(method, "/data/"+key, strings.NewReader("a result"))
	r.Host, r.RemoteAddr = storeName, "127.0.0.1:1"
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Errorf("%s %s: %d", method, key, w.Code)
	}
}

func names(f *cache.Front) string {
	var all []string
	for _, u := range f.Uploads() {
		all = append(all, u.Key)
	}
	return strings.Join(all, " ")
}

// Whatever a kill cut off, what stands in front of it is known to the next
// front, and what is written then to the one after that.
func TestResultsAreKeptUpToACut(t *testing.T) {
	n := newNode(t)
	f := n.front(t, n.key)
	var lengths []int64
	for _, step := range []string{"PUT a", "PUT b", "DELETE a", "PUT c"} {
		method, key, _ := strings.Cut(step, " ")
		write(t, f, method, key)
		info, err := os.Stat(n.results())
		if err != nil {
			t.Fatal(err)
		}
		lengths = append(lengths, info.Size())
	}
	whole, err := os.ReadFile(n.results())
	if err != nil {
		t.Fatal(err)
	}
	known := []string{"", "a", "a b", "b", "b c"}
	for cut := int64(0); cut <= int64(len(whole)); cut += 13 {
		t.Run(fmt.Sprint("cut at ", cut), func(t *testing.T) {
			if err := os.WriteFile(n.results(), whole[:cut], 0o600); err != nil {
				t.Fatal(err)
			}
			entries := 0
			for entries < len(lengths) && lengths[entries] <= cut {
				entries++
			}
			f := n.front(t, n.key)
			if got := names(f); got != known[entries] {
				t.Fatalf("known: %q, want %q", got, known[entries])
			}
			write(t, f, "PUT", "z")
			want := strings.TrimSpace(known[entries] + " z")
			if got := names(n.front(t, n.key)); got != want {
				t.Errorf("known to the next: %q, want %q", got, want)
			}
		})
	}
}

// An entry that was changed, moved or comes from another burst's key counts
// for nothing; nor does anything behind it.
func TestForeignResultsAreNotBelieved(t *testing.T) {
	n := newNode(t)
	f := n.front(t, n.key)
	write(t, f, "PUT", "a")
	first, err := os.ReadFile(n.results())
	if err != nil {
		t.Fatal(err)
	}
	write(t, f, "PUT", "b")
	both, err := os.ReadFile(n.results())
	if err != nil {
		t.Fatal(err)
	}
	flipped := append([]byte{}, both...)
	flipped[len(first)/2] ^= 1
	tests := map[string]struct {
		file []byte
		key  seal.DataKey
		want string
	}{
		"as it was":           {both, n.key, "a b"},
		"a flipped bit":       {flipped, n.key, ""},
		"the second alone":    {both[len(first):], n.key, ""},
		"the first twice":     {append(append([]byte{}, first...), first...), n.key, "a"},
		"another key":         {both, seal.DataKey{8}, ""},
		"a length that's big": {append([]byte{0xff, 0xff, 0xff, 0xff}, both...), n.key, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(n.results(), tt.file, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := names(n.front(t, tt.key)); got != tt.want {
				t.Errorf("known: %q, want %q", got, tt.want)
			}
		})
	}
}

// After the wipe nothing is written any more, and what jobs wrote is still
// known for the last report.
func TestResultsAfterTheWipe(t *testing.T) {
	n := newNode(t)
	f := n.front(t, n.key)
	write(t, f, "PUT", "a")
	if _, err := f.Wipe(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(n.results())
	if err != nil {
		t.Fatal(err)
	}
	write(t, f, "PUT", "b")
	after, err := os.ReadFile(n.results())
	if err != nil {
		t.Fatal(err)
	}
	if len(before) != len(after) || names(f) != "a b" {
		t.Errorf("the file grew from %d to %d bytes, known: %q", len(before), len(after), names(f))
	}
}

// Headers that the store did not send are not made up from the disk.
func TestNoHeaderIsMadeUp(t *testing.T) {
	f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"e"`)
		w.Header()["Content-Type"] = nil
		if r.Header.Get("If-None-Match") == `"e"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, "an object")
	})
	if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	var headers []string
	for range 2 {
		resp, err := http.Get(front.URL + "/data/a")
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "an object" {
			t.Errorf("%q, %v", body, err)
		}
		_ = resp.Body.Close()
		headers = append(headers, headerText(resp.Header))
	}
	if s := f.Stats(); s.Hits != 1 || headers[0] != headers[1] {
		t.Errorf("%d hits, from the store:\n%s\nfrom the disk:\n%s", s.Hits, headers[0], headers[1])
	}
}
