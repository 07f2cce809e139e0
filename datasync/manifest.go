package datasync

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

// manifestDomain stands in front of what is signed, so that a signature of
// some other statement never counts as one of a manifest.
const manifestDomain = "spillway.dev/manifest@v1\x00"

// ErrManifest says that a manifest must not be believed: not signed by this
// site, of another burst, or damaged.
var ErrManifest = errors.New("manifest is not to be trusted")

// Manifest lists the pinned inputs of one burst.
type Manifest struct {
	Burst   string    `json:"burst"`
	Made    time.Time `json:"made"`
	Expires time.Time `json:"expires"` // when the presigned URLs in it end
	Objects []Object  `json:"objects"` // sorted by bucket and key
	// Freshness is signed with the rest: neither the staging store nor the way
	// to the node can weaken it.
	Freshness Freshness `json:"freshness,omitzero"`
}

// Bytes is the plaintext size of all objects.
func (m Manifest) Bytes() int64 { return Bytes(m.Objects) }

// sealedManifest is the plaintext inside the sealing.
type sealedManifest struct {
	Payload   []byte `json:"payload"`
	Signature []byte `json:"signature"`
}

// SealManifest signs m and seals it under the burst's data key. What comes
// out may lie in a staging store.
func SealManifest(m Manifest, key seal.DataKey, signer ed25519.PrivateKey, random io.Reader) ([]byte, error) {
	payload, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode manifest of burst %s: %w", m.Burst, err)
	}
	signed, err := json.Marshal(sealedManifest{
		Payload:   payload,
		Signature: ed25519.Sign(signer, append([]byte(manifestDomain), payload...)),
	})
	if err != nil {
		return nil, fmt.Errorf("encode manifest of burst %s: %w", m.Burst, err)
	}
	var out bytes.Buffer
	w, err := seal.NewWriter(&out, key, manifestContext(m.Burst), random)
	if err != nil {
		return nil, fmt.Errorf("seal manifest of burst %s: %w", m.Burst, err)
	}
	if _, err := w.Write(signed); err != nil {
		return nil, fmt.Errorf("seal manifest of burst %s: %w", m.Burst, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("seal manifest of burst %s: %w", m.Burst, err)
	}
	return out.Bytes(), nil
}

// OpenManifest opens what [SealManifest] made for this burst and checks the
// signature. Every failure is an [ErrManifest].
func OpenManifest(sealed []byte, burst string, key seal.DataKey, signer ed25519.PublicKey) (Manifest, error) {
	fail := func(err error) (Manifest, error) {
		return Manifest{}, fmt.Errorf("burst %s: %w: %w", burst, ErrManifest, err)
	}
	plain, err := io.ReadAll(seal.NewOpener(bytes.NewReader(sealed), key, manifestContext(burst)))
	if err != nil {
		return fail(err)
	}
	var signed sealedManifest
	if err := json.Unmarshal(plain, &signed); err != nil {
		return fail(err)
	}
	if len(signer) != ed25519.PublicKeySize {
		return fail(fmt.Errorf("the manifest key has %d bytes, need %d", len(signer), ed25519.PublicKeySize))
	}
	if !ed25519.Verify(signer, append([]byte(manifestDomain), signed.Payload...), signed.Signature) {
		return fail(errors.New("its signature is not by the site's manifest key"))
	}
	var m Manifest
	if err := json.Unmarshal(signed.Payload, &m); err != nil {
		return fail(err)
	}
	if m.Burst != burst {
		return fail(fmt.Errorf("it is of burst %s", m.Burst))
	}
	return m, nil
}

func manifestContext(burst string) seal.Context {
	return seal.Context{Burst: burst, Direction: seal.List}
}

// InputContext is the sealing context of a staged object.
func InputContext(burst string, o Object) seal.Context {
	return seal.Context{
		Burst: burst, Direction: seal.In,
		Bucket: o.Bucket, Key: o.Key, Version: o.VersionID, ETag: o.ETag,
	}
}

// StagedName is the opaque name of an object's ciphertext in the staging
// store: the same for the same version, and nothing to one without the key.
func StagedName(key seal.DataKey, o Object) string {
	return key.Name("staging", o.Bucket, o.Key, o.VersionID, o.ETag)
}

// ManifestName is the opaque name of the burst's manifest in the staging
// store.
func ManifestName(key seal.DataKey, burst string) string { return key.Name("manifest", burst) }
