package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"net/http"
	"strconv"
	"strings"
)

// payload hashes the object inside a request body. It never changes the body;
// it only looks on.
type payload struct {
	hash  hash.Hash
	size  int64
	frame *deframer // nil when the body is the object itself
}

// newPayload decides by headers only whether the body is framed.
//
// cases: H14 hybrid-cache 1.11.0, A5 seaweedfs#6703
func newPayload(r *http.Request) *payload {
	p := &payload{hash: sha256.New()}
	if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		p.frame = &deframer{out: p}
	}
	return p
}

// Write implements io.Writer on the body as it is sent.
func (p *payload) Write(b []byte) (int, error) {
	if p.frame != nil {
		p.frame.write(b)
	} else {
		p.add(b)
	}
	return len(b), nil
}

func (p *payload) add(b []byte) {
	p.size += int64(len(b))
	_, _ = p.hash.Write(b) // a hash never fails
}

// sum returns size and digest of the object; the digest is empty and the size
// -1 when the framing could not be read to its end.
func (p *payload) sum() (int64, string) {
	if p.frame != nil && (p.frame.err != nil || !p.frame.last) {
		return -1, ""
	}
	return p.size, hex.EncodeToString(p.hash.Sum(nil))
}

// maxFrameLine bounds a chunk header: size, signature, and room.
const maxFrameLine = 1024

var errFraming = errors.New("chunk framing is not readable")

// deframer reads aws-chunked framing: "SIZE[;extension]\r\n", SIZE bytes,
// "\r\n", and so on until a chunk of size 0, behind which trailers stand.
type deframer struct {
	out  interface{ add([]byte) }
	line []byte // of a header that is not whole yet
	left int64  // bytes of the chunk still to come
	skip int    // of the "\r\n" behind a chunk
	last bool   // the chunk of size 0 was seen
	err  error
}

func (d *deframer) write(b []byte) {
	for len(b) > 0 && d.err == nil && !d.last {
		switch {
		case d.left > 0:
			n := min(int64(len(b)), d.left)
			d.out.add(b[:n])
			d.left -= n
			b = b[n:]
			if d.left == 0 {
				d.skip = 2
			}
		case d.skip > 0:
			if b[0] != "\n\r"[d.skip-1] {
				d.err = errFraming
				return
			}
			d.skip--
			b = b[1:]
		default:
			b = d.header(b)
		}
	}
}

// header takes bytes up to the end of a line and returns the rest.
func (d *deframer) header(b []byte) []byte {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		end = len(b) - 1
	}
	d.line = append(d.line, b[:end+1]...)
	b = b[end+1:]
	if len(d.line) > maxFrameLine {
		d.err = errFraming
		return nil
	}
	line, whole := bytes.CutSuffix(d.line, []byte("\r\n"))
	if !whole {
		return b
	}
	size, _, _ := strings.Cut(string(line), ";")
	// cases: H10 hybrid-cache 1.12.1 (ffffffffffffffff overflows)
	n, err := strconv.ParseInt(size, 16, 64)
	if err != nil || n < 0 || strings.HasPrefix(size, "+") {
		d.err = errFraming
		return nil
	}
	d.line = d.line[:0]
	d.left, d.last = n, n == 0
	return b
}
