package canary_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"io"
	"os"
	"testing"

	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/e2e/canary"
	"spillway.dev/spillway/e2e/objectstore"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "objectstore" {
		os.Exit(objectstore.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// The positive control: the same objects go into the same store, once with
// the sealing switched off and once with it. The search finds every canary,
// in every form, in the files of the first store, and none in the second's.
func TestSealingIsWhatHidesThem(t *testing.T) {
	birds := []string{
		"CANARY-0-raw-5b1f0c9e7d2a4836b8e1f04c6a9d7e2b", "CANARY-1-zip-0d3c7e5a9b1f48264f6e8d2c0a7b9e15",
		"CANARY-2-b64-9a8b7c6d5e4f30211203f4e5d6c7b8a9", "CANARY-3-cut-e1d2c3b4a5968778695a4b3c2d1e0f10",
	}
	noise := bytes.Repeat([]byte("training data "), 3000)
	var zip bytes.Buffer
	z := gzip.NewWriter(&zip)
	if _, err := z.Write(append(noise, birds[1]...)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	objects := [][]byte{
		append(bytes.Clone(noise), birds[0]...), zip.Bytes(),
		[]byte(base64.StdEncoding.EncodeToString(append([]byte("x"), birds[2]+"tail"...))),
		append(bytes.Clone(noise), birds[3][:20]...), append([]byte(birds[3][20:]), noise...),
	}
	found := func(sealed bool) map[int]bool {
		dir := t.TempDir()
		store, err := objectstore.Start(t.Context(), objectstore.Config{
			Dir: dir, Addr: "127.0.0.1:0", AccessKey: "root", SecretKey: "rootsecret", Exec: []string{os.Args[0], "objectstore"},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Stop() })
		fill(t, store, objects, sealed)
		r, err := canary.Search(dir, birds)
		if err != nil || r.Files < len(objects) {
			t.Fatalf("searched %d files: %v", r.Files, err)
		}
		hits := map[int]bool{}
		for _, h := range r.Found {
			hits[h.Canary] = true
		}
		return hits
	}
	if hits := found(false); len(hits) != len(birds) {
		t.Errorf("without sealing only %v of %d canaries were found", hits, len(birds))
	}
	if hits := found(true); len(hits) != 0 {
		t.Errorf("with sealing %v were found", hits)
	}
}

func fill(t *testing.T, store *objectstore.Store, objects [][]byte, sealed bool) {
	t.Helper()
	staging, err := s3.NewStaging(s3.Endpoint{URL: store.URL(), AccessKey: "root", SecretKey: "rootsecret"})
	if err != nil {
		t.Fatal(err)
	}
	if err := staging.Ensure(t.Context(), "spw-1"); err != nil {
		t.Fatal(err)
	}
	key, err := seal.NewDataKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for i, body := range objects {
		var r io.Reader = bytes.NewReader(body)
		size := int64(len(body))
		if sealed {
			if r, err = seal.NewReader(r, size, key, seal.Context{Burst: "b"}, rand.Reader); err != nil {
				t.Fatal(err)
			}
			size = seal.Size(size)
		}
		if err := staging.Put(t.Context(), "spw-1", key.Name("staging", string(rune('a'+i))), r, size); err != nil {
			t.Fatal(err)
		}
	}
}
