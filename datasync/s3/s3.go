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
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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
