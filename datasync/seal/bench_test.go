package seal_test

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"io"
	"slices"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

// benchChunks is how many chunks a benchmark seals or opens in one round; the
// raw cipher works on the same number of pieces of 16 KiB.
const benchChunks = 256

func rawGCM(b *testing.B) cipher.AEAD {
	b.Helper()
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		b.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	return aead
}

// against runs ours and raw in turn, in this process on the same data, and
// reports how fast ours is as a part of the raw cipher's speed. The fastest run
// of each counts: what else the machine does only ever slows them down.
func against(b *testing.B, ours, raw func()) {
	b.Helper()
	b.ReportAllocs()
	var mine, theirs []time.Duration
	for b.Loop() {
		start := time.Now()
		ours()
		mid := time.Now()
		raw()
		mine, theirs = append(mine, mid.Sub(start)), append(theirs, time.Since(mid))
	}
	best := slices.Min(mine)
	b.ReportMetric(benchChunks*seal.ChunkSize/best.Seconds()/1e9, "GB/s")
	b.ReportMetric(slices.Min(theirs).Seconds()/best.Seconds(), "x-raw-gcm")
}

func BenchmarkSeal(b *testing.B) {
	key, aead := newKey(b), rawGCM(b)
	plain, out, nonce := pattern(benchChunks*seal.ChunkSize), make([]byte, 0, seal.ChunkSize+16), make([]byte, 12)
	against(b, func() {
		w, err := seal.NewWriter(io.Discard, key, ctx, rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(plain); err != nil {
			b.Fatal(err)
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}, func() {
		for i := range benchChunks {
			out = aead.Seal(out[:0], nonce, plain[i*seal.ChunkSize:(i+1)*seal.ChunkSize], nil)
		}
	})
}

// sealedRaw is a message in pieces that the raw cipher can open.
func sealedRaw(aead cipher.AEAD, plain []byte) [][]byte {
	var pieces [][]byte
	for i := range benchChunks {
		pieces = append(pieces, aead.Seal(nil, make([]byte, 12), plain[i*seal.ChunkSize:(i+1)*seal.ChunkSize], nil))
	}
	return pieces
}

func openRaw(b *testing.B, aead cipher.AEAD, pieces [][]byte) func() {
	out, nonce := make([]byte, 0, seal.ChunkSize), make([]byte, 12)
	return func() {
		for _, p := range pieces {
			var err error
			if out, err = aead.Open(out[:0], nonce, p, nil); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// discard takes bytes without asking for a buffer of its own.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func BenchmarkOpen(b *testing.B) {
	key, aead := newKey(b), rawGCM(b)
	plain := pattern(benchChunks * seal.ChunkSize)
	box, buf := sealed(b, plain, key, ctx), make([]byte, 32<<10) // as io.Copy does
	against(b, func() {
		if _, err := io.CopyBuffer(discard{}, seal.NewOpener(bytes.NewReader(box), key, ctx), buf); err != nil {
			b.Fatal(err)
		}
	}, openRaw(b, aead, sealedRaw(aead, plain)))
}

func BenchmarkReadAt(b *testing.B) {
	key, aead := newKey(b), rawGCM(b)
	plain := pattern(benchChunks * seal.ChunkSize)
	box := sealed(b, plain, key, ctx)
	r, err := seal.NewReaderAt(bytes.NewReader(box), int64(len(box)), key, ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("aligned=64KiB", func(b *testing.B) {
		buf := make([]byte, 4*seal.ChunkSize)
		against(b, func() {
			for off := int64(0); off < int64(len(plain)); off += int64(len(buf)) {
				if _, err := r.ReadAt(buf, off); err != nil {
					b.Fatal(err)
				}
			}
		}, openRaw(b, aead, sealedRaw(aead, plain)))
	})
	b.Run("anywhere=4KiB", func(b *testing.B) {
		buf := make([]byte, 4096)
		b.SetBytes(4096)
		b.ReportAllocs()
		off := int64(0)
		for b.Loop() {
			off = (off + 1_234_567) % int64(len(plain)-len(buf))
			if _, err := r.ReadAt(buf, off); err != nil {
				b.Fatal(err)
			}
		}
	})
}
