package cache_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
)

func newRequest(t *testing.T, method, target string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = storeName
	return r
}

func newRecorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

// headerText writes the headers that two answers about one object must share.
func headerText(h http.Header) string {
	h = h.Clone()
	for _, name := range []string{"Date", "X-Amz-Request-Id", "X-Amz-Id-2", "Server", "Connection"} {
		h.Del(name)
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		lines = append(lines, fmt.Sprintf("%s: %q", name, h[name]))
	}
	return strings.Join(lines, "\n")
}

// say writes a result of a client call so that two can be compared.
func say(v any, err error) string {
	if err != nil {
		e := minio.ToErrorResponse(err)
		return fmt.Sprintf("error %d %s %s %s %s", e.StatusCode, e.Code, e.Message, e.BucketName, e.Key)
	}
	return fmt.Sprintf("%+v", v)
}

// calls are what a plain S3 client does, each as a text of what it got. They
// run in order against one bucket; two runs on equal buckets must read alike.
type call struct {
	name string
	run  func(t *testing.T, c *minio.Core) string
}

func oddKeys() []string {
	// cases: D1 versitygw#181 and #275, minio-dart#115; D5 gumroad PR#6137;
	// D2 minio#3256, minio-go#795, kuma#6076; D4 runai-streamer PR#183
	return []string{
		"a%b", "a+b", "a b", "!()*'", "~", "&=;:@$,?#", "caf\u00e9", "cafe\u0301", "\u65e5\u672c", "x/y/z.tar", "a\"b", "a<b>", strings.Repeat("k", 200),
		"d//b", "/d", "d/", "d/./b", "d/../b", "%2e%2e/x", "%2F",
	}
}

func calls() []call {
	var all []call
	add := func(name string, run func(t *testing.T, c *minio.Core) string) { all = append(all, call{name, run}) }
	get := func(key string, set func(*minio.GetObjectOptions)) func(*testing.T, *minio.Core) string {
		return func(t *testing.T, c *minio.Core) string {
			var opts minio.GetObjectOptions
			if set != nil {
				set(&opts)
			}
			got, header, err := read(t, c, key, opts)
			return say(fmt.Sprintf("%d bytes %.40q\n%s", len(got), got, headerText(header)), err)
		}
	}
	for _, key := range oddKeys() {
		add("put "+key, func(t *testing.T, c *minio.Core) string {
			body := []byte("body of " + key)
			info, err := c.Client.PutObject(t.Context(), "data", key, bytes.NewReader(body), int64(len(body)), minio.PutObjectOptions{
				ContentType: "text/odd", UserMetadata: map[string]string{"Odd": "1"},
			})
			return say(info.ETag, err)
		})
		for i := range 3 {
			add(fmt.Sprint("get ", i, " ", key), get(key, nil))
		}
		add("head "+key, func(t *testing.T, c *minio.Core) string {
			info, err := c.StatObject(t.Context(), "data", key, minio.StatObjectOptions{})
			return say(headerText(info.Headers), err)
		})
	}
	add("get with checksums", get("a+b", func(o *minio.GetObjectOptions) { o.Checksum = true }))
	add("get with checksums again", get("a+b", func(o *minio.GetObjectOptions) { o.Checksum = true }))
	add("get without checksums again", get("a+b", nil))
	add("get a range", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetRange(2, 5) }))
	add("get a range with checksums", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetRange(2, 5); o.Checksum = true }))
	add("get all of it as a range with checksums", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetRange(0, 10); o.Checksum = true }))
	// cases: B7 minio PR#11400, lakeFS#2650 (the ETag is the source's, and opaque)
	add("get if match", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetMatchETag("nope") }))
	add("get if none match", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetMatchETagExcept("nope") }))
	add("get if modified since", get("a+b", func(o *minio.GetObjectOptions) { _ = o.SetModified(time.Now().Add(-time.Hour)) }))
	add("get a part", get("a+b", func(o *minio.GetObjectOptions) { o.PartNumber = 1 })) // cases: H2
	add("get with another type", get("a+b", func(o *minio.GetObjectOptions) { o.SetReqParam("response-content-type", "x/y") }))
	add("get what isn't there", get("missing", nil))
	add("get twice what isn't there", get("missing", nil))
	add("list", listAll(minio.ListObjectsOptions{Recursive: true}))
	add("list with small pages", listAll(minio.ListObjectsOptions{Recursive: true, MaxKeys: 2})) // cases: D10
	add("list v1", listAll(minio.ListObjectsOptions{Recursive: true, UseV1: true}))
	add("list a folder", listAll(minio.ListObjectsOptions{Prefix: "x/"}))
	return append(all, writingCalls()...)
}

func listAll(opts minio.ListObjectsOptions) func(*testing.T, *minio.Core) string {
	return func(t *testing.T, c *minio.Core) string {
		var out []string
		for o := range c.ListObjectsIter(t.Context(), "data", opts) {
			out = append(out, fmt.Sprint(o.Key, o.Size, o.ETag, o.Err))
		}
		return strings.Join(out, "\n")
	}
}

func writingCalls() []call {
	put := func(key string, body []byte, opts minio.PutObjectOptions) func(*testing.T, *minio.Core) string {
		return func(t *testing.T, c *minio.Core) string {
			info, err := c.Client.PutObject(t.Context(), "data", key, bytes.NewReader(body), int64(len(body)), opts)
			return say(fmt.Sprint(info.ETag, info.Size), err)
		}
	}
	get := func(key string) func(*testing.T, *minio.Core) string {
		return func(t *testing.T, c *minio.Core) string {
			got, header, err := read(t, c, key, minio.GetObjectOptions{})
			return say(fmt.Sprintf("%d bytes\n%s", len(got), headerText(header)), err)
		}
	}
	return []call{
		{"put nothing", put("out/empty", nil, minio.PutObjectOptions{})},
		{"get nothing", get("out/empty")},
		{"put unsigned payload", put("out/unsigned", []byte("u"), minio.PutObjectOptions{DisableContentSha256: true})},
		{"put with md5", put("out/md5", []byte("m"), minio.PutObjectOptions{SendContentMd5: true})},
		{"put with checksum", put("out/crc", []byte("c"), minio.PutObjectOptions{Checksum: minio.ChecksumSHA256})},
		{"put if absent, first", func(t *testing.T, c *minio.Core) string {
			var opts minio.PutObjectOptions
			opts.SetMatchETagExcept("*")
			return put("out/once", []byte("1"), opts)(t, c)
		}},
		{"put if absent, again", func(t *testing.T, c *minio.Core) string {
			var opts minio.PutObjectOptions
			opts.SetMatchETagExcept("*")
			return put("out/once", []byte("2"), opts)(t, c)
		}},
		{"multipart", put("out/multi", blob(12<<20, "p"), minio.PutObjectOptions{PartSize: 5 << 20})},
		{"get the multipart object", get("out/multi")},
		{"get the multipart object again", get("out/multi")},
		{"copy", func(t *testing.T, c *minio.Core) string {
			info, err := c.Client.CopyObject(t.Context(), minio.CopyDestOptions{Bucket: "data", Object: "out/copy"},
				minio.CopySrcOptions{Bucket: "data", Object: "a+b"})
			return say(info.ETag, err)
		}},
		{"get the copy", get("out/copy")},
		{"overwrite", put("a+b", []byte("overwritten"), minio.PutObjectOptions{DisableContentSha256: true})},
		{"get the overwritten", get("a+b")},
		{"delete", func(t *testing.T, c *minio.Core) string {
			return say("", c.RemoveObject(t.Context(), "data", "a+b", minio.RemoveObjectOptions{}))
		}},
		{"get the deleted", get("a+b")},
		{"delete many", func(t *testing.T, c *minio.Core) string {
			keys := make(chan minio.ObjectInfo, 2)
			keys <- minio.ObjectInfo{Key: "a b"}
			keys <- minio.ObjectInfo{Key: "~"}
			close(keys)
			var out []string
			for r := range c.RemoveObjectsWithResult(t.Context(), "data", keys, minio.RemoveObjectsOptions{}) {
				out = append(out, fmt.Sprint(r.ObjectName, r.Err))
			}
			slices.Sort(out)
			return strings.Join(out, "\n")
		}},
		{"get one of many deleted", get("~")},
		{"put into a bucket that isn't there", func(t *testing.T, c *minio.Core) string {
			_, err := c.Client.PutObject(t.Context(), "data", "", strings.NewReader("x"), 1, minio.PutObjectOptions{})
			return say("", err)
		}},
		{"list at the end", listAll(minio.ListObjectsOptions{Recursive: true})},
	}
}

// The same calls of the same client give the same answers direct and through
// front and gate: for a client with rights, and for one without.
//
// cases: E4, E5, E11, H8, A4, B2, D1, D5, D10
func TestSameAnswersAsDirect(t *testing.T) {
	for _, who := range [][2]string{{"job", "jobsecret"}, {"stranger", "strangersecret"}, {"job", "wrong"}} {
		t.Run(who[0]+" with "+who[1], func(t *testing.T) {
			home, away := newRig(t), newRig(t)
			away.stage(t)
			direct := home.client(t, home.store.Addr(), who[0], who[1])
			through := away.client(t, away.addr(), who[0], who[1])
			for _, c := range calls() {
				t.Run(c.name, func(t *testing.T) {
					a, b := c.run(t, direct), c.run(t, through)
					if a, b = maskDates(a), maskDates(b); a != b {
						t.Errorf("direct:\n%s\nthrough the front:\n%s", a, b)
					}
				})
			}
			if s := away.front.Stats(); who[1] == "jobsecret" && s.Hits < 20 {
				t.Errorf("the front answered only %d times itself: %+v", s.Hits, s)
			}
			if lines := away.audits.reasons(); len(lines) != 0 {
				t.Errorf("the gate refused: %v", lines)
			}
		})
	}
}

// maskDates leaves out times, which differ between two stores.
func maskDates(s string) string {
	var out []string
	for line := range strings.Lines(s) {
		if strings.HasPrefix(line, "Last-Modified: ") {
			line = "Last-Modified\n"
		}
		out = append(out, line)
	}
	return strings.Join(out, "")
}

// A presigned URL is as good as a signed header, through the front as direct.
func TestPresigned(t *testing.T) {
	g := newRig(t)
	body := blob(40_000, "p")
	g.put(t, "odd key+%", body)
	g.stage(t, "odd key+%")
	u, err := g.direct(t).PresignedGetObject(t.Context(), "data", "odd key+%", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	get := func(addr, url string) (int, string, []byte) {
		resp, err := (&http.Client{Transport: dialTo(addr)}).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, headerText(resp.Header), got
	}
	for name, url := range map[string]string{"good": u.String(), "forged": u.String() + "0", "with another type": u.String() + "&response-content-type=a%2Fb"} {
		t.Run(name, func(t *testing.T) {
			status, header, got := get(g.addr(), url)
			wantStatus, wantHeader, want := get(g.store.Addr(), url)
			if status != wantStatus || (status == 200 && (header != wantHeader || !bytes.Equal(got, want))) {
				t.Errorf("through the front: %d %s\ndirect: %d %s", status, header, wantStatus, wantHeader)
			}
		})
	}
	if s := g.front.Stats(); s.Hits != 1 {
		t.Errorf("the front says %+v", s)
	}
}

// Names of metadata come as S3 stores write them, in lower case: boto3 and
// others show them to the job as they come, and "Owner" is not "owner".
func TestMetadataNamesAreInLowerCase(t *testing.T) {
	g := newRig(t)
	g.put(t, "k", []byte("body"))
	g.stage(t)
	u, err := g.direct(t).PresignedGetObject(t.Context(), "data", "k", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"home", "the disk"} {
		conn, err := net.Dial("tcp", g.addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", u.RequestURI(), u.Host); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil || !bytes.Contains(answer, []byte("\r\nx-amz-meta-owner: vision\r\n")) || !bytes.HasSuffix(answer, []byte("body")) {
			t.Errorf("from %s: %q, %v", from, answer, err)
		}
	}
	if s := g.front.Stats(); s.Hits != 1 || s.Misses != 1 {
		t.Errorf("the front says %+v", s)
	}
}
