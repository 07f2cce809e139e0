package cache

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// frame writes body in aws-chunked framing.
func frame(body []byte, chunk int, extension, trailer string) []byte {
	var out bytes.Buffer
	for len(body) > 0 {
		n := min(chunk, len(body))
		fmt.Fprintf(&out, "%x%s\r\n%s\r\n", n, extension, body[:n])
		body = body[n:]
	}
	fmt.Fprintf(&out, "0%s\r\n%s\r\n", extension, trailer)
	return out.Bytes()
}

func newFramed() *payload {
	r := httptest.NewRequest("PUT", "/b/k", nil)
	r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
	return newPayload(r)
}

// cases: A5 seaweedfs#6703, versitygw#2398
func TestFramedPayload(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "body")
		framed := frame(body, rapid.IntRange(1, 2000).Draw(t, "chunk"),
			rapid.SampledFrom([]string{"", ";chunk-signature=0a1b"}).Draw(t, "extension"),
			rapid.SampledFrom([]string{"", "x-amz-checksum-crc32c:AAAAAA==\r\n"}).Draw(t, "trailer"))
		got, plain := newFramed(), newPayload(httptest.NewRequest("PUT", "/b/k", nil))
		for rest := framed; len(rest) > 0; {
			n := min(len(rest), rapid.IntRange(1, 500).Draw(t, "write"))
			_, _ = got.Write(rest[:n])
			rest = rest[n:]
		}
		_, _ = plain.Write(body)
		size, sum := got.sum()
		wantSize, wantSum := plain.sum()
		if size != wantSize || sum != wantSum {
			t.Fatalf("%d bytes framed read as %d", len(body), size)
		}
	})
}

func TestUnreadableFraming(t *testing.T) {
	for name, raw := range map[string]string{
		"overflow":             "ffffffffffffffff;chunk-signature=0\r\nabc", // cases: H10 hybrid-cache 1.12.1
		"largest":              "7fffffffffffffff\r\nabc",
		"negative":             "-5\r\nabcde\r\n0\r\n\r\n",
		"sign":                 "+5\r\nabcde\r\n0\r\n\r\n",
		"no number":            "hello\r\n",
		"no end":               "5\r\nabc",
		"no last chunk":        "3\r\nabc\r\n",
		"other bytes behind":   "3\r\nabcd0\r\n\r\n",
		"a header that's long": strings.Repeat("1", 5000),
		"nothing":              "",
	} {
		t.Run(name, func(t *testing.T) {
			p := newFramed()
			_, _ = p.Write([]byte(raw))
			if size, sum := p.sum(); size != -1 || sum != "" {
				t.Errorf("read as %d bytes, %s", size, sum)
			}
		})
	}
	t.Run("a body that only looks framed", func(t *testing.T) {
		// cases: H14 hybrid-cache 1.11.0
		p := newPayload(httptest.NewRequest("PUT", "/b/k", nil))
		_, _ = p.Write([]byte("a\r\n"))
		if size, sum := p.sum(); size != 3 || sum == "" {
			t.Errorf("read as %d bytes", size)
		}
	})
}

func FuzzFraming(f *testing.F) {
	f.Add([]byte("3;chunk-signature=0\r\nabc\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		whole, split := newFramed(), newFramed()
		_, _ = whole.Write(raw)
		for i := range raw {
			_, _ = split.Write(raw[i : i+1])
		}
		a, asum := whole.sum()
		b, bsum := split.sum()
		if a != b || asum != bsum {
			t.Errorf("at once %d, byte by byte %d", a, b)
		}
	})
}
