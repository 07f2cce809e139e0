package seal_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"spillway.dev/spillway/datasync/seal"
)

var ctx = seal.Context{Burst: "b1", Direction: seal.In, Bucket: "data", Key: "a/b", ETag: "e"}

func newKey(t interface{ Fatal(...any) }) seal.DataKey {
	k, err := seal.NewDataKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t interface{ Fatal(...any) }, plain []byte, key seal.DataKey, c seal.Context) []byte {
	var out bytes.Buffer
	w, err := seal.NewWriter(&out, key, c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(plain); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sizes draws sizes around the borders of chunks.
func sizes() *rapid.Generator[int] {
	return rapid.OneOf(
		rapid.IntRange(0, 5*seal.ChunkSize),
		rapid.Custom(func(t *rapid.T) int {
			k := rapid.IntRange(0, 4).Draw(t, "chunks")
			return max(0, k*seal.ChunkSize+rapid.IntRange(-2, 2).Draw(t, "off"))
		}),
	)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16)
	}
	return b
}

// cases: B4 s3-orchestrator PR#1190, B5 Azure sdk-java#41709; B11 restic#5291, kopia#5188
// (the sealed size depends on nothing but the size)
func TestEverySizeRoundTrips(t *testing.T) {
	key := newKey(t)
	check := func(t interface{ Fatalf(string, ...any) }, n int, split int) {
		plain := pattern(n)
		var out bytes.Buffer
		w, err := seal.NewWriter(&out, key, ctx, rand.Reader)
		if err != nil {
			t.Fatalf("NewWriter: %v", err)
		}
		for p := plain; len(p) > 0; {
			m := min(split, len(p))
			if _, err := w.Write(p[:m]); err != nil {
				t.Fatalf("Write: %v", err)
			}
			p = p[m:]
		}
		if err := w.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if int64(out.Len()) != seal.Size(int64(n)) {
			t.Fatalf("%d bytes seal to %d, Size says %d", n, out.Len(), seal.Size(int64(n)))
		}
		if back, err := seal.PlainSize(int64(out.Len())); err != nil || back != int64(n) {
			t.Fatalf("PlainSize(%d) = %d, %v, want %d", out.Len(), back, err, n)
		}
		got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(out.Bytes()), key, ctx))
		if err != nil || !bytes.Equal(got, plain) {
			t.Fatalf("%d bytes came back as %d, %v", n, len(got), err)
		}
		r, err := seal.NewReader(iotest.OneByteReader(bytes.NewReader(plain[:min(n, 40000)])), int64(min(n, 40000)), key, ctx, rand.Reader)
		if err != nil {
			t.Fatalf("NewReader: %v", err)
		}
		got, err = io.ReadAll(seal.NewOpener(r, key, ctx))
		if err != nil || !bytes.Equal(got, plain[:min(n, 40000)]) {
			t.Fatalf("through the reader %d bytes came back as %d, %v", n, len(got), err)
		}
	}
	for _, n := range []int{0, 1, 16383, 16384, 16385, 32767, 32768, 32769, 4194304} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { check(t, n, 16384) })
	}
	t.Run("any size and split", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			check(t, sizes().Draw(t, "size"), rapid.IntRange(1, 40000).Draw(t, "split"))
		})
	})
}

func TestAnyRangeReads(t *testing.T) {
	key := newKey(t)
	rapid.Check(t, func(t *rapid.T) {
		n := sizes().Draw(t, "size")
		plain := pattern(n)
		box := sealed(t, plain, key, ctx)
		r, err := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, ctx)
		if err != nil {
			t.Fatal(err)
		}
		off := rapid.IntRange(0, n+1).Draw(t, "off")
		p := make([]byte, rapid.IntRange(0, 3*seal.ChunkSize).Draw(t, "len"))
		got, err := r.ReadAt(p, int64(off))
		want := 0
		if off < n {
			want = copy(make([]byte, len(p)), plain[off:])
		}
		if got != want || (err != nil) != (got < len(p)) || (err != nil && !errors.Is(err, io.EOF)) {
			t.Fatalf("ReadAt(%d bytes, %d) of %d = %d, %v, want %d", len(p), off, n, got, err, want)
		}
		if want > 0 && !bytes.Equal(p[:got], plain[off:off+got]) {
			t.Fatal("other bytes than were sealed")
		}
	})
}

// damage draws one way to hurt a sealed message, or nil when it would not
// change it.
func damage(t *rapid.T, box []byte) []byte {
	const chunk = seal.ChunkSize + seal.TagSize
	hurt := bytes.Clone(box)
	switch rapid.SampledFrom([]string{"flip", "cut", "extend", "swap", "repeat", "drop chunk"}).Draw(t, "damage") {
	case "flip":
		hurt[rapid.IntRange(0, len(hurt)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
	case "cut":
		hurt = hurt[:rapid.IntRange(0, len(hurt)-1).Draw(t, "length")]
	case "extend":
		hurt = append(hurt, rapid.SliceOfN(rapid.Byte(), 1, 2*chunk).Draw(t, "tail")...)
	case "swap", "repeat", "drop chunk":
		body := hurt[seal.HeaderSize:]
		full := len(body) / chunk
		if full < 2 {
			return nil
		}
		i := rapid.IntRange(0, full-2).Draw(t, "chunk")
		first, second := body[i*chunk:(i+1)*chunk], body[(i+1)*chunk:(i+2)*chunk]
		switch rapid.IntRange(0, 2).Draw(t, "how") {
		case 0:
			tmp := bytes.Clone(first)
			copy(first, second)
			copy(second, tmp)
		case 1:
			copy(second, first)
		case 2:
			hurt = append(hurt[:seal.HeaderSize+i*chunk], body[(i+1)*chunk:]...)
		}
	}
	if bytes.Equal(hurt, box) {
		return nil
	}
	return hurt
}

// cases: B10 (truncation, trailing data, reordering), A8 juicefs#7499
func TestNoWrongByteIsGivenOut(t *testing.T) {
	key := newKey(t)
	rapid.Check(t, func(t *rapid.T) {
		plain := pattern(sizes().Draw(t, "size"))
		hurt := damage(t, sealed(t, plain, key, ctx))
		if hurt == nil {
			return
		}
		got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(hurt), key, ctx))
		if !errors.Is(err, seal.ErrDamaged) && !errors.Is(err, seal.ErrWrongKey) {
			t.Fatalf("the stream opened with error %v", err)
		}
		if !bytes.HasPrefix(plain, got) {
			t.Fatal("the stream gave out wrong bytes before the error")
		}
		r, err := seal.NewReaderAt(bytes.NewReader(hurt), int64(len(hurt)), key, ctx)
		if err != nil {
			return
		}
		if r.Size() != int64(len(plain)) {
			t.Fatalf("random access trusts a size of %d, want %d", r.Size(), len(plain))
		}
		p := bytes.Repeat([]byte{0xa5}, int(r.Size()))
		n, err := r.ReadAt(p, 0)
		if !errors.Is(err, seal.ErrDamaged) || !bytes.Equal(p[:n], plain[:n]) {
			t.Fatalf("random access read %d bytes with error %v", n, err)
		}
		if i := n / seal.ChunkSize * seal.ChunkSize; i < len(p) {
			for _, b := range p[i:min(len(p), i+seal.ChunkSize)] {
				if b != 0 && b != 0xa5 {
					t.Fatal("the damaged chunk left bytes in the buffer")
				}
			}
		}
	})
}

// Chunks of two sealings under one key and context can't be mixed: a retry
// draws a salt of its own.
//
// cases: B8 s3-orchestrator PR#372
func TestSplicedMessagesAreRefused(t *testing.T) {
	key := newKey(t)
	plain := pattern(3 * seal.ChunkSize)
	a, b := sealed(t, plain, key, ctx), sealed(t, plain, key, ctx)
	copy(a[seal.HeaderSize:seal.HeaderSize+seal.ChunkSize+seal.TagSize], b[seal.HeaderSize:])
	if got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(a), key, ctx)); !errors.Is(err, seal.ErrDamaged) || len(got) != 0 {
		t.Errorf("a spliced message gave %d bytes, %v", len(got), err)
	}
}

func TestOtherContextIsRefused(t *testing.T) {
	key := newKey(t)
	box := sealed(t, pattern(100), key, ctx)
	others := map[string]func(*seal.Context){
		"burst":     func(c *seal.Context) { c.Burst = "b2" },
		"direction": func(c *seal.Context) { c.Direction = seal.Out },
		"bucket":    func(c *seal.Context) { c.Bucket = "dat" },
		"key":       func(c *seal.Context) { c.Key = "a/c" },
		"version":   func(c *seal.Context) { c.Version = "1" },
		"etag":      func(c *seal.Context) { c.ETag = "" },
		"fields that run together": func(c *seal.Context) {
			c.Bucket, c.Key = "dataa", "/b"
		},
	}
	for name, change := range others {
		t.Run(name, func(t *testing.T) {
			c := ctx
			change(&c)
			if got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(box), key, c)); !errors.Is(err, seal.ErrWrongKey) || len(got) != 0 {
				t.Errorf("opened %d bytes with error %v", len(got), err)
			}
			if _, err := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, c); !errors.Is(err, seal.ErrWrongKey) {
				t.Errorf("random access opened with error %v", err)
			}
		})
	}
}

func TestContextsNeverShareAnEncoding(t *testing.T) {
	short := rapid.StringMatching(`[ab\x00]{0,3}`)
	draw := func(t *rapid.T, n string) seal.Context {
		return seal.Context{
			Burst: short.Draw(t, n+"burst"), Bucket: short.Draw(t, n+"bucket"),
			Key: short.Draw(t, n+"key"), Version: short.Draw(t, n+"version"), ETag: short.Draw(t, n+"etag"),
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if (a == b) != bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Fatalf("%+v and %+v: equal %v, encodings equal %v", a, b, a == b, a != b)
		}
	})
}

// cases: A1 minio-go#1451, A2 gitea PR#38753 (a short body is never sealed into a complete message)
func TestShortAndLongSourcesAreErrors(t *testing.T) {
	key := newKey(t)
	for _, n := range []int{0, 10, 16383, 16384, 16385, 32768} {
		for name, actual := range map[string]int{"short": n - 1, "long": n + 1} {
			if actual < 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s of %d", name, n), func(t *testing.T) {
				r, err := seal.NewReader(bytes.NewReader(pattern(actual)), int64(n), key, ctx, rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				out, err := io.ReadAll(r)
				if err == nil {
					t.Fatal("no error")
				}
				if _, err := io.ReadAll(seal.NewOpener(bytes.NewReader(out), key, ctx)); err == nil {
					t.Error("what was read opens as a complete message")
				}
			})
		}
	}
}

func TestSourceErrorsPassThrough(t *testing.T) {
	key, broken := newKey(t), errors.New("line cut")
	r, err := seal.NewReader(io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(broken)), 9, key, ctx, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); !errors.Is(err, broken) {
		t.Errorf("sealing: %v", err)
	}
	if _, err := io.ReadAll(seal.NewOpener(iotest.ErrReader(broken), key, ctx)); !errors.Is(err, broken) {
		t.Errorf("opening: %v", err)
	}
	if _, err := seal.NewWriter(io.Discard, key, ctx, iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("salt: %v", err)
	}
}

func TestChunksCostNoAllocation(t *testing.T) {
	key := newKey(t)
	w, err := seal.NewWriter(io.Discard, key, ctx, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	chunk := pattern(seal.ChunkSize)
	if n := testing.AllocsPerRun(50, func() {
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("sealing a chunk allocates %v times", n)
	}
	box := sealed(t, pattern(64*seal.ChunkSize), key, ctx)
	r, err := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(50, func() {
		if _, err := r.ReadAt(chunk, 3*seal.ChunkSize); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("opening a chunk allocates %v times", n)
	}
}

// countingAt counts the bytes read from a sealed message.
type countingAt struct {
	*bytes.Reader
	read int
}

func (c *countingAt) ReadAt(p []byte, off int64) (int, error) {
	c.read += len(p)
	return c.Reader.ReadAt(p, off)
}

func TestSmallReadTouchesTwoChunksAtMost(t *testing.T) {
	key := newKey(t)
	box := sealed(t, pattern(20*seal.ChunkSize), key, ctx)
	src := &countingAt{Reader: bytes.NewReader(box)}
	r, err := seal.NewReaderAt(src, int64(len(box)), key, ctx)
	if err != nil {
		t.Fatal(err)
	}
	src.read = 0
	if _, err := r.ReadAt(make([]byte, 4096), seal.ChunkSize-100); err != nil {
		t.Fatal(err)
	}
	if most := 2 * (seal.ChunkSize + seal.TagSize); src.read > most {
		t.Errorf("4 KiB across a border read %d sealed bytes, want %d at most", src.read, most)
	}
}

func FuzzOpen(f *testing.F) {
	key := seal.DataKey{1}
	f.Add(sealed(f, pattern(20000), key, ctx))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, box []byte) {
		got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(box), key, ctx))
		r, errAt := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, ctx)
		if err == nil && (errAt != nil || r.Size() != int64(len(got))) {
			t.Errorf("the stream opens and random access says %v", errAt)
		}
	})
}
