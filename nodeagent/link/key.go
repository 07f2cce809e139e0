package link

import (
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrSealedKey is returned for a data key that was not sealed to this agent
// process for this burst and node, or that was changed on the way.
var ErrSealedKey = errors.New("sealed key does not open")

// SealedKey is a burst's 32-byte data key, sealed with HPKE (RFC 9180: DHKEM
// X25519, HKDF-SHA256, AES-256-GCM) to one agent process. The HPKE info binds
// burst and node.
type SealedKey struct {
	To     []byte `json:"to"`     // SHA-256 of the public key that it was sealed to
	Sealed []byte `json:"sealed"` // encapsulated key and ciphertext
}

// SealKey seals a data key to the HPKE public key that the node reported.
func SealKey(public []byte, burst, node string, key [32]byte) (SealedKey, error) {
	pk, err := hpke.DHKEM(ecdh.X25519()).NewPublicKey(public)
	if err != nil {
		return SealedKey{}, fmt.Errorf("seal data key of burst %s to node %s: the reported public key is not usable: %w", burst, node, err)
	}
	sealed, err := hpke.Seal(pk, hpke.HKDFSHA256(), hpke.AES256GCM(), keyInfo(burst, node), key[:])
	if err != nil {
		return SealedKey{}, fmt.Errorf("seal data key of burst %s to node %s: %w", burst, node, err)
	}
	to := sha256.Sum256(public)
	return SealedKey{To: to[:], Sealed: sealed}, nil
}

// For says whether the key was sealed to this public key. A controller uses it
// to see that an agent has restarted and needs the key sealed anew.
func (k SealedKey) For(public []byte) bool {
	to := sha256.Sum256(public)
	return string(k.To) == string(to[:])
}

// NodeKey is the private half, made anew by every agent process and never
// written anywhere.
type NodeKey struct{ private hpke.PrivateKey }

// NewNodeKey makes a node key.
func NewNodeKey() (*NodeKey, error) {
	private, err := hpke.DHKEM(ecdh.X25519()).GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("make the node's HPKE key: %w", err)
	}
	return &NodeKey{private: private}, nil
}

// Public returns the bytes that the agent reports.
func (k *NodeKey) Public() []byte { return k.private.PublicKey().Bytes() }

// Open returns the data key, or ErrSealedKey. The caller owns the slice and
// overwrites it when done.
func (k *NodeKey) Open(s SealedKey, burst, node string) ([]byte, error) {
	key, err := hpke.Open(k.private, hpke.HKDFSHA256(), hpke.AES256GCM(), keyInfo(burst, node), s.Sealed)
	if err != nil {
		return nil, fmt.Errorf("open data key of burst %s on node %s: %w: %w", burst, node, ErrSealedKey, err)
	}
	if len(key) != 32 {
		clear(key)
		return nil, fmt.Errorf("open data key of burst %s on node %s: it has %d bytes, not 32: %w", burst, node, len(key), ErrSealedKey)
	}
	return key, nil
}

// keyInfo joins purpose, burst and node with their lengths, so that no two
// pairs give the same bytes.
func keyInfo(burst, node string) []byte {
	info := []byte("spillway data key v1\n")
	for _, s := range []string{burst, node} {
		info = binary.BigEndian.AppendUint32(info, uint32(len(s)))
		info = append(info, s...)
	}
	return info
}
