package seal_test

import (
	"bytes"
	"compress/zlib"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"testing"

	"spillway.dev/spillway/datasync/seal"
)

type vector struct {
	ID      int      `json:"tcId"`
	Comment string   `json:"comment"`
	Key     string   `json:"key"`
	Context string   `json:"ctx"`
	Sealed  string   `json:"ct"`
	Length  int      `json:"msgLength"`
	Digest  string   `json:"msgSha512"`
	Result  string   `json:"result"`
	Flags   []string `json:"flags"`
}

func (v vector) has(flag string) bool { return slices.Contains(v.Flags, flag) }

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func inflate(t *testing.T, s string) []byte {
	t.Helper()
	z, err := zlib.NewReader(bytes.NewReader(unhex(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func vectors(t *testing.T) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/c2sp_chunked_encryption_aes_256_gcm_test.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		NumberOfTests int
		TestGroups    []struct{ Tests []vector }
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	var all []vector
	for _, g := range file.TestGroups {
		all = append(all, g.Tests...)
	}
	if len(all) != 35 || file.NumberOfTests != 35 {
		t.Fatalf("the vector file holds %d tests, want 35", len(all))
	}
	return all
}

// cases: B10 Wycheproof c2sp vectors
func TestVectorsStreamed(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(fmt.Sprintf("%d %s", v.ID, v.Comment), func(t *testing.T) {
			o, err := seal.RawOpener(bytes.NewReader(inflate(t, v.Sealed)), unhex(t, v.Key), unhex(t, v.Context))
			var plain []byte
			if err == nil {
				plain, err = io.ReadAll(o)
			}
			if (err == nil) != (v.Result == "valid") {
				t.Fatalf("opened with error %v, want %s", err, v.Result)
			}
			if len(plain) != v.Length {
				t.Fatalf("gave out %d bytes, want %d", len(plain), v.Length)
			}
			if v.Digest != "" && fmt.Sprintf("%x", sha512.Sum512(plain)) != v.Digest {
				t.Error("gave out other bytes than those of the vector")
			}
			if v.Result == "invalid" && !errors.Is(err, seal.ErrDamaged) && !errors.Is(err, seal.ErrWrongKey) && !v.has("InvalidKeySize") {
				t.Errorf("error %v is neither ErrDamaged nor ErrWrongKey", err)
			}
			if o != nil {
				if n, again := o.Read(make([]byte, 1)); v.Result == "invalid" && (n != 0 || again == nil || errors.Is(again, io.EOF)) {
					t.Errorf("after the failure Read returned %d, %v; it must keep failing", n, again)
				}
			}
		})
	}
}

// cases: B10 Wycheproof c2sp vectors
func TestVectorsAtRandom(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(fmt.Sprintf("%d %s", v.ID, v.Comment), func(t *testing.T) {
			sealed := inflate(t, v.Sealed)
			r, err := seal.RawReaderAt(bytes.NewReader(sealed), int64(len(sealed)), unhex(t, v.Key), unhex(t, v.Context))
			wantOpen := v.Result == "valid" || v.has("ValidFinalChunk")
			if (err == nil) != wantOpen {
				t.Fatalf("opened with error %v, want success: %v", err, wantOpen)
			}
			if err != nil {
				return
			}
			plain := make([]byte, r.Size())
			n, err := r.ReadAt(plain, 0)
			if (err == nil) != (v.Result == "valid") {
				t.Fatalf("read %d bytes with error %v, want %s", n, err, v.Result)
			}
			if n != v.Length {
				t.Fatalf("gave out %d bytes, want %d", n, v.Length)
			}
			if v.Digest != "" && fmt.Sprintf("%x", sha512.Sum512(plain[:n])) != v.Digest {
				t.Error("gave out other bytes than those of the vector")
			}
			if rest := plain[n:]; !bytes.Equal(rest, make([]byte, len(rest))) {
				t.Error("the buffer holds bytes behind the count")
			}
		})
	}
}

// Sealing the plaintext of a valid vector under its salt gives its bytes.
func TestVectorsSealed(t *testing.T) {
	for _, v := range vectors(t) {
		if v.Result != "valid" {
			continue
		}
		t.Run(fmt.Sprintf("%d %s", v.ID, v.Comment), func(t *testing.T) {
			want := inflate(t, v.Sealed)
			o, err := seal.RawOpener(bytes.NewReader(want), unhex(t, v.Key), unhex(t, v.Context))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(o)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			w, err := seal.RawWriter(&got, unhex(t, v.Key), unhex(t, v.Context), bytes.NewReader(want[:24]))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(plain); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Error("sealed bytes differ from the vector")
			}
		})
	}
}
