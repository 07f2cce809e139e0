// Package s3 talks to S3 stores: it reads the source store at home and keeps
// the staging store near the burst nodes. It is the only package that knows
// minio-go.
//
// # Words
//
//   - endpoint: a store with the credentials for it ([Endpoint]).
//   - source: read only; every read is bound to the ETag that was pinned, so
//     that an object that changed in between is [ErrChanged] and never a mix
//     of two versions ([Source]).
//   - staging: one bucket per burst, with opaque names and ciphertext
//     ([Staging]).
//
// # Promise
//
// A body that ends early is an error and never a short success. A listing is
// read to its end, page by page. Deletions are counted object by object, as
// the store confirmed them. Paths are addressed path style, keys are bytes as
// they are.
package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

var (
	// ErrNotFound says that bucket, object or version does not exist.
	ErrNotFound = errors.New("not found")
	// ErrChanged says that the object is no longer the version that was
	// pinned. Pin it again.
	ErrChanged = errors.New("object changed since it was pinned")
	// ErrDenied says that the store refused the credentials or the action.
	ErrDenied = errors.New("store refused")
)

// Endpoint is a store and the credentials for it. It writes itself without
// the secret.
type Endpoint struct {
	URL       string // http://host:port or https://host:port
	Region    string // empty means us-east-1
	AccessKey string
	SecretKey string
	Transport http.RoundTripper // nil means a transport of its own
}

// String is URL and access key.
func (e Endpoint) String() string { return e.URL + " as " + e.AccessKey }

// GoString is String.
func (e Endpoint) GoString() string { return e.String() }

// Format writes String for every verb.
func (e Endpoint) Format(f fmt.State, _ rune) { fmt.Fprint(f, e.String()) }

// LogValue is String.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.String()) }

// MarshalText is String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// connect returns a client that addresses path style and never guesses a
// region.
func (e Endpoint) connect() (*minio.Core, error) {
	u, err := url.Parse(e.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("store URL %q: write http://host:port or https://host:port", e.URL)
	}
	region := e.Region
	if region == "" {
		region = "us-east-1"
	}
	next := e.Transport
	if next == nil {
		if next, err = minio.DefaultTransport(u.Scheme == "https"); err != nil {
			return nil, fmt.Errorf("store %s: %w", e.URL, err)
		}
	}
	c, err := minio.NewCore(u.Host, &minio.Options{
		Creds:        credentials.NewStaticV4(e.AccessKey, e.SecretKey, ""),
		Secure:       u.Scheme == "https",
		Region:       region,
		BucketLookup: minio.BucketLookupPath,
		Transport:    headerTap{next},
		MaxRetries:   3,
	})
	if err != nil {
		return nil, fmt.Errorf("store %s: %w", e.URL, err)
	}
	return c, nil
}

// headerTap hands the headers of an answer to the caller as the store sent
// them; the client library drops and rewrites some.
type headerTap struct{ next http.RoundTripper }

type tapKey struct{}

// withTap returns a context whose requests leave their answer's headers in h.
func withTap(ctx context.Context, h *http.Header) context.Context {
	return context.WithValue(ctx, tapKey{}, h)
}

func (t headerTap) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if h, ok := r.Context().Value(tapKey{}).(*http.Header); ok && err == nil {
		*h = resp.Header.Clone()
	}
	return resp, err
}

// classify wraps an error of the client library so that callers can branch
// on it, and says what was asked.
func classify(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("%s: %w: %w", what, ErrNotFound, err)
	case http.StatusPreconditionFailed:
		return fmt.Errorf("%s: %w: %w", what, ErrChanged, err)
	case http.StatusForbidden, http.StatusUnauthorized:
		return fmt.Errorf("%s: %w: %w", what, ErrDenied, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
