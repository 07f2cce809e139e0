// Package stager is the on-prem side of a burst's data. It fills the staging
// store with ciphertext, guards the way from the burst nodes to the source
// store, checks that results are home, wipes the staging store, and keeps the
// keys that make all of it unreadable when they go.
//
// # Words
//
//   - stage: pin the versions of a burst's inputs, seal each under the
//     burst's data key, put it into the staging bucket under an opaque name,
//     and write the manifest ([Stager.Stage]).
//   - collect: verify at home that every reported upload is there with the
//     reported digest ([Stager.Collect]).
//   - wipe: remove all objects, versions, markers and uploads until two
//     passes in a row found nothing, then the bucket ([Stager.Wipe]).
//   - gate: the only way from a burst node to the source store ([Gate]).
//   - key custody: the burst's data key lies wrapped at home, the key that
//     unwraps it at a key service ([Custody], [KEKs]).
//
// # Promise
//
// Everything here is level-triggered: repeat any call after any crash and it
// goes on from what the stores and the key directory say. What is staged
// already is not moved again. Only inputs within the tenant's own sources are
// read. The package knows no node agent and no cluster.
package stager

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/seal"
)

// Keys is where the keys of bursts are kept.
type Keys interface {
	// Create returns the burst's data key and makes it first when there is
	// none. Destroyed keys stay destroyed: [ErrKeyDestroyed].
	Create(ctx context.Context, burst string) (seal.DataKey, error)
	// Get returns the data key, [ErrNoKey] or [ErrKeyDestroyed].
	Get(ctx context.Context, burst string) (seal.DataKey, error)
	// Destroy makes the data key unrecoverable and says how far that is
	// proven. It may be repeated; a burst without keys gets a tombstone.
	Destroy(ctx context.Context, burst string) (Destruction, error)
}

var (
	// ErrNoKey says that no key was ever made for the burst.
	ErrNoKey = errors.New("burst has no data key")
	// ErrKeyDestroyed says that the burst's key was destroyed. Nothing
	// brings it back, and none is made in its place.
	ErrKeyDestroyed = errors.New("data key of the burst is destroyed")
)

// Destruction is what is known about a destroyed key.
type Destruction struct {
	Burst    string    `json:"burst"`
	KEK      KEK       `json:"kek"`              // the key-encryption key that was destroyed
	Method   string    `json:"method"`           // what was done, for the certificate
	Doubts   []string  `json:"doubts,omitempty"` // what keeps it from being proven
	AuditRef string    `json:"auditRef,omitempty"`
	Canary   Canary    `json:"canary"`
	Made     time.Time `json:"made,omitzero"` // when the data key was made
	At       time.Time `json:"at"`
}

// Canary is the negative test: a key that seals nothing, wrapped like the data
// key and tried before and after the destruction.
type Canary struct {
	SHA256     string    `json:"sha256,omitempty"`     // hex digest of the wrapped canary; empty: there was none
	Opened     bool      `json:"opened,omitempty"`     // it unwrapped before
	Refused    bool      `json:"refused,omitempty"`    // after, the key service said that its key does not exist
	LiveOpened bool      `json:"liveOpened,omitempty"` // and unwrapped what a living key had wrapped
	At         time.Time `json:"at,omitzero"`
}

// Proven says whether the key service proves that the key is gone.
func (d Destruction) Proven() bool {
	c := d.Canary
	return len(d.Doubts) == 0 && c.Opened && c.Refused && c.LiveOpened
}

// String is "destroyed" or "deleted, unproven".
func (d Destruction) String() string {
	if d.Proven() {
		return "destroyed"
	}
	return "deleted, unproven"
}

// Config is what a Stager needs. The fields behind Now may be left out.
type Config struct {
	Keys     Keys
	Signer   ed25519.PrivateKey // signs manifests
	Random   io.Reader
	Now      func() time.Time
	Log      *slog.Logger // nil means silence
	Parallel int          // objects moved at the same time; 0 means 8
	// Caps bound what goes out, by the time of day in Zone; nil means UTC. Each
	// must pass [Cap.Check].
	Caps []Cap
	Zone *time.Location
	Sent func(bytes int) // hears of each piece of ciphertext that goes out
}

// Source is one place that a tenant may read inputs from.
type Source struct {
	Endpoint s3.Endpoint
	Bucket   string
	Prefixes []string // none means the whole bucket
}

// StageJob is what has to be staged for one burst.
type StageJob struct {
	Burst   string
	Tenant  string
	Inputs  []datasync.Ref
	Sources []Source    // of the tenant; an input outside all of them is refused
	Staging s3.Endpoint // store near the burst nodes
	Expires time.Time   // until when the nodes may fetch; presigned URLs end then
	// Freshness of what the nodes serve; it must not change during a burst.
	Freshness datasync.Freshness
}

// Progress is how far a staging is. Bytes are plaintext bytes.
type Progress struct {
	Burst       string    `json:"burst"`
	Started     time.Time `json:"started"`
	Objects     int       `json:"objects"`
	ObjectsDone int       `json:"objectsDone"`
	Bytes       int64     `json:"bytes"`
	BytesDone   int64     `json:"bytesDone"`
	BytesMoved  int64     `json:"bytesMoved"` // ciphertext put by this process; what was there before isn't counted
	Done        bool      `json:"done"`
	// Set when Done:
	ManifestURL    string    `json:"manifestUrl,omitempty"` // presigned GET of the sealed manifest
	ManifestSHA256 string    `json:"manifestSha256,omitempty"`
	ManifestKey    []byte    `json:"manifestKey,omitempty"` // ed25519 public key
	Expires        time.Time `json:"expires,omitzero"`
}

// RefusedError says that an input lies outside the tenant's sources. It is
// permanent: the person who submitted or the tenant's sources must change.
type RefusedError struct {
	Input   datasync.Ref
	Tenant  string
	Sources []datasync.Ref
}

// BucketName is the staging bucket of a burst: it names no tenant and no job.
func BucketName(burst string) string {
	sum := sha256.Sum256([]byte("spillway.dev/staging@v1\x00" + burst))
	return "spw-" + hex.EncodeToString(sum[:16])
}

// IncompleteError names the uploads that are not home, each with the reason.
type IncompleteError struct {
	Burst   string
	Missing []string
}

// Stager stages, collects and wipes for any number of bursts. It is safe for
// concurrent use.
type Stager struct {
	cfg  Config
	ctx  context.Context // of all background jobs
	stop context.CancelFunc
	wg   sync.WaitGroup
	pace pacer

	mu   sync.Mutex
	runs map[string]*run // by burst
}

// New returns a Stager; [Stager.Close] ends its background jobs.
func New(cfg Config) *Stager {
	if cfg.Parallel <= 0 {
		cfg.Parallel = 8
	}
	if cfg.Sent == nil {
		cfg.Sent = func(int) {}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Stager{cfg: cfg, ctx: ctx, stop: stop, runs: map[string]*run{}}
	s.pace.caps, s.pace.zone, s.pace.now = cfg.Caps, cmp.Or(cfg.Zone, time.UTC), cfg.Now
	return s
}

// Close stops all background jobs and waits for them. What they moved stays.
func (s *Stager) Close() error {
	s.stop()
	s.wg.Wait()
	return nil
}

// Error names the input, the tenant and what the tenant may read.
func (e *RefusedError) Error() string {
	var may []string
	for _, s := range e.Sources {
		may = append(may, s.String())
	}
	if len(may) == 0 {
		may = []string{"none"}
	}
	return fmt.Sprintf("input %s is not within the sources of tenant %s (%s): name an input of the tenant, or add the source to the BurstTenant",
		e.Input, e.Tenant, strings.Join(may, ", "))
}

// Error names what is missing.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("burst %s: %d uploads are not home: %s", e.Burst, len(e.Missing), strings.Join(e.Missing, "; "))
}
