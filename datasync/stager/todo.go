package stager

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

var errTodo = errors.New("being built")

// Stager stages, collects and wipes for any number of bursts.
type Stager struct{ cfg Config }

// New returns a Stager; Close ends its background jobs.
func New(cfg Config) *Stager { return &Stager{cfg: cfg} }

// Close stops all background jobs and waits for them.
func (s *Stager) Close() error { return nil }

// Need says what a burst would have to move: objects and plaintext bytes.
func (s *Stager) Need(ctx context.Context, job StageJob) (objects int, bytes int64, err error) {
	return 0, 0, errTodo
}

// Stage starts or reports the staging of a burst. The first call starts a
// background job; every call returns how far it is. A failed job returns its
// error once and is started again by the next call.
func (s *Stager) Stage(ctx context.Context, job StageJob) (Progress, error) {
	return Progress{}, errTodo
}

// Collect verifies that all reported uploads are home.
func (s *Stager) Collect(ctx context.Context, job CollectJob) (Collected, error) {
	return Collected{}, errTodo
}

// Wipe stops the burst's staging and removes all of its staging bucket.
func (s *Stager) Wipe(ctx context.Context, job WipeJob) (Wiped, error) { return Wiped{}, errTodo }

// Error names input, tenant and what the tenant may read.
func (e *RefusedError) Error() string { return "refused" }

// Error names what is missing.
func (e *IncompleteError) Error() string { return "incomplete" }

// FileKeys keeps the keys of bursts in a directory.
type FileKeys struct{}

// NewFileKeys opens or makes the directory.
func NewFileKeys(dir string, random interface{ Read([]byte) (int, error) }, now func() time.Time) (*FileKeys, error) {
	return nil, errTodo
}

// Create implements [Keys].
func (k *FileKeys) Create(ctx context.Context, burst string) (seal.DataKey, error) {
	return seal.DataKey{}, errTodo
}

// Get implements [Keys].
func (k *FileKeys) Get(ctx context.Context, burst string) (seal.DataKey, error) {
	return seal.DataKey{}, errTodo
}

// Destroy implements [Keys]; it is never proven.
func (k *FileKeys) Destroy(ctx context.Context, burst string) (Destruction, error) {
	return Destruction{}, errTodo
}

// Grant is a part of the source store that a burst may reach.
type Grant struct {
	Bucket  string
	Prefix  string
	Methods []string // HTTP methods; GET includes HEAD and LIST
}

// GateConfig is what a Gate needs.
type GateConfig struct {
	Store     *url.URL // the source store; only scheme and host are used
	Hosts     []string // the store's names as jobs write them, without port
	NodeBurst func(node string) (burst string, ok bool)
	Audit     func(Audit) // one call per refused request; nil means none
	Transport http.RoundTripper
	Now       func() time.Time
}

// Audit is one refused request, without any credential.
type Audit struct {
	At                          time.Time
	Node, Burst, Remote, Method string
	Bucket, Key, Reason         string
}

// Gate is the only way from burst nodes to the source store: an http.Handler
// for a server with [GateTLS].
type Gate struct{}

// NewGate returns a gate that lets nothing through before [Gate.Allow].
func NewGate(cfg GateConfig) *Gate { return &Gate{} }

// Allow declares what a burst may reach until a time, in place of what was
// declared before. The controller repeats it after a restart.
func (g *Gate) Allow(burst string, until time.Time, grants []Grant) {}

// Revoke ends a burst's access.
func (g *Gate) Revoke(burst string) {}

// ServeHTTP implements [http.Handler].
func (g *Gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {}

// GateTLS is the server side of the gate: it demands a client certificate of
// a node, signed by the cluster CA.
func GateTLS(cert tls.Certificate, clusterCA []byte) (*tls.Config, error) { return nil, errTodo }
