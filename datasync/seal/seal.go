// Package seal encrypts everything of a burst that rests outside: what is
// staged in a cloud, what a burst node keeps on its disk, and the list of it.
//
// The format is C2SP chunked-encryption (c2sp.org/chunked-encryption@v1) with
// HKDF-Expand on SHA-512 and AES-256-GCM, also called Cobblestone-256:
//
//	salt (24) | commitment (32) | chunk 0 | chunk 1 | ... | final chunk
//
// A chunk is 16 KiB of plaintext and a tag of 16 bytes; the final chunk is
// always shorter than 16 KiB and may be empty, which is how an end is told
// from a truncation. Key, base nonce and commitment are derived from the data
// key, a fresh salt and the context, so a sealed message opens only under the
// key and the [Context] it was sealed for. Any chunk can be opened alone.
//
// # Words
//
//   - data key: 32 random bytes, one per burst, never reused ([DataKey]).
//   - key-encryption key: wraps a data key at home; one per burst, so that
//     destroying it erases every copy of the burst's data ([KEK]).
//   - context: what a message is, in fields that can't be confused ([Context]).
//
// # Promise
//
// No byte is given out before the tag of its chunk is checked, and none is
// given out that was not sealed at that offset, of that message, under that
// key and context. Random bytes come from the caller: the package has no
// clock, no network and no source of randomness of its own.
//
// It refuses to be a general encryption library: there is one algorithm, no
// negotiation, no password, and no way to seal without a context.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// ChunkSize is the plaintext of every chunk but the final one, in bytes.
	ChunkSize = 16 << 10
	// TagSize is what each chunk grows by, in bytes.
	TagSize = 16
	// HeaderSize is the length of salt and commitment, in bytes.
	HeaderSize = saltSize + commitmentSize
	// MaxSize is the largest plaintext of one message, in bytes (4 PiB - 1).
	MaxSize = maxChunks*ChunkSize - 1

	saltSize       = 24
	commitmentSize = 32
	nonceSize      = 12
	sealedChunk    = ChunkSize + TagSize
	maxChunks      = 1 << 38
	infoPrefix     = "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\x00"
)

var (
	// ErrDamaged says that a message is not what was sealed: changed, cut,
	// extended, reordered, or another message. Fetch it again.
	ErrDamaged = errors.New("sealed data is damaged")
	// ErrWrongKey says that key or context differ from those of the sealing,
	// or that the header is damaged; the two can't be told apart.
	ErrWrongKey = errors.New("sealed data belongs to another key or context")
	// ErrTooLarge says that a plaintext exceeds [MaxSize].
	ErrTooLarge = errors.New("data exceeds what one sealed message can hold")
)

// Size is the sealed size of a plaintext of so many bytes.
func Size(plain int64) int64 {
	return HeaderSize + plain + TagSize*(plain/ChunkSize+1)
}

// PlainSize is the plaintext size of a sealed message of so many bytes. It
// returns [ErrDamaged] for a length that no message has.
func PlainSize(sealed int64) (int64, error) {
	body := sealed - HeaderSize
	last := body % sealedChunk
	if body < TagSize || last < TagSize || body/sealedChunk >= maxChunks {
		return 0, fmt.Errorf("%w: no message has %d bytes", ErrDamaged, sealed)
	}
	return body/sealedChunk*ChunkSize + last - TagSize, nil
}

// message holds the derived secrets of one sealed message. It is not safe for
// concurrent use: the nonce is scratch space.
type message struct {
	aead  cipher.AEAD
	base  [nonceSize]byte
	nonce [nonceSize]byte
}

// derive computes AEAD, base nonce and commitment for one salt.
func derive(key, salt, context []byte) (*message, []byte, error) {
	if len(key) != keySize {
		return nil, nil, fmt.Errorf("data key has %d bytes, need %d", len(key), keySize)
	}
	info := infoPrefix + string(salt) + string(context)
	okm, err := hkdf.Expand(sha512.New, key, info, keySize+nonceSize+commitmentSize)
	if err != nil {
		return nil, nil, fmt.Errorf("derive message key: %w", err)
	}
	block, err := aes.NewCipher(okm[:keySize])
	if err != nil {
		return nil, nil, fmt.Errorf("derive message key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, nil, fmt.Errorf("derive message key: %w", err)
	}
	m := &message{aead: aead}
	copy(m.base[:], okm[keySize:])
	return m, okm[keySize+nonceSize:], nil
}

// newMessage draws a salt and returns the message with its header.
func newMessage(key, context []byte, random io.Reader) (*message, [HeaderSize]byte, error) {
	var header [HeaderSize]byte
	if _, err := io.ReadFull(random, header[:saltSize]); err != nil {
		return nil, header, fmt.Errorf("draw salt: %w", err)
	}
	m, commitment, err := derive(key, header[:saltSize], context)
	if err != nil {
		return nil, header, err
	}
	copy(header[saltSize:], commitment)
	return m, header, nil
}

// openMessage checks the commitment of a header before anything is decrypted.
func openMessage(key, context, header []byte) (*message, error) {
	if len(header) != HeaderSize {
		return nil, fmt.Errorf("%w: header has %d of %d bytes", ErrDamaged, len(header), HeaderSize)
	}
	m, commitment, err := derive(key, header[:saltSize], context)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(commitment, header[saltSize:]) != 1 {
		return nil, ErrWrongKey
	}
	return m, nil
}

// at returns the nonce of chunk i: the base nonce, its last 8 bytes XORed with
// the big-endian number of the chunk.
func (m *message) at(i int64) []byte {
	m.nonce = m.base
	tail := m.nonce[nonceSize-8:]
	binary.BigEndian.PutUint64(tail, binary.BigEndian.Uint64(tail)^uint64(i))
	return m.nonce[:]
}

// seal appends the sealed chunk i to dst.
func (m *message) seal(dst, plain []byte, i int64) ([]byte, error) {
	if i >= maxChunks {
		return nil, ErrTooLarge
	}
	return m.aead.Seal(dst, m.at(i), plain, nil), nil
}

// open appends the plaintext of chunk i to dst.
func (m *message) open(dst, sealed []byte, i int64) ([]byte, error) {
	if i >= maxChunks {
		return nil, ErrTooLarge
	}
	plain, err := m.aead.Open(dst, m.at(i), sealed, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk %d does not authenticate", ErrDamaged, i)
	}
	return plain, nil
}
