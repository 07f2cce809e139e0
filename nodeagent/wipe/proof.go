// Package wipe erases what a burst left behind, proves it, and checks the proof.
//
// It promises that nobody can hold a statement for a step that did not happen:
// the level of a [Proof] and of a [Certificate] is computed from its evidence
// by the reader, never taken from the writer.
//
// An area is a folder on the node whose files are overwritten and unlinked by
// [Erase]. A step is one act of a wipe with its outcome. A proof is the node's
// own statement, signed with a key that lives as long as the agent process. A
// certificate is the controller's statement about the whole burst: every
// node's proof or the reason for its absence, the destruction of the keys, the
// deletion of the staging copy and of the machines. Its level is "certified"
// only when every statement in it has its proof.
//
// Everything but Erase is pure: no clock, no files, no network.
package wipe

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The steps that every node wipe consists of, in their order.
const (
	StepPodsStopped  = "pods stopped"   // no pod of the burst runs on the node
	StepKeyZeroed    = "key zeroed"     // the data key's memory was overwritten
	StepFrontStopped = "front stopped"  // the S3 front no longer listens or serves
	StepCanary       = "canary refused" // a file that opened with the key no longer opens
	StepAreaErased   = "area erased"    // every area overwritten, unlinked, found empty
)

// RequiredSteps returns the steps that a complete proof must show as done, in
// the order in which a node takes them.
func RequiredSteps() []string {
	return []string{StepPodsStopped, StepKeyZeroed, StepFrontStopped, StepCanary, StepAreaErased}
}

// Level says how much of a wipe is proven.
type Level string

// The levels of a node's proof and of a certificate.
const (
	Complete           Level = "complete"             // proof: every required step was done
	Partial            Level = "partial"              // proof: the key is gone, but a step failed or was skipped
	KeyDestructionOnly Level = "key-destruction-only" // proof: the key is gone, nothing was erased
	NotWiped           Level = "not-wiped"            // proof: the key's destruction is not shown
	Certified          Level = "certified"            // certificate: every statement has its proof
	Unproven           Level = "unproven"             // certificate: see the reasons
)

var (
	// ErrSignature is returned when a signature does not belong to the
	// statement or to the key: the statement must not be used.
	ErrSignature = errors.New("signature does not match")
	// ErrMalformed is returned for a statement that can't be read as what it
	// claims to be, although its signature may be right.
	ErrMalformed = errors.New("statement is malformed")
)

// Step is one act of a wipe and what came of it.
type Step struct {
	Name   string    `json:"name"`             // one of RequiredSteps, or a further act of the node
	OK     bool      `json:"ok"`               // the act was done and checked; false also for skipped
	Detail string    `json:"detail,omitempty"` // what was seen, or why it failed
	At     time.Time `json:"at"`               // when the act ended, by the node's clock
}

// Area is a folder that was erased.
type Area struct {
	Path        string `json:"path"`        // as the node names it
	Files       int64  `json:"files"`       // regular files unlinked
	Bytes       int64  `json:"bytes"`       // their sizes together
	Overwritten int64  `json:"overwritten"` // files overwritten in full before they were unlinked
	Empty       bool   `json:"empty"`       // the folder was read afterwards and held nothing
}

// CanaryUnwrap is the negative test of a node's key destruction: one sealed
// file that opened before the key was zeroed and must not open afterwards.
type CanaryUnwrap struct {
	OpenedBefore bool   `json:"openedBefore"`     // the positive control: it did open with the key
	OpenedAfter  bool   `json:"openedAfter"`      // true means that the key survived
	SHA256       string `json:"sha256,omitempty"` // hex digest of the sealed canary
}

// Proof is what one node states about its wipe. It holds counts and digests,
// never object names.
type Proof struct {
	Burst        string       `json:"burst"`             // UID of the burst
	Node         string       `json:"node"`              // node name
	OrderID      string       `json:"orderID,omitempty"` // the controller's order, empty when the lease ran out
	Cause        string       `json:"cause"`             // why the node wiped
	Steps        []Step       `json:"steps"`
	Areas        []Area       `json:"areas"`
	FilesRemoved int64        `json:"filesRemoved"`         // over all areas
	BytesRemoved int64        `json:"bytesRemoved"`         // over all areas
	KeyReceived  bool         `json:"keyReceived"`          // a data key was in this node's memory at some time
	KeyDestroyed bool         `json:"keyDestroyed"`         // no usable copy is left where the agent kept it
	Canary       CanaryUnwrap `json:"canary"`               // meaningless when KeyReceived is false
	NotCovered   []string     `json:"notCovered,omitempty"` // what this proof says nothing about
	At           time.Time    `json:"at"`                   // end of the wipe, by the node's clock
}

// Level computes what the proof shows. It never looks at anything but the
// evidence, so a node can't claim a level.
func (p Proof) Level() Level {
	switch {
	case !p.keyGone():
		return NotWiped
	case len(p.Reasons()) == 0:
		return Complete
	case !p.done(StepAreaErased) && p.FilesRemoved == 0:
		return KeyDestructionOnly
	default:
		return Partial
	}
}

// Reasons lists, in the order of the steps, why the proof is not complete. It
// is empty exactly for level Complete.
func (p Proof) Reasons() []string {
	var reasons []string
	for _, name := range RequiredSteps() {
		if !p.done(name) {
			reasons = append(reasons, p.notDone(name))
		}
	}
	for _, s := range p.Steps {
		if !s.OK && !slices.Contains(RequiredSteps(), s.Name) {
			reasons = append(reasons, fmt.Sprintf("step %q failed: %s", s.Name, s.Detail))
		}
	}
	for _, a := range p.Areas {
		if !a.Empty {
			reasons = append(reasons, fmt.Sprintf("area %s was not found empty", a.Path))
		}
		if a.Overwritten < a.Files {
			reasons = append(reasons, fmt.Sprintf("area %s: %d of %d files were unlinked without being overwritten",
				a.Path, a.Files-a.Overwritten, a.Files))
		}
	}
	if len(p.Areas) == 0 {
		reasons = append(reasons, "no area was named")
	}
	return append(reasons, p.keyReasons()...)
}

func (p Proof) keyReasons() []string {
	var reasons []string
	if !p.KeyDestroyed {
		reasons = append(reasons, "the data key's destruction is not shown")
	}
	if p.KeyReceived && !p.Canary.OpenedBefore {
		reasons = append(reasons, "the canary did not open before the key was zeroed, so its refusal shows nothing")
	}
	if p.KeyReceived && p.Canary.OpenedAfter {
		reasons = append(reasons, "the canary still opens")
	}
	return reasons
}

// keyGone says whether the key is shown to be unusable, whatever was erased.
func (p Proof) keyGone() bool {
	canary := !p.KeyReceived || (p.Canary.OpenedBefore && !p.Canary.OpenedAfter)
	return p.KeyDestroyed && canary && p.done(StepKeyZeroed)
}

// done says whether the named step is there and no entry of that name failed:
// a node that lists a step twice can't hide the failure behind the success.
func (p Proof) done(name string) bool {
	found := false
	for _, s := range p.Steps {
		if s.Name == name {
			if !s.OK {
				return false
			}
			found = true
		}
	}
	return found
}

func (p Proof) notDone(name string) string {
	for _, s := range p.Steps {
		if s.Name == name && !s.OK {
			return strings.TrimSuffix(fmt.Sprintf("step %q failed: %s", name, s.Detail), ": ")
		}
	}
	return fmt.Sprintf("step %q is missing", name)
}

// SignedProof is a proof as it travels: the exact bytes that were signed.
type SignedProof struct {
	Payload   []byte `json:"payload"`   // a Proof as JSON
	Signature []byte `json:"signature"` // ed25519 over the payload, bound to its purpose
}

const proofPurpose = "spillway wipe proof v1\n"

// Sign signs p with the agent's proof key.
func Sign(key ed25519.PrivateKey, p Proof) (SignedProof, error) {
	payload, err := marshal(p)
	if err != nil {
		return SignedProof{}, fmt.Errorf("sign wipe proof of node %s: %w", p.Node, err)
	}
	return SignedProof{Payload: payload, Signature: sign(key, proofPurpose, payload)}, nil
}

// Verify returns the proof when its signature was made by pub. It says nothing
// about what the proof shows: see [Proof.Level]. Errors are ErrSignature and
// ErrMalformed.
func Verify(pub ed25519.PublicKey, s SignedProof) (Proof, error) {
	if err := check(pub, proofPurpose, s.Payload, s.Signature); err != nil {
		return Proof{}, fmt.Errorf("verify wipe proof: %w", err)
	}
	var p Proof
	if err := unmarshal(s.Payload, &p); err != nil {
		return Proof{}, fmt.Errorf("verify wipe proof: %w", err)
	}
	if p.Burst == "" || p.Node == "" || p.At.IsZero() {
		return Proof{}, fmt.Errorf("verify wipe proof: burst, node or time is missing: %w", ErrMalformed)
	}
	return p, nil
}
