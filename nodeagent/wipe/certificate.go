package wipe

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Standard names the norms that a certificate of level Certified claims:
// cryptographic erasure, with the deletion of media as further evidence.
const Standard = "NIST SP 800-88r2 CE (Purge) + BSI CON.6.A12"

// Media is a machine of the burst and what it stored on.
type Media struct {
	Provider  string   `json:"provider"`
	ServerID  string   `json:"serverID"`            // the provider's own id
	VolumeIDs []string `json:"volumeIDs,omitempty"` // volumes and snapshots that belonged to it
	Type      string   `json:"type"`                // for example "virtual disk"
	Areas     []string `json:"areas,omitempty"`     // folders that held ciphertext
}

// KEK names the key-encryption key that wrapped a data key.
type KEK struct {
	KEKID   string `json:"kekID"`
	Version string `json:"version,omitempty"`
}

// Key is a data key of the burst and how it ended.
type Key struct {
	ID            string    `json:"id"`
	Algorithm     string    `json:"alg"`
	GeneratedAt   time.Time `json:"generatedAt"`
	Generator     string    `json:"generator"`
	WrappedBy     KEK       `json:"wrappedBy"`
	DestroyedAt   time.Time `json:"destroyedAt"`        // zero: it was not destroyed
	DestroyMethod string    `json:"destroyMethod"`      // how, in words
	Proven        bool      `json:"proven"`             // the key service proves that the key is gone
	Doubts        []string  `json:"doubts,omitempty"`   // what keeps it from being proven
	AuditRef      string    `json:"auditRef,omitempty"` // the key service's own record of it
}

// NodeAck is one node's acknowledgement: its signed proof, or the reason why
// there is none.
type NodeAck struct {
	Node     string       `json:"node"`
	Signed   *SignedProof `json:"signed,omitempty"`
	ProofKey []byte       `json:"proofKey,omitempty"` // ed25519 key that the node reported before its key release
	Missing  bool         `json:"missing,omitempty"`
	Reason   string       `json:"reason,omitempty"` // why it is missing
}

// Staging counts what was deleted from the staging store.
type Staging struct {
	Bucket          string    `json:"bucket"`
	ObjectsDeleted  int64     `json:"objectsDeleted"`
	VersionsDeleted int64     `json:"versionsDeleted"`
	MarkersDeleted  int64     `json:"markersDeleted"`
	UploadsAborted  int64     `json:"uploadsAborted"`
	EmptyPasses     int       `json:"passes"`          // consecutive complete listings that found nothing
	FinalListSHA256 string    `json:"finalListSHA256"` // hex digest of the last, empty listing
	DeletedBucketAt time.Time `json:"deletedBucketAt"` // zero: the bucket is still there
}

// ProviderDeletion is what the provider said about the machines.
type ProviderDeletion struct {
	ServerDeletedAt time.Time `json:"serverDeletedAt"`          // last of the burst's machines
	VolumeDeletedAt time.Time `json:"volumeDeletedAt"`          // zero when there were none
	Confirmations   []string  `json:"confirmations"`            // for example "list by tag at T: empty"
	LeftBehind      []string  `json:"leftBehind,omitempty"`     // parts that the provider still lists
	ListIncomplete  bool      `json:"listIncomplete,omitempty"` // a listing failed or was truncated
}

// Verification is the negative decrypt test at home: after the destruction of
// the keys a wrapped canary key must no longer unwrap, while a key that lives
// at the same key service does: silence is no refusal.
type Verification struct {
	Method        string    `json:"method"`
	Tool          string    `json:"tool"`
	Version       string    `json:"version"`
	CanaryUnwrap  string    `json:"canaryUnwrap"`  // CanaryRefused is the only good value
	CanarySHA256  string    `json:"canarySHA256"`  // hex digest of the wrapped canary key
	CanaryControl bool      `json:"canaryControl"` // the canary unwrapped before
	LiveUnwrap    bool      `json:"liveUnwrap"`    // a key that lives unwrapped after the refusal
	At            time.Time `json:"at"`
}

// CanaryRefused is the outcome of a negative decrypt test that proves
// something: the canary unwrapped before (CanaryControl) and was refused after,
// when a living key still unwrapped (LiveUnwrap).
const CanaryRefused = "refused"

// Certificate is the controller's statement about the whole burst. It names
// digests and counts, never object names or people.
type Certificate struct {
	ID               string           `json:"id"`
	Burst            string           `json:"burstID"`
	Tenant           string           `json:"tenant"`
	WorkloadUIDs     []string         `json:"jobUIDs"`
	Standard         string           `json:"standard"`
	Classification   string           `json:"classification"`
	Media            []Media          `json:"media"`
	Keys             []Key            `json:"keys"`
	PlaintextOnMedia []string         `json:"plaintextOnMedia"` // areas where cleartext may have rested; empty: none
	NodeAcks         []NodeAck        `json:"nodeAcks"`         // one per machine
	Staging          Staging          `json:"s3"`
	Provider         ProviderDeletion `json:"provider"`
	Verification     Verification     `json:"verification"`
	NotCovered       []string         `json:"notCovered,omitempty"` // what this certificate says nothing about
	Level            Level            `json:"level"`                // set by SignCertificate from the evidence
	Unproven         []string         `json:"unproven,omitempty"`   // the reasons, set by SignCertificate
	IssuedAt         time.Time        `json:"issuedAt"`
	Operator         string           `json:"operator"`
	SignedBy         string           `json:"signedBy"` // name of the signing key
	PrevHash         string           `json:"prevHash"` // Hash of the certificate before this one, empty for the first
}

// SignedCertificate is a certificate as it is kept: readable JSON with its
// signature beside it. Indentation may change, a single value may not.
type SignedCertificate struct {
	Certificate json.RawMessage `json:"certificate"`
	Signature   []byte          `json:"signature"`
}

const certificatePurpose = "spillway wipe certificate v1\n"

// SignCertificate computes level and reasons from the evidence in c, whatever
// the caller wrote there, and signs the result. It refuses a certificate
// without id, burst or time.
func SignCertificate(key ed25519.PrivateKey, c Certificate) (SignedCertificate, error) {
	if c.ID == "" || c.Burst == "" || c.IssuedAt.IsZero() {
		return SignedCertificate{}, fmt.Errorf("sign wipe certificate %q: id, burst or time is missing: %w", c.ID, ErrMalformed)
	}
	c.Level, c.Unproven = c.assess()
	payload, err := marshal(c)
	if err != nil {
		return SignedCertificate{}, fmt.Errorf("sign wipe certificate of burst %s: %w", c.Burst, err)
	}
	return SignedCertificate{Certificate: payload, Signature: sign(key, certificatePurpose, payload)}, nil
}

// VerifyCertificate returns the certificate when its signature was made by pub
// and its level follows from its evidence. Errors are ErrSignature and
// ErrMalformed.
func VerifyCertificate(pub ed25519.PublicKey, s SignedCertificate) (Certificate, error) {
	payload, err := canonical(s.Certificate)
	if err != nil {
		return Certificate{}, fmt.Errorf("verify wipe certificate: %w", err)
	}
	if err := check(pub, certificatePurpose, payload, s.Signature); err != nil {
		return Certificate{}, fmt.Errorf("verify wipe certificate: %w", err)
	}
	var c Certificate
	if err := unmarshal(payload, &c); err != nil {
		return Certificate{}, fmt.Errorf("verify wipe certificate: %w", err)
	}
	if level, _ := c.assess(); level != c.Level {
		return Certificate{}, fmt.Errorf("verify wipe certificate %s: it says %s, its evidence says %s: %w", c.ID, c.Level, level, ErrMalformed)
	}
	return c, nil
}

// Hash returns the hex SHA-256 of the certificate as signed; the next
// certificate carries it as PrevHash.
func (s SignedCertificate) Hash() (string, error) {
	payload, err := canonical(s.Certificate)
	if err != nil {
		return "", fmt.Errorf("hash wipe certificate: %w", err)
	}
	sum := sha256.Sum256(payload)
	return hex.EncodeToString(sum[:]), nil
}

// canonical undoes what tools do to JSON without changing its meaning:
// indentation, and plain characters where Go's encoder writes escapes.
func canonical(raw []byte) ([]byte, error) {
	var compact, escaped bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return nil, errors.Join(ErrMalformed, err)
	}
	json.HTMLEscape(&escaped, compact.Bytes())
	return escaped.Bytes(), nil
}
