package cache_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
)

// drain reads one object of "data" whole.
func drain(b *testing.B, c *minio.Core, key string, want int64) {
	b.Helper()
	body, _, _, err := c.GetObject(b.Context(), "data", key, minio.GetObjectOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer body.Close()
	if n, err := io.Copy(io.Discard, body); err != nil || n != want {
		b.Fatalf("read %d of %d bytes, %v", n, want, err)
	}
}

// againstDirect measures reads through the front and, in turn, straight from
// the store, both on the same cores, and reports the ratio of their speeds.
func againstDirect(b *testing.B, g *rig, through *minio.Core, key string, size int64) {
	b.Helper()
	direct := g.direct(b)
	drain(b, through, key, size)
	drain(b, direct, key, size)
	b.SetBytes(size)
	var mine, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		drain(b, through, key, size)
		mid := time.Now()
		b.StopTimer()
		drain(b, direct, key, size)
		theirs += time.Since(mid)
		mine += mid.Sub(start)
		b.StartTimer()
	}
	b.ReportMetric(theirs.Seconds()/mine.Seconds(), "x-direct")
}

func benchSizes() []int { return []int{64 << 10, 4 << 20, 32 << 20} }

// A warm hit, revalidated at the store with every request, gate and TLS
// included.
func BenchmarkFrontWarmHit(b *testing.B) {
	for _, size := range benchSizes() {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			g := newRig(b)
			g.put(b, "k", blob(size, "b"))
			g.stage(b, "k")
			againstDirect(b, g, g.job(b), "k", int64(size))
			if s := g.front.Stats(); s.BytesUpstream != 0 {
				b.Fatalf("not a warm hit: %+v", s)
			}
		})
	}
}

// A warm hit of a pinned version, which home is not asked about.
func BenchmarkFrontPinnedHit(b *testing.B) {
	for _, size := range benchSizes() {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			g := newRig(b)
			g.put(b, "k", blob(size, "b"))
			own := g.client(b, g.inside(b), "job", "jobsecret")
			g.stageAs(b, datasync.Freshness{Mode: datasync.Pinned}, "k")
			againstDirect(b, g, own, "k", int64(size))
			if s := g.front.Stats(); s.BytesUpstream != 0 || s.Unasked != s.Hits-1 {
				b.Fatalf("not a pinned hit: %+v", s)
			}
		})
	}
}

// A passage: no key, so that every body comes from the store through the gate.
func BenchmarkFrontPassThrough(b *testing.B) {
	for _, size := range benchSizes() {
		b.Run(fmt.Sprintf("size=%dKiB", size>>10), func(b *testing.B) {
			g := newRig(b)
			g.put(b, "k", blob(size, "b"))
			againstDirect(b, g, g.job(b), "k", int64(size))
		})
	}
}

// An upload through front and gate against a direct one.
func BenchmarkFrontUpload(b *testing.B) {
	g := newRig(b)
	through, direct := g.job(b), g.direct(b)
	body := blob(4<<20, "u")
	put := func(c *minio.Core, key string) {
		opts := minio.PutObjectOptions{DisableContentSha256: true}
		if _, err := c.Client.PutObject(b.Context(), "data", key, bytes.NewReader(body), int64(len(body)), opts); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(body)))
	var mine, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		put(through, "a")
		mid := time.Now()
		b.StopTimer()
		put(direct, "b")
		theirs += time.Since(mid)
		mine += mid.Sub(start)
		b.StartTimer()
	}
	b.ReportMetric(theirs.Seconds()/mine.Seconds(), "x-direct")
}
