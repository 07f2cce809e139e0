package stager_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/e2e/relay"
)

// lined puts a line between the stager and each of the stores.
func (s *site) lined(t *testing.T) (home, away *relay.Relay) {
	t.Helper()
	for _, end := range []struct {
		url  *string
		line **relay.Relay
	}{{&s.home.URL, &home}, {&s.away.URL, &away}} {
		r, err := relay.Start((*end.url)[len("http://"):])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		*end.line, *end.url = r, "http://"+r.Addr()
	}
	return home, away
}

func noise(n int, seed uint64) string {
	p := make([]byte, n)
	src := rand.New(rand.NewPCG(seed, seed))
	for i := range p {
		p[i] = byte(src.Uint32())
	}
	return string(p)
}

// opened reads a staged object past all lines and opens it.
func (s *site) opened(t *testing.T, burst string, o datasync.Object) string {
	t.Helper()
	key, err := s.keys.Get(t.Context(), burst)
	if err != nil {
		t.Fatal(err)
	}
	body, _, _, err := s.awayc.GetObject(t.Context(), stager.BucketName(burst), o.Staged, minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	plain, err := io.ReadAll(seal.NewOpener(body, key, datasync.InputContext(burst, o)))
	if err != nil {
		t.Fatalf("open %s: %v", o.Key, err)
	}
	return string(plain)
}

// A line that is cut again and again delays a staging and spoils nothing: what
// is staged is what is at home, a large object goes on where it broke, and the
// wipe finds all that a cut has left.
//
// cases: A1 minio-go#1451, A2 gitea PR#38753, A13 s5cmd#414, F1 marin#8356
func TestStagingOverALineThatBreaks(t *testing.T) {
	s := newSite(t)
	home, away := s.lined(t)
	bodies := map[string]string{"set/empty": "", "set/large": noise(40<<20+5, 1)}
	for i := range 8 {
		bodies[fmt.Sprintf("set/%d", i)] = noise(100_000*i+1, uint64(i))
	}
	total := int64(0)
	for key, body := range bodies {
		s.put(t, key, body)
		total += int64(len(body))
	}
	src := rand.New(rand.NewPCG(7, 7))
	const breaks = 6
	for i := range breaks {
		kind := []relay.Kind{relay.Cut, relay.Truncate}[i%2]
		home.Break(relay.Break{Kind: kind, Way: relay.ToClient, After: src.Int64N(total / breaks)})
		away.Break(relay.Break{Kind: kind, Way: relay.ToServer, After: src.Int64N(total / breaks)})
	}
	st := s.stager(t)
	p, err := staged(t, st, s.job("b1", "s3://data/set/"))
	if err != nil {
		t.Fatal(err)
	}
	struck := home.Mend() + away.Mend()
	if struck < breaks {
		t.Errorf("only %d breaks have struck", struck)
	}
	objects := s.manifest(t, p).Objects
	for _, o := range objects {
		if s.opened(t, "b1", o) != bodies[o.Key] {
			t.Errorf("%s: staged is not what is at home", o.Key)
		}
	}
	if len(objects) != len(bodies) {
		t.Errorf("%d objects are staged, want %d", len(objects), len(bodies))
	}
	// Nobody but an object in one piece is sent again from its beginning: a
	// part has 16 MiB.
	if most := total + breaks*(17<<20); away.Bytes(relay.ToServer) > most {
		t.Errorf("%d bytes were sent for %d, with %d breaks", away.Bytes(relay.ToServer), total, struck)
	}
	t.Logf("%d breaks; %d bytes: %d came from home, %d went out", struck, total, home.Bytes(relay.ToClient), away.Bytes(relay.ToServer))
	s.wiped(t, st)
}

// wiped wipes burst b1 past the line and looks that nothing is left.
func (s *site) wiped(t *testing.T, st *stager.Stager) {
	t.Helper()
	if _, err := st.Wipe(t.Context(), stager.WipeJob{Burst: "b1", Staging: s.away}); err != nil {
		t.Fatal(err)
	}
	if there, err := s.awayc.BucketExists(t.Context(), stager.BucketName("b1")); err != nil || there {
		t.Errorf("the staging bucket after the wipe: %v, %v", there, err)
	}
}

// An object of which a part was read is not read again: the line is cut, or
// falls silent, and the rest comes with If-Match.
//
// cases: A13 s5cmd#414
func TestASourceIsReadOnWhereItBroke(t *testing.T) {
	const size = 12 << 20
	for name, kind := range map[string]relay.Kind{"cut": relay.Cut, "ended early": relay.Truncate, "silent": relay.Drop} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			home, _ := s.lined(t)
			body := noise(size, 3)
			s.put(t, "set/a", body)
			home.Break(relay.Break{Kind: kind, Way: relay.ToClient, After: size / 2})
			p, err := staged(t, s.stager(t), s.job("b1", "s3://data/set/"))
			if err != nil {
				t.Fatal(err)
			}
			if o := s.manifest(t, p).Objects[0]; s.opened(t, "b1", o) != body {
				t.Error("staged is not what is at home")
			}
			if n := home.Bytes(relay.ToClient); home.Mend() != 1 || n < size || n > size+size/10 {
				t.Errorf("%d bytes came from home for %d", n, size)
			}
		})
	}
}

// An upload whose completion was answered, and the answer lost, is there: it is
// not sent again, and not taken for gone.
//
// cases: A10 aws-sdk-java-v2#7068
func TestALostAnswerToACompletion(t *testing.T) {
	s := newSite(t)
	body := noise(17<<20, 6)
	s.put(t, "set/a", body)
	lost := 0
	onward := s.away.Transport
	s.away.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		resp, err := onward.RoundTrip(r)
		if err != nil || r.Method != http.MethodPost || !r.URL.Query().Has("uploadId") {
			return resp, err
		}
		_ = resp.Body.Close()
		if lost++; lost == 1 {
			return nil, io.ErrUnexpectedEOF
		}
		// Our two stores remember what they have completed, others don't.
		resp.StatusCode, resp.Status = http.StatusNotFound, "404 Not Found"
		resp.Body = io.NopCloser(strings.NewReader("<Error><Code>NoSuchUpload</Code></Error>"))
		return resp, nil
	})
	p, err := staged(t, s.stager(t), s.job("b1", "s3://data/set/"))
	if err != nil {
		t.Fatal(err)
	}
	if o := s.manifest(t, p).Objects[0]; s.opened(t, "b1", o) != body {
		t.Error("staged is not what is at home")
	}
	if lost != 2 || p.BytesMoved != seal.Size(int64(len(body))) {
		t.Errorf("it was completed %d times, %d bytes moved", lost, p.BytesMoved)
	}
}
