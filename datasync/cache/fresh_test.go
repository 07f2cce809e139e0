package cache_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
)

// inside is where the pods of the burst's own gang reach a front: the same
// front behind a listener of their own, as their network namespace is one.
func (g *rig) inside(t testing.TB) string {
	t.Helper()
	s := httptest.NewServer(g.front)
	t.Cleanup(s.Close)
	g.own.Store(s.Listener.Addr().String())
	return s.Listener.Addr().String()
}

func (g *rig) isOwn(r *http.Request) bool {
	here, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && g.own.Load() == here.String()
}

// stageAs stages objects under a freshness.
func (g *rig) stageAs(t testing.TB, f datasync.Freshness, keys ...string) {
	t.Helper()
	m := g.stage(t, keys...)
	m.Freshness = f
	if err := g.front.Unlock(g.key, m); err != nil {
		t.Fatal(err)
	}
	if err := g.front.Prefetch(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// asked counts the reads of a key that the store has seen from somebody.
func (g *rig) asked(t testing.TB, key, who string) int {
	t.Helper()
	mark := fmt.Sprintf("mark-%d", g.marks.Add(1)) // the log is written in order, a moment later
	if _, err := g.root.Client.StatObject(t.Context(), "data", mark, minio.StatObjectOptions{}); err == nil {
		t.Fatalf("%s is there", mark)
	}
	g.seen(t, mark, 1)
	n := 0
	for _, e := range g.seen(t, key, 0) {
		if e.Requester == who && (e.Method == http.MethodGet || e.Method == http.MethodHead) {
			n++
		}
	}
	return n
}

var aLease = datasync.Freshness{Mode: datasync.Lease, For: time.Minute}

// One positive answer counts for the same access key and object, for as long as
// the lease says and not longer.
func TestLeaseCountsForItsTime(t *testing.T) {
	g := newRig(t)
	body := blob(200_000, "lease")
	g.put(t, "k", body)
	g.put(t, "l", body)
	own := g.client(t, g.inside(t), "job", "jobsecret")
	g.stageAs(t, aLease, "k", "l")
	for range 5 {
		mustRead(t, own, "k", body)
	}
	mustRead(t, own, "l", body)
	if n := g.asked(t, "k", "job"); n != 1 {
		t.Errorf("home was asked %d times about k, want once", n)
	}
	if n := g.asked(t, "l", "job"); n != 1 {
		t.Errorf("home was asked %d times about l, want once: a lease is of one object", n)
	}
	g.advance(aLease.For - time.Second)
	mustRead(t, own, "k", body)
	g.advance(time.Second)
	mustRead(t, own, "k", body)
	if n := g.asked(t, "k", "job"); n != 2 {
		t.Errorf("home was asked %d times about k after the lease, want twice", n)
	}
	if s := g.front.Stats(); s.Unasked != 5 || s.Hits != 8 {
		t.Errorf("the front says %+v", s)
	}
}

// Who is not of the gang, or asks in a way that must be judged at home, is
// judged there, however often the gang was served.
func TestNobodyElseHasTheGangsLease(t *testing.T) {
	for _, f := range []datasync.Freshness{aLease, {Mode: datasync.Pinned}} {
		t.Run(string(f.Mode), func(t *testing.T) {
			g := newRig(t)
			body := blob(50_000, "others")
			g.put(t, "k", body)
			inside := g.inside(t)
			own := g.client(t, inside, "job", "jobsecret")
			g.stageAs(t, f, "k")
			mustRead(t, own, "k", body)
			mustRead(t, own, "k", body)

			mustRead(t, g.job(t), "k", body) // another namespace, with the gang's own key
			if n := g.asked(t, "k", "job"); n != 2 {
				t.Errorf("home was asked %d times, want once by the gang and once by the other namespace", n)
			}
			for who, secret := range map[string]string{"stranger": "strangersecret", "job": "wrong"} {
				for _, addr := range []string{inside, g.addr()} {
					if who == "job" && addr == inside {
						continue // below
					}
					got, _, err := read(t, g.client(t, addr, who, secret), "k", minio.GetObjectOptions{})
					if len(got) > 0 || minio.ToErrorResponse(err).StatusCode != http.StatusForbidden {
						t.Errorf("%s with %q at %s: %d bytes, %v", who, secret, addr, len(got), err)
					}
				}
			}
			// A stated limit: the front can't check signatures, so that within the
			// gang the access key alone names who has a lease.
			mustRead(t, g.client(t, inside, "job", "wrong"), "k", body)
		})
	}
}

// What a request says beyond the object's name is for the store to judge.
func TestOddRequestsAreStrict(t *testing.T) {
	tests := map[string]func(t *testing.T, g *rig, inside string) *http.Request{
		"presigned": func(t *testing.T, g *rig, inside string) *http.Request {
			u, err := g.client(t, inside, "job", "jobsecret").PresignedGetObject(t.Context(), "data", "k", time.Hour, nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inside+u.RequestURI(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Host = u.Host
			return r
		},
		"nobody's": func(t *testing.T, g *rig, inside string) *http.Request {
			return g.plainGet(t, inside, nil)
		},
		"an owner is expected": func(t *testing.T, g *rig, inside string) *http.Request {
			return g.plainGet(t, inside, http.Header{"X-Amz-Expected-Bucket-Owner": {"somebody"}})
		},
		"a session token that was not there before": func(t *testing.T, g *rig, inside string) *http.Request {
			return g.plainGet(t, inside, http.Header{"X-Amz-Security-Token": {"new"}})
		},
		"another region": func(t *testing.T, g *rig, inside string) *http.Request {
			r := g.plainGet(t, inside, nil)
			r.Header.Set("Authorization", strings.Replace(lastAuth(t, g, inside), "us-east-1", "mars-1", 1))
			return r
		},
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.put(t, "k", blob(5000, "odd"))
			inside := g.inside(t)
			g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k")
			own := g.client(t, inside, "job", "jobsecret")
			mustRead(t, own, "k", blob(5000, "odd"))
			mustRead(t, own, "k", blob(5000, "odd"))
			before := g.front.Stats()
			for range 2 {
				resp, err := dialTo(inside).RoundTrip(request(t, g, inside))
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if s := g.front.Stats(); s.Unasked != before.Unasked || before.Unasked != 1 {
					t.Errorf("status %d without a word from home: %+v", resp.StatusCode, s)
				}
			}
		})
	}
}

// plainGet asks for "k" with the headers of a signed request, and more.
func (g *rig) plainGet(t *testing.T, addr string, more http.Header) *http.Request {
	t.Helper()
	_, port, _ := net.SplitHostPort(g.store.Addr())
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://%s/data/k", addr), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = net.JoinHostPort(storeName, port)
	if more != nil {
		r.Header = more.Clone()
		r.Header.Set("Authorization", lastAuth(t, g, addr))
	}
	return r
}

// lastAuth is the Authorization header of the job's own client.
func lastAuth(t *testing.T, g *rig, addr string) string {
	t.Helper()
	var auth string
	spy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
	}))
	defer spy.Close()
	_, _, _ = read(t, g.client(t, spy.Listener.Addr().String(), "job", "jobsecret"), "k", minio.GetObjectOptions{}) // refused
	if auth == "" {
		t.Fatal("the client signs nothing")
	}
	return auth
}

// In mode lease a new version and a lost right are seen when the lease has
// ended; in mode pinned a run sees the manifest's version to its end, also by
// HEAD and by ranges, and who was never let in is not let in.
func TestWhatHappensAtHomeMeanwhile(t *testing.T) {
	old, changed := blob(100_000, "old"), blob(7_000, "new")
	t.Run("lease, a new version", func(t *testing.T) {
		g := newRig(t)
		g.put(t, "k", old)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.stageAs(t, aLease, "k")
		mustRead(t, own, "k", old)
		g.put(t, "k", changed)
		mustRead(t, own, "k", old)
		g.advance(aLease.For)
		mustRead(t, own, "k", changed)
	})
	t.Run("lease, a lost right", func(t *testing.T) {
		g := newRig(t)
		g.put(t, "k", old)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.stageAs(t, aLease, "k")
		mustRead(t, own, "k", old)
		g.revoke(t)
		mustRead(t, own, "k", old)
		g.advance(aLease.For)
		mustRefuse(t, own, "k")
	})
	t.Run("pinned, a new version before the first read", func(t *testing.T) {
		g := newRig(t)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.put(t, "k", old)
		g.put(t, "r", old)
		g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k", "r")
		g.put(t, "k", changed)
		g.put(t, "r", changed)
		info, err := own.StatObject(t.Context(), "data", "k", minio.StatObjectOptions{})
		if err != nil || info.Size != int64(len(old)) {
			t.Errorf("HEAD says %d bytes, %v", info.Size, err)
		}
		mustRead(t, g.job(t), "k", changed) // who is not of the gang sees what is there, and takes nothing away
		mustRead(t, own, "k", old)
		var part minio.GetObjectOptions
		_ = part.SetRange(90_000, 90_999)
		if got, _, err := read(t, own, "r", part); err != nil || !bytes.Equal(got, old[90_000:91_000]) {
			t.Errorf("a range that only the old version has: %d bytes, %v", len(got), err)
		}
		if s := g.front.Stats(); s.NotCached["pinned"] != 1 {
			t.Errorf("the front says %+v", s)
		}
	})
	t.Run("pinned, never let in", func(t *testing.T) {
		g := newRig(t)
		g.put(t, "k", old)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k")
		g.revoke(t)
		mustRefuse(t, own, "k")
	})
	t.Run("pinned, deleted before the first read", func(t *testing.T) {
		g := newRig(t)
		g.put(t, "k", old)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k")
		if err := g.root.RemoveObject(t.Context(), "data", "k", minio.RemoveObjectOptions{}); err != nil {
			t.Fatal(err)
		}
		if got, _, err := read(t, own, "k", minio.GetObjectOptions{}); len(got) > 0 || minio.ToErrorResponse(err).StatusCode != http.StatusNotFound {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	t.Run("pinned, written by the gang itself", func(t *testing.T) {
		g := newRig(t)
		g.put(t, "k", old)
		own := g.client(t, g.inside(t), "job", "jobsecret")
		g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k")
		mustRead(t, own, "k", old)
		if _, err := own.Client.PutObject(t.Context(), "data", "k", bytes.NewReader(changed), int64(len(changed)), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
		mustRead(t, own, "k", changed)
	})
}

// A pinned version whose ciphertext is lost, here and in the staging store, is
// not replaced by what the store has by now.
func TestPinnedIsThatVersionOrNothing(t *testing.T) {
	g := newRig(t)
	g.put(t, "k", blob(9000, "old"))
	own := g.client(t, g.inside(t), "job", "jobsecret")
	g.stageAs(t, datasync.Freshness{Mode: datasync.Pinned}, "k")
	mustRead(t, own, "k", blob(9000, "old"))
	g.put(t, "k", blob(9000, "new"))
	g.flip(t, 60)
	for o := range g.root.ListObjectsIter(t.Context(), "staging", minio.ListObjectsOptions{Recursive: true}) {
		if err := g.root.RemoveObject(t.Context(), "staging", o.Key, minio.RemoveObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		got, _, err := read(t, own, "k", minio.GetObjectOptions{})
		if len(got) > 0 || minio.ToErrorResponse(err).StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

// Hits that home is not asked about have the bytes and headers of those that it
// is: the same calls, direct and by the gang, read alike.
func TestUnaskedAnswersAreTheStores(t *testing.T) {
	for _, f := range []datasync.Freshness{aLease, {Mode: datasync.Pinned}} {
		t.Run(string(f.Mode), func(t *testing.T) {
			g := newRig(t)
			var keys []string
			for i, size := range []int{0, 1, 16383, 16384, 16385, 300_000} {
				keys = append(keys, fmt.Sprintf("set/%d of %d+", i, size))
				g.put(t, keys[i], blob(size, "same"))
			}
			own, direct := g.client(t, g.inside(t), "job", "jobsecret"), g.direct(t)
			g.stageAs(t, f, keys...)
			for _, key := range keys {
				for _, span := range [][2]int64{{}, {0, 0}, {1, 5}, {16380, 16390}, {0, -100}, {5, 0}, {1 << 40, 1<<40 + 1}} {
					for _, sums := range []bool{false, true} {
						opts := minio.GetObjectOptions{Checksum: sums}
						if span != [2]int64{} {
							_ = opts.SetRange(span[0], span[1])
						}
						want, wantHeader, wantErr := read(t, direct, key, opts)
						for range 2 {
							got, header, err := read(t, own, key, opts)
							if !bytes.Equal(got, want) || answerOf(header, err) != answerOf(wantHeader, wantErr) {
								t.Errorf("%q %v:\n%d bytes %s\ndirect:\n%d bytes %s", key, span, len(got), answerOf(header, err), len(want), answerOf(wantHeader, wantErr))
							}
						}
					}
				}
				want, wantErr := direct.StatObject(t.Context(), "data", key, minio.StatObjectOptions{})
				got, err := own.StatObject(t.Context(), "data", key, minio.StatObjectOptions{})
				if headerText(got.Metadata) != headerText(want.Metadata) || err != nil || wantErr != nil {
					t.Errorf("HEAD %q:\n%s %v\ndirect:\n%s %v", key, headerText(got.Metadata), err, headerText(want.Metadata), wantErr)
				}
			}
			if s := g.front.Stats(); s.Unasked < 100 {
				t.Errorf("home was asked about all but %d", s.Unasked)
			}
		})
	}
}

// revoke takes the job's rights on "data" away.
func (g *rig) revoke(t *testing.T) {
	t.Helper()
	if err := g.root.SetBucketPolicy(t.Context(), "data", g.store.Policy("data", "root")); err != nil {
		t.Fatal(err)
	}
}

func mustRefuse(t *testing.T, c *minio.Core, key string) {
	t.Helper()
	got, _, err := read(t, c, key, minio.GetObjectOptions{})
	if len(got) > 0 || minio.ToErrorResponse(err).StatusCode != http.StatusForbidden {
		t.Errorf("%d bytes, %v: want a refusal", len(got), err)
	}
}

// advance moves the front's clock.
func (g *rig) advance(d time.Duration) { g.ahead.Add(int64(d)) }
