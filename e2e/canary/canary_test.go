package canary

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
)

const bird = "CANARY-0123456789-ABCDEFGHIJKLMNOPQRSTUVWXYZ-abcdefghij"

// TestSearchFindsEveryForm is the positive control: what a program may have
// left of an unsealed object is found, wherever it stands.
func TestSearchFindsEveryForm(t *testing.T) {
	zipped := func(s string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	tests := map[string]struct {
		data []byte
		form string
	}{
		"raw, in the middle":             {[]byte("before " + bird + " behind"), "raw"},
		"base64, aligned":                {[]byte(base64.StdEncoding.EncodeToString([]byte(bird + "behind"))), "base64"},
		"base64, one byte before":        {[]byte(base64.StdEncoding.EncodeToString([]byte("x" + bird + "behind"))), "base64"},
		"base64, two bytes before":       {[]byte(base64.URLEncoding.EncodeToString([]byte("xy" + bird + "z"))), "base64"},
		"hex":                            {[]byte(hex.EncodeToString([]byte("x" + bird))), "hex"},
		"gzip behind other bytes":        {append([]byte("header"), zipped("much text "+bird)...), "gzip"},
		"gzip, cut off":                  {zipped(bird + string(make([]byte, 4096)))[:80], "gzip"},
		"the first half at a file's end": {[]byte("data" + bird[:20]), "split"},
		"the last half at its beginning": {[]byte(bird[20:] + "data"), "split"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "file"), tt.data, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Search(dir, []string{"another string that is long enough to count", bird})
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range r.Found {
				if h.Canary == 1 && h.Form == tt.form {
					return
				}
			}
			t.Errorf("found %+v, want form %s", r.Found, tt.form)
		})
	}
}

func TestSearchFindsNothingInOtherData(t *testing.T) {
	dir := t.TempDir()
	other := bytes.Repeat([]byte("CANARY-0123456789-x"), 1000) // a part that is too short to count
	if err := os.WriteFile(filepath.Join(dir, "file"), other, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Search(dir, []string{bird})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Found) > 0 || r.Files != 1 || r.Bytes != int64(len(other)) {
		t.Errorf("Search() = %+v, want one file and nothing found", r)
	}
}

func TestSearchRefusesCanariesThatProveNothing(t *testing.T) {
	if _, err := Search(t.TempDir(), []string{"short"}); err == nil {
		t.Error("a canary of 5 bytes was accepted")
	}
}

func TestSearchSaysWhatItCouldNotRead(t *testing.T) {
	if _, err := Search(filepath.Join(t.TempDir(), "absent"), []string{bird}); err == nil {
		t.Error("a folder that does not exist was searched without an error")
	}
}
