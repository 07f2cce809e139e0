package s3wire_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"spillway.dev/spillway/datasync/s3wire"
)

var hosts = []string{"s3.onprem.test", "127.0.0.1"}

// recorder answers on a raw connection and hands out what came in.
func recorder(t *testing.T) (*url.URL, <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go record(c, got)
		}
	}()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, got
}

func record(c net.Conn, got chan<- string) {
	defer c.Close()
	var head strings.Builder
	length, in := 0, bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		head.WriteString(line)
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &length)
		if err != nil || line == "\r\n" {
			break
		}
	}
	body, _ := io.ReadAll(io.LimitReader(in, int64(length)))
	got <- head.String() + string(body)
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

// passage forwards everything to base.
func passage(t *testing.T, base *url.URL) string {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := tr.RoundTrip(s3wire.Forward(r.Context(), r, base))
		if err != nil {
			t.Errorf("forward: %v", err)
			return
		}
		s3wire.Answer(w, resp, nil)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// send writes raw bytes to addr and waits for the answer.
func send(t *testing.T, addr, raw string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	if _, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
		t.Fatal(err)
	}
}

// cases: D1 versitygw#181 and #275, minio-dart#115; D2 minio#3256, nginx-s3-gateway#576;
// D5 gumroad PR#6137; E5 aws-sdk-go#1473, s3proxy#645
func TestRequestLineIsByteExact(t *testing.T) {
	base, got := recorder(t)
	addr := passage(t, base)
	targets := []string{
		"/data/a", "/data/a%25b", "/data/a+b", "/data/a%2Bb", "/data/a%20b", "/data/!()*'", "/data/%21%28%29%2A%27", "/data/~%7e",
		"/data/%26%3D%3B%3A%40%24%2C%3F%23", "/data/&=;:@$,", "/data/a//b", "/data//a", "/data/a/", "/data/a/./b", "/data/a/../b",
		"/data/..%2F..%2Fetc%2Fx", "/data/%C3%A9", "/data/e%CC%81", "/data/%c3%a9", "/data/\xc3\xa9", "/data/a|b^c`d{e}\"<>",
		"/", "/?x", "/data?list-type=2&prefix=a%2Fb&delimiter=", "/data?prefix=a+b&empty&z=", "/data/a?", "/data/a?X-Amz-Signature=0&a=%zz",
		"//bucketless//key",
	}
	for _, target := range targets {
		t.Run(target, func(t *testing.T) {
			send(t, addr, "GET "+target+" HTTP/1.1\r\nHost: s3.onprem.test:9000\r\nAuthorization: AWS4-HMAC-SHA256 x\r\nx-amz-date: d\r\n\r\n")
			line, rest, _ := strings.Cut(<-got, "\r\n")
			if want := "GET " + target + " HTTP/1.1"; line != want {
				t.Errorf("request line %q, want %q", line, want)
			}
			headers := strings.Split(strings.TrimSpace(rest), "\r\n")
			slices.Sort(headers)
			want := []string{"Authorization: AWS4-HMAC-SHA256 x", "Host: s3.onprem.test:9000", "X-Amz-Date: d"}
			if !slices.Equal(headers, want) {
				t.Errorf("headers %q, want %q", headers, want)
			}
		})
	}
	t.Run("a client that takes it for a proxy", func(t *testing.T) {
		send(t, addr, "GET http://s3.onprem.test:9000/data/a//b?x=%2f HTTP/1.1\r\nHost: s3.onprem.test:9000\r\n\r\n")
		if line, _, _ := strings.Cut(<-got, "\r\n"); line != "GET /data/a//b?x=%2f HTTP/1.1" {
			t.Errorf("request line %q", line)
		}
	})
	t.Run("a body goes through with its length", func(t *testing.T) {
		send(t, addr, "PUT /data/a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Encoding: aws-chunked\r\nConnection: x-drop\r\nX-Drop: 1\r\n\r\na\r\nbc")
		raw := <-got
		if !strings.HasSuffix(raw, "\r\n\r\na\r\nbc") || !strings.Contains(raw, "Content-Length: 5\r\n") ||
			!strings.Contains(raw, "Content-Encoding: aws-chunked\r\n") || strings.Contains(raw, "X-Drop") {
			t.Errorf("got %q", raw)
		}
	})
}

func TestNothingBehindABodyGoesThrough(t *testing.T) {
	got := make(chan string, 1)
	store := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got <- fmt.Sprint(string(body), r.Trailer, err)
	}))
	t.Cleanup(store.Close)
	base, err := url.Parse(store.URL)
	if err != nil {
		t.Fatal(err)
	}
	send(t, passage(t, base), "PUT /data/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTrailer: X-Amz-Acl\r\n\r\n1\r\na\r\n0\r\nX-Amz-Acl: public-read\r\n\r\n")
	if text := <-got; text != "amap[] <nil>" {
		t.Errorf("the store got %q", text)
	}
}

// cases: E11 pottava/aws-s3-proxy#28, H7 hybrid-cache 1.16.0
func TestAnswerThatBreaksOffBreaksOff(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write(make([]byte, 5000))
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(up.Close)
	base, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + passage(t, base) + "/x")
	if err != nil {
		return // broke off before the headers, as good
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Errorf("the client took %d of 100000 bytes for a whole answer", n)
	}
}

func TestAnswerKeepsHeaders(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Content-Type"] = nil
		h.Set("Content-Encoding", "gzip")
		h.Set("ETag", `"x-3"`)
		h.Set("Date", "Mon, 01 Jan 2024 00:00:00 GMT")
		h.Add("X-Two", "1")
		h.Add("X-Two", "2")
		_, _ = io.WriteString(w, "<not gzip>")
	}))
	t.Cleanup(up.Close)
	base, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	direct, err := c.Get(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Body.Close()
	through, err := c.Get("http://" + passage(t, base))
	if err != nil {
		t.Fatal(err)
	}
	defer through.Body.Close()
	if a, b := fmt.Sprint(direct.Header, direct.ContentLength), fmt.Sprint(through.Header, through.ContentLength); a != b {
		t.Errorf("headers through the passage\n%s\ndirect\n%s", b, a)
	}
}

func request(t *testing.T, method, host, target string, header map[string]string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = host
	for k, v := range header {
		r.Header.Set(k, v)
	}
	return r
}

// cases: E10 pydio/cells#873
func TestReadTarget(t *testing.T) {
	tests := map[string]struct{ host, target, want string }{
		"path style":                    {"s3.onprem.test:9000", "/data/a/b", "s3://data/a/b"},
		"path style, upper case host":   {"S3.OnPrem.test", "/data/a", "s3://data/a"},
		"address":                       {"127.0.0.1:9000", "/data/a", "s3://data/a"},
		"virtual-host style":            {"data.s3.onprem.test:9000", "/a/b", "s3://data/a/b"},
		"bucket with dots":              {"my.data.s3.onprem.test", "/a", "s3://my.data/a"},
		"bucket":                        {"s3.onprem.test", "/data", "s3://data/"},
		"service":                       {"s3.onprem.test", "/", "s3:///"},
		"key with slashes and escapes":  {"s3.onprem.test", "/data//a%2F..%2Fb%25/", "s3://data//a/../b%/"},
		"another host":                  {"evil.test", "/data/a", "error"},
		"a name that only ends alike":   {"xs3.onprem.test", "/data/a", "error"},
		"a bucket in front of a number": {"data.127.0.0.1", "/a", "error"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			target, err := s3wire.ReadTarget(request(t, "GET", tt.host, tt.target, nil), hosts, hosts)
			got := target.String()
			if err != nil {
				got = "error"
			}
			if got != tt.want {
				t.Errorf("ReadTarget = %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}

func TestCleaned(t *testing.T) {
	for in, want := range map[s3wire.Target]s3wire.Target{
		{Bucket: "b", Key: "a/b"}:            {Bucket: "b", Key: "a/b"},
		{Bucket: "b", Key: "a//b/"}:          {Bucket: "b", Key: "a/b/"},
		{Bucket: "b", Key: "mine/../other"}:  {Bucket: "b", Key: "other"},
		{Bucket: "b", Key: "../c/k"}:         {Bucket: "c", Key: "k"},
		{Bucket: "b", Key: "../../../etc/x"}: {Bucket: "etc", Key: "x"},
		{Bucket: "b"}:                        {Bucket: "b"},
	} {
		t.Run(in.String(), func(t *testing.T) {
			if got := in.Cleaned(); got != want {
				t.Errorf("Cleaned = %s, want %s", got, want)
			}
		})
	}
}

// cases: H17 hybrid-cache 1.11.1 (SigV4A is a signature)
func TestUnsignedAmz(t *testing.T) {
	const v4 = "AWS4-HMAC-SHA256 Credential=AK/20260101/r/s3/aws4_request,SignedHeaders=host;x-amz-date, Signature=0"
	tests := map[string]struct {
		target string
		header map[string]string
		want   string
	}{
		"all signed":         {"/", map[string]string{"Authorization": v4, "X-Amz-Date": "d"}, "[]"},
		"one added":          {"/", map[string]string{"Authorization": v4, "X-Amz-Date": "d", "X-Amz-Acl": "public-read"}, "[x-amz-acl]"},
		"v4a":                {"/", map[string]string{"Authorization": strings.Replace(v4, "HMAC", "ECDSA-P256", 1), "X-Amz-Date": "d"}, "[]"},
		"v2 signs them all":  {"/", map[string]string{"Authorization": "AWS AK:sig", "X-Amz-Acl": "private"}, "[]"},
		"presigned":          {"/?X-Amz-Signature=0&X-Amz-SignedHeaders=host%3Bx-amz-meta-a", map[string]string{"X-Amz-Meta-A": "1"}, "[]"},
		"presigned, added":   {"/?X-Amz-Signature=0&X-Amz-SignedHeaders=host", map[string]string{"X-Amz-Acl": "1"}, "[x-amz-acl]"},
		"anonymous":          {"/", map[string]string{"X-Amz-Acl": "1"}, "[x-amz-acl]"},
		"other headers":      {"/", map[string]string{"Authorization": v4, "If-None-Match": "x", "X-Other": "y"}, "[]"},
		"no signed headers":  {"/", map[string]string{"Authorization": "AWS4-HMAC-SHA256 nonsense", "X-Amz-Date": "d"}, "[x-amz-date]"},
		"a name that begins": {"/", map[string]string{"Authorization": v4, "X-Amz-Date-2": "d"}, "[x-amz-date-2]"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			loose, err := s3wire.UnsignedAmz(request(t, "PUT", "h", tt.target, tt.header))
			if got := fmt.Sprint(loose); got != tt.want || err != nil {
				t.Errorf("UnsignedAmz = %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}

func TestReadCopySource(t *testing.T) {
	for value, want := range map[string]string{
		"":                       "s3:/// false <nil>",
		"/data/a%2Fb?versionId=": "s3://data/a/b true <nil>",
		"data/a+b":               "s3://data/a+b true <nil>",
		"data":                   "s3:/// true header x-amz-copy-source names no object",
	} {
		t.Run(value, func(t *testing.T) {
			target, ok, err := s3wire.ReadCopySource(request(t, "PUT", "h", "/x/y", map[string]string{"X-Amz-Copy-Source": value}))
			if got := fmt.Sprint(target, " ", ok, " ", err); got != want {
				t.Errorf("ReadCopySource = %s, want %s", got, want)
			}
		})
	}
}
