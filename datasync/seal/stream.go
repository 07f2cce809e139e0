package seal

import (
	"errors"
	"fmt"
	"io"
)

// Writer seals what is written to it. Close writes the final chunk; without
// Close the message is truncated and will not open.
type Writer struct {
	dst   io.Writer
	msg   *message
	head  [HeaderSize]byte
	begun bool
	plain []byte // buffered plaintext, at most one chunk
	out   []byte // scratch for one sealed chunk
	next  int64
	err   error
}

// NewWriter returns a Writer that seals to dst under a fresh salt. Nothing is
// written to dst before the first full chunk or Close.
func NewWriter(dst io.Writer, key DataKey, c Context, random io.Reader) (*Writer, error) {
	return newWriter(dst, key[:], c.Bytes(), random)
}

func newWriter(dst io.Writer, key, context []byte, random io.Reader) (*Writer, error) {
	msg, head, err := newMessage(key, context, random)
	if err != nil {
		return nil, err
	}
	return &Writer{
		dst: dst, msg: msg, head: head,
		plain: make([]byte, 0, ChunkSize),
		out:   make([]byte, 0, sealedChunk),
	}, nil
}

// Write seals p; full chunks go out at once.
func (w *Writer) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 && w.err == nil {
		if len(w.plain) == 0 && len(p) >= ChunkSize {
			w.emit(p[:ChunkSize])
			p = p[ChunkSize:]
			continue
		}
		n := min(ChunkSize-len(w.plain), len(p))
		w.plain = append(w.plain, p[:n]...)
		p = p[n:]
		if len(w.plain) == ChunkSize {
			w.emit(w.plain)
			w.plain = w.plain[:0]
		}
	}
	if w.err != nil {
		return 0, w.err
	}
	return total, nil
}

// Close seals the final chunk, empty or not. It does not close dst.
func (w *Writer) Close() error {
	if w.err == nil {
		w.emit(w.plain)
	}
	if w.err != nil {
		return w.err
	}
	w.err = errors.New("sealed message is closed")
	return nil
}

func (w *Writer) emit(plain []byte) {
	if !w.begun {
		w.begun = true
		if _, w.err = w.dst.Write(w.head[:]); w.err != nil {
			return
		}
	}
	w.out, w.err = w.msg.seal(w.out[:0], plain, w.next)
	if w.err != nil {
		return
	}
	w.next++
	_, w.err = w.dst.Write(w.out)
}

// NewReader returns a reader of the sealed form of src, which must yield
// exactly size bytes: fewer or more is an error of the reader, so that a short
// body is never sealed into a complete message. The sealed form has Size(size)
// bytes.
func NewReader(src io.Reader, size int64, key DataKey, c Context, random io.Reader) (io.Reader, error) {
	if size < 0 || size > MaxSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	msg, head, err := newMessage(key[:], c.Bytes(), random)
	if err != nil {
		return nil, err
	}
	r := &sealingReader{
		src: src, msg: msg, left: size,
		plain: make([]byte, ChunkSize+1),
		buf:   make([]byte, 0, HeaderSize+sealedChunk),
	}
	r.ready = append(r.buf, head[:]...)
	return r, nil
}

type sealingReader struct {
	src   io.Reader
	msg   *message
	left  int64 // plaintext still to come
	next  int64
	plain []byte
	buf   []byte
	ready []byte // sealed bytes not yet read
	done  bool
	err   error
}

func (r *sealingReader) Read(p []byte) (int, error) {
	if len(r.ready) == 0 && r.err == nil {
		r.fill()
	}
	if len(r.ready) == 0 {
		return 0, r.err
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

func (r *sealingReader) fill() {
	if r.done {
		r.err = io.EOF
		return
	}
	n := min(r.left, ChunkSize)
	if _, err := io.ReadFull(r.src, r.plain[:n]); err != nil {
		r.err = fmt.Errorf("source ended %d bytes early: %w", r.left, noEOF(err))
		return
	}
	r.left -= n
	if n < ChunkSize {
		r.done = true
		if extra, err := io.ReadFull(r.src, r.plain[n:n+1]); !errors.Is(err, io.EOF) {
			r.err = fmt.Errorf("source does not end where announced: %d more byte read, error %w", extra, err)
			return
		}
	}
	r.ready, r.err = r.msg.seal(r.buf[:0], r.plain[:n], r.next)
	r.next++
}

// noEOF turns an end of input in mid-message into an unexpected one, which no
// caller takes for success.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
