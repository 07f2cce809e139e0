package datasync_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
)

func TestParseRefs(t *testing.T) {
	tests := map[string]struct{ in, want string }{
		"nothing":             {"", "[]"},
		"one":                 {"s3://data/set/", "[s3://data/set/]"},
		"several with blanks": {" s3://a/x , s3://b/y/ ,", "[s3://a/x s3://b/y/]"},
		"a whole bucket":      {"s3://a", "[s3://a/]"},
		"odd keys are kept":   {"s3://a//x/../%2F?y", "[s3://a//x/../%2F?y]"},
		"no scheme":           {"data/set", `"data/set" is not an S3 URL: write s3://bucket/prefix/`},
		"another scheme":      {"https://data/set", `"https://data/set" is not an S3 URL: write s3://bucket/prefix/`},
		"no bucket":           {"s3:///set", `"s3:///set" is not an S3 URL: write s3://bucket/prefix/`},
		"a port":              {"s3://h:9000/set", `"s3://h:9000/set" is not an S3 URL: write s3://bucket/prefix/`},
		"one bad of two":      {"s3://a/x,b", `"b" is not an S3 URL: write s3://bucket/prefix/`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			refs, err := datasync.ParseRefs(tt.in)
			got := fmt.Sprint(refs)
			if err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("ParseRefs(%q) = %s, want %s", tt.in, got, tt.want)
			}
		})
	}
}

func TestRefContainsExactlyWhatItCovers(t *testing.T) {
	short := rapid.StringMatching(`[ab/]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		outer := datasync.Ref{Bucket: short.Draw(t, "bucket"), Prefix: short.Draw(t, "prefix")}
		inner := datasync.Ref{Bucket: short.Draw(t, "inner bucket"), Prefix: short.Draw(t, "inner prefix")}
		key := inner.Prefix + short.Draw(t, "rest")
		if outer.Contains(inner) && !outer.Covers(inner.Bucket, key) {
			t.Fatalf("%s contains %s and does not cover %q", outer, inner, key)
		}
		if !outer.Contains(inner) && outer.Bucket == inner.Bucket && strings.HasPrefix(inner.Prefix, outer.Prefix) {
			t.Fatalf("%s does not contain %s", outer, inner)
		}
	})
}

func TestMissing(t *testing.T) {
	a, b := datasync.Object{Key: "a", ETag: "1", Size: 3}, datasync.Object{Key: "b", ETag: "1", Size: 4}
	newer := a
	newer.ETag = "2"
	got := datasync.Missing([]datasync.Object{newer, b, a}, map[datasync.ObjectID]bool{a.ID(): true})
	if diff := cmp.Diff([]datasync.Object{newer, b}, got); diff != "" {
		t.Error(diff)
	}
	if n := datasync.Bytes(got); n != 7 {
		t.Errorf("Bytes = %d", n)
	}
}

func TestEstimate(t *testing.T) {
	tests := map[string]struct {
		bytes, rate int64
		want        time.Duration
		known       bool
	}{
		"rounds up":                        {101, 100, 2 * time.Second, true},
		"exact":                            {200, 100, 2 * time.Second, true},
		"nothing takes no time":            {0, 100, 0, true},
		"a rate of zero is unknown":        {1, 0, 0, false},
		"more than a duration can express": {math.MaxInt64, 1, 9223372036 * time.Second, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, known := datasync.Estimate(tt.bytes, tt.rate); got != tt.want || known != tt.known {
				t.Errorf("Estimate = %v, %v, want %v, %v", got, known, tt.want, tt.known)
			}
		})
	}
}

func TestManifest(t *testing.T) {
	key, err := seal.NewDataKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m := datasync.Manifest{
		Burst: "b1", Made: time.Unix(1_800_000_000, 0).UTC(), Expires: time.Unix(1_800_003_600, 0).UTC(),
		Objects: []datasync.Object{{
			Bucket: "data", Key: "k\x00\u00e9\u2028<&>", ETag: "e", Size: 5, Metadata: map[string]string{"X-Amz-Meta-A": "1"},
			Staged: "name", StagedSize: seal.Size(5), SHA256: "00", URL: "http://staging/SECRET",
		}},
	}
	box, err := datasync.SealManifest(m, key, priv, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("opens to what was sealed", func(t *testing.T) {
		got, err := datasync.OpenManifest(box, "b1", key, pub)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("shows nothing", func(t *testing.T) {
		if bytes.Contains(box, []byte("SECRET")) || bytes.Contains(box, []byte("data")) {
			t.Error("the sealed manifest holds cleartext")
		}
	})
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	forged, err := datasync.SealManifest(m, key, stranger, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	moved := m
	moved.Burst = "b2"
	other, err := datasync.SealManifest(moved, key, priv, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	refused := map[string]struct {
		box   []byte
		burst string
		key   seal.DataKey
		pub   ed25519.PublicKey
	}{
		"signed by a node that holds the data key": {forged, "b1", key, pub},
		"of another burst":                         {other, "b1", key, pub},
		"under another key":                        {box, "b1", seal.DataKey{1}, pub},
		"cut":                                      {box[:len(box)-1], "b1", key, pub},
		"with bytes behind it":                     {append(bytes.Clone(box), 0), "b1", key, pub},
		"nothing":                                  {nil, "b1", key, pub},
		"checked with no key":                      {box, "b1", key, nil},
	}
	for name, tt := range refused {
		t.Run("refused: "+name, func(t *testing.T) {
			if _, err := datasync.OpenManifest(tt.box, tt.burst, tt.key, tt.pub); !errors.Is(err, datasync.ErrManifest) {
				t.Errorf("OpenManifest: %v", err)
			}
		})
	}
}

func TestStagedNames(t *testing.T) {
	key := seal.DataKey{1}
	o := datasync.Object{Bucket: "b", Key: "k", ETag: "e", VersionID: "v"}
	name := datasync.StagedName(key, o)
	for what, change := range map[string]func(*datasync.Object){
		"bucket": func(o *datasync.Object) { o.Bucket = "c" }, "key": func(o *datasync.Object) { o.Key = "l" },
		"etag": func(o *datasync.Object) { o.ETag = "f" }, "version": func(o *datasync.Object) { o.VersionID = "w" },
	} {
		t.Run("another "+what+" has another name", func(t *testing.T) {
			other := o
			change(&other)
			if datasync.StagedName(key, other) == name {
				t.Error("same name")
			}
		})
	}
	if name == datasync.ManifestName(key, "b") {
		t.Error("an object has the manifest's name")
	}
}
