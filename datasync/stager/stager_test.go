package stager_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
)

// site is a source store with the tenant's data and a staging store near the
// burst nodes.
type site struct {
	home, away   s3.Endpoint
	homec, awayc *minio.Core
	keys         *stager.Custody
	signer       ed25519.PrivateKey
	clock        *atomic.Int64 // seconds that the stager's clock is ahead
	puts         *atomic.Int64 // PUT requests to the staging store
	gate         func(*http.Request) error
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{clock: &atomic.Int64{}, puts: &atomic.Int64{}}
	s.home, s.homec = startStore(t, false)
	s.away, s.awayc = startStore(t, true)
	s.away.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodPut {
			s.puts.Add(1)
		}
		if s.gate != nil {
			if err := s.gate(r); err != nil {
				return nil, err
			}
		}
		return http.DefaultTransport.RoundTrip(r)
	})
	if err := s.homec.MakeBucket(t.Context(), "data", minio.MakeBucketOptions{}); err != nil {
		t.Fatal(err)
	}
	var err error
	if _, s.signer, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	if s.keys, err = stager.NewFileKeys(t.TempDir()+"/keys", rand.Reader, time.Now); err != nil {
		t.Fatal(err)
	}
	return s
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func startStore(t testing.TB, versions bool) (s3.Endpoint, *minio.Core) {
	t.Helper()
	addr := open(t, versions)
	c, err := minio.NewCore(addr, &minio.Options{Creds: credentials.NewStaticV4("root", "rootsecret", ""), Region: "us-east-1"})
	if err != nil {
		t.Fatal(err)
	}
	return s3.Endpoint{URL: "http://" + addr, AccessKey: "root", SecretKey: "rootsecret"}, c
}

func (s *site) put(t testing.TB, key, body string) {
	t.Helper()
	opts := minio.PutObjectOptions{DisableContentSha256: true} // RGW 16.2 refuses an empty body that is signed in chunks
	if _, err := s.homec.Client.PutObject(t.Context(), "data", key, strings.NewReader(body), int64(len(body)), opts); err != nil {
		t.Fatal(err)
	}
}

// stager returns a new one, as after a restart.
func (s *site) stager(t testing.TB) *stager.Stager {
	t.Helper()
	st := stager.New(stager.Config{
		Keys: s.keys, Signer: s.signer, Random: rand.Reader, Parallel: 4,
		Now: func() time.Time { return time.Now().Add(time.Duration(s.clock.Load()) * time.Second) },
	})
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func (s *site) job(burst string, inputs ...string) stager.StageJob {
	job := stager.StageJob{
		Burst: burst, Tenant: "team-vision", Staging: s.away, Expires: time.Now().Add(time.Hour),
		Sources: []stager.Source{{Endpoint: s.home, Bucket: "data", Prefixes: []string{"set/", "more/"}}},
	}
	for _, in := range inputs {
		ref, err := datasync.ParseRef(in)
		if err != nil {
			panic(err)
		}
		job.Inputs = append(job.Inputs, ref)
	}
	return job
}

// staged calls Stage until it is done or fails.
func staged(t testing.TB, st *stager.Stager, job stager.StageJob) (stager.Progress, error) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		p, err := st.Stage(t.Context(), job)
		if err != nil || p.Done {
			return p, err
		}
	}
	t.Fatal("staging does not end")
	return stager.Progress{}, nil
}

// manifest reads what Stage published, as a node does.
func (s *site) manifest(t *testing.T, p stager.Progress) datasync.Manifest {
	t.Helper()
	sealed := fetch(t, p.ManifestURL)
	if sum := sha256.Sum256(sealed); hex.EncodeToString(sum[:]) != p.ManifestSHA256 {
		t.Fatal("the manifest is not the announced one")
	}
	key, err := s.keys.Get(t.Context(), p.Burst)
	if err != nil {
		t.Fatal(err)
	}
	m, err := datasync.OpenManifest(sealed, p.Burst, key, p.ManifestKey)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func fetch(t *testing.T, url string) []byte {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("GET: %s, %v", resp.Status, err)
	}
	return body
}

func TestStage(t *testing.T) {
	s := newSite(t)
	bodies := map[string]string{"set/a": "alpha CANARY", "set/b": strings.Repeat("b", 40_000), "set/empty": "", "more/c": "gamma"}
	total := int64(0)
	for key, body := range bodies {
		s.put(t, key, body)
		total += int64(len(body))
	}
	s.put(t, "secret/other", "not staged")
	st := s.stager(t)
	job := s.job("burst-1", "s3://data/set/", "s3://data/more/c", "s3://data/set/a")

	t.Run("the need is known before", func(t *testing.T) {
		if n, bytes, err := st.Need(t.Context(), job); n != 4 || bytes != total || err != nil {
			t.Errorf("Need: %d objects, %d bytes, %v", n, bytes, err)
		}
	})
	p, err := staged(t, st, job)
	if err != nil {
		t.Fatal(err)
	}
	if p.Objects != 4 || p.ObjectsDone != 4 || p.Bytes != total || p.BytesDone != total || p.BytesMoved <= total {
		t.Errorf("progress %+v", p)
	}
	m := s.manifest(t, p)
	t.Run("every object opens to its bytes", func(t *testing.T) {
		if len(m.Objects) != 4 || m.Objects[0].Key != "more/c" {
			t.Fatalf("manifest %+v", m.Objects)
		}
		key, err := s.keys.Get(t.Context(), "burst-1")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range m.Objects {
			box := fetch(t, o.URL)
			plain, err := io.ReadAll(seal.NewOpener(bytes.NewReader(box), key, datasync.InputContext("burst-1", o)))
			sum := sha256.Sum256(plain)
			if err != nil || string(plain) != bodies[o.Key] || hex.EncodeToString(sum[:]) != o.SHA256 || int64(len(box)) != o.StagedSize {
				t.Errorf("%s: %d bytes, %v", o.Key, len(plain), err)
			}
		}
	})
	t.Run("names and bodies in staging tell nothing", func(t *testing.T) {
		for o := range s.awayc.ListObjectsIter(t.Context(), stager.BucketName("burst-1"), minio.ListObjectsOptions{Recursive: true}) {
			if strings.Trim(o.Key, "abcdefghijklmnopqrstuvwxyz234567") != "" {
				t.Errorf("object name %q", o.Key)
			}
			body, _, _, err := s.awayc.GetObject(t.Context(), stager.BucketName("burst-1"), o.Key, minio.GetObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := io.ReadAll(body)
			if bytes.Contains(raw, []byte("CANARY")) || bytes.Contains(raw, []byte("bbbbbbbb")) {
				t.Errorf("%s holds cleartext", o.Key)
			}
		}
	})
	puts := s.puts.Load()
	t.Run("a repeat moves nothing", func(t *testing.T) {
		if again, err := st.Stage(t.Context(), job); err != nil || again.ManifestSHA256 != p.ManifestSHA256 || s.puts.Load() != puts {
			t.Errorf("%+v, %v, %d PUTs", again, err, s.puts.Load()-puts)
		}
	})
	t.Run("a repeat after a restart moves nothing and keeps the manifest", func(t *testing.T) {
		again, err := staged(t, s.stager(t), job)
		if err != nil || again.ManifestSHA256 != p.ManifestSHA256 || again.BytesMoved != 0 || s.puts.Load() != puts || again.BytesDone != total {
			t.Errorf("%+v, %v, %d PUTs", again, err, s.puts.Load()-puts)
		}
	})
	t.Run("a new version is staged, and only that", func(t *testing.T) {
		s.put(t, "set/a", "changed")
		again, err := staged(t, s.stager(t), job)
		if err != nil || again.ManifestSHA256 == p.ManifestSHA256 || s.puts.Load() != puts+2 {
			t.Errorf("%+v, %v, %d PUTs, want object and manifest", again, err, s.puts.Load()-puts)
		}
	})
	t.Run("URLs that end are written anew", func(t *testing.T) {
		before := s.puts.Load()
		later := job
		later.Expires = time.Now().Add(48 * time.Hour)
		again, err := staged(t, st, later)
		if err != nil || again.Expires.Before(later.Expires.Add(-2*time.Second)) || s.puts.Load() > before+2 {
			t.Errorf("%+v, %v, %d PUTs", again, err, s.puts.Load()-before)
		}
		s.manifest(t, again)
	})
}

// A stager that dies in the middle leaves what it has moved; the next one goes
// on from there.
func TestStageGoesOnAfterACrash(t *testing.T) {
	s := newSite(t)
	const n = 40
	for i := range n {
		s.put(t, fmt.Sprintf("set/%02d", i), strings.Repeat("x", 5000+i))
	}
	job := s.job("burst-1", "s3://data/set/")
	first := s.stager(t)
	var stop atomic.Bool
	s.gate = func(r *http.Request) error {
		if r.Method == http.MethodPut && s.puts.Load() > 15 {
			stop.Store(true)
			<-r.Context().Done() // the line hangs until the process dies
			return r.Context().Err()
		}
		return nil
	}
	if _, err := first.Stage(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !stop.Load() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	s.gate = nil
	p, err := staged(t, s.stager(t), job)
	if err != nil || p.ObjectsDone != n {
		t.Fatalf("%+v, %v", p, err)
	}
	list := map[string]bool{}
	for o := range s.awayc.ListObjectsIter(t.Context(), stager.BucketName("burst-1"), minio.ListObjectsOptions{Recursive: true}) {
		list[o.Key] = true
	}
	if len(list) != n+1 {
		t.Errorf("staging holds %d objects, want %d and the manifest", len(list), n)
	}
	if whole := seal.Size(5000) * n; p.BytesMoved >= whole-10*seal.Size(5000) {
		t.Errorf("the second stager moved %d bytes of %d: what was there moved again", p.BytesMoved, whole)
	}
	for _, o := range s.manifest(t, p).Objects {
		if o.SHA256 == "" {
			t.Errorf("%s has no digest", o.Key)
		}
	}
}

func TestStageRefusesForeignInputs(t *testing.T) {
	s := newSite(t)
	st := s.stager(t)
	for _, in := range []string{"s3://data/", "s3://data/secret/x", "s3://data/se", "s3://other/set/a", "s3://data/set"} {
		t.Run(in, func(t *testing.T) {
			_, err := st.Stage(t.Context(), s.job("burst-1", "s3://data/set/a", in))
			refused, ok := errors.AsType[*stager.RefusedError](err)
			if !ok || !strings.Contains(err.Error(), in) || !strings.Contains(err.Error(), "team-vision") || !strings.Contains(err.Error(), "s3://data/more/") {
				t.Errorf("Stage: %v", err)
			}
			if ok && refused.Tenant != "team-vision" {
				t.Errorf("%+v", refused)
			}
			if _, _, err := st.Need(t.Context(), s.job("burst-1", in)); err == nil {
				t.Error("Need lists it")
			}
		})
	}
	t.Run("and reads nothing, makes nothing", func(t *testing.T) {
		if _, err := s.keys.Get(t.Context(), "burst-1"); !errors.Is(err, stager.ErrNoKey) || s.puts.Load() != 0 {
			t.Errorf("key: %v, %d PUTs", err, s.puts.Load())
		}
	})
}

// cases: A13 s5cmd#414, A14 HADOOP-16085
func TestStageFollowsAnObjectThatChanges(t *testing.T) {
	for name, before := range map[string][]string{"nothing is staged yet": nil, "something is": {"s3://data/more/"}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.put(t, "set/a", "first")
			s.put(t, "more/b", "b")
			if before != nil {
				if _, err := staged(t, s.stager(t), s.job("burst-1", before...)); err != nil {
					t.Fatal(err)
				}
			}
			changed := false
			job := s.job("burst-1", "s3://data/set/")
			job.Sources[0].Endpoint.Transport = roundTrip(func(r *http.Request) (*http.Response, error) {
				if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/set/a") && !changed { // behind the listing, and any look at it
					changed = true
					s.put(t, "set/a", "the second version")
				}
				return http.DefaultTransport.RoundTrip(r)
			})
			st := stager.New(stager.Config{Keys: s.keys, Signer: s.signer, Random: rand.Reader, Now: time.Now, Parallel: 1})
			t.Cleanup(func() { _ = st.Close() })
			p, err := staged(t, st, job)
			if err != nil {
				t.Fatal(err)
			}
			m := s.manifest(t, p)
			if len(m.Objects) != 1 || m.Objects[0].Size != 18 || p.Bytes != 18 || s.opened(t, "burst-1", m.Objects[0]) != "the second version" {
				t.Errorf("manifest %+v, progress %+v", m.Objects, p)
			}
		})
	}
}

func TestStageErrorsEndTheRunAndTheNextCallTriesAgain(t *testing.T) {
	s := newSite(t)
	s.put(t, "set/a", "x")
	s.gate = func(r *http.Request) error { return errors.New("line cut") }
	st, job := s.stager(t), s.job("burst-1", "s3://data/set/")
	if _, err := staged(t, st, job); err == nil || !strings.Contains(err.Error(), "line cut") {
		t.Errorf("Stage: %v", err)
	}
	s.gate = nil
	if p, err := staged(t, st, job); err != nil || !p.Done {
		t.Errorf("Stage: %+v, %v", p, err)
	}
	missing := s.job("burst-2", "s3://nobucket/x")
	missing.Sources = []stager.Source{{Endpoint: s.home, Bucket: "nobucket"}}
	if _, err := staged(t, st, missing); !errors.Is(err, s3.ErrNotFound) {
		t.Errorf("a source that isn't there: %v", err)
	}
}

func TestStageAfterDestructionIsRefused(t *testing.T) {
	s := newSite(t)
	s.put(t, "set/a", "x")
	if _, err := s.keys.Destroy(t.Context(), "burst-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := staged(t, s.stager(t), s.job("burst-1", "s3://data/set/")); !errors.Is(err, stager.ErrKeyDestroyed) {
		t.Errorf("Stage: %v", err)
	}
}

func digest(b string) string {
	sum := sha256.Sum256([]byte(b))
	return hex.EncodeToString(sum[:])
}

func TestCollect(t *testing.T) {
	s := newSite(t)
	st := s.stager(t)
	s.put(t, "out/a", "result")
	s.put(t, "out/b", "aabb")
	info, err := s.homec.StatObject(t.Context(), "data", "out/a", minio.StatObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	good := datasync.Upload{Bucket: "data", Key: "out/a", Size: 6, SHA256: digest("result"), ETag: info.ETag}
	parts := datasync.Upload{Bucket: "data", Key: "out/b", Size: 4, Parts: []datasync.Part{{Size: 2, SHA256: digest("aa")}, {Size: 2, SHA256: digest("bb")}}}
	with := func(u datasync.Upload, change func(*datasync.Upload)) datasync.Upload {
		u.Parts = append([]datasync.Part(nil), u.Parts...)
		change(&u)
		return u
	}
	tests := map[string]struct {
		uploads []datasync.Upload
		missing string // empty: all home
	}{
		"nothing":                      {nil, ""},
		"whole and in parts":           {[]datasync.Upload{parts, good}, ""},
		"a copy, known by its ETag":    {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.Size, u.SHA256 = -1, "" })}, ""},
		"gone":                         {[]datasync.Upload{good, with(good, func(u *datasync.Upload) { u.Key = "out/none" })}, "out/none: not home: it does not exist"},
		"other bytes":                  {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.SHA256 = digest("resulT") })}, "its SHA-256"}, // cases: A7 seaweedfs#9224
		"shorter":                      {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.Size = 7 })}, "it has 6 bytes, 7 were uploaded"},
		"another part":                 {[]datasync.Upload{with(parts, func(u *datasync.Upload) { u.Parts[1].SHA256 = digest("xx") })}, "its parts differ"},
		"another ETag":                 {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.SHA256, u.ETag = "", "e" })}, "its ETag"},
		"the last of two counts":       {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.SHA256 = digest("old"); u.At = time.Unix(1, 0) }), with(good, func(u *datasync.Upload) { u.At = time.Unix(2, 0) })}, ""},
		"a bucket that does not exist": {[]datasync.Upload{with(good, func(u *datasync.Upload) { u.Bucket = "nobucket" })}, "does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := st.Collect(t.Context(), stager.CollectJob{Burst: "burst-1", Source: s.home, Uploads: tt.uploads, Outputs: []datasync.Ref{{Bucket: "data", Prefix: "out/"}}})
			short, incomplete := errors.AsType[*stager.IncompleteError](err)
			if incomplete != (tt.missing != "") || (err != nil && !incomplete) {
				t.Fatalf("Collect: %+v, %v", got, err)
			}
			if incomplete && (len(short.Missing) != 1 || !strings.Contains(short.Missing[0], tt.missing)) {
				t.Errorf("missing %q, want %q", short.Missing, tt.missing)
			}
			if got.Listed != 2 {
				t.Errorf("%d objects listed", got.Listed)
			}
		})
	}
	t.Run("the digests are those at home", func(t *testing.T) {
		got, err := st.Collect(t.Context(), stager.CollectJob{Burst: "b", Source: s.home, Uploads: []datasync.Upload{parts, good}})
		if err != nil || got.Objects != 2 || got.Bytes != 10 || got.Results[0].SHA256 != digest("result") || got.Results[1].SHA256 != digest("aabb") {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("a store that does not answer is no verdict", func(t *testing.T) {
		down := s.home
		down.Transport = roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("down") })
		_, err := st.Collect(t.Context(), stager.CollectJob{Burst: "b", Source: down, Uploads: []datasync.Upload{good}})
		if _, incomplete := errors.AsType[*stager.IncompleteError](err); err == nil || incomplete {
			t.Errorf("Collect: %v", err)
		}
	})
}

// cases: F1 marin#8356, F2 mc#5261, F4 VaultS3#47, F5 runs-on#329
func TestWipe(t *testing.T) {
	s := newSite(t)
	for i := range 5 {
		s.put(t, fmt.Sprint("set/", i), "body")
	}
	st, job := s.stager(t), s.job("burst-1", "s3://data/set/")
	if _, err := staged(t, st, job); err != nil {
		t.Fatal(err)
	}
	bucket := stager.BucketName("burst-1")
	if _, err := s.awayc.NewMultipartUpload(t.Context(), bucket, "left", minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	w, err := st.Wipe(t.Context(), stager.WipeJob{Burst: "burst-1", Staging: s.away})
	if err != nil {
		t.Fatal(err)
	}
	if w.ObjectsDeleted != 6 || w.UploadsAborted != 1 || w.Passes != 3 || w.FinalListSHA256 != digest("") || w.BucketDeletedAt.IsZero() || w.Bucket != bucket {
		t.Errorf("%+v", w)
	}
	if there, err := s.awayc.BucketExists(t.Context(), bucket); err != nil || there {
		t.Errorf("the bucket is there: %v, %v", there, err)
	}
	t.Run("a repeat finds nothing", func(t *testing.T) {
		if w, err := st.Wipe(t.Context(), stager.WipeJob{Burst: "burst-1", Staging: s.away}); err != nil || w.ObjectsDeleted != 0 || w.Passes != 0 {
			t.Errorf("%+v, %v", w, err)
		}
	})
	t.Run("a store that refuses one deletion is no success", func(t *testing.T) {
		if _, err := staged(t, st, job); err != nil {
			t.Fatal(err)
		}
		s.gate = func(r *http.Request) error {
			if r.URL.Query().Has("delete") {
				return errors.New("refused")
			}
			return nil
		}
		if w, err := st.Wipe(t.Context(), stager.WipeJob{Burst: "burst-1", Staging: s.away}); err == nil || w != (stager.Wiped{}) {
			t.Errorf("%+v, %v", w, err)
		}
		s.gate = nil
	})
	t.Run("a staging under way ends first", func(t *testing.T) {
		if _, err := st.Stage(t.Context(), s.job("burst-3", "s3://data/set/")); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Wipe(t.Context(), stager.WipeJob{Burst: "burst-3", Staging: s.away}); err != nil {
			t.Fatal(err)
		}
		if there, err := s.awayc.BucketExists(context.Background(), stager.BucketName("burst-3")); err != nil || there {
			t.Errorf("the bucket is there: %v, %v", there, err)
		}
	})
}
