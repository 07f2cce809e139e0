//go:build ceph

// The tests here need root and install Debian packages: make ceph runs them.

package ceph_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/signer"

	"spillway.dev/spillway/e2e/ceph"
)

// start starts a gateway with an owner of buckets and a stranger.
func start(t *testing.T) *ceph.Lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	lab, err := ceph.Start(ctx, ceph.Config{
		Cache: filepath.Join("..", "..", "bin", ".built"), Dir: t.ArtifactDir(), Name: "s3.onprem.test",
		Users: []ceph.User{
			{Name: "owner", AccessKey: "owner", SecretKey: "ownersecret"},
			{Name: "stranger", AccessKey: "stranger", SecretKey: "strangersecret"},
		},
		Progress: func(line string) { t.Logf("%4.0f s: %s", time.Since(began).Seconds(), line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%4.0f s: the gateway serves", time.Since(began).Seconds())
	return lab
}

// request is one of a client, with what is added behind its signature.
type request struct {
	method, path      string
	signed, unsigned  map[string]string
	body, who, secret string // who is the access key; its secret, unless given, is that and "secret"
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %q, %.200q", a.status, a.header, a.body) }

func ask(t *testing.T, lab *ceph.Lab, q request) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), q.method, lab.URL()+q.path, strings.NewReader(q.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	for name, value := range q.signed {
		r.Header.Set(name, value)
	}
	if q.who != "" {
		r = signer.SignV4(*r, q.who, cmp.Or(q.secret, q.who+"secret"), "", "us-east-1")
	}
	for name, value := range q.unsigned {
		r.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// What front and gate rely on, and why the front asks a gateway by x-rgw-auth
// and not by If-None-Match: said by the gateway itself.
func TestWhatTheFrontReliesOn(t *testing.T) {
	lab := start(t)
	put := func(path, body, owner string) {
		if a := ask(t, lab, request{method: "PUT", path: path, who: "owner", body: body, signed: map[string]string{"X-Amz-Meta-Owner": owner}}); a.status != 200 {
			t.Fatal(a)
		}
	}
	put("/data", "", "")
	put("/data/k", "hello", "vision")
	first := ask(t, lab, request{method: "GET", path: "/data/k", who: "owner"})
	etag := first.header.Get("Etag")
	get := func(who string, unsigned ...string) answer {
		q := request{method: "GET", path: "/data/k", who: who, unsigned: map[string]string{}}
		for i := 0; i < len(unsigned); i += 2 {
			q.unsigned[unsigned[i]] = unsigned[i+1]
		}
		return ask(t, lab, q)
	}
	t.Run("each object says that it is a gateway's", func(t *testing.T) {
		if first.header.Get("X-Rgw-Object-Type") == "" {
			t.Error(first)
		}
	})
	t.Run("x-rgw-auth tells all headers, and sends nothing", func(t *testing.T) {
		a := get("owner", "X-Rgw-Auth", "yes")
		same := a.header.Clone()
		for _, name := range []string{"Date", "X-Amz-Request-Id", "Content-Length"} {
			same.Set(name, first.header.Get(name))
		}
		if a.status != 200 || a.body != "" || a.header.Get("Content-Length") != "0" || fmt.Sprint(same) != fmt.Sprint(first.header) {
			t.Errorf("%v\nwithout it: %v", a, first)
		}
	})
	t.Run("it refuses whom the gateway refuses", func(t *testing.T) {
		for _, who := range []string{"stranger", "", "nobody"} {
			if a := get(who, "X-Rgw-Auth", "yes"); a.status != 403 {
				t.Errorf("%q: %v", who, a)
			}
		}
	})
	t.Run("it does not look at a range", func(t *testing.T) { // so that only a range that can be is asked for with it
		if a := get("owner", "X-Rgw-Auth", "yes", "Range", "bytes=99-"); a.status != 206 || a.body != "" {
			t.Error(a)
		}
	})
	t.Run("a wrong signature is refused, whatever the ETag", func(t *testing.T) {
		if a := ask(t, lab, request{method: "GET", path: "/data/k", who: "owner", secret: "wrong", unsigned: map[string]string{"If-None-Match": etag}}); a.status != 403 {
			t.Error(a)
		}
	})
	t.Run("a bare 304 hides other metadata, x-rgw-auth does not", func(t *testing.T) {
		a := ask(t, lab, request{method: "PUT", path: "/data/k", who: "owner", signed: map[string]string{
			"X-Amz-Copy-Source": "/data/k", "X-Amz-Metadata-Directive": "REPLACE", "X-Amz-Meta-Owner": "audio",
		}})
		if a.status != 200 {
			t.Fatal(a)
		}
		if a := get("owner", "If-None-Match", etag); a.status != 304 || a.header.Get("Last-Modified") != "" {
			t.Errorf("the 304 tells: %v", a)
		}
		if a := get("owner", "X-Rgw-Auth", "yes"); a.header.Get("Etag") != etag || a.header.Get("X-Amz-Meta-Owner") != "audio" {
			t.Error(a)
		}
	})
	t.Run("an access list that nobody signed is obeyed, so the gate refuses it", func(t *testing.T) {
		ask(t, lab, request{method: "PUT", path: "/data/open", who: "owner", body: "x", unsigned: map[string]string{"X-Amz-Acl": "public-read"}})
		if a := ask(t, lab, request{method: "GET", path: "/data/open"}); a.status != 200 {
			t.Errorf("no longer: %v", a)
		}
	})
	t.Run("nothing of the lab is left", func(t *testing.T) {
		if err := lab.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := http.Get(lab.URL()); err == nil {
			t.Error("the gateway still answers")
		}
	})
}
