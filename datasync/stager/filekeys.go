package stager

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

// FileKeys keeps the keys of bursts in a directory: per burst one file with
// the key-encryption key, one with the data key wrapped under it, and, after
// destruction, a tombstone. Keep the directory out of backups: a copy of it
// undoes every destruction.
//
// A file system can't prove that a deleted block is unreadable, so a
// destruction here is "deleted, unproven".
type FileKeys struct {
	dir    string
	random io.Reader
	now    func() time.Time
	mu     sync.Mutex
}

// The files of one burst, by their ending.
const (
	kekFile  = ".kek"
	dekFile  = ".wrapped"
	tombFile = ".destroyed"
	tempFile = ".tmp"
)

// NewFileKeys opens or makes the directory, for its owner only. A directory
// that others may enter is refused.
func NewFileKeys(dir string, random io.Reader, now func() time.Time) (*FileKeys, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("key directory: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("key directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key directory %s is open to others (%v): run chmod 700 %s", dir, info.Mode().Perm(), dir)
	}
	return &FileKeys{dir: dir, random: random, now: now}, nil
}

// Create implements [Keys]. A crash between its two files leaves a
// key-encryption key without a wrapped key, which wraps nothing: the next
// call makes the data key under it.
func (k *FileKeys) Create(_ context.Context, burst string) (seal.DataKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	key, err := k.get(burst)
	if !errors.Is(err, ErrNoKey) {
		return key, err
	}
	kek, err := k.kek(burst)
	if errors.Is(err, fs.ErrNotExist) {
		if kek, err = seal.NewKEK(k.random); err == nil {
			err = k.write(burst, kekFile, kek[:])
		}
	}
	defer kek.Destroy()
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("make key of burst %s: %w", burst, err)
	}
	if key, err = seal.NewDataKey(k.random); err != nil {
		return seal.DataKey{}, fmt.Errorf("make key of burst %s: %w", burst, err)
	}
	wrapped, err := seal.Wrap(kek, key, burst, k.random)
	if err == nil {
		err = k.write(burst, dekFile, wrapped)
	}
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("make key of burst %s: %w", burst, err)
	}
	return key, nil
}

// Get implements [Keys].
func (k *FileKeys) Get(_ context.Context, burst string) (seal.DataKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.get(burst)
}

func (k *FileKeys) get(burst string) (seal.DataKey, error) {
	switch _, err := os.Stat(k.path(burst, tombFile)); {
	case err == nil:
		return seal.DataKey{}, fmt.Errorf("burst %s: %w", burst, ErrKeyDestroyed)
	case !errors.Is(err, fs.ErrNotExist):
		return seal.DataKey{}, fmt.Errorf("key of burst %s: %w", burst, err)
	}
	wrapped, err := os.ReadFile(k.path(burst, dekFile))
	if errors.Is(err, fs.ErrNotExist) {
		return seal.DataKey{}, fmt.Errorf("burst %s: %w", burst, ErrNoKey)
	}
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("key of burst %s: %w", burst, err)
	}
	kek, err := k.kek(burst)
	defer kek.Destroy()
	if err != nil {
		return seal.DataKey{}, fmt.Errorf("key of burst %s: %w", burst, err)
	}
	return seal.Unwrap(kek, wrapped, burst)
}

// Destroy implements [Keys]; it is never proven. The tombstone is written
// first, so that a crash in the middle leaves a key that nobody gets any
// more, and the next call destroys it.
func (k *FileKeys) Destroy(_ context.Context, burst string) (Destruction, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d := Destruction{Burst: burst, Method: "key files overwritten and unlinked", At: k.now().UTC()}
	stone := k.path(burst, tombFile)
	if old, err := os.ReadFile(stone); err == nil {
		if at, err := time.Parse(time.RFC3339Nano, string(old)); err == nil {
			d.At = at // a repeat tells the time of the first
		}
	} else if err := k.write(burst, tombFile, []byte(d.At.Format(time.RFC3339Nano))); err != nil {
		return Destruction{}, fmt.Errorf("destroy key of burst %s: %w", burst, err)
	}
	for _, ending := range []string{kekFile, dekFile, kekFile + tempFile, dekFile + tempFile} {
		if err := k.erase(k.path(burst, ending)); err != nil {
			return Destruction{}, fmt.Errorf("destroy key of burst %s: %w", burst, err)
		}
	}
	return d, nil
}

// erase overwrites and unlinks a file; one that isn't there is erased.
func (k *FileKeys) erase(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := io.CopyN(f, k.random, info.Size()); err != nil {
		return fmt.Errorf("overwrite %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("overwrite %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return k.syncDir()
}

func (k *FileKeys) kek(burst string) (seal.KEK, error) {
	raw, err := os.ReadFile(k.path(burst, kekFile))
	if err != nil {
		return seal.KEK{}, err
	}
	defer clear(raw)
	if len(raw) != len(seal.KEK{}) {
		return seal.KEK{}, fmt.Errorf("file %s has %d bytes: restore it or destroy the burst's key", k.path(burst, kekFile), len(raw))
	}
	return seal.KEK(raw), nil
}

// path names files by a hash: burst names are no file names.
func (k *FileKeys) path(burst, ending string) string {
	sum := sha256.Sum256([]byte(burst))
	return filepath.Join(k.dir, hex.EncodeToString(sum[:16])+ending)
}

// write makes a file whole or not at all, and durable.
func (k *FileKeys) write(burst, ending string, data []byte) error {
	path := k.path(burst, ending)
	f, err := os.OpenFile(path+tempFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(path+tempFile, path)
	}
	if err != nil {
		return err
	}
	return k.syncDir()
}

func (k *FileKeys) syncDir() error {
	d, err := os.Open(k.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
