package stager_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"spillway.dev/spillway/datasync/stager"
)

func openKeys(t *testing.T, dir string) *stager.Custody {
	t.Helper()
	k, err := stager.NewFileKeys(dir, rand.Reader, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// keyFiles are the files of keys in a directory, its locks and record left out.
func keyFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*.*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if filepath.Base(f) != "acts.jsonl" {
			files = append(files, f)
		}
	}
	return files
}

func TestFileKeys(t *testing.T) {
	dir, ctx := t.TempDir()+"/keys", t.Context()
	k := openKeys(t, dir)
	if _, err := k.Get(ctx, "b1"); !errors.Is(err, stager.ErrNoKey) {
		t.Fatalf("Get before Create: %v", err)
	}
	key, err := k.Create(ctx, "b1")
	if err != nil || key.IsZero() {
		t.Fatal(err)
	}
	t.Run("Create again gives the same key, also after a restart", func(t *testing.T) {
		for _, keys := range []*stager.Custody{k, openKeys(t, dir)} {
			if again, err := keys.Create(ctx, "b1"); err != nil || again != key {
				t.Errorf("Create: same %v, %v", again == key, err)
			}
			if again, err := keys.Get(ctx, "b1"); err != nil || again != key {
				t.Errorf("Get: same %v, %v", again == key, err)
			}
		}
	})
	t.Run("each burst has its own", func(t *testing.T) {
		if other, err := k.Create(ctx, "../b2"); err != nil || other == key {
			t.Errorf("Create: same %v, %v", other == key, err)
		}
	})
	t.Run("files are the owner's, and hold no data key", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(keyFiles(t, dir)) != 4 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", f, info.Mode(), err)
			}
			if raw, _ := os.ReadFile(f); bytes.Contains(raw, key[:8]) {
				t.Errorf("%s shows the data key", f)
			}
		}
	})
	d, err := k.Destroy(ctx, "b1")
	if err != nil || d.Proven() || d.String() != "deleted, unproven" || d.At.IsZero() {
		t.Fatalf("Destroy: %+v, %v", d, err)
	}
	t.Run("after destruction nothing comes back, also after a restart", func(t *testing.T) {
		for _, keys := range []*stager.Custody{k, openKeys(t, dir)} {
			if _, err := keys.Get(ctx, "b1"); !errors.Is(err, stager.ErrKeyDestroyed) {
				t.Errorf("Get: %v", err)
			}
			if _, err := keys.Create(ctx, "b1"); !errors.Is(err, stager.ErrKeyDestroyed) {
				t.Errorf("Create: %v", err)
			}
		}
		if files := keyFiles(t, dir); len(files) != 4 { // the other burst's two, a tombstone, and the key that lives on
			t.Errorf("files left: %v", files)
		}
	})
	t.Run("a repeat tells the time of the first", func(t *testing.T) {
		if again, err := openKeys(t, dir).Destroy(ctx, "b1"); err != nil || !again.At.Equal(d.At) {
			t.Errorf("Destroy: %+v, %v", again, err)
		}
	})
	t.Run("the other burst still opens", func(t *testing.T) {
		if _, err := k.Get(ctx, "../b2"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a burst that never had a key gets a tombstone", func(t *testing.T) {
		if _, err := k.Destroy(ctx, "b3"); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Create(ctx, "b3"); !errors.Is(err, stager.ErrKeyDestroyed) {
			t.Errorf("Create: %v", err)
		}
	})
}

// A crash may leave any file as it was before: whatever is there, the next
// process gets the one key, or says that it is destroyed.
func TestFileKeysAfterACrash(t *testing.T) {
	ctx := t.Context()
	file := func(dir, ending string) string {
		all, err := filepath.Glob(filepath.Join(dir, "*"+ending))
		if err != nil || len(all) != 1 {
			t.Fatalf("%v, %v", all, err)
		}
		return all[0]
	}
	t.Run("between the two files of Create", func(t *testing.T) {
		dir := t.TempDir() + "/keys"
		first, err := openKeys(t, dir).Create(ctx, "b")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(file(dir, ".wrapped")); err != nil {
			t.Fatal(err)
		}
		again, err := openKeys(t, dir).Create(ctx, "b")
		if err != nil || again == first {
			t.Errorf("Create: %v", err)
		}
		if got, err := openKeys(t, dir).Get(ctx, "b"); err != nil || got != again {
			t.Errorf("Get: %v", err)
		}
	})
	t.Run("in the middle of Destroy", func(t *testing.T) {
		dir := t.TempDir() + "/keys"
		if _, err := openKeys(t, dir).Create(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		broken, err := stager.NewFileKeys(dir, iotest.ErrReader(errors.New("crash")), time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := broken.Destroy(ctx, "b"); err == nil {
			t.Fatal("Destroy succeeds")
		}
		if _, err := openKeys(t, dir).Create(ctx, "b"); !errors.Is(err, stager.ErrKeyDestroyed) {
			t.Errorf("Create: %v", err)
		}
		if _, err := openKeys(t, dir).Destroy(ctx, "b"); err != nil {
			t.Error(err)
		}
		if files := keyFiles(t, dir); len(files) != 2 { // a tombstone, and the key that lives on
			t.Errorf("files left: %v", files)
		}
	})
	t.Run("a key file that is cut says what to do", func(t *testing.T) {
		dir := t.TempDir() + "/keys"
		if _, err := openKeys(t, dir).Create(ctx, "b"); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file(dir, ".kek"), 5); err != nil {
			t.Fatal(err)
		}
		if _, err := openKeys(t, dir).Get(ctx, "b"); err == nil || !strings.Contains(err.Error(), "restore it") {
			t.Errorf("Get: %v", err)
		}
		if err := os.Remove(file(dir, ".wrapped")); err != nil {
			t.Fatal(err)
		}
		if _, err := openKeys(t, dir).Create(ctx, "b"); err == nil {
			t.Error("Create makes another key over a damaged one")
		}
	})
}

func TestFileKeysRefusesAnOpenDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := stager.NewFileKeys(dir, rand.Reader, time.Now); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("NewFileKeys: %v", err)
	}
}
