package seal

import (
	"errors"
	"fmt"
	"io"
	"sync"
)

// Opener reads the plaintext of a sealed stream from its start. After any
// error every further Read returns the same error.
type Opener struct {
	src   io.Reader
	key   DataKey
	ctx   []byte
	msg   *message
	plain []byte
	ready []byte
	next  int64
	err   error
}

// NewOpener returns an Opener of the sealed stream src. The header is read and
// checked at the first Read.
func NewOpener(src io.Reader, key DataKey, c Context) *Opener {
	return &Opener{src: src, key: key, ctx: c.Bytes()}
}

// Read returns plaintext whose tags are checked, and io.EOF only behind the
// final chunk. Errors are [ErrDamaged], [ErrWrongKey] or those of the source.
func (o *Opener) Read(p []byte) (int, error) {
	for len(o.ready) == 0 && o.err == nil {
		if len(p) >= sealedChunk { // a whole chunk has room: it is opened in place
			if plain := o.fill(p[:0:sealedChunk]); len(plain) > 0 {
				return len(plain), nil
			}
			continue
		}
		if o.plain == nil {
			o.plain = make([]byte, 0, sealedChunk)
		}
		o.ready = o.fill(o.plain)
	}
	if len(o.ready) == 0 {
		return 0, o.err
	}
	n := copy(p, o.ready)
	o.ready = o.ready[n:]
	return n, nil
}

// fill reads the next chunk into the room of dst and opens it there; after an
// error dst holds nothing of it.
func (o *Opener) fill(dst []byte) []byte {
	if o.msg == nil {
		if o.err = o.begin(); o.err != nil {
			return nil
		}
	}
	sealed := dst[:sealedChunk]
	n, err := io.ReadFull(o.src, sealed)
	if err != nil && !isEnd(err) {
		clear(sealed)
		o.err = fmt.Errorf("read chunk %d: %w", o.next, err)
		return nil
	}
	plain, err := o.msg.open(dst, sealed[:n], o.next)
	if err != nil {
		clear(dst[:cap(dst)])
		o.err = err
		return nil
	}
	o.next++
	if n < sealedChunk {
		o.err = io.EOF
	}
	return plain
}

// begin reads and checks the header.
func (o *Opener) begin() error {
	var header [HeaderSize]byte
	n, err := io.ReadFull(o.src, header[:])
	if err != nil && !isEnd(err) {
		return fmt.Errorf("read header: %w", err)
	}
	if o.msg, err = openMessage(o.key[:], o.ctx, header[:n]); err != nil {
		return err
	}
	return nil
}

func isEnd(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// ReaderAt opens any range of a sealed message. It is safe for concurrent use.
type ReaderAt struct {
	src     io.ReaderAt
	size    int64 // plaintext
	sealed  int64
	aead    message // copied by each chunk buffer
	buffers sync.Pool
}

// chunkBuffer is the scratch space of one ReadAt.
type chunkBuffer struct {
	msg    message
	sealed []byte
	plain  []byte
}

// NewReaderAt checks key and context against the header, and the length by
// opening the final chunk; sealed is the size of the message in src in bytes.
// Errors are [ErrDamaged], [ErrWrongKey] or those of src.
func NewReaderAt(src io.ReaderAt, sealed int64, key DataKey, c Context) (*ReaderAt, error) {
	return newReaderAt(src, sealed, key[:], c.Bytes())
}

func newReaderAt(src io.ReaderAt, sealed int64, key, context []byte) (*ReaderAt, error) {
	size, err := PlainSize(sealed)
	if err != nil {
		return nil, err
	}
	var header [HeaderSize]byte
	if err := readFullAt(src, header[:], 0); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	msg, err := openMessage(key, context, header[:])
	if err != nil {
		return nil, err
	}
	r := &ReaderAt{src: src, size: size, sealed: sealed, aead: *msg}
	r.buffers.New = func() any {
		return &chunkBuffer{msg: r.aead, sealed: make([]byte, sealedChunk), plain: make([]byte, 0, sealedChunk)}
	}
	b := r.buffers.Get().(*chunkBuffer)
	defer r.buffers.Put(b)
	if _, err := r.chunk(b, b.plain[:0], size/ChunkSize); err != nil {
		return nil, err
	}
	return r, nil
}

// Size is the plaintext size in bytes, authenticated.
func (r *ReaderAt) Size() int64 { return r.size }

// ReadAt implements [io.ReaderAt] on the plaintext. It touches only the chunks
// of the range. When a chunk does not authenticate, the bytes in front of that
// chunk are good and counted, and the error is [ErrDamaged].
func (r *ReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at negative offset %d", off)
	}
	b := r.buffers.Get().(*chunkBuffer)
	defer r.buffers.Put(b)
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at >= r.size {
			return done, io.EOF
		}
		i, skip := at/ChunkSize, int(at%ChunkSize)
		length := int(min(ChunkSize, r.size-i*ChunkSize))
		if rest := p[done:]; skip == 0 && len(rest) >= length {
			// The whole chunk is wanted: open it in place, where there is
			// room for its tag too.
			if _, err := r.chunk(b, rest[:0:min(len(rest), length+TagSize)], i); err != nil {
				return done, err
			}
			done += length
			continue
		}
		plain, err := r.chunk(b, b.plain[:0], i)
		if err != nil {
			return done, err
		}
		done += copy(p[done:], plain[skip:])
	}
	return done, nil
}

// chunk opens chunk i into the room of dst, which holds nothing of it after an
// error. The sealed form is read there too if it fits.
func (r *ReaderAt) chunk(b *chunkBuffer, dst []byte, i int64) ([]byte, error) {
	at := HeaderSize + i*sealedChunk
	length := int(min(sealedChunk, r.sealed-at))
	sealed := b.sealed[:length]
	if cap(dst) >= length {
		sealed = dst[:length]
	}
	err := readFullAt(r.src, sealed, at)
	if err != nil {
		err = fmt.Errorf("read chunk %d: %w", i, err)
	}
	var plain []byte
	if err == nil {
		plain, err = b.msg.open(dst, sealed, i)
	}
	if err != nil {
		clear(dst[:cap(dst)])
	}
	return plain, err
}

// readFullAt reads all of p; a short source is damage.
func readFullAt(src io.ReaderAt, p []byte, at int64) error {
	n, err := src.ReadAt(p, at)
	if n == len(p) {
		return nil
	}
	if err == nil || isEnd(err) {
		return fmt.Errorf("%w: it ends at byte %d", ErrDamaged, at+int64(n))
	}
	return err
}
