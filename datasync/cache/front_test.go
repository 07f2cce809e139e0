package cache_test

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
)

// The promise of the front, by the store's own word: a staged object costs a
// 304 and no byte of body from home.
func TestStagedReadCostsNoBody(t *testing.T) {
	g := newRig(t)
	body := blob(300_000, "a")
	g.put(t, "set/a", body)
	g.stage(t, "set/a")
	before := len(g.seen(t, "set/a", 3))
	job := g.job(t)
	for range 2 {
		mustRead(t, job, "set/a", body)
	}
	for _, e := range g.seen(t, "set/a", before+2)[before:] {
		if e.Method != "GET" || e.Status != g.store.Same() || e.BytesSent != 0 || e.Requester != "job" {
			t.Errorf("the store's log says %+v", e)
		}
	}
	s := g.front.Stats()
	for end := time.Now().Add(5 * time.Second); s.BytesServed < 600_000 && time.Now().Before(end); s = g.front.Stats() {
		time.Sleep(time.Millisecond) // the client may have the last byte before the front has counted it
	}
	if s.Hits != 2 || s.NotModified != 2 || s.BytesServed != 600_000 || s.BytesUpstream != 0 || s.BytesStaged == 0 || s.ObjectsLocal != 1 {
		t.Errorf("the front says %+v", s)
	}
}

// The headers of a staged object are those of the store, checksums only for
// those who ask.
func TestStagedHeadersAreTheStores(t *testing.T) {
	g := newRig(t)
	g.put(t, "k", blob(5000, "h"))
	g.stage(t, "k")
	for name, opts := range map[string]minio.GetObjectOptions{"plain": {}, "with checksums": {Checksum: true}} {
		t.Run(name, func(t *testing.T) {
			_, got, gotErr := read(t, g.job(t), "k", opts)
			_, want, wantErr := read(t, g.direct(t), "k", opts)
			if answerOf(got, gotErr) != answerOf(want, wantErr) {
				t.Errorf("through the front:\n%s\ndirect:\n%s", answerOf(got, gotErr), answerOf(want, wantErr))
			}
		})
	}
	if s := g.front.Stats(); s.Hits != 2 {
		t.Errorf("the front says %+v", s)
	}
}

// cases: H1 hybrid-cache 2.6.0 (objects of multipart uploads are cached too)
func TestUnstagedReadIsKeptForTheNextOne(t *testing.T) {
	g := newRig(t)
	body := blob(11<<20, "m")
	core := g.root
	id, err := core.NewMultipartUpload(t.Context(), "data", "mpu", minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var parts []minio.CompletePart
	for i, piece := range [][]byte{body[:6<<20], body[6<<20:]} {
		p, err := core.PutObjectPart(t.Context(), "data", "mpu", id, i+1, bytes.NewReader(piece), int64(len(piece)), minio.PutObjectPartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, minio.CompletePart{PartNumber: p.PartNumber, ETag: p.ETag})
	}
	if _, err := core.CompleteMultipartUpload(t.Context(), "data", "mpu", id, parts, minio.PutObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	g.stage(t)
	job := g.job(t)
	mustRead(t, job, "mpu", body)
	mustRead(t, job, "mpu", body)
	if s := g.front.Stats(); s.Misses != 1 || s.Hits != 1 || s.BytesUpstream != int64(len(body)) {
		t.Errorf("the front says %+v", s)
	}
}

// cases: B4 s3-orchestrator PR#1190
func TestEmptyObject(t *testing.T) {
	g := newRig(t)
	g.put(t, "empty", nil)
	m := g.stage(t, "empty")
	if m.Objects[0].StagedSize != 72 {
		t.Errorf("an empty object is staged in %d bytes, want 72", m.Objects[0].StagedSize)
	}
	mustRead(t, g.job(t), "empty", nil)
	if s := g.front.Stats(); s.Hits != 1 {
		t.Errorf("the front says %+v", s)
	}
}

// cases: C1 mountpoint#785, C2 goofys#633, milvus talon#483
func TestOverwriteIsSeenAtOnce(t *testing.T) {
	g := newRig(t)
	old, now := blob(100_000, "old"), blob(70_000, "new")
	g.put(t, "k", old)
	g.stage(t, "k")
	job := g.job(t)
	mustRead(t, job, "k", old)
	g.put(t, "k", now)
	mustRead(t, job, "k", now)
	mustRead(t, job, "k", now)
	if s := g.front.Stats(); s.Hits != 2 || s.BytesUpstream != 70_000 {
		t.Errorf("the front says %+v, want the new object kept after one body", s)
	}
}

// cases: C4 fluid#4179, Alluxio#9865, AIS#114
func TestDeleteIsSeenAtOnce(t *testing.T) {
	g := newRig(t)
	g.put(t, "k", blob(1000, "x"))
	g.stage(t, "k")
	job := g.job(t)
	mustRead(t, job, "k", blob(1000, "x"))
	if err := g.root.RemoveObject(t.Context(), "data", "k", minio.RemoveObjectOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, _, err := read(t, job, "k", minio.GetObjectOptions{}); minio.ToErrorResponse(err).StatusCode != 404 {
			t.Errorf("a deleted object reads as %d bytes, %v", len(got), err)
		}
	}
}

// A client whom the store refuses gets the refusal and not a byte, however
// warm the cache is.
func TestStrangerGetsTheStoresRefusal(t *testing.T) {
	g := newRig(t)
	g.put(t, "k", blob(1000, "x"))
	g.stage(t, "k")
	mustRead(t, g.job(t), "k", blob(1000, "x"))
	addr := g.addr()
	for name, who := range map[string][2]string{
		"without rights": {"stranger", "strangersecret"}, "with a bad signature": {"job", "wrong"}, "unknown": {"nobody", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			served := g.front.Stats().BytesServed
			_, _, err := read(t, g.client(t, addr, who[0], who[1]), "k", minio.GetObjectOptions{})
			_, _, direct := read(t, g.client(t, g.store.Addr(), who[0], who[1]), "k", minio.GetObjectOptions{})
			if direct == nil || answerOf(nil, err) != answerOf(nil, direct) {
				t.Errorf("got %v, the store says %v", err, direct)
			}
			if now := g.front.Stats().BytesServed; now != served {
				t.Errorf("%d bytes were served", now-served)
			}
		})
	}
	t.Run("and the entry stays for those with rights", func(t *testing.T) {
		mustRead(t, g.job(t), "k", blob(1000, "x"))
		if s := g.front.Stats(); s.Hits != 2 {
			t.Errorf("the front says %+v", s)
		}
	})
}

// cases: H4 hybrid-cache 2.5.0, H19 hybrid-cache docs (a signed range is never changed)
func TestRanges(t *testing.T) {
	g := newRig(t)
	body := blob(100_000, "r")
	g.put(t, "k", body)
	g.stage(t, "k")
	job, direct := g.job(t), g.direct(t)
	tests := map[string]struct {
		set   func(*minio.GetObjectOptions)
		raw   string
		local bool
	}{
		"in the middle":          {raw: "bytes=16000-33000", local: true},
		"one byte":               {raw: "bytes=0-0", local: true},
		"to the end":             {raw: "bytes=99990-", local: true},
		"beyond the end":         {raw: "bytes=99990-200000", local: true},
		"the last bytes":         {raw: "bytes=-500", local: true},
		"more than there is":     {raw: "bytes=-500000", local: true},
		"unsatisfiable":          {raw: "bytes=100000-", local: false},
		"the last zero bytes":    {raw: "bytes=-0", local: false},
		"upside down":            {raw: "bytes=5-3", local: false},
		"several":                {raw: "bytes=0-1,5-6", local: false},
		"another unit":           {raw: "lines=0-1", local: false},
		"with blanks":            {raw: "bytes= 0-1", local: false},
		"with a sign":            {raw: "bytes=+1-2", local: false},
		"number out of bounds":   {raw: "bytes=0-99999999999999999999999", local: false},
		"just a dash":            {raw: "bytes=-", local: false},
		"nothing behind the '='": {raw: "bytes=", local: false},
	}
	mustRead(t, job, "k", body)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var opts minio.GetObjectOptions
			opts.Set("Range", tt.raw)
			hits := g.front.Stats().Hits
			got, gotHead, gotErr := read(t, job, "k", opts)
			want, wantHead, wantErr := read(t, direct, "k", opts)
			if !bytes.Equal(got, want) || answerOf(gotHead, gotErr) != answerOf(wantHead, wantErr) {
				t.Errorf("through the front: %d bytes, %s\ndirect: %d bytes, %s",
					len(got), answerOf(gotHead, gotErr), len(want), answerOf(wantHead, wantErr))
			}
			if hit := g.front.Stats().Hits > hits; hit != tt.local {
				t.Errorf("answered from the disk: %v, want %v", hit, tt.local)
			}
		})
	}
}

// cases: C7 nginx-s3-gateway#188
func TestRangeOfAColdObjectFetchesNoMore(t *testing.T) {
	g := newRig(t)
	g.put(t, "big", blob(8<<20, "b"))
	g.put(t, "loose", blob(8<<20, "l"))
	g.stage(t, "big")
	for _, key := range []string{"big", "loose"} {
		var opts minio.GetObjectOptions
		opts.Set("Range", "bytes=100-199")
		if got, _, err := read(t, g.job(t), key, opts); err != nil || len(got) != 100 {
			t.Errorf("%s: %d bytes, %v", key, len(got), err)
		}
	}
	if s := g.front.Stats(); s.BytesStaged != 0 || s.BytesUpstream != 200 {
		t.Errorf("the front says %+v", s)
	}
}

// flip damages one byte of every file in the front's disk at off from the
// start, or from the end when negative.
func (g *rig) flip(t *testing.T, off int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(g.dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("nothing on the disk", err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := off
		if at < 0 {
			at += int64(len(b))
		}
		b[at] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A8 juicefs#7499: what the disk gives back wrong is never served.
func TestDamagedEntryIsNeverServed(t *testing.T) {
	body := blob(1_000_000, "d")
	tests := map[string]struct {
		off     int64
		aborted bool // the damage shows only after the answer has begun
	}{
		"salt": {off: 3}, "commitment": {off: 30}, "first chunk": {off: 60}, "last chunk": {off: -5},
		"in the middle": {off: 500_000, aborted: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.put(t, "k", body)
			g.stage(t, "k")
			job := g.job(t)
			mustRead(t, job, "k", body)
			g.flip(t, tt.off)
			got, _, err := read(t, job, "k", minio.GetObjectOptions{})
			if !bytes.HasPrefix(body, got) {
				t.Fatal("a wrong byte was served")
			}
			if tt.aborted != (err != nil) || (tt.aborted && len(got) >= 500_000) {
				t.Errorf("got %d bytes, error %v, want an abort: %v", len(got), err, tt.aborted)
			}
			mustRead(t, job, "k", body)
			if s := g.front.Stats(); s.Damaged != 1 {
				t.Errorf("the front says %+v", s)
			}
		})
	}
}

// What the staging store gives back wrong never gets to the disk; the object
// comes from home instead.
func TestDamagedStagingFallsBackToHome(t *testing.T) {
	g := newRig(t)
	body := blob(100_000, "s")
	g.put(t, "k", body)
	g.put(t, "other", blob(100_000, "o"))
	m := g.stage(t, "k", "other")
	swapped := m.Objects[1].URL
	tests := map[string]func(*datasync.Object){
		"another object in its place": func(o *datasync.Object) { o.URL = swapped },
		"nothing there":               func(o *datasync.Object) { o.URL += "x" },
		"the staging store is gone":   func(o *datasync.Object) { o.URL = "http://127.0.0.1:1/x?X-Amz-Signature=0" },
		"another digest":              func(o *datasync.Object) { o.SHA256 = strings.Repeat("0", 64) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			one := datasync.Manifest{Burst: burst, Objects: []datasync.Object{m.Objects[0]}}
			change(&one.Objects[0])
			if err := g.front.Unlock(g.key, one); err != nil {
				t.Fatal(err)
			}
			if err := g.front.Prefetch(t.Context()); err == nil {
				t.Error("Prefetch succeeds")
			} else if strings.Contains(err.Error(), "Signature=") {
				t.Errorf("the error shows a presigned URL: %v", err)
			}
			if files, _ := filepath.Glob(filepath.Join(g.dir, "*")); len(files) != 0 {
				t.Errorf("the disk holds %v", files)
			}
			mustRead(t, g.job(t), "k", body)
		})
	}
}

func TestDiskHoldsCiphertextUnderOpaqueNames(t *testing.T) {
	// cases: D4 S3Scanner CVE-2021-32061, H11 hybrid-cache 1.12.1
	g := newRig(t)
	canary := "CANARY-3f9c1d-cleartext"
	g.put(t, "staged-name", []byte(canary))
	g.put(t, "missed-name", []byte(canary+canary))
	g.stage(t, "staged-name")
	job := g.job(t)
	mustRead(t, job, "staged-name", []byte(canary))
	mustRead(t, job, "missed-name", []byte(canary+canary))
	files, err := filepath.Glob(filepath.Join(g.dir, "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("the disk holds %v, %v", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte(canary[:8])) || strings.Contains(name, "staged-name") || strings.Contains(name, "missed-name") {
			t.Errorf("%s shows what it holds", name)
		}
		if base := filepath.Base(name); strings.Trim(base, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Errorf("file name %q", base)
		}
	}
}

func TestWipe(t *testing.T) {
	g := newRig(t)
	body := blob(50_000, "w")
	g.put(t, "k", body)
	m := g.stage(t, "k")
	job := g.job(t)
	mustRead(t, job, "k", body)
	w, err := g.front.Wipe()
	if err != nil || w.Files != 1 || w.Bytes != m.Objects[0].StagedSize {
		t.Errorf("Wipe: %+v, %v", w, err)
	}
	if _, err := os.Stat(g.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is there: %v", err)
	}
	if w, err := g.front.Wipe(); err != nil || w.Files != 0 {
		t.Errorf("a second Wipe: %+v, %v", w, err)
	}
	if err := g.front.Unlock(g.key, m); err == nil {
		t.Error("a wiped front can be unlocked")
	}
	mustRead(t, job, "k", body) // a plain passage
	if s := g.front.Stats(); s.NotCached["locked"] != 1 {
		t.Errorf("the front says %+v", s)
	}
}

// cases: A16 minio-js#1318, minio-go#507 (what was left half-written is never gone on with)
func TestUnlockAdoptsWhatTheManifestNames(t *testing.T) {
	g := newRig(t)
	g.put(t, "a", blob(1000, "a"))
	m := g.stage(t, "a")
	mustRead(t, g.job(t), "a", blob(1000, "a"))
	if err := os.WriteFile(filepath.Join(g.dir, "stray.part"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.front.Unlock(g.key, m); err != nil {
		t.Fatal(err)
	}
	if s := g.front.Stats(); s.ObjectsLocal != 1 {
		t.Errorf("the front says %+v", s)
	}
	if files, _ := filepath.Glob(filepath.Join(g.dir, "*")); len(files) != 1 {
		t.Errorf("the disk holds %v", files)
	}
	other := m
	other.Burst = "burst-2"
	if err := g.front.Unlock(g.key, other); err == nil {
		t.Error("the manifest of another burst is taken")
	}
}

func TestForeignClientsAreRefused(t *testing.T) {
	g := newRig(t)
	req := newRequest(t, "GET", "/data/k")
	req.RemoteAddr = "198.51.100.7:1234"
	w := newRecorder()
	g.front.ServeHTTP(w, req)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "its own node only") {
		t.Errorf("answer %d %s", w.Code, w.Body)
	}
	if s := g.front.Stats(); s.Refused != 1 {
		t.Errorf("the front says %+v", s)
	}
}

// A gate that can't be reached is a 503, which S3 clients try again.
func TestUnreachableGate(t *testing.T) {
	g := newRig(t)
	g.stage(t)
	_ = g.store.Stop()
	_, _, err := read(t, g.job(t), "k", minio.GetObjectOptions{})
	if resp := minio.ToErrorResponse(err); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("got %v", err)
	}
}

func answerOf(h http.Header, err error) string {
	if err != nil {
		e := minio.ToErrorResponse(err)
		return e.Code + " " + e.Message
	}
	return headerText(h)
}

// cases: D4 runai-streamer PR#183, S3Scanner CVE-2021-32061
func TestKeysThatLeaveTheBucketAreRefused(t *testing.T) {
	g := newRig(t)
	g.stage(t)
	job := g.job(t)
	for _, key := range []string{"..", "../../etc/x", "../other/k", "a/../../other/k"} {
		t.Run(key, func(t *testing.T) {
			if _, _, err := read(t, job, key, minio.GetObjectOptions{}); minio.ToErrorResponse(err).Code != "AccessDenied" {
				t.Errorf("got %v", err)
			}
		})
	}
	if n := len(g.audits.reasons()); n != 4 {
		t.Errorf("%d audit lines, want one for each", n)
	}
}
