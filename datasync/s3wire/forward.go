package s3wire

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// perConnection are headers about one connection and not about a message.
func perConnection(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// Forward returns the request to send in place of r: the same method, path,
// query, Host, headers and body, addressed to the server in base. The caller
// may add headers that no signature covers.
func Forward(ctx context.Context, r *http.Request, base *url.URL) *http.Request {
	out := r.Clone(ctx)
	out.RequestURI = ""
	out.Close = false
	out.Trailer = nil // nobody has looked at what stands behind a body
	out.URL = exactURL(r, base)
	dropPerConnection(out.Header)
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // else net/http adds its own
	}
	if out.ContentLength == 0 {
		out.Body = http.NoBody
	}
	return out
}

// exactURL is base with the path and query of r as they stood in the request
// line.
func exactURL(r *http.Request, base *url.URL) *url.URL {
	raw := r.RequestURI
	if rest, ok := strings.CutPrefix(raw, r.URL.Scheme+"://"); ok && r.URL.Scheme != "" {
		// A client that takes this server for a proxy.
		slash := strings.IndexAny(rest, "/?")
		if slash < 0 {
			slash = len(rest)
		}
		raw = rest[slash:]
	}
	path, query, hasQuery := strings.Cut(raw, "?")
	u := &url.URL{Scheme: base.Scheme, Host: base.Host, RawQuery: query, ForceQuery: hasQuery && query == ""}
	if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		u.Opaque = path // written as it is
		return u
	}
	// An opaque path that starts with "//" would be taken for a host.
	u.Path, u.RawPath = r.URL.Path, r.URL.RawPath
	return u
}

func dropPerConnection(h http.Header) {
	for _, list := range h["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			h.Del(strings.TrimSpace(name))
		}
	}
	for name := range h {
		if perConnection(name) {
			h.Del(name)
		}
	}
}

// AnswerName is how the name of a header is written in an answer. S3 stores
// write names of metadata in lower case and some clients show them as they come,
// but net/http has turned "x-amz-meta-owner" into "X-Amz-Meta-Owner".
func AnswerName(name string) string {
	if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-amz-meta-") {
		return lower
	}
	return name
}

// CopyHeader copies the headers of an answer that are not about one
// connection. Without a Content-Type none is made up.
func CopyHeader(dst http.Header, resp *http.Response) {
	for name, values := range resp.Header {
		if !perConnection(name) {
			dst[AnswerName(name)] = values
		}
	}
	if _, ok := dst["Content-Type"]; !ok {
		dst["Content-Type"] = nil
	}
}

// Answer sends resp to the client and closes it. observe, which may be nil,
// sees each piece of the body before it goes out. It returns the bytes of
// body that were sent. An answer that breaks off upstream panics with
// [http.ErrAbortHandler], so that the client's connection breaks off too.
func Answer(w http.ResponseWriter, resp *http.Response, observe func([]byte)) int64 {
	defer resp.Body.Close()
	CopyHeader(w.Header(), resp)
	w.WriteHeader(resp.StatusCode)
	flush := func() {}
	if f, ok := w.(http.Flusher); ok && resp.ContentLength < 0 {
		flush = f.Flush // slow answers keep their clients waiting with blanks
	}
	var sent int64
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if observe != nil {
				observe(buf[:n])
			}
			if _, werr := w.Write(buf[:n]); werr != nil {
				panic(http.ErrAbortHandler) // the client is gone
			}
			sent += int64(n)
			flush()
		}
		if errors.Is(err, io.EOF) {
			return sent
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// Refuse answers with an S3 error document, which every S3 client shows to
// its user. message says what, why and what to do.
func Refuse(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	var text strings.Builder
	_ = xml.EscapeText(&text, []byte(message)) // a strings.Builder never fails
	body := fmt.Sprintf("%s<Error><Code>%s</Code><Message>%s</Message></Error>", xml.Header, code, text.String())
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, body) // a client that is gone needs no answer
	}
}
