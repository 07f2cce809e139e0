package objectstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/signer"

	"spillway.dev/spillway/e2e/objectstore"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "objectstore" {
		os.Exit(objectstore.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func start(t *testing.T, change func(*objectstore.Config)) (*objectstore.Store, string) {
	t.Helper()
	dir := t.TempDir()
	cfg := objectstore.Config{
		Dir: dir, Addr: "127.0.0.1:0", AccessKey: "root", SecretKey: "rootsecret",
		AccessLog: filepath.Join(dir, "access.log"), Exec: []string{os.Args[0], "objectstore"},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := objectstore.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s, cfg.AccessLog
}

func client(t *testing.T, s *objectstore.Store, access, secret string) *minio.Client {
	t.Helper()
	c, err := minio.New(s.Addr(), &minio.Options{Creds: credentials.NewStaticV4(access, secret, ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// entries waits until the log has n lines for key.
func entries(t *testing.T, log, key string, n int) []objectstore.Entry {
	t.Helper()
	var got []objectstore.Entry
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all, err := objectstore.ReadLog(log)
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, e := range all {
			if e.Key == key {
				got = append(got, e)
			}
		}
		if len(got) >= n {
			break
		}
	}
	if len(got) != n {
		t.Fatalf("the log has %d lines for %s, want %d: %+v", len(got), key, n, got)
	}
	return got
}

// get sends a signed GET with unsigned headers added behind the signature.
func get(t *testing.T, s *objectstore.Store, path, secret string, unsigned http.Header) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	req = signer.SignV4(*req, "root", secret, "", "us-east-1")
	for k, v := range unsigned {
		req.Header[k] = v
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, body
}

// What the front rests on: a signed GET with an added unsigned If-None-Match
// is answered with 304 and no body, and a bad signature with 403, whatever
// was added.
func TestUnsignedIfNoneMatch(t *testing.T) {
	s, log := start(t, nil)
	c, ctx := client(t, s, "root", "rootsecret"), context.Background()
	if err := c.MakeBucket(ctx, "data", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	body := strings.Repeat("spillway ", 10_000)
	info, err := c.PutObject(ctx, "data", "a/b", strings.NewReader(body), int64(len(body)), minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	etag := `"` + info.ETag + `"`
	tests := []struct {
		name, secret string
		unsigned     http.Header
		status       int
		sent         int64
	}{
		{"current version: 304 without body", "rootsecret", http.Header{"If-None-Match": {etag}}, 304, 0},
		{"current version with a range: 304 without body", "rootsecret", http.Header{"If-None-Match": {etag}, "Range": {"bytes=5-9"}}, 304, 0},
		{"other version: 200 with body", "rootsecret", http.Header{"If-None-Match": {`"0"`}}, 200, int64(len(body))},
		{"bad signature: 403, also with a matching version", "wrong", http.Header{"If-None-Match": {etag}}, 403, -1},
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, got := get(t, s, "/data/a/b", tt.secret, tt.unsigned)
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d, want %d: %.200s", resp.StatusCode, tt.status, got)
			}
			if tt.sent >= 0 && int64(len(got)) != tt.sent {
				t.Errorf("the body has %d bytes, want %d", len(got), tt.sent)
			}
			e := entries(t, log, "a/b", i+2)[i+1]
			if e.Method != "GET" || e.Bucket != "data" || e.Status != tt.status || (tt.sent >= 0 && e.BytesSent != tt.sent) {
				t.Errorf("the log says %+v", e)
			}
			if tt.status != 403 && e.Requester != "root" {
				t.Errorf("the log says requester %q", e.Requester)
			}
		})
	}
}

func TestUsersReachOnlyWhatAPolicyGives(t *testing.T) {
	s, _ := start(t, func(c *objectstore.Config) {
		c.Users = []objectstore.User{{AccessKey: "job", SecretKey: "jobsecret"}}
	})
	root, job, ctx := client(t, s, "root", "rootsecret"), client(t, s, "job", "jobsecret"), context.Background()
	for _, b := range []string{"mine", "other"} {
		if err := root.MakeBucket(ctx, b, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := root.PutObject(ctx, b, "k", bytes.NewReader([]byte("x")), 1, minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.SetBucketPolicy(ctx, "mine", objectstore.Allow("mine", "job")); err != nil {
		t.Fatal(err)
	}
	if _, err := job.StatObject(ctx, "mine", "k", minio.StatObjectOptions{}); err != nil {
		t.Errorf("the job reads its own bucket: %v", err)
	}
	if _, err := job.PutObject(ctx, "mine", "out/r", bytes.NewReader([]byte("y")), 1, minio.PutObjectOptions{}); err != nil {
		t.Errorf("the job writes its own bucket: %v", err)
	}
	if _, err := job.StatObject(ctx, "other", "k", minio.StatObjectOptions{}); minio.ToErrorResponse(err).StatusCode != 403 {
		t.Errorf("the job reads another bucket: %v", err)
	}
}

func TestVersions(t *testing.T) {
	s, _ := start(t, func(c *objectstore.Config) { c.Versions = true })
	c, ctx := client(t, s, "root", "rootsecret"), context.Background()
	if err := c.MakeBucket(ctx, "versioned", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnableVersioning(ctx, "versioned"); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"1", "22"} {
		if _, err := c.PutObject(ctx, "versioned", "k", strings.NewReader(body), int64(len(body)), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for o := range c.ListObjects(ctx, "versioned", minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
		if o.Err != nil {
			t.Fatal(o.Err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("the bucket lists %d versions, want 2", n)
	}
}

func TestAStoreThatCannotStartSaysWhy(t *testing.T) {
	s, _ := start(t, nil)
	_, err := objectstore.Start(t.Context(), objectstore.Config{
		Dir: t.TempDir(), Addr: s.Addr(), AccessKey: "a", SecretKey: "b", Exec: []string{os.Args[0], "objectstore"},
	})
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("Start: %v, want the child's own words", err)
	}
}

// An empty object is framed by minio-go as chunked aws-chunked; what the
// gateway leaves unread of it must not be taken for the next request.
func TestEmptyObjectsLeaveTheConnectionInOrder(t *testing.T) {
	s, _ := start(t, nil)
	c := client(t, s, "root", "rootsecret")
	if err := c.MakeBucket(t.Context(), "data", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		for _, body := range []string{"", "x"} {
			_, err := c.PutObject(t.Context(), "data", "k", strings.NewReader(body), int64(len(body)), minio.PutObjectOptions{})
			if err != nil {
				t.Fatalf("round %d, put %q: %v", i, body, err)
			}
		}
	}
}

// A refused upload leaves nothing on its connection either, however it is
// framed: the next request on it gets its own answer.
//
// cases: A5 seaweedfs#6703 (the framing is no part of what comes behind it)
func TestRefusedUploadsLeaveTheConnectionInOrder(t *testing.T) {
	s, _ := start(t, nil)
	one := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(one.CloseIdleConnections)
	do := func(method, secret string, header http.Header, body io.Reader) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+"/data/k", body)
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(req.Header, header)
		resp, err := one.RoundTrip(signer.SignV4(*req, "root", secret, "", "us-east-1"))
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	if err := client(t, s, "root", "rootsecret").MakeBucket(t.Context(), "data", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	unsigned := http.Header{"X-Amz-Content-Sha256": {"UNSIGNED-PAYLOAD"}}
	frame := func(size int) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", size, strings.Repeat("x", size)) }
	for _, size := range []int{0, 1, 1000, 60_000} {
		framed := http.Header{
			"X-Amz-Content-Sha256": {"STREAMING-UNSIGNED-PAYLOAD-TRAILER"}, "Content-Encoding": {"aws-chunked"},
			"X-Amz-Decoded-Content-Length": {fmt.Sprint(size)}, "X-Amz-Trailer": {"x-amz-checksum-crc32"},
		}
		for name, put := range map[string]func(secret string) (int, error){
			"with a length": func(secret string) (int, error) {
				return do("PUT", secret, unsigned, strings.NewReader(strings.Repeat("x", size)))
			},
			"in chunks": func(secret string) (int, error) {
				return do("PUT", secret, unsigned, struct{ io.Reader }{strings.NewReader(strings.Repeat("x", size))})
			},
			"framed": func(secret string) (int, error) { return do("PUT", secret, framed, strings.NewReader(frame(size))) },
			"framed in chunks": func(secret string) (int, error) {
				return do("PUT", secret, framed, struct{ io.Reader }{strings.NewReader(frame(size))})
			},
		} {
			t.Run(fmt.Sprint(size, " bytes ", name), func(t *testing.T) {
				for round := range 5 {
					for _, secret := range []string{"wrong", "rootsecret"} { // the second may be refused for its framing
						if status, err := put(secret); err != nil || secret == "wrong" && status != 403 {
							t.Fatalf("round %d: the upload with secret %s: status %d, %v", round, secret, status, err)
						}
						if status, err := do("GET", "rootsecret", unsigned, nil); err != nil || status != 200 && status != 404 {
							t.Fatalf("round %d: the request behind the upload with secret %s: status %d, %v", round, secret, status, err)
						}
					}
				}
			})
		}
	}
}
