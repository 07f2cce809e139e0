package cache_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/stager"
)

// The whole way of a burst's data with the real parts: staged at home, its
// manifest believed by the node, read with a 304 each, a result written
// through, verified at home, the staging and the node wiped, the key gone.
func TestTheWholeWay(t *testing.T) {
	g := newRig(t)
	const n = 20
	bodies := map[string][]byte{}
	for i := range n {
		key := fmt.Sprintf("set/%02d", i)
		bodies[key] = blob(i*7919, key)
		g.put(t, key, bodies[key])
	}
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := stager.NewFileKeys(t.TempDir()+"/keys", rand.Reader, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	st := stager.New(stager.Config{Keys: keys, Signer: signer, Random: rand.Reader, Now: time.Now})
	t.Cleanup(func() { _ = st.Close() })
	end := s3.Endpoint{URL: g.store.URL(), AccessKey: "root", SecretKey: "rootsecret"}
	job := stager.StageJob{
		Burst: burst, Tenant: "team-vision", Inputs: []datasync.Ref{{Bucket: "data", Prefix: "set/"}},
		Sources: []stager.Source{{Endpoint: end, Bucket: "data"}}, Staging: end, Expires: time.Now().Add(time.Hour), Freshness: aLease,
	}
	var p stager.Progress
	for deadline := time.Now().Add(20 * time.Second); !p.Done && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if p, err = st.Stage(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	key, err := keys.Get(t.Context(), burst)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.front.Manifest(t.Context(), p.ManifestURL, digest([]byte("other")), key, p.ManifestKey); !errors.Is(err, datasync.ErrManifest) {
		t.Errorf("a manifest with another digest: %v", err)
	}
	m, err := g.front.Manifest(t.Context(), p.ManifestURL, p.ManifestSHA256, key, p.ManifestKey)
	if err != nil {
		t.Fatal(err)
	}
	if m.Freshness != aLease {
		t.Errorf("freshness %+v, want that of the job", m.Freshness)
	}
	if err := g.front.Unlock(key, m); err != nil {
		t.Fatal(err)
	}
	if err := g.front.Prefetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.readAndWrite(t, st, end, bodies)
	if w, err := g.front.Wipe(); err != nil || w.Files != n {
		t.Errorf("Wipe of the node: %+v, %v", w, err)
	}
	if w, err := st.Wipe(t.Context(), stager.WipeJob{Burst: burst, Staging: end}); err != nil || w.ObjectsDeleted != n+1 {
		t.Errorf("Wipe of the staging: %+v, %v", w, err)
	}
	if _, err := keys.Destroy(t.Context(), burst); err != nil {
		t.Error(err)
	}
	if _, err := keys.Get(t.Context(), burst); !errors.Is(err, stager.ErrKeyDestroyed) {
		t.Errorf("the key after its destruction: %v", err)
	}
}

func (g *rig) readAndWrite(t *testing.T, st *stager.Stager, end s3.Endpoint, bodies map[string][]byte) {
	t.Helper()
	client := g.job(t)
	before := map[string]int{}
	for key := range bodies {
		before[key] = len(g.seen(t, key, 2)) // put, staged
	}
	for key, body := range bodies {
		mustRead(t, client, key, body)
	}
	if s := g.front.Stats(); s.Hits != int64(len(bodies)) || s.BytesUpstream != 0 || s.ObjectsLocal != len(bodies) {
		t.Errorf("the front says %+v", s)
	}
	for key := range bodies {
		for _, e := range g.seen(t, key, before[key]+1)[before[key]:] {
			if e.Status != g.store.Same() || e.BytesSent != 0 {
				t.Errorf("the store's log says %+v", e)
			}
		}
	}
	result := []byte("the model")
	if _, err := client.Client.PutObject(t.Context(), "data", "out/model", bytes.NewReader(result), int64(len(result)), minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := st.Collect(t.Context(), stager.CollectJob{Burst: burst, Source: end, Uploads: g.front.Uploads()})
	if err != nil || got.Objects != 1 || got.Results[0].SHA256 != digest(result) {
		t.Errorf("Collect: %+v, %v", got, err)
	}
}
