package wipe

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// sign signs the purpose together with the payload, so that a signature made
// for one kind of statement is worth nothing for another.
func sign(key ed25519.PrivateKey, purpose string, payload []byte) []byte {
	return ed25519.Sign(key, append([]byte(purpose), payload...))
}

func check(pub ed25519.PublicKey, purpose string, payload, signature []byte) error {
	if len(pub) != ed25519.PublicKeySize {
		return fmt.Errorf("public key has %d bytes, not %d: %w", len(pub), ed25519.PublicKeySize, ErrSignature)
	}
	if !ed25519.Verify(pub, append([]byte(purpose), payload...), signature) {
		return ErrSignature
	}
	return nil
}

func marshal(v any) ([]byte, error) { return json.Marshal(v) }

// unmarshal is strict: an unknown field is a statement that this reader would
// overlook, and trailing data is one that it never saw.
func unmarshal(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return errors.Join(ErrMalformed, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("data follows the statement: %w", ErrMalformed)
	}
	return nil
}
