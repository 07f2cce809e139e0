package cache_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// find returns the recorded upload of a key.
func find(g *rig, key string) *cache.Upload {
	for _, u := range g.front.Uploads() {
		if u.Key == key {
			return &u
		}
	}
	return nil
}

func TestUploadsAreRecorded(t *testing.T) {
	g := newRig(t)
	g.stage(t)
	job := g.job(t)
	body := blob(200_000, "u")
	single := map[string]minio.PutObjectOptions{
		"signed chunks":    {}, // cases: A5 seaweedfs#6703
		"unsigned payload": {DisableContentSha256: true},
		"with md5":         {SendContentMd5: true},
		"with a trailer":   {AutoChecksum: minio.ChecksumCRC32C},
		"with CRC64NVME":   {AutoChecksum: minio.ChecksumCRC64NVME}, // cases: B13 cloud37#283
	}
	for name, opts := range single {
		t.Run(name, func(t *testing.T) {
			c := job
			if opts.AutoChecksum.IsSet() {
				c = g.connect(t, g.addr(), "job", "jobsecret", true)
			}
			info, err := c.Client.PutObject(t.Context(), "data", "out/"+name, bytes.NewReader(body), int64(len(body)), opts)
			if err != nil {
				t.Fatal(err)
			}
			want := &cache.Upload{Bucket: "data", Key: "out/" + name, Size: 200_000, ETag: info.ETag, SHA256: digest(body)}
			if diff := cmp.Diff(want, find(g, "out/"+name), cmpopts.IgnoreFields(cache.Upload{}, "At")); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("multipart", func(t *testing.T) {
		big := blob(12<<20, "big")
		info, err := job.Client.PutObject(t.Context(), "data", "out/multi", bytes.NewReader(big), int64(len(big)),
			minio.PutObjectOptions{PartSize: 5 << 20, NumThreads: 3})
		if err != nil {
			t.Fatal(err)
		}
		if info.ETag == "" { // RGW 16.2 leaves it out
			stat, err := g.root.StatObject(t.Context(), "data", "out/multi", minio.StatObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			info.ETag = stat.ETag
		}
		want := &cache.Upload{Bucket: "data", Key: "out/multi", Size: 12 << 20, ETag: info.ETag, Parts: []datasync.Part{
			{Size: 5 << 20, SHA256: digest(big[:5<<20])}, {Size: 5 << 20, SHA256: digest(big[5<<20 : 10<<20])}, {Size: 2 << 20, SHA256: digest(big[10<<20:])},
		}}
		if diff := cmp.Diff(want, find(g, "out/multi"), cmpopts.IgnoreFields(cache.Upload{}, "At")); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("copy", func(t *testing.T) {
		info, err := job.Client.CopyObject(t.Context(), minio.CopyDestOptions{Bucket: "data", Object: "out/copy"},
			minio.CopySrcOptions{Bucket: "data", Object: "out/with md5"})
		if err != nil {
			t.Fatal(err)
		}
		if u := find(g, "out/copy"); u == nil || u.Size != -1 || u.ETag != info.ETag || u.SHA256 != "" {
			t.Errorf("recorded %+v", u)
		}
	})
	t.Run("what is deleted is no result", func(t *testing.T) {
		if err := job.RemoveObject(t.Context(), "data", "out/copy", minio.RemoveObjectOptions{}); err != nil {
			t.Fatal(err)
		}
		gone := make(chan minio.ObjectInfo, 1)
		gone <- minio.ObjectInfo{Key: "out/with md5"}
		close(gone)
		for r := range job.RemoveObjectsWithResult(t.Context(), "data", gone, minio.RemoveObjectsOptions{}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		if find(g, "out/copy") != nil || find(g, "out/with md5") != nil {
			t.Errorf("recorded %+v", g.front.Uploads())
		}
	})
	t.Run("what is refused is no result", func(t *testing.T) {
		_, err := g.client(t, g.addr(), "stranger", "strangersecret").Client.
			PutObject(t.Context(), "data", "out/stolen", strings.NewReader("x"), 1, minio.PutObjectOptions{})
		if err == nil || find(g, "out/stolen") != nil {
			t.Errorf("error %v, recorded %+v", err, find(g, "out/stolen"))
		}
	})
}

// fakeHome answers in place of the gate.
func fakeHome(t *testing.T, answer http.HandlerFunc) (*cache.Front, *httptest.Server) {
	t.Helper()
	home := httptest.NewServer(answer)
	t.Cleanup(home.Close)
	u, err := url.Parse(home.URL)
	if err != nil {
		t.Fatal(err)
	}
	f, err := cache.New(cache.Config{
		Burst: burst, Gate: u, Hosts: []string{"127.0.0.1"}, Dir: t.TempDir() + "/cache", Now: time.Now,
		Transport: &http.Transport{DisableCompression: true}, Random: salts{},
	})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(f)
	t.Cleanup(front.Close)
	return f, front
}

// salts gives the time; salts only have to differ here.
type salts struct{}

func (salts) Read(p []byte) (int, error) {
	copy(p, time.Now().String())
	return len(p), nil
}

func send(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, err.Error()
	}
	return resp.StatusCode, string(got)
}

// cases: A10 aws-sdk-java-v2#7068, aws-c-s3#622, bun#34044, s3cmd#577
func TestCompleteWithAnErrorInsideIsNoUpload(t *testing.T) {
	answers := map[string]struct {
		body string
		want bool
	}{
		"an error behind blanks":                   {"   \n <Error><Code>InternalError</Code></Error>", false},
		"a result behind blanks":                   {"   \n <CompleteMultipartUploadResult><ETag>\"e-1\"</ETag></CompleteMultipartUploadResult>", true},
		"a result without an ETag, as of RGW 16.2": {"<?xml version=\"1.0\" encoding=\"UTF-8\"?><CompleteMultipartUploadResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Location>h/data/k</Location><Bucket>data</Bucket><Key>k</Key><ETag></ETag></CompleteMultipartUploadResult>", true},
		"another document":                         {"<Other><ETag>\"e-1\"</ETag></Other>", false},
		"nothing that reads":                       {"   ", false},
		"a result without an end":                  {"<CompleteMultipartUploadResult><ETag>\"e-1\"</ETag>", false},
	}
	for name, tt := range answers {
		t.Run(name, func(t *testing.T) {
			f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Method == http.MethodPut {
					w.Header().Set("ETag", `"p1"`)
					return
				}
				_, _ = io.WriteString(w, tt.body)
			})
			send(t, "PUT", front.URL+"/data/k?partNumber=1&uploadId=u", "part")
			send(t, "POST", front.URL+"/data/k?uploadId=u", `<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>"p1"</ETag></Part></CompleteMultipartUpload>`)
			ups := f.Uploads()
			if (len(ups) == 1) != tt.want {
				t.Fatalf("recorded %+v", ups)
			}
			if tt.want && (ups[0].Size != 4 || len(ups[0].Parts) != 1 || ups[0].Parts[0].SHA256 != digest([]byte("part"))) {
				t.Errorf("recorded %+v", ups)
			}
		})
	}
}

// A store that leaves the ETag of a multipart object out of its answer leaves it
// to us: of an object whose parts were copied the ETag is all that can be
// compared at home.
func TestTheETagOfAMultipartObject(t *testing.T) {
	for name, tt := range map[string]struct{ first, second, want string }{
		// md5("part one") and md5("part two"); of both together, as RGW and AWS do.
		"parts with MD5s":  {"3303e12af474ca11d85ed2966a932992", "3ea4e15b91a17dc76052c56cfcdf67a2", "0732917abc3288784e318ac0aab1757a-2"},
		"parts with other": {"opaque", "3ea4e15b91a17dc76052c56cfcdf67a2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, "<CompleteMultipartUploadResult><ETag></ETag></CompleteMultipartUploadResult>")
			})
			send(t, "POST", front.URL+"/data/k?uploadId=u", `<C><Part><PartNumber>1</PartNumber><ETag>`+tt.first+`</ETag></Part><Part><PartNumber>2</PartNumber><ETag>`+tt.second+`</ETag></Part></C>`)
			if ups := f.Uploads(); len(ups) != 1 || ups[0].Size != -1 || ups[0].ETag != tt.want {
				t.Errorf("recorded %+v, want the ETag %q", ups, tt.want)
			}
		})
	}
}

// What an answer tells is recorded before its client has the whole of it, so
// that a front that is killed then has lost no result.
func TestAResultIsKnownBeforeItsAnswerEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		method, target, answer string
		header                 [2]string
	}{
		"a copy":             {"PUT", "/data/k", "<CopyObjectResult><ETag>e</ETag></CopyObjectResult>", [2]string{"X-Amz-Copy-Source", "/data/a"}},
		"a multipart upload": {"POST", "/data/k?uploadId=u", "  <CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>", [2]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				half := len(tt.answer) / 2
				for _, piece := range []string{tt.answer[:half], tt.answer[half:]} {
					_, _ = io.WriteString(w, piece)
					_ = http.NewResponseController(w).Flush()
				}
				<-end
			})
			defer close(end)
			r, err := http.NewRequestWithContext(t.Context(), tt.method, front.URL+tt.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.header[0] != "" {
				r.Header.Set(tt.header[0], tt.header[1])
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if _, err := io.ReadFull(resp.Body, make([]byte, len(tt.answer))); err != nil {
				t.Fatal(err)
			}
			if ups := f.Uploads(); len(ups) != 1 || ups[0].ETag != "e" {
				t.Errorf("the job has all of the answer but its end, recorded is %+v", ups)
			}
		})
	}
}

// cases: H13 hybrid-cache 1.11.0 (two tries at one part; the client's list decides)
func TestRepeatedPart(t *testing.T) {
	n := 0
	f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Method == http.MethodPut {
			n++
			w.Header().Set("ETag", fmt.Sprintf(`"try%d"`, n))
			return
		}
		_, _ = io.WriteString(w, `<CompleteMultipartUploadResult><ETag>"e-1"</ETag></CompleteMultipartUploadResult>`)
	})
	send(t, "PUT", front.URL+"/data/k?partNumber=1&uploadId=u", "first")
	send(t, "PUT", front.URL+"/data/k?partNumber=1&uploadId=u", "second!")
	send(t, "POST", front.URL+"/data/k?uploadId=u", `<C><Part><PartNumber>1</PartNumber><ETag>try1</ETag></Part></C>`)
	if ups := f.Uploads(); len(ups) != 1 || ups[0].Size != 5 || ups[0].Parts[0].SHA256 != digest([]byte("first")) {
		t.Errorf("recorded %+v", ups)
	}
}

// cases: H7 hybrid-cache 1.16.0, A1 minio-go#1451 (a cut body is never kept)
func TestCutBodyIsNotKept(t *testing.T) {
	cut := true
	f, front := fakeHome(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Content-Length", "100000")
		if cut {
			_, _ = w.Write(make([]byte, 60_000))
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(make([]byte, 100_000))
	})
	if err := f.Unlock([32]byte{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	if status, got := send(t, "GET", front.URL+"/data/k", ""); len(got) >= 100_000 {
		t.Errorf("a cut body came as %d, %d bytes", status, len(got))
	}
	cut = false
	if status, got := send(t, "GET", front.URL+"/data/k", ""); status != 200 || len(got) != 100_000 {
		t.Errorf("the next one came as %d, %d bytes", status, len(got))
	}
	if s := f.Stats(); s.Misses != 2 || s.Hits != 0 {
		t.Errorf("the front says %+v", s)
	}
}

// What a store answers for customer-provided keys must not be kept, and a
// request with such keys must not be revalidated.
func TestCustomerKeysPassThrough(t *testing.T) {
	f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			t.Error("a request was changed")
		}
		w.Header().Set("ETag", `"e"`)
		if r.Header.Get("X-Amz-Server-Side-Encryption-Customer-Algorithm") == "" {
			w.Header().Set("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")
		}
		_, _ = io.WriteString(w, "secret")
	})
	if err := f.Unlock([32]byte{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		send(t, "GET", front.URL+"/data/k", "")
	}
	req, err := http.NewRequestWithContext(t.Context(), "GET", front.URL+"/data/k", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Amz-Server-Side-Encryption-Customer-Algorithm", "AES256")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if s := f.Stats(); s.Hits != 0 || s.NotCached["sse-c"] != 3 {
		t.Errorf("the front says %+v", s)
	}
}

// A 304 that tells of a later change than the entry knows is a rewrite that
// kept the ETag.
func TestRewriteThatKeepsTheETag(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f, front := fakeHome(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", at.Format(http.TimeFormat))
		w.Header().Set("X-Amz-Meta-At", at.String())
		if r.Header.Get("If-None-Match") == `"e"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, "body")
	})
	if err := f.Unlock([32]byte{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	send(t, "GET", front.URL+"/data/k", "")
	send(t, "GET", front.URL+"/data/k", "")
	at = at.Add(time.Minute)
	resp, err := http.Get(front.URL + "/data/k")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if got := resp.Header.Get("X-Amz-Meta-At"); got != at.String() {
		t.Errorf("metadata of %s, want %s", got, at)
	}
	if s := f.Stats(); s.Hits != 1 || s.Misses != 2 {
		t.Errorf("the front says %+v", s)
	}
}

// cases: F14 kserve#4852 (a bounded disk evicts, and passes through what does not fit)
func TestBoundedDisk(t *testing.T) {
	home := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		n := 10_000
		if strings.HasSuffix(r.URL.Path, "huge") {
			n = 100_000
		}
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(n))
		_, _ = w.Write(make([]byte, n))
	}))
	t.Cleanup(home.Close)
	u, err := url.Parse(home.URL)
	if err != nil {
		t.Fatal(err)
	}
	f, err := cache.New(cache.Config{
		Burst: burst, Gate: u, Hosts: []string{"127.0.0.1"}, Dir: t.TempDir() + "/cache", Now: time.Now,
		Transport: &http.Transport{DisableCompression: true}, Random: salts{}, MaxBytes: 35_000,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Unlock([32]byte{1}, datasync.Manifest{Burst: burst}); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(f)
	t.Cleanup(front.Close)
	for _, key := range []string{"a", "b", "c", "a", "d", "a", "huge", "huge", "b"} {
		if status, got := send(t, "GET", front.URL+"/data/"+key, ""); status != 200 || len(got)%10_000 != 0 {
			t.Errorf("%s: %d, %d bytes", key, status, len(got))
		}
	}
	if s := f.Stats(); s.Hits != 2 || s.Misses != 7 {
		t.Errorf("the front says %+v, want hits for the two repeats of a only", s)
	}
}
