// Package link is what the controller and the agents on the nodes say to each
// other.
//
// The agent dials out: HTTPS, with the node's own client certificate (CN
// system:node:<name>, O system:nodes), POST /v1/sync with a [Report], answered
// by a [Reply] that carries [Orders]. Both are levels, not events: a report
// says all that is true now and the orders all that is wanted now, so either
// side may lose its memory and hear everything again. An absent order asks for
// nothing and takes nothing back.
//
// It promises that a connection speaks only for the node in its certificate
// and only for the burst that this node belongs to. A rented node's agent is
// untrusted input: the [Hub] bounds what it may say, and nothing it says can
// extend its lease or choose who pays.
//
// A [Lease] is a signed statement with two times: soft (stop the work) and hard
// (wipe and power off). A [SealedKey] is a burst's data key sealed to one
// agent process of one node. On-prem nodes have no burst: they report
// readiness and usage, and nothing else.
package link

import (
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// SyncPath is the only path that a [Hub] serves.
const SyncPath = "/v1/sync"

// What one report may carry at most.
const (
	MaxUsage   = 500      // usage records in one report; the rest comes after the acknowledgement
	MaxUploads = 20_000   // results; of more the newest are reported
	MaxBody    = 16 << 20 // bytes of one request
)

// Report is what an agent says about its node.
type Report struct {
	Node      string `json:"node"`              // node name, as in the client certificate
	Burst     string `json:"burst,omitempty"`   // UID of the node's burst, empty on-prem
	BootID    string `json:"bootID"`            // changes when the machine restarts
	Agent     string `json:"agent"`             // version of the agent
	HPKE      []byte `json:"hpke,omitempty"`    // X25519 public key of this agent process, for SealKey
	ProofKey  []byte `json:"proof,omitempty"`   // ed25519 public key of this agent process, for its wipe proof
	Readiness Ready  `json:"readiness"`         // evidence; the controller judges
	KeyHeld   bool   `json:"keyHeld"`           // the data key is in the agent's memory
	Draining  bool   `json:"draining"`          // soft has passed or a wipe began: no new work
	Lease     int64  `json:"leaseSerial"`       // serial of the lease that the node lives by
	Drained   bool   `json:"drained"`           // no pod with a device runs on the node
	Journal   string `json:"journal"`           // the usage journal that Usage comes from
	Cache     Cache  `json:"cache"`             // counters of the S3 front
	Staged    Staged `json:"staged"`            // how far the cache is filled
	Clock     Offset `json:"clock"`             // the node's clock against the controller's
	Problem   string `json:"problem,omitempty"` // one sentence on what the agent could not do

	// Usage holds the oldest records that were not yet acknowledged, by
	// rising Seq, at most MaxUsage. Tenant is empty: the controller decides.
	Usage []quota.Usage `json:"usage,omitempty"`
	// Uploads holds the results that jobs wrote on this node, those of agent
	// processes before this one too once it has the key.
	// The client leaves the list out when the hub says that it has the list
	// with this digest.
	Uploads       []Upload `json:"uploads,omitempty"`
	UploadsDigest string   `json:"uploadsDigest,omitempty"` // set by the client
	// Wipe is the signed proof of a finished wipe, verified with ProofKey.
	Wipe *wipe.SignedProof `json:"wipe,omitempty"`
}

// Ready is the evidence for a node's readiness. Each entry was read on the
// node, not assumed.
type Ready struct {
	Evidence []Evidence `json:"evidence"`
}

// OK says whether there is evidence and all of it is good.
func (r Ready) OK() bool {
	for _, e := range r.Evidence {
		if !e.OK {
			return false
		}
	}
	return len(r.Evidence) > 0
}

// Evidence is one thing that was looked at.
type Evidence struct {
	Gate string    `json:"gate"` // what was asked, for example "swap"
	OK   bool      `json:"ok"`   // it is as it must be
	Seen string    `json:"seen"` // what was read, in words
	From string    `json:"from"` // where it was read
	At   time.Time `json:"at"`   // when, by the node's clock
}

// Upload is a result that a job wrote through the node's S3 front.
type Upload = datasync.Upload

// Cache counts what the S3 front did since the agent started.
type Cache struct {
	BytesStaged   int64 `json:"bytesStaged"`   // ciphertext fetched from staging
	BytesServed   int64 `json:"bytesServed"`   // plaintext given to jobs from the cache
	BytesUpstream int64 `json:"bytesUpstream"` // body bytes that the source store sent
	BytesUploaded int64 `json:"bytesUploaded"` // body bytes that jobs wrote to the source store
	NotModified   int64 `json:"notModified"`   // reads that the source store answered with 304
	PassedThrough int64 `json:"passedThrough"` // requests that the cache did not serve
	Refused       int64 `json:"refused"`       // requests from outside the node
	Failed        int64 `json:"failed"`        // sealed objects that did not open
}

// Staged says how far the node's cache is filled.
type Staged struct {
	ManifestSHA256 string `json:"manifestSHA256,omitempty"` // hex; the manifest that the node works with
	Objects        int    `json:"objects"`                  // sealed objects on the node's disk
	Of             int    `json:"of"`                       // objects in the manifest
	Problem        string `json:"problem,omitempty"`        // why it does not go on
}

// Offset compares the node's wall clock with the controller's.
type Offset struct {
	Known bool          `json:"known"`      // false before the first reply
	Ahead time.Duration `json:"aheadNanos"` // node minus controller
	Error time.Duration `json:"errorNanos"` // the true value lies within Ahead ± Error
}

// Orders is what the controller wants from a node. The zero value wants
// nothing.
type Orders struct {
	Lease SignedLease `json:"lease"`         // the newest lease; empty means none
	Key   *SealedKey  `json:"key,omitempty"` // the burst's data key, sealed to the HPKE key that the node reported
	Stage *Stage      `json:"stage,omitempty"`
	// UsageAck acknowledges all usage of the journal UsageJournal up to this
	// Seq. It means nothing for another journal, so both are set together.
	UsageAck     int64      `json:"usageAck,omitempty"`
	UsageJournal string     `json:"usageJournal,omitempty"`
	Wipe         *WipeOrder `json:"wipe,omitempty"`
}

// Stage tells the node what lies ready for it in staging.
type Stage struct {
	ManifestURL    string `json:"manifestURL"`    // presigned GET of the sealed manifest
	ManifestSHA256 string `json:"manifestSHA256"` // hex, of the sealed manifest
	ManifestKey    []byte `json:"manifestKey"`    // ed25519 public key that signed the manifest
}

// WipeOrder asks the node to wipe itself. There is no way back: after it the
// node takes no key and serves nothing.
type WipeOrder struct {
	ID     string `json:"id"`     // repeated in the proof
	Reason string `json:"reason"` // for people
}

// Reply is what a hub answers.
type Reply struct {
	Orders Orders `json:"orders"`
	// Hub names this hub's memory; it changes when the controller restarts.
	Hub string `json:"hub"`
	// Version counts the orders that this node was given. The agent's next
	// request says which version it has and is held until there is a newer one.
	Version int64 `json:"version"`
	// Received and Sent are the controller's clock when the request arrived
	// and when this reply left.
	Received time.Time `json:"received"`
	Sent     time.Time `json:"sent"`
	// Uploads is the digest of the list of uploads that the hub has of this
	// agent process; empty asks for the whole list.
	Uploads string `json:"uploads,omitempty"`
}
