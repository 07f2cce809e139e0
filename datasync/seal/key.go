package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	keySize  = 32
	redacted = "[redacted key]"

	wrapPrefix = "spillway.dev/wrap@v1"
)

// ErrUnwrap says that a wrapped key does not open under this key-encryption
// key for this burst. After a destroyed KEK this is the wanted answer.
var ErrUnwrap = errors.New("wrapped data key does not open")

// DataKey is the key of one burst. It writes itself as a placeholder wherever
// fmt, encoding/json or log/slog may meet it; the bytes are reached only by
// slicing. Keep it in exported fields or on its own: fmt prints the raw bytes
// of an array in an unexported field of some other struct.
type DataKey [keySize]byte

// KEK is the key-encryption key of one burst. It never leaves the site and
// redacts itself as [DataKey] does.
type KEK [keySize]byte

// NewDataKey draws a data key.
func NewDataKey(random io.Reader) (DataKey, error) {
	var k DataKey
	if _, err := io.ReadFull(random, k[:]); err != nil {
		return DataKey{}, fmt.Errorf("draw data key: %w", err)
	}
	return k, nil
}

// NewKEK draws a key-encryption key.
func NewKEK(random io.Reader) (KEK, error) {
	k, err := NewDataKey(random)
	if err != nil {
		return KEK{}, fmt.Errorf("draw key-encryption key: %w", err)
	}
	return KEK(k), nil
}

// IsZero reports whether the key was never set or is destroyed.
func (k DataKey) IsZero() bool { return k == DataKey{} }

// Destroy overwrites this copy of the key. Other copies are the caller's.
func (k *DataKey) Destroy() { clear(k[:]) }

// String returns a placeholder.
func (k DataKey) String() string { return redacted }

// GoString returns a placeholder.
func (k DataKey) GoString() string { return redacted }

// Format writes a placeholder for every verb, %x and %d included.
func (k DataKey) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns a placeholder, so that a key never reaches JSON or a log.
func (k DataKey) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Destroy overwrites this copy of the key. Other copies are the caller's.
func (k *KEK) Destroy() { clear(k[:]) }

// String returns a placeholder.
func (k KEK) String() string { return redacted }

// GoString returns a placeholder.
func (k KEK) GoString() string { return redacted }

// Format writes a placeholder for every verb, %x and %d included.
func (k KEK) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// MarshalText returns a placeholder, so that a key never reaches JSON or a log.
func (k KEK) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Name returns an opaque name for fields: lower-case base32 of an HMAC under
// a key derived for purpose. Equal fields give equal names, so a repeat finds
// what is there; without the key a name tells nothing. It is safe as an object
// name and as a file name.
func (k DataKey) Name(purpose string, fields ...string) string {
	sub, err := hkdf.Expand(sha512.New, k[:], "spillway.dev/name@v1\x00"+purpose, keySize)
	if err != nil {
		panic("seal: 32 bytes are within the limit of HKDF: " + err.Error())
	}
	mac := hmac.New(sha256.New, sub)
	mac.Write(encodeFields(fields...))
	name := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil))
	return strings.ToLower(name)
}

// Wrap encrypts a data key under the burst's key-encryption key. The answer
// opens only with the same key and burst.
func Wrap(kek KEK, key DataKey, burst string, random io.Reader) ([]byte, error) {
	aead, err := wrapAEAD(kek)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, nonceSize, nonceSize+keySize+TagSize)
	if _, err := io.ReadFull(random, nonce); err != nil {
		return nil, fmt.Errorf("wrap data key of burst %s: draw nonce: %w", burst, err)
	}
	return aead.Seal(nonce, nonce, key[:], encodeFields(wrapPrefix, burst)), nil
}

// Unwrap returns the data key in wrapped, or [ErrUnwrap].
func Unwrap(kek KEK, wrapped []byte, burst string) (DataKey, error) {
	aead, err := wrapAEAD(kek)
	if err != nil {
		return DataKey{}, err
	}
	if len(wrapped) != nonceSize+keySize+TagSize {
		return DataKey{}, fmt.Errorf("burst %s: %w: it has %d bytes", burst, ErrUnwrap, len(wrapped))
	}
	plain, err := aead.Open(nil, wrapped[:nonceSize], wrapped[nonceSize:], encodeFields(wrapPrefix, burst))
	if err != nil {
		return DataKey{}, fmt.Errorf("burst %s: %w", burst, ErrUnwrap)
	}
	defer clear(plain)
	return DataKey(plain), nil
}

func wrapAEAD(kek KEK) (cipher.AEAD, error) {
	block, err := aes.NewCipher(kek[:])
	if err != nil {
		return nil, fmt.Errorf("key-encryption key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("key-encryption key: %w", err)
	}
	return aead, nil
}
