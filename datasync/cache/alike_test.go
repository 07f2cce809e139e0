package cache_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/signer"
	"pgregory.net/rapid"

	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/stager"
)

// A drawn history of plain HTTP requests, as any S3 client may write them, goes
// to a store at home, and to another one through front and gate: status,
// headers and body are the same at every step, and so is what the stores hold
// at the end. A read is held against the same store, direct, to the last byte.
//
// cases: A4, A5, A11, B1, B2, B4, B5, B7, B13, C1, C2, C4, C5, C8, D1, D2, D5, D10, E5, E11,
// H2, H5, H8, H14, H19
func TestAnyHistoryIsTheSameAsDirect(t *testing.T) {
	p := &pair{home: newRig(t), away: newRig(t)}
	p.away.stage(t)
	rapid.Check(t, func(rt *rapid.T) {
		p.newBucket(t)
		keys := rapid.SliceOfN(drawKey(p.bucket), 1, 2).Draw(rt, "keys")
		etags := map[string]string{}
		d := dice(rt)
		for _, key := range keys { // most histories begin with something to read, some of it cached
			put := wish{method: http.MethodPut, key: key, who: account("job"), body: drawBody(d), header: drawMetadata(d)}
			get := wish{method: http.MethodGet, key: key, who: account("job"), header: map[string]string{}}
			if oneIn(d, 2) {
				put.header["X-Amz-Checksum-Crc32"], get.header["X-Amz-Checksum-Mode"] = crcOf(put.body), "ENABLED"
			}
			p.step(rt, put, etags)
			p.step(rt, get, etags)
		}
		for range rapid.IntRange(2, 10).Draw(rt, "steps") {
			w := drawWish(dice(rt), keys, etags)
			p.step(rt, w, etags)
			if w.method == http.MethodGet {
				p.step(rt, w, etags) // what the first brought answers the second
			}
		}
		p.compareStores(rt)
	})
	// Over 100 histories the front answers 62 reads itself, with a deviation of 9: a count under 10 is no bad luck.
	if s := p.away.front.Stats(); s.Hits < 10 || s.Passed < 100 {
		t.Errorf("the front answered only %d times itself, and passed %d on", s.Hits, s.Passed)
	}
	if lines := p.away.audits.reasons(); len(lines) > 0 {
		t.Errorf("the gate refused %d: %q", len(lines), slices.Compact(slices.Sorted(slices.Values(lines))))
	}
}

// pair is two equal sites: one whose clients reach the store, one whose
// clients are on a burst node.
type pair struct {
	home, away *rig
	bucket     string
	histories  int
}

// newBucket gives each history a bucket of its own on both sites.
func (p *pair) newBucket(t *testing.T) {
	t.Helper()
	p.histories++
	p.bucket = fmt.Sprintf("history-%d", p.histories)
	for _, g := range []*rig{p.home, p.away} {
		if err := g.root.MakeBucket(t.Context(), p.bucket, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := g.root.SetBucketPolicy(t.Context(), p.bucket, g.store.Policy(p.bucket, "job")); err != nil {
			t.Fatal(err)
		}
	}
	p.away.gate.Allow(burst, time.Now().Add(time.Hour), []stager.Grant{{Bucket: p.bucket, Methods: []string{"GET", "PUT", "POST", "DELETE"}}})
}

// wish is one request before it is signed.
type wish struct {
	method, key string
	query       string
	header      map[string]string
	unsigned    map[string]string // headers that are added behind the signature
	body        []byte
	who         [2]string // access key and secret; empty: nobody
	how         string    // of the signature: header, presigned, plain, chunked, trailer, wrong trailer
	upload      bool      // a whole multipart upload
	aborted     bool      // and its end
	wrongPart   bool      // named at its end
	outside     bool      // by somebody at home, while the front has the old object
}

func (w wish) String() string {
	return fmt.Sprintf("%s %q ?%s %v %v, %d bytes, %s by %s", w.method, w.key, w.query, w.header, w.unsigned, len(w.body), w.how, w.who[0])
}

// account is the access key and the secret of somebody: of the job, of an
// account without rights here, and of three that the store refuses.
func account(who string) [2]string {
	switch who {
	case "":
		return [2]string{}
	case "forger":
		return [2]string{"job", "wrong"}
	}
	return [2]string{who, who + "secret"}
}

// drawKey draws an object's name of 1 to 1,024 bytes.
func drawKey(bucket string) *rapid.Generator[string] {
	odd := rapid.SampledFrom(append(oddKeys(), ".", "..", "", " ", "\u00a0", "a\\b", "\x7f", "\t", "%", "%zz", "a;b", "a#b", "[x]", "{y}|^`", "\U0001f4be"))
	segment := rapid.OneOf(odd, rapid.StringN(1, 40, 200), rapid.StringMatching(`[a-z]{1,8}`), rapid.Just(strings.Repeat("k", 250)))
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(segment, 1, 5).Draw(t, "segments"), "/")
	}).Filter(func(key string) bool {
		t := s3wire.Target{Bucket: bucket, Key: key}
		clean := t.Cleaned() // what leaves the bucket is the gate's to refuse
		return len(key) > 0 && len(key) <= 1024 && clean.Bucket == bucket && clean.Key != "" && !strings.ContainsRune(key, 0)
	})
}

func drawWish(d *rand.Rand, keys []string, etags map[string]string) wish {
	w := wish{
		key: pick(d, keys...), header: map[string]string{}, unsigned: map[string]string{},
		who: account(pick(d, "job", "job", "job", "job", "job", "job", "job", "job", "stranger", "forger", "nobody", "")),
		how: pick(d, "header", "header", "header", "header", "header", "header", "presigned", "presigned", "presigned v2"),
	}
	switch pick(d, "get", "get", "get", "get", "get", "get", "get", "head", "head", "put", "put outside", "delete outside", "list", "delete", "copy", "many", "upload", "about") {
	case "get":
		w.method = http.MethodGet
		drawReading(d, &w, etags)
	case "head":
		w.method = http.MethodHead
		drawReading(d, &w, etags)
	case "put":
		drawPut(d, &w)
	case "put outside": // with bytes of its own: what keeps its ETag within a second is beyond any cache
		w.method, w.outside, w.header, w.body = http.MethodPut, true, drawMetadata(d), fmt.Append(drawBody(d), d.Uint64())
	case "delete outside":
		w.method, w.outside = http.MethodDelete, true
	case "list":
		drawList(d, &w)
	case "delete":
		w.method = http.MethodDelete
	case "copy":
		w.method, w.how = http.MethodPut, "header"
		w.header["X-Amz-Copy-Source"] = "COPY " + pick(d, keys...) // see step
		if oneIn(d, 2) {
			w.header["X-Amz-Metadata-Directive"], w.header["X-Amz-Meta-New"] = "REPLACE", "yes"
		}
	case "many":
		w.method, w.query, w.how = http.MethodPost, "delete=", "header"
		if strings.ContainsFunc(w.key, notInXML) {
			w.key = "a"
		}
		w.body = []byte("<Delete><Object><Key>" + escaped(w.key) + "</Key></Object><Object><Key>never</Key></Object></Delete>")
		w.header["Content-Md5"], w.key = md5Of(w.body), ""
	case "upload":
		w.upload, w.how, w.body, w.aborted, w.wrongPart = true, "header", drawBody(d), oneIn(d, 3), oneIn(d, 4)
	case "about":
		w.method = http.MethodGet
		w.query = pick(d, "attributes=", "versionId=null", "versionId=nope", "partNumber=1", "partNumber=9", "x-id=GetObject")
	}
	return w
}

// drawReading draws what a GET or HEAD may ask for besides the object.
func drawReading(d *rand.Rand, w *wish, etags map[string]string) {
	if oneIn(d, 2) {
		value := pick(d,
			"bytes=0-", "bytes=0-0", "bytes=1-5", "bytes=-1", "bytes=-5", "bytes=-0", "bytes=-99999999", "bytes=3-99999999", "bytes=99999999-",
			"bytes=5-3", "bytes=16383-16384", "bytes=0-1,3-4", "bytes=0-0,-1", "bytes= 1-2", "bytes=1-2 ", "bytes=a-b", "bytes=", "bytes=-", "items=0-1", "Bytes=0-1",
			"bytes=00-01", "bytes=+1-2", "bytes=18446744073709551616-", "bytes=0-18446744073709551616",
		)
		if oneIn(d, 2) {
			w.header["Range"] = value
		} else {
			w.unsigned["Range"] = value
		}
	}
	if oneIn(d, 3) {
		etag := pick(d, etags[w.key], strings.Trim(etags[w.key], `"`), `"nope"`, "*", `W/`+etags[w.key], `"a", `+etags[w.key])
		at := pick(d, "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT", "yesterday")
		switch name := pick(d, "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range"); name {
		case "If-Match", "If-None-Match", "If-Range":
			w.header[name] = etag
		default:
			w.header[name] = at
		}
	}
	switch d.IntN(7) {
	case 0:
		w.query = "response-content-type=a%2Fb&response-cache-control=no-store"
	case 1:
		w.header["X-Amz-Checksum-Mode"] = "ENABLED"
	case 2:
		w.unsigned["Accept-Encoding"] = "gzip, br"
	case 3:
		w.unsigned["X-Custom"] = "odd"
	case 4:
		w.query = "x-id=GetObject"
	}
}

// dice are thrown by a seed that rapid draws: by itself it prefers what stands
// first, and most of what is asked for here stands last.
func dice(t *rapid.T) *rand.Rand {
	seed := rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "seed")
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), 0))
}

func pick[T any](d *rand.Rand, from ...T) T { return from[d.IntN(len(from))] }

func oneIn(d *rand.Rand, n int) bool { return d.IntN(n) == 0 }

func drawBody(d *rand.Rand) []byte {
	n := pick(d, 0, 1, 7, 100, 16383, 16384, 16385, 32768, 70_000)
	return blob(n, pick(d, "a", "b", "c"))
}

func drawMetadata(d *rand.Rand) map[string]string {
	out := map[string]string{}
	for _, h := range [][2]string{
		{"Content-Type", "text/odd; charset=x"},
		{"X-Amz-Meta-Owner", "vision"},
		{"Cache-Control", "max-age=3"},
		{"Content-Disposition", `attachment; filename="a b"`},
		{"Content-Encoding", "gzip"},
		{"Content-Language", "de"},
		{"Expires", "Fri, 01 Jan 2100 00:00:00 GMT"},
		{"X-Amz-Tagging", "a=b"},
	} {
		if oneIn(d, 2) {
			out[h[0]] = h[1]
		}
	}
	return out
}

func drawPut(d *rand.Rand, w *wish) {
	w.method, w.body = http.MethodPut, drawBody(d)
	w.how = pick(d, "header", "header", "presigned", "plain", "chunked", "trailer", "wrong trailer")
	w.header = drawMetadata(d)
	if w.how == "trailer" || w.how == "wrong trailer" || w.how == "chunked" {
		delete(w.header, "Content-Encoding")
		return
	}
	switch d.IntN(10) {
	case 9:
		w.header["Content-Md5"] = md5Of(w.body)
	case 1:
		w.header["Content-Md5"] = md5Of([]byte("other"))
	case 2:
		w.header["X-Amz-Checksum-Crc32"] = crcOf(w.body)
	case 3:
		w.header["X-Amz-Checksum-Crc32"] = crcOf([]byte("other"))
	case 4:
		w.header["If-None-Match"] = "*"
	}
}

func drawList(d *rand.Rand, w *wish) {
	w.method, w.key = http.MethodGet, ""
	q := url.Values{}
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"list-type", []string{"2", ""}},
		{"prefix", []string{"a", "d/", "k", "%", ""}},
		{"delimiter", []string{"/", "b"}},
		{"max-keys", []string{"0", "1", "2", "1000", "-1", "x"}},
		{"encoding-type", []string{"url", "xml"}},
		{"start-after", []string{"b"}},
		{"marker", []string{"b"}},
		{"fetch-owner", []string{"true"}},
		{"continuation-token", []string{"nonsense"}},
	} {
		if oneIn(d, 3) {
			q.Set(p.name, pick(d, p.values...))
		}
	}
	w.query = q.Encode()
}

// notInXML is what no XML document can name: such keys are deleted one by one.
func notInXML(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == '\ufffe' || r == '\uffff'
}

func escaped(s string) string {
	var out strings.Builder
	for _, r := range s {
		fmt.Fprintf(&out, "&#%d;", r)
	}
	return out.String()
}

func md5Of(b []byte) string {
	sum := md5.Sum(b)
	return base64.StdEncoding.EncodeToString(sum[:])
}

func crcOf(b []byte) string {
	n := crc32.ChecksumIEEE(b)
	return base64.StdEncoding.EncodeToString([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// step runs a wish on both sides and compares.
func (p *pair) step(t *rapid.T, w wish, etags map[string]string) {
	t.Helper()
	if w.upload {
		p.multipart(t, w)
		return
	}
	if from, ok := strings.CutPrefix(w.header["X-Amz-Copy-Source"], "COPY "); ok {
		w.header["X-Amz-Copy-Source"] = "/" + p.bucket + "/" + escapePath(from)
	}
	way := p.away.addr()
	if w.outside {
		way = p.away.store.Addr()
	}
	through := p.send(t, p.away, way, w)
	site, exact := p.home, false
	if w.method == http.MethodGet || w.method == http.MethodHead {
		site, exact = p.away, true
	}
	direct := p.send(t, site, site.store.Addr(), w)
	if w.method == http.MethodGet && w.key != "" && direct.status == http.StatusOK {
		etags[w.key] = direct.header.Get("Etag")
	}
	if a, b := direct.text(exact), through.text(exact); a != b {
		t.Fatalf("%v\ndirect:\n%s\nthrough the front:\n%s", w, a, b)
	}
}

// heard is an answer.
type heard struct {
	status int
	header http.Header
	length int64
	body   []byte
}

var ownIDs = regexp.MustCompile(`<(RequestId|HostId|LastModified|UploadId|Initiated|CreationDate)>[^<]*</`)

// text writes an answer so that two can be compared. Two stores differ in their
// times and ids, one store in the ids of requests.
func (h heard) text(exact bool) string {
	header, body := h.header.Clone(), h.body
	for _, name := range []string{"Date", "Connection", "X-Amz-Request-Id", "X-Amz-Id-2"} {
		header.Del(name)
	}
	if !exact {
		header.Del("Last-Modified")
	}
	if h.status == http.StatusNotModified {
		header.Del("Content-Type") // net/http sends none: RFC 9110, 15.4.5, asks for no more than the validators
	}
	if !exact || h.status >= 300 {
		body = ownIDs.ReplaceAll(body, []byte("<$1></"))
	}
	if at := bytes.Index(body, []byte("<StringToSign>")); at >= 0 { // of a wrong signature, with times in it
		body, h.length = body[:at], 0
		header.Del("Content-Length")
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(header)) {
		lines = append(lines, fmt.Sprintf("%s: %q", name, header[name]))
	}
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%d, length %d\n%s\n%d bytes %x: %.300q", h.status, h.length, strings.Join(lines, "\n"), len(body), sum[:6], body)
}

func escapePath(path string) string {
	var out strings.Builder
	for i := range len(path) {
		c := path[i]
		if c == '/' || c == '-' || c == '_' || c == '.' || c == '~' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}

// send signs a wish for a site's store and sends it to an address.
func (p *pair) send(t *rapid.T, site *rig, addr string, w wish) heard {
	t.Helper()
	path := "/" + p.bucket + "/" + w.key
	r := &http.Request{
		Method: w.method, Header: http.Header{}, ProtoMajor: 1, ProtoMinor: 1,
		URL: &url.URL{Scheme: "http", Host: storeName, Path: path, RawPath: escapePath(path), RawQuery: w.query},
	}
	for name, value := range w.header {
		r.Header.Set(name, value)
	}
	r = w.sign(r)
	for name, value := range w.unsigned {
		r.Header.Set(name, value)
	}
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header.Set("User-Agent", "any/1")
	}
	resp, err := p.client(site, addr).Do(r)
	if err != nil {
		t.Fatalf("%v: %v", w, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%v: %v", w, err)
	}
	return heard{status: resp.StatusCode, header: resp.Header, length: resp.ContentLength, body: body}
}

func (p *pair) client(site *rig, addr string) *http.Client {
	if site.clients[addr] == nil {
		if site.clients == nil {
			site.clients = map[string]*http.Client{}
		}
		site.clients[addr] = &http.Client{Transport: dialTo(addr), CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return site.clients[addr]
}

// sign sets the body and signs the request in the wish's way.
func (w wish) sign(r *http.Request) *http.Request {
	set := func(body []byte) {
		r.Body, r.ContentLength = http.NoBody, int64(len(body))
		if len(body) > 0 {
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
	}
	set(w.body)
	sum := sha256.Sum256(w.body)
	const region = "us-east-1"
	if w.who[0] == "" { // x-amz headers without a signature are the gate's to refuse
		maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return strings.HasPrefix(name, "X-Amz-") })
		return r
	}
	switch w.how {
	case "presigned":
		return signer.PreSignV4(*r, w.who[0], w.who[1], "", region, 600)
	case "presigned v2":
		return signer.PreSignV2(*r, w.who[0], w.who[1], 600, false)
	case "plain":
		r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	case "chunked":
		if len(w.body) == 0 {
			r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
			break
		}
		return signer.StreamingSignV4(r, w.who[0], w.who[1], "", region, int64(len(w.body)), time.Now().UTC(), closable{sha256.New()})
	case "trailer", "wrong trailer":
		check := crcOf(w.body)
		if w.how == "wrong trailer" {
			check = crcOf([]byte("other"))
		}
		r.Header.Set("X-Amz-Content-Sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
		r.Header.Set("Content-Encoding", "aws-chunked")
		r.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(len(w.body)))
		r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
		framed := "0\r\nx-amz-checksum-crc32:" + check + "\r\n\r\n"
		if len(w.body) > 0 {
			framed = fmt.Sprintf("%x\r\n%s\r\n", len(w.body), w.body) + framed
		}
		set([]byte(framed))
	default:
		r.Header.Set("X-Amz-Content-Sha256", hex.EncodeToString(sum[:]))
	}
	return signer.SignV4(*r, w.who[0], w.who[1], "", region)
}

// closable is a hash as the signer wants it.
type closable struct{ hash.Hash }

func (closable) Close() {}

var uploadID = regexp.MustCompile(`<UploadId>([^<]+)</UploadId>`)

// multipart runs a whole upload, each side with its own id, and reads on the
// way what an unfinished one shows.
func (p *pair) multipart(t *rapid.T, w wish) {
	t.Helper()
	ids := map[*rig]string{}
	both := func(step wish, query func(*rig) string) [2]heard {
		t.Helper()
		step.key, step.who, step.how = w.key, w.who, "header"
		var out [2]heard
		for i, site := range []*rig{p.home, p.away} {
			step.query = query(site)
			addr := site.store.Addr()
			if site == p.away {
				addr = site.addr()
			}
			out[i] = p.send(t, site, addr, step)
		}
		if a, b := out[0].text(false), out[1].text(false); a != b {
			t.Fatalf("%v\ndirect:\n%s\nthrough the front:\n%s", step, a, b)
		}
		return out
	}
	opened := both(wish{method: http.MethodPost}, func(*rig) string { return "uploads=" })
	for i, site := range []*rig{p.home, p.away} {
		ids[site] = "none"
		if m := uploadID.FindSubmatch(opened[i].body); m != nil {
			ids[site] = string(m[1])
		}
	}
	part := both(wish{method: http.MethodPut, body: w.body}, func(g *rig) string { return "partNumber=1&uploadId=" + ids[g] })
	both(wish{method: http.MethodGet}, func(g *rig) string { return "uploadId=" + ids[g] })
	if w.aborted {
		both(wish{method: http.MethodDelete}, func(g *rig) string { return "uploadId=" + ids[g] })
		return
	}
	etag := part[0].header.Get("Etag")
	if w.wrongPart {
		etag = `"nope"`
	}
	list := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part></CompleteMultipartUpload>", escaped(etag))
	both(wish{method: http.MethodPost, body: []byte(list)}, func(g *rig) string { return "uploadId=" + ids[g] })
}

// compareStores lists and reads both stores, direct.
func (p *pair) compareStores(t *rapid.T) {
	t.Helper()
	var said [2][]string
	for i, site := range []*rig{p.home, p.away} {
		for o := range site.root.ListObjectsIter(t.Context(), p.bucket, minio.ListObjectsOptions{Recursive: true}) {
			said[i] = append(said[i], fmt.Sprintf("%q %d %s %v", o.Key, o.Size, o.ETag, o.Err))
		}
	}
	if a, b := strings.Join(said[0], "\n"), strings.Join(said[1], "\n"); a != b {
		t.Fatalf("the stores differ at the end; direct:\n%s\nthrough the front:\n%s", a, b)
	}
}
