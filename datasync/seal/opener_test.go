package seal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"spillway.dev/spillway/datasync/seal"
)

// A reader with room for a chunk has it opened in place: the bytes are the
// same for every size of buffer, and a chunk that does not authenticate leaves
// nothing in it.
func TestOpenerWithAnyBuffer(t *testing.T) {
	key := newKey(t)
	for _, size := range []int{0, 1, seal.ChunkSize - 1, seal.ChunkSize, seal.ChunkSize + 1, 3*seal.ChunkSize + 7} {
		plain := pattern(size)
		box := sealed(t, plain, key, ctx)
		for _, room := range []int{1, 100, seal.ChunkSize - 1, seal.ChunkSize, seal.ChunkSize + 1, 4 * seal.ChunkSize} {
			t.Run(fmt.Sprint(size, " bytes into ", room), func(t *testing.T) {
				var got bytes.Buffer
				if _, err := io.CopyBuffer(&writes{&got}, seal.NewOpener(bytes.NewReader(box), key, ctx), make([]byte, room)); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Bytes(), plain) {
					t.Errorf("got %d bytes, want %d equal ones", got.Len(), len(plain))
				}
				hurt := bytes.Clone(box)
				hurt[len(hurt)-1] ^= 1 // the tag of the final chunk
				buf := make([]byte, room)
				o := seal.NewOpener(bytes.NewReader(hurt), key, ctx)
				good := 0
				for {
					n, err := o.Read(buf)
					good += n
					if errors.Is(err, seal.ErrDamaged) && n == 0 {
						break
					}
					if err != nil || !bytes.Equal(buf[:n], plain[good-n:good]) {
						t.Fatalf("read %d bytes behind %d, error %v", n, good-n, err)
					}
					clear(buf)
				}
				if want := size / seal.ChunkSize * seal.ChunkSize; good != want || !bytes.Equal(buf, make([]byte, room)) {
					t.Errorf("%d bytes before the damage, want %d and a buffer without any", good, want)
				}
			})
		}
	}
}

// writes hides every other method of a writer.
type writes struct{ io.Writer }
