package cache

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
)

var errTodo = errors.New("being built")

// Front is the S3 front of one burst node. It is an http.Handler; serve it
// with a plain http.Server, never behind a ServeMux.
type Front struct{}

// New returns a front without key and manifest: a plain passage.
func New(cfg Config) (*Front, error) { return nil, errTodo }

// Transport reaches the gate over TLS with the node's certificate, keeps
// connections, and changes nothing about bodies.
func Transport(cert func() (*tls.Certificate, error), gateCA *x509.CertPool) *http.Transport {
	return nil
}

// ServeHTTP implements [http.Handler].
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {}

// Unlock gives the front the burst's data key and manifest; from then on it
// caches. It may be called again with a newer manifest.
func (f *Front) Unlock(key seal.DataKey, m datasync.Manifest) error { return errTodo }

// Manifest fetches a sealed manifest by presigned URL, checks digest and
// signature, and opens it.
func (f *Front) Manifest(ctx context.Context, url, sha256 string, key seal.DataKey, signer []byte) (datasync.Manifest, error) {
	return datasync.Manifest{}, errTodo
}

// Prefetch brings all staged entries to the disk; it returns when they are
// there or ctx ends.
func (f *Front) Prefetch(ctx context.Context) error { return errTodo }

// Uploads lists what jobs wrote and did not delete again, by bucket and key.
func (f *Front) Uploads() []Upload { return nil }

// Stats returns the counters.
func (f *Front) Stats() Stats { return Stats{} }

// Wipe destroys the front's copy of the key and removes all entries; the
// front is a plain passage afterwards.
func (f *Front) Wipe() (Wiped, error) { return Wiped{}, errTodo }
