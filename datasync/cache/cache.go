// Package cache is the S3 front of a burst node: jobs talk to it at the
// store's own name, and can't tell it from the store.
//
// The front has no credentials. It passes every request of a job to the
// on-prem gate byte by byte, signature and all. To a GET of an object whose
// ciphertext it can have locally it adds one unsigned header: If-None-Match
// with the version it knows or, where the object comes from a Ceph gateway,
// x-rgw-auth. The source store then checks signature, rights and freshness of
// that very request; only when it says that the version is the same does the
// front answer from the local ciphertext, opened chunk by chunk in memory.
//
// # Words
//
//   - hit: answered locally after the store's word. miss: the store sent the
//     body, and the front kept a sealed copy of it. pass: not a request that
//     may be cached; see [Stats.NotCached] for why.
//   - entry: the sealed bytes of one version of one object on the disk.
//   - staged entry: an entry that the manifest names; its bytes come from the
//     staging store by a presigned URL.
//
// # Promise
//
// The disk holds ciphertext only, under names that tell nothing. No byte is
// sent before its tag is checked; when a chunk does not authenticate the
// connection is aborted, the entry dropped and fetched again at the next
// request. A request that the store refuses gets the store's refusal and not
// a byte. Where the manifest allows it, the store's word counts for longer than
// one request, for the burst's own pods only. Without a data key the front is a
// plain passage. Clients that are not on this node are refused.
package cache

import (
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"spillway.dev/spillway/datasync"
)

// Config is what a Front needs.
type Config struct {
	Burst     string
	Gate      *url.URL          // base URL of the on-prem gate; only scheme and host are used
	Transport http.RoundTripper // reaches the gate with the node's certificate; see [Transport]
	Hosts     []string          // the store's names as jobs write them, without port; bucket.NAME is virtual-host style
	Dir       string            // for ciphertext; made when missing, emptied of what the front can't account for
	Results   string            // file outside Dir that keeps, sealed, what jobs wrote; empty keeps it in memory only
	Fetch     *http.Client      // reaches the staging store; nil means one of its own; it follows no redirect
	Local     func(netip.Addr) bool
	// Own says that a request comes from a pod of the burst's own gang, out of a
	// network namespace that is not the host's. Nil means that no request does:
	// then each is strict, whatever the manifest allows.
	Own      func(*http.Request) bool
	MaxBytes int64 // bound on ciphertext on disk; 0 means no bound
	// MaxManifest bounds the sealed manifest in bytes; 0 means 256 MiB, about
	// 250,000 objects.
	MaxManifest int64
	Random      interface{ Read([]byte) (int, error) }
	Now         func() time.Time
	Log         *slog.Logger // nil means silence
}

// Stats counts since the front was made. Bytes are body bytes.
type Stats struct {
	Hits          int64            `json:"hits"`
	Unasked       int64            `json:"unasked"` // of the hits, those that home was not asked about
	Misses        int64            `json:"misses"`
	Passed        int64            `json:"passed"`
	NotModified   int64            `json:"notModified"` // answers without body that the front's own header caused
	Refused       int64            `json:"refused"`     // clients that are not on this node
	Damaged       int64            `json:"damaged"`     // entries dropped because a chunk did not authenticate
	BytesStaged   int64            `json:"bytesStaged"` // ciphertext fetched from the staging store
	BytesServed   int64            `json:"bytesServed"` // plaintext from local entries
	BytesUpstream int64            `json:"bytesUpstream"`
	Objects       int              `json:"objects"`      // in the manifest
	ObjectsLocal  int              `json:"objectsLocal"` // of those, on the disk
	NotCached     map[string]int64 `json:"notCached,omitempty"`
}

// Wiped counts what [Front.Wipe] removed.
type Wiped struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Upload is an object that a job wrote through the front.
type Upload = datasync.Upload
