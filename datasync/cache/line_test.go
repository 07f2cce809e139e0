package cache_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/signer"
	"pgregory.net/rapid"

	"spillway.dev/spillway/e2e/canary"
	"spillway.dev/spillway/e2e/relay"
)

// noise is n bytes of which no part is like another.
func noise(n int, seed uint64) []byte {
	p := make([]byte, n)
	src := rand.New(rand.NewPCG(seed, seed))
	for i := range p {
		p[i] = byte(src.Uint32())
	}
	return p
}

// ask sends one signed GET, which nobody repeats, and returns what came of it.
func (g *rig) ask(t testing.TB, key, byteRange string) (int, []byte, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+storeName+"/data/"+key, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	r = signer.SignV4(*r, "job", "jobsecret", "", "us-east-1")
	if byteRange != "" {
		r.Header.Set("Range", byteRange)
	}
	transport := dialTo(g.addr())
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// forget makes the front forget all but its manifest.
func (g *rig) forget(t testing.TB, unlock func() error) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(g.dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) { // one that was being written may go by itself
			t.Fatal(err)
		}
	}
	if err := unlock(); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens on the lines to the gate and to the staging store: a job
// gets the bytes that are at home, or the beginning of them and a connection
// that breaks, or a refusal; never a byte that is not the object's. When the
// lines are good again it gets everything.
//
// cases: A1 minio-go#1451, thanos PR#3795; A8 juicefs#7499; A13 s5cmd#414; B10; H7 hybrid-cache 1.16.0
func TestLinesThatBreakGiveNoWrongByte(t *testing.T) {
	g := newRigOnLines(t)
	const size = 300_000
	bodies := map[string][]byte{"staged": noise(size, 1), "cold": noise(size, 2)}
	for key, body := range bodies {
		g.put(t, key, body)
	}
	m := g.stage(t, "staged")
	rapid.Check(t, func(rt *rapid.T) {
		g.forget(t, func() error { return g.front.Unlock(g.key, m) })
		for range rapid.IntRange(0, 3).Draw(rt, "breaks") {
			b := relay.Break{
				Kind:  rapid.SampledFrom([]relay.Kind{relay.Cut, relay.Truncate, relay.Flip}).Draw(rt, "kind"),
				Way:   rapid.SampledFrom([]relay.Direction{relay.ToClient, relay.ToClient, relay.ToServer}).Draw(rt, "way"),
				After: rapid.Int64Range(0, size).Draw(rt, "after"),
			}
			if b.Way == relay.ToServer {
				b.After %= 2000
			}
			line := rapid.SampledFrom([]*relay.Relay{g.toGate, g.toStaging}).Draw(rt, "line")
			if b.Kind == relay.Flip && (line == g.toGate || b.Way == relay.ToServer) {
				b.Kind = relay.Cut // TLS makes a flip a cut, or a silence
			}
			line.Break(b)
		}
		for range rapid.IntRange(1, 3).Draw(rt, "reads") {
			key := rapid.SampledFrom([]string{"staged", "cold"}).Draw(rt, "key")
			from := rapid.SampledFrom([]int{0, 0, 1, 16_384, size / 2, size - 1}).Draw(rt, "from")
			want, byteRange := bodies[key][from:], ""
			if from > 0 {
				byteRange = fmt.Sprintf("bytes=%d-", from)
			}
			status, got, err := g.ask(t, key, byteRange)
			switch {
			case status/100 == 2 && err == nil && !bytes.Equal(got, want):
				rt.Fatalf("%s from %d: %d bytes instead of %d, as if they were all", key, from, len(got), len(want))
			case status/100 == 2 && !bytes.HasPrefix(want, got):
				rt.Fatalf("%s from %d: wrong bytes among %d", key, from, len(got))
			case status/100 != 2 && err == nil && (status < 500 || !bytes.Contains(got, []byte("<Error>"))):
				rt.Fatalf("%s: status %d, %.300q", key, status, got)
			}
		}
		g.toGate.Mend()
		g.toStaging.Mend()
		for key, want := range bodies {
			if status, got, err := g.ask(t, key, ""); err != nil || status != http.StatusOK || !bytes.Equal(got, want) {
				rt.Fatalf("%s over good lines: status %d, %d bytes, %v", key, status, len(got), err)
			}
		}
	})
	t.Logf("%d breaks have struck; the front: %+v", g.toGate.Mend()+g.toStaging.Mend(), g.front.Stats())
}

// One request of a job gets the whole object over a line that breaks again and
// again: what was brought is not brought again, and nothing but ciphertext lies
// on the disk.
//
// cases: A1 minio-go#1451, A13 s5cmd#414
func TestAnObjectGoesOnWhereItsLineBroke(t *testing.T) {
	const size = 24 << 20
	secret := strings.Repeat("the canary of the line ", 3)
	body := append(noise(size-len(secret), 3), secret...)
	for _, key := range []string{"staged", "cold"} {
		for name, kinds := range map[string][]relay.Kind{
			"cut": {relay.Cut, relay.Cut, relay.Cut}, "ended early": {relay.Truncate, relay.Truncate}, "silent": {relay.Drop},
		} {
			t.Run(key+" and "+name, func(t *testing.T) {
				t.Parallel()
				g := newRigOnLines(t)
				g.put(t, key, body)
				line := g.toGate
				if key == "staged" {
					line = g.toStaging
					g.stage(t, key)
				} else {
					g.stage(t)
				}
				for _, kind := range kinds {
					line.Break(relay.Break{Kind: kind, Way: relay.ToClient, After: 5 << 20})
				}
				if status, got, err := g.ask(t, key, ""); err != nil || status != http.StatusOK || !bytes.Equal(got, body) {
					t.Fatalf("status %d, %d bytes, %v", status, len(got), err)
				}
				if n := line.Mend(); n != len(kinds) {
					t.Errorf("%d breaks have struck, want %d", n, len(kinds))
				}
				if n := line.Bytes(relay.ToClient); n > size+size/10 {
					t.Errorf("%d bytes came for %d", n, size)
				}
				mustRead(t, g.job(t), key, body)
				if s := g.front.Stats(); s.Hits == 0 {
					t.Errorf("the copy was not kept: %+v", s)
				}
				if report, err := canary.Search(g.dir, []string{secret}); err != nil || report.Files != 1 || len(report.Found) > 0 {
					t.Errorf("the disk: %+v, %v", report, err)
				}
			})
		}
	}
}

// An object that is replaced while its line is broken ends there: the job gets
// the beginning of the old version and a connection that breaks, and the next
// read gets the new one.
//
// cases: A13 s5cmd#414, A14 HADOOP-16085
func TestAnObjectThatChangesWhileItsLineIsBroken(t *testing.T) {
	const size = 8 << 20
	g := newRigOnLines(t)
	old, fresh := noise(size, 4), noise(size, 5)
	g.put(t, "moving", old)
	g.stage(t)
	g.toGate.Break(relay.Break{Kind: relay.Cut, Way: relay.ToClient, After: size - 1<<16})
	// A job that reads slowly: the store has sent a part when it is replaced.
	var once sync.Once
	body, _, _, err := g.job(t).GetObject(t.Context(), "data", "moving", minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var got []byte
	for buf := make([]byte, 1<<15); err == nil; {
		var n int
		n, err = body.Read(buf)
		got = append(got, buf[:n]...)
		once.Do(func() { g.put(t, "moving", fresh) })
	}
	if errors.Is(err, io.EOF) || !bytes.HasPrefix(old, got) {
		t.Errorf("%d bytes, %v: want a part of the old version and an error", len(got), err)
	}
	mustRead(t, g.job(t), "moving", fresh)
}
