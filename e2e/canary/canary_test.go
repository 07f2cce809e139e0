package canary_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"spillway.dev/spillway/e2e/canary"
)

const bird = "CANARY-5b1f0c9e7d2a4836b8e1f04c6a9d7e2b"

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func zipped(t *testing.T, data string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(data)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// cut takes away the end of a gzip member.
func cut(b []byte) []byte { return b[:len(b)-8] }

func TestSearchFindsEveryForm(t *testing.T) {
	noise := strings.Repeat("noise ", 1000)
	tests := map[string]struct {
		files map[string][]byte
		form  string
	}{
		"raw":            {map[string][]byte{"f": []byte(noise + bird + noise)}, "raw"},
		"hex":            {map[string][]byte{"f": []byte(noise + hex.EncodeToString([]byte(bird)))}, "hex"},
		"upper hex":      {map[string][]byte{"f": []byte(strings.ToUpper(hex.EncodeToString([]byte(bird))))}, "hex"},
		"gzip":           {map[string][]byte{"f": zipped(t, noise+bird)}, "gzip raw"},
		"gzip later":     {map[string][]byte{"f": append([]byte("\x1f\x8b\x08"+noise), zipped(t, bird)...)}, "gzip raw"},
		"cut gzip":       {map[string][]byte{"f": cut(zipped(t, bird+noise))}, "gzip raw"},
		"file name":      {map[string][]byte{"x" + bird: nil}, "name raw"},
		"base64 in gzip": {map[string][]byte{"f": zipped(t, base64.StdEncoding.EncodeToString([]byte("x"+bird+noise)))}, "gzip base64"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for n, data := range tt.files {
				write(t, dir, n, data)
			}
			r, err := canary.Search(dir, []string{bird})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Found) != 1 || r.Found[0].Form != tt.form || r.CleartextBytes([]string{bird}) == 0 {
				t.Errorf("found %+v, want %s", r.Found, tt.form)
			}
		})
	}
	for shift := range 7 {
		for name, enc := range map[string]*base64.Encoding{"std": base64.StdEncoding, "url": base64.RawURLEncoding} {
			t.Run(fmt.Sprintf("base64 %s behind %d bytes", name, shift), func(t *testing.T) {
				dir := t.TempDir()
				write(t, dir, "f", []byte(enc.EncodeToString([]byte(noise[:shift]+bird+"tail?>"))))
				r, err := canary.Search(dir, []string{bird})
				if err != nil || len(r.Found) != 1 || r.Found[0].Form != "base64" {
					t.Errorf("found %+v, %v", r.Found, err)
				}
			})
		}
	}
	for at := 1; at < len(bird); at++ {
		t.Run(fmt.Sprintf("split after %d", at), func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "one", []byte(noise+bird[:at]))
			write(t, dir, "two", []byte(bird[at:]+noise))
			r, err := canary.Search(dir, []string{bird})
			if err != nil || len(r.Found) == 0 || r.Found[0].Form != "split" {
				t.Errorf("found %+v, %v", r.Found, err)
			}
		})
	}
}

func TestRandomBytesHoldNoCanary(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 4<<20)
	if _, err := rand.Read(data); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "f", data)
	r, err := canary.Search(dir, []string{bird})
	if err != nil || len(r.Found) != 0 || r.Files != 1 || r.Bytes != 4<<20 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNothingIsLeftOutSilently(t *testing.T) {
	if _, err := canary.Search(filepath.Join(t.TempDir(), "none"), []string{bird}); err == nil {
		t.Error("a directory that isn't there was searched")
	}
	if _, err := canary.Search(t.TempDir(), []string{"short"}); err == nil {
		t.Error("a short canary was taken")
	}
}

// A disk image is mostly holes: they cost nothing, and what lies behind them is
// found.
func TestSearchLooksBehindHoles(t *testing.T) {
	bird := "CANARY-0-far-7c1d5e9b3a0f8264d2e6b4c8a0f1e3d5"
	path := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("the beginning"), 0)
	if err == nil {
		_, err = f.WriteAt([]byte(bird), 6<<40)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := canary.Search(path, []string{bird})
	if err != nil || len(r.Found) != 1 || r.Found[0].Form != "raw" || r.Bytes > 1<<20 {
		t.Errorf("%+v, %v", r, err)
	}
}
