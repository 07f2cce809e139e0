package s3_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/e2e/relay"
)

// store runs a store and returns its endpoint and a plain client.
func store(t *testing.T, versions bool) (s3.Endpoint, *minio.Core) {
	t.Helper()
	addr := open(t, versions)
	c, err := minio.NewCore(addr, &minio.Options{Creds: credentials.NewStaticV4("root", "rootsecret", ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return s3.Endpoint{URL: "http://" + addr, AccessKey: "root", SecretKey: "rootsecret"}, c
}

func put(t *testing.T, c *minio.Core, bucket, key, body string, opts minio.PutObjectOptions) minio.UploadInfo {
	t.Helper()
	info, err := c.Client.PutObject(t.Context(), bucket, key, strings.NewReader(body), int64(len(body)), opts)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return info
}

func makeBucket(t *testing.T, c *minio.Core, bucket string) {
	t.Helper()
	if err := c.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
}

func source(t *testing.T, e s3.Endpoint) *s3.Source {
	t.Helper()
	s, err := s3.NewSource(e)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func staging(t *testing.T, e s3.Endpoint) *s3.Staging {
	t.Helper()
	s, err := s3.NewStaging(e)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// broken changes answers on their way to the client.
type broken struct {
	next   http.RoundTripper
	change func(*http.Request, *http.Response)
}

func (b broken) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		b.change(r, resp)
	}
	return resp, err
}

func TestSource(t *testing.T) {
	e, c := store(t, false)
	makeBucket(t, c, "data")
	src, ctx := source(t, e), t.Context()
	info := put(t, c, "data", "set/a", "hello", minio.PutObjectOptions{
		ContentType: "text/x", ContentEncoding: "gzip", CacheControl: "max-age=5", DisableContentSha256: true, UserMetadata: map[string]string{"Owner": "vision"},
	})
	put(t, c, "data", "set/b", "", minio.PutObjectOptions{DisableContentSha256: true}) // RGW 16.2 refuses an empty body that is signed in chunks
	put(t, c, "data", "other", "x", minio.PutObjectOptions{})

	t.Run("lists a prefix", func(t *testing.T) {
		all, err := src.List(ctx, datasync.Ref{Bucket: "data", Prefix: "set/"})
		if err != nil || len(all) != 2 || all[0].Key != "set/a" || all[0].Size != 5 || all[0].ETag != info.ETag {
			t.Errorf("List: %+v, %v", all, err)
		}
	})
	t.Run("a bucket that isn't there is ErrNotFound", func(t *testing.T) {
		if _, err := src.List(ctx, datasync.Ref{Bucket: "nobucket"}); !errors.Is(err, s3.ErrNotFound) {
			t.Errorf("List: %v", err)
		}
	})
	t.Run("pins the headers of the object", func(t *testing.T) {
		// cases: A4 mc#4769 (Content-Encoding is kept)
		o, err := src.Pin(ctx, "data", "set/a")
		if err != nil {
			t.Fatal(err)
		}
		if o.ETag != info.ETag || o.Size != 5 || o.ContentType != "text/x" || o.Metadata["X-Amz-Meta-Owner"] != "vision" ||
			o.Metadata["Content-Encoding"] != "gzip" || o.Metadata["Cache-Control"] != "max-age=5" {
			t.Errorf("Pin: %+v", o)
		}
		for _, h := range []string{"Date", "X-Amz-Request-Id", "Content-Length", "Etag"} {
			if v, ok := o.Metadata[h]; ok {
				t.Errorf("%s: %s belongs to one answer, not to the object", h, v)
			}
		}
	})
	t.Run("wrong credentials are ErrDenied", func(t *testing.T) {
		bad := e
		bad.SecretKey = "other"
		if _, err := source(t, bad).List(ctx, datasync.Ref{Bucket: "data"}); !errors.Is(err, s3.ErrDenied) {
			t.Errorf("List: %v", err)
		}
	})
	t.Run("an object that changed is ErrChanged", func(t *testing.T) {
		// cases: A13 s5cmd#414, A14 HADOOP-16085
		put(t, c, "data", "moving", "first version", minio.PutObjectOptions{})
		o, err := src.Pin(ctx, "data", "moving")
		if err != nil {
			t.Fatal(err)
		}
		put(t, c, "data", "moving", "2nd", minio.PutObjectOptions{})
		if _, err := src.Open(ctx, o); !errors.Is(err, s3.ErrChanged) {
			t.Errorf("Open: %v", err)
		}
	})
}

// What was read of a version that is gone by the time the line is mended is
// good, and nothing of another follows it.
//
// cases: A13 s5cmd#414, A14 HADOOP-16085
func TestNothingOfTwoVersionsIsMixed(t *testing.T) {
	e, c := store(t, false)
	makeBucket(t, c, "data")
	old := strings.Repeat("old", 1<<20)
	put(t, c, "data", "k", old, minio.PutObjectOptions{})
	line, err := relay.Start(strings.TrimPrefix(e.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = line.Close() })
	e.URL = "http://" + line.Addr()
	src := source(t, e)
	o, err := src.Pin(t.Context(), "data", "k")
	if err != nil {
		t.Fatal(err)
	}
	line.Break(relay.Break{Kind: relay.Cut, Way: relay.ToClient, After: 2 << 20})
	body, err := src.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	put(t, c, "data", "k", strings.Repeat("new", 1<<20), minio.PutObjectOptions{})
	got, err := io.ReadAll(body)
	if !errors.Is(err, s3.ErrChanged) || len(got) == 0 || !strings.HasPrefix(old, string(got)) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// cases: A1 minio-go#1451, thanos PR#3795
func TestShortBodyIsAnError(t *testing.T) {
	e, c := store(t, false)
	makeBucket(t, c, "data")
	put(t, c, "data", "k", strings.Repeat("x", 100_000), minio.PutObjectOptions{})
	e.Transport = broken{http.DefaultTransport, func(r *http.Request, resp *http.Response) {
		if r.Method == http.MethodGet {
			resp.Body = io.NopCloser(io.LimitReader(resp.Body, 50_000)) // ends cleanly, early
		}
	}}
	src := source(t, e)
	if d, err := src.Digest(t.Context(), "data", "k", nil); err == nil {
		t.Errorf("Digest of half a body: %+v", d)
	}
}

func TestDigest(t *testing.T) {
	e, c := store(t, false)
	makeBucket(t, c, "data")
	put(t, c, "data", "k", "aaabb", minio.PutObjectOptions{})
	sum := func(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }
	tests := map[string]struct {
		pieces []int64
		want   []datasync.Part
	}{
		"as a whole":                    {nil, []datasync.Part{{Size: 5, SHA256: sum("aaabb")}}},
		"in pieces":                     {[]int64{3, 2}, []datasync.Part{{Size: 3, SHA256: sum("aaa")}, {Size: 2, SHA256: sum("bb")}}},
		"with a rest behind the pieces": {[]int64{3}, []datasync.Part{{Size: 3, SHA256: sum("aaa")}, {Size: 2, SHA256: sum("bb")}}},
		"too short for the pieces":      {[]int64{3, 9}, []datasync.Part{{Size: 3, SHA256: sum("aaa")}, {Size: 2, SHA256: sum("bb")}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, err := source(t, e).Digest(t.Context(), "data", "k", tt.pieces)
			if err != nil || d.SHA256 != sum("aaabb") || d.Size != 5 || fmt.Sprint(d.Parts) != fmt.Sprint(tt.want) {
				t.Errorf("Digest: %+v, %v", d, err)
			}
		})
	}
}

func TestStaging(t *testing.T) {
	e, _ := store(t, false)
	st, ctx := staging(t, e), t.Context()
	for range 2 {
		if err := st.Ensure(ctx, "spw-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Put(ctx, "spw-1", "name", strings.NewReader("sealed"), 6); err != nil {
		t.Fatal(err)
	}
	t.Run("looks at one", func(t *testing.T) {
		if o, err := st.Stat(ctx, "spw-1", "name"); err != nil || o.Size != 6 {
			t.Errorf("Stat: %+v, %v", o, err)
		}
	})
	t.Run("lists by name", func(t *testing.T) {
		if all, err := st.List(ctx, "spw-1"); err != nil || len(all) != 1 || all["name"].Size != 6 {
			t.Errorf("List: %+v, %v", all, err)
		}
	})
	t.Run("a bucket that isn't there lists as empty", func(t *testing.T) {
		if all, err := st.List(ctx, "spw-none"); err != nil || len(all) != 0 {
			t.Errorf("List: %+v, %v", all, err)
		}
	})
	t.Run("a presigned URL reads without credentials", func(t *testing.T) {
		u, err := st.Presign(ctx, "spw-1", "name", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Get(u)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); string(body) != "sealed" {
			t.Errorf("GET: %d %q", resp.StatusCode, body)
		}
	})
	t.Run("a reader that fails leaves no object", func(t *testing.T) {
		cut := io.MultiReader(strings.NewReader("abc"), errReader{})
		if err := st.Put(ctx, "spw-1", "half", cut, 6); err == nil {
			t.Error("Put of a broken reader succeeds")
		}
		if _, err := st.Stat(ctx, "spw-1", "half"); !errors.Is(err, s3.ErrNotFound) {
			t.Errorf("Stat: %v", err)
		}
	})
	t.Run("a large one goes up in parts", func(t *testing.T) {
		big := bytes.Repeat([]byte("spillway"), 40<<20/8)
		if err := st.Put(ctx, "spw-1", "big", io.MultiReader(bytes.NewReader(big)), int64(len(big))); err != nil {
			t.Fatal(err)
		}
		body, err := st.Get(ctx, "spw-1", "big")
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, big) {
			t.Errorf("read back %d of %d bytes, %v", len(got), len(big), err)
		}
	})
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("line cut") }

// cases: F1 marin#8356, F2 mc#5261, mc#3496
func TestSweepTakesVersionsMarkersAndUploads(t *testing.T) {
	e, c := store(t, true)
	st, ctx := staging(t, e), t.Context()
	makeBucket(t, c, "spw-v")
	if err := c.EnableVersioning(ctx, "spw-v"); err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"1", "2", "3"} {
		put(t, c, "spw-v", "a", body, minio.PutObjectOptions{})
	}
	put(t, c, "spw-v", "b", "1", minio.PutObjectOptions{})
	if err := c.RemoveObject(ctx, "spw-v", "b", minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	id, err := c.NewMultipartUpload(ctx, "spw-v", "c", minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutObjectPart(ctx, "spw-v", "c", id, 1, strings.NewReader("part"), 4, minio.PutObjectPartOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := st.RemoveBucket(ctx, "spw-v"); err == nil {
		t.Fatal("a full bucket was removed")
	}
	first, err := st.Sweep(ctx, "spw-v")
	if err != nil {
		t.Fatal(err)
	}
	if first.Objects+first.Versions != 4 || first.Markers != 1 || first.Uploads != 1 {
		t.Errorf("first pass: %+v", first)
	}
	second, err := st.Sweep(ctx, "spw-v")
	if err != nil || !second.Empty() || second.ListSHA256 == first.ListSHA256 {
		t.Errorf("second pass: %+v, %v", second, err)
	}
	for range 2 {
		if err := st.RemoveBucket(ctx, "spw-v"); err != nil {
			t.Fatal(err)
		}
	}
	if there, err := st.Exists(ctx, "spw-v"); err != nil || there {
		t.Errorf("the bucket is there: %v, %v", there, err)
	}
}

// cases: F13 (DeleteObjects answers 200 with an error for one key), F8
func TestSweepCountsWhatTheStoreKept(t *testing.T) {
	e, c := store(t, false)
	makeBucket(t, c, "spw-l")
	for i := range 3 {
		put(t, c, "spw-l", fmt.Sprint("k", i), "x", minio.PutObjectOptions{})
	}
	e.Transport = broken{http.DefaultTransport, func(r *http.Request, resp *http.Response) {
		if r.Method != http.MethodPost || !r.URL.Query().Has("delete") {
			return
		}
		const answer = `<DeleteResult><Deleted><Key>k0</Key></Deleted><Deleted><Key>k2</Key></Deleted>` +
			`<Error><Key>k1</Key><Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>`
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(answer)), int64(len(answer))
	}}
	swept, err := staging(t, e).Sweep(t.Context(), "spw-l")
	if err == nil || swept.Objects != 2 || !strings.Contains(err.Error(), "kept 1 of 3") {
		t.Errorf("Sweep: %+v, %v", swept, err)
	}
}

func TestSweepNeverTakesAFailedListingForEmpty(t *testing.T) {
	for _, what := range []string{"uploads", "versions"} {
		t.Run(what, func(t *testing.T) {
			e, c := store(t, true)
			makeBucket(t, c, "spw-f")
			e.Transport = broken{http.DefaultTransport, func(r *http.Request, resp *http.Response) {
				if r.URL.Query().Has(what) {
					resp.StatusCode = http.StatusForbidden
				}
			}}
			if swept, err := staging(t, e).Sweep(t.Context(), "spw-f"); err == nil {
				t.Errorf("Sweep: %+v without error", swept)
			}
		})
	}
}

// What will not get better is asked once; who calls decides what it means.
//
// cases: H-29 restic/restic#1628, restic/restic#5452, neondatabase/neon#7127
func TestFinalAnswersAreNotAskedAgain(t *testing.T) {
	for status, want := range map[int]error{
		http.StatusNotFound: s3.ErrNotFound, http.StatusUnauthorized: s3.ErrDenied, http.StatusForbidden: s3.ErrDenied,
		http.StatusPreconditionFailed: s3.ErrChanged, http.StatusInsufficientStorage: nil,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.WriteHeader(status)
			}))
			t.Cleanup(server.Close)
			end := s3.Endpoint{URL: server.URL, AccessKey: "a", SecretKey: "b"}
			src, err := s3.NewSource(end)
			if err != nil {
				t.Fatal(err)
			}
			staging, err := s3.NewStaging(end)
			if err != nil {
				t.Fatal(err)
			}
			for name, call := range map[string]func() error{
				"pin": func() error { _, err := src.Pin(t.Context(), "data", "k"); return err },
				"open": func() error {
					_, err := src.Open(t.Context(), datasync.Object{Bucket: "data", Key: "k", ETag: "e"})
					return err
				},
				"put": func() error { return staging.Put(t.Context(), "staging", "k", strings.NewReader("x"), 1) },
			} {
				asked.Store(0)
				if err := call(); err == nil || want != nil && !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", name, err, want)
				}
				if n := asked.Load(); n != 1 {
					t.Errorf("%s: asked %d times", name, n)
				}
			}
		})
	}
}

func TestEndpointHidesItsSecret(t *testing.T) {
	e := s3.Endpoint{URL: "http://store:9000", AccessKey: "ak", SecretKey: "TOPSECRET"}
	j, err := json.Marshal(struct{ E s3.Endpoint }{e})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s %q %x", e, e, e, e, e, e) + string(j); strings.Contains(text, "TOPSECRET") {
		t.Error(text)
	}
	if _, err := s3.NewSource(s3.Endpoint{URL: "store:9000"}); err == nil || !strings.Contains(err.Error(), "write http://") {
		t.Errorf("a URL without scheme: %v", err)
	}
}
