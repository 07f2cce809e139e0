package wipe

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestErase(t *testing.T) {
	dir := t.TempDir()
	area := filepath.Join(dir, "area")
	outside := filepath.Join(dir, "outside", "keep")
	write(t, outside, []byte("keep me"))
	secret := bytes.Repeat([]byte("secret"), 10_000)
	for i := range 20 {
		write(t, filepath.Join(area, fmt.Sprint("d", i%3), "deep", fmt.Sprint("f", i)), secret)
	}
	write(t, filepath.Join(area, "empty"), nil)
	for link, target := range map[string]string{"to-file": outside, "to-folder": filepath.Dir(outside), "to-nowhere": "/nowhere"} {
		if err := os.Symlink(target, filepath.Join(area, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(area, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	hard := filepath.Join(dir, "hard-link")
	if err := os.Link(filepath.Join(area, "d0", "deep", "f0"), hard); err != nil {
		t.Fatal(err)
	}
	got, err := Erase(t.Context(), area)
	if err != nil {
		t.Fatal(err)
	}
	want := Area{Path: area, Files: 21, Bytes: int64(20 * len(secret)), Overwritten: 21, Empty: true}
	if got != want {
		t.Errorf("Erase = %+v, want %+v", got, want)
	}
	if left, err := os.ReadDir(area); err != nil || len(left) > 0 {
		t.Errorf("left in the area: %v, %v", left, err)
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "keep me" {
		t.Errorf("a file outside was touched: %q, %v", data, err)
	}
	// A second name for the same blocks shows that the content is gone, not
	// just the name.
	if data, err := os.ReadFile(hard); err != nil || len(data) != len(secret) || bytes.Contains(data, []byte("secret")) {
		t.Errorf("the blocks of a file were not overwritten: %d bytes, %v", len(data), err)
	}
}

func TestEraseWithoutTime(t *testing.T) {
	area := t.TempDir()
	write(t, filepath.Join(area, "a", "f"), []byte("secret"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got, err := Erase(ctx, area)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Area{Path: area, Files: 1, Bytes: 6, Empty: true}); got != want {
		t.Errorf("Erase = %+v, want %+v: unlinked, and not said to be overwritten", got, want)
	}
}

func TestEraseMissing(t *testing.T) {
	area := filepath.Join(t.TempDir(), "never made")
	if got, err := Erase(t.Context(), area); err != nil || !got.Empty || got.Files != 0 {
		t.Errorf("Erase = %+v, %v", got, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, []byte("x"))
	if got, err := Erase(t.Context(), file); err == nil || got.Empty {
		t.Errorf("Erase of a file = %+v, %v, want an error", got, err)
	}
}

// A writer that does not stop is found out: the area is never said to be empty.
func TestEraseAgainstAWriter(t *testing.T) {
	area := t.TempDir()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_ = os.WriteFile(filepath.Join(area, fmt.Sprint(i%50)), []byte("x"), 0o600)
			}
		}
	}()
	got, err := Erase(t.Context(), area)
	close(stop)
	<-done
	if !got.Empty && err == nil {
		t.Errorf("Erase = %+v without an error", got)
	}
}

// Read-only files and folders that nobody may read are no hiding place.
func TestEraseLockedAway(t *testing.T) {
	area := t.TempDir()
	write(t, filepath.Join(area, "locked", "f"), []byte("secret"))
	write(t, filepath.Join(area, "read-only"), []byte("secret"))
	for name, mode := range map[string]os.FileMode{"locked": 0o000, "read-only": 0o400} {
		if err := os.Chmod(filepath.Join(area, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Erase(t.Context(), area)
	if err != nil || !got.Empty || got.Overwritten != 2 {
		t.Errorf("Erase = %+v, %v, want both overwritten and gone", got, err)
	}
}
