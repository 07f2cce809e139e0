package link

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

var (
	// ErrLeaseSignature is returned for a lease that the lease key did not sign.
	ErrLeaseSignature = errors.New("lease signature does not match")
	// ErrLeaseOther is returned for a lease that was given to another node.
	ErrLeaseOther = errors.New("lease belongs to another node")
	// ErrLeaseMalformed is returned for a lease that makes no sense.
	ErrLeaseMalformed = errors.New("lease is malformed")
)

// Lease is how long a node may live without hearing from the controller. Times
// are the controller's clock.
type Lease struct {
	Burst  string `json:"burst"`  // UID
	Node   string `json:"node"`   // node name
	Serial int64  `json:"serial"` // rises with every renewal, from 1; a node ignores a lower one
	// Issued is when the lease was signed. It bounds the lease of a node
	// that has not yet compared its clock with the controller's; zero is
	// allowed and bounds nothing.
	Issued time.Time `json:"issued,omitzero"`
	Soft   time.Time `json:"soft"` // from here on: stop the pods, give results back
	Hard   time.Time `json:"hard"` // from here on: wipe and power off, whatever happens
}

// SignedLease is a lease as it travels: the exact bytes that were signed.
type SignedLease struct {
	Payload   []byte `json:"payload,omitempty"`   // a Lease as JSON
	Signature []byte `json:"signature,omitempty"` // ed25519 over the payload, bound to its purpose
}

const leasePurpose = "spillway lease v1\n"

// SignLease signs l, or says why it is no lease.
func SignLease(key ed25519.PrivateKey, l Lease) (SignedLease, error) {
	if err := l.check(); err != nil {
		return SignedLease{}, fmt.Errorf("sign lease of node %s: %w", l.Node, err)
	}
	payload, err := json.Marshal(l)
	if err != nil {
		return SignedLease{}, fmt.Errorf("sign lease of node %s: %w", l.Node, err)
	}
	return SignedLease{Payload: payload, Signature: ed25519.Sign(key, append([]byte(leasePurpose), payload...))}, nil
}

// OpenLease returns the lease when pub signed it for the named node. Errors
// are ErrLeaseSignature, ErrLeaseOther and ErrLeaseMalformed. It does not look
// at the time: an expired lease opens.
func OpenLease(pub ed25519.PublicKey, s SignedLease, node string) (Lease, error) {
	if len(pub) != ed25519.PublicKeySize || !ed25519.Verify(pub, append([]byte(leasePurpose), s.Payload...), s.Signature) {
		return Lease{}, fmt.Errorf("open lease of node %s: %w", node, ErrLeaseSignature)
	}
	var l Lease
	d := json.NewDecoder(bytes.NewReader(s.Payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&l); err != nil {
		return Lease{}, fmt.Errorf("open lease of node %s: %w: %w", node, ErrLeaseMalformed, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Lease{}, fmt.Errorf("open lease of node %s: data follows it: %w", node, ErrLeaseMalformed)
	}
	if err := l.check(); err != nil {
		return Lease{}, fmt.Errorf("open lease of node %s: %w", node, err)
	}
	if l.Node != node {
		return Lease{}, fmt.Errorf("open lease of node %s: it names node %s: %w", node, l.Node, ErrLeaseOther)
	}
	return l, nil
}

func (l Lease) check() error {
	switch {
	case l.Burst == "" || l.Node == "":
		return fmt.Errorf("burst or node is missing: %w", ErrLeaseMalformed)
	case l.Serial < 1:
		return fmt.Errorf("serial %d is below 1: %w", l.Serial, ErrLeaseMalformed)
	case l.Soft.IsZero() || l.Hard.Before(l.Soft):
		return fmt.Errorf("soft %s must be set and not lie after hard %s: %w",
			l.Soft.Format(time.RFC3339), l.Hard.Format(time.RFC3339), ErrLeaseMalformed)
	case l.Issued.After(l.Hard):
		return fmt.Errorf("issued %s lies after hard %s: %w", l.Issued.Format(time.RFC3339), l.Hard.Format(time.RFC3339), ErrLeaseMalformed)
	default:
		return nil
	}
}
