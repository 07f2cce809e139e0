package seal_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/datasync/seal"
)

// Keys are random, so none is stretched: a password KDF of 600,000 rounds costs
// a tenth of a second an object, and this bound leaves none of that.
//
// cases: B14 cloud37 (PBKDF2: 45 Mb/s)
func TestSmallObjectsCostNoKeyStretching(t *testing.T) {
	key, plain := newKey(t), pattern(1024)
	const objects = 500
	began := time.Now()
	for range objects {
		box := sealed(t, plain, key, ctx)
		if got, err := io.ReadAll(seal.NewOpener(bytes.NewReader(box), key, ctx)); err != nil || len(got) != len(plain) {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("%d objects of 1 KiB took %v", objects, took)
	}
}

// Who sees a message learns its length and nothing of where its content
// changes: borders lie at fixed places.
//
// cases: B11 restic#5291, kopia#5188
func TestBordersTellNothing(t *testing.T) {
	key := newKey(t)
	rapid.Check(t, func(t *rapid.T) {
		n := sizes().Draw(t, "size")
		a, b := pattern(n), bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, n)
		var pieces [2][]int
		for i, plain := range [][]byte{a, b} {
			w, err := seal.NewWriter(lengths{&pieces[i]}, key, ctx, rand.Reader)
			if err == nil {
				_, err = w.Write(plain)
			}
			if err == nil {
				err = w.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		total := 0
		for i, length := range pieces[0] {
			total += length
			if length != pieces[1][i] {
				t.Fatalf("%v for one content, %v for another", pieces[0], pieces[1])
			}
		}
		if int64(total) != seal.Size(int64(n)) {
			t.Fatalf("%d bytes for %d", total, n)
		}
	})
}

type lengths struct{ list *[]int }

func (l lengths) Write(p []byte) (int, error) {
	*l.list = append(*l.list, len(p))
	return len(p), nil
}

// A buffer that is used again leaks nothing of what was in it: a short read
// touches its own bytes, and room for the tag behind them.
//
// cases: H20 hybrid-cache 1.15.2 (RUSTSEC-2026-0041)
func TestBuffersLeakNothing(t *testing.T) {
	key := newKey(t)
	secret := bytes.Repeat([]byte("a secret of another object, "), 4*seal.ChunkSize/28)
	large := sealed(t, secret, key, ctx)
	r, err := seal.NewReaderAt(bytes.NewReader(large), int64(len(large)), key, ctx)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 2*seal.ChunkSize).Draw(t, "size")
		plain := pattern(n)
		box := sealed(t, plain, key, ctx)
		small, err := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.ReadAt(make([]byte, rapid.IntRange(1, 3*seal.ChunkSize).Draw(t, "before")), int64(rapid.IntRange(0, seal.ChunkSize).Draw(t, "at"))); err != nil {
			t.Fatal(err)
		}
		p := bytes.Repeat([]byte{0xa5}, n+rapid.IntRange(0, seal.ChunkSize).Draw(t, "room"))
		got, err := small.ReadAt(p, 0)
		if got != n || !bytes.Equal(p[:got], plain) || err != nil && err != io.EOF {
			t.Fatalf("%d of %d bytes, %v", got, n, err)
		}
		for i, b := range p[min(len(p), got+seal.TagSize):] {
			if b != 0xa5 {
				t.Fatalf("byte %d behind the end is %#x", i+seal.TagSize, b)
			}
		}
	})
}
