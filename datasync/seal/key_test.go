package seal_test

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"spillway.dev/spillway/datasync/seal"
)

func TestKeysRedactThemselves(t *testing.T) {
	key := seal.DataKey(bytes.Repeat([]byte("K"), 32))
	kek := seal.KEK(bytes.Repeat([]byte("K"), 32))
	type holder struct {
		Key *seal.DataKey
		KEK seal.KEK
		Map map[string]seal.DataKey
		Any any
	}
	h := holder{&key, kek, map[string]seal.DataKey{"a": key}, key}
	var text strings.Builder
	for _, v := range []any{key, &key, kek, &kek, h, &h, []seal.DataKey{key}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%08b"} {
			fmt.Fprintf(&text, verb+"\n", v)
		}
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(j)
		slog.New(slog.NewTextHandler(&text, nil)).Info("x", "k", v)
		slog.New(slog.NewJSONHandler(&text, nil)).Info("x", "k", v)
		fmt.Fprintln(&text, fmt.Errorf("with %v", v))
	}
	text.WriteString(key.String() + key.GoString() + kek.String() + kek.GoString())
	for name, leak := range map[string]string{
		"raw": "KKKK", "hex": hex.EncodeToString(key[:4]), "decimal": "75 75", "comma": "75, 75",
		"bytes": "0x4b, 0x4b", "json array": "75,75", "base64": base64.StdEncoding.EncodeToString(key[:30])[:8], "upper hex": "4B4B4B",
	} {
		t.Run(name, func(t *testing.T) {
			if i := strings.Index(text.String(), leak); i >= 0 {
				t.Errorf("the key shows: %q", text.String()[max(0, i-40):i+40])
			}
		})
	}
}

func TestWrap(t *testing.T) {
	kek, err := seal.NewKEK(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	wrapped, err := seal.Wrap(kek, key, "burst-1", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(wrapped, key[:8]) {
		t.Fatal("the wrapped form shows the key")
	}
	t.Run("opens under the same key and burst", func(t *testing.T) {
		if got, err := seal.Unwrap(kek, wrapped, "burst-1"); err != nil || got != key {
			t.Errorf("Unwrap: %v", err)
		}
	})
	t.Run("another burst is refused", func(t *testing.T) {
		if _, err := seal.Unwrap(kek, wrapped, "burst-2"); !errors.Is(err, seal.ErrUnwrap) {
			t.Errorf("Unwrap: %v", err)
		}
	})
	t.Run("a destroyed key-encryption key opens nothing", func(t *testing.T) {
		gone := kek
		gone.Destroy()
		if _, err := seal.Unwrap(gone, wrapped, "burst-1"); !errors.Is(err, seal.ErrUnwrap) {
			t.Errorf("Unwrap: %v", err)
		}
	})
	t.Run("any flipped byte or other length is refused", func(t *testing.T) {
		for i := range wrapped {
			hurt := bytes.Clone(wrapped)
			hurt[i] ^= 1
			if _, err := seal.Unwrap(kek, hurt, "burst-1"); !errors.Is(err, seal.ErrUnwrap) {
				t.Errorf("byte %d: %v", i, err)
			}
			if _, err := seal.Unwrap(kek, wrapped[:i], "burst-1"); !errors.Is(err, seal.ErrUnwrap) {
				t.Errorf("length %d: %v", i, err)
			}
		}
	})
}

func TestNames(t *testing.T) {
	key, other := newKey(t), newKey(t)
	name := key.Name("staging", "data", "../../etc/x")
	// cases: D4 S3Scanner CVE-2021-32061, H11 hybrid-cache 1.12.1
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz234567") != "" || len(name) != 52 {
		t.Errorf("name %q is not plain base32 of 32 bytes", name)
	}
	if key.Name("staging", "data", "../../etc/x") != name {
		t.Error("equal fields give different names")
	}
	for what, n := range map[string]string{
		"key": other.Name("staging", "data", "../../etc/x"), "purpose": key.Name("cache", "data", "../../etc/x"),
		"fields": key.Name("staging", "data.", "./../etc/x"),
	} {
		if n == name {
			t.Errorf("another %s gives the same name", what)
		}
	}
}
