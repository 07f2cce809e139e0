package stager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

// fileKEKs is [KEKs] in files, one a key. A file system can't show that what
// it deleted is unreadable, so a destruction here is never proven.
type fileKEKs struct{ dir keyDir }

const kekFile = ".kek"

// NewFileKeys returns the custody of keys that lie in one directory, each
// key-encryption key beside the data key that it wraps. Keep the directory out
// of backups: a copy of it undoes every destruction.
func NewFileKeys(dir string, random io.Reader, now func() time.Time) (*Custody, error) {
	keks, err := FileKEKs(dir, random)
	if err != nil {
		return nil, err
	}
	return NewCustody(CustodyConfig{Dir: dir, KEKs: keks, Random: random, Now: now})
}

// FileKEKs is the key service of [NewFileKeys]: a directory for its owner only.
func FileKEKs(dir string, random io.Reader) (KEKs, error) {
	files, err := openKeyDir(dir, random)
	if err != nil {
		return nil, err
	}
	return fileKEKs{files}, nil
}

func (k fileKEKs) Make(_ context.Context, name string) error {
	unlock, err := k.dir.lock("make")
	if err != nil {
		return err
	}
	defer unlock()
	_, err = k.read(name)
	if !errors.Is(err, ErrNoKEK) {
		return err
	}
	kek, err := seal.NewKEK(k.dir.random)
	defer kek.Destroy()
	if err != nil {
		return err
	}
	return k.dir.write(name+kekFile, kek[:])
}

func (k fileKEKs) Look(_ context.Context, name string) (KEK, error) {
	kek, err := k.read(name)
	kek.Destroy()
	return KEK{
		ID: "file/" + name, Version: "1", Method: "key file overwritten and unlinked",
		Doubts: []string{"a file system can't show that what it deleted is unreadable"},
		Beyond: "copies of the key directory from before, such as backups and snapshots of its disk",
	}, err
}

func (k fileKEKs) Wrap(_ context.Context, name string, key seal.DataKey) ([]byte, error) {
	kek, err := k.read(name)
	defer kek.Destroy()
	if err != nil {
		return nil, err
	}
	return seal.Wrap(kek, key, name, k.dir.random)
}

func (k fileKEKs) Unwrap(_ context.Context, name string, wrapped []byte) (seal.DataKey, error) {
	kek, err := k.read(name)
	defer kek.Destroy()
	if err != nil {
		return seal.DataKey{}, err
	}
	return seal.Unwrap(kek, wrapped, name)
}

func (k fileKEKs) Destroy(_ context.Context, name string) (string, error) {
	return "", k.dir.erase(name + kekFile)
}

func (k fileKEKs) read(name string) (seal.KEK, error) {
	raw, err := k.dir.read(name + kekFile)
	defer clear(raw)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.KEK{}, fmt.Errorf("%w: %s", ErrNoKEK, k.dir.file(name+kekFile))
	}
	if err != nil {
		return seal.KEK{}, err
	}
	if len(raw) != len(seal.KEK{}) {
		return seal.KEK{}, fmt.Errorf("file %s has %d bytes: restore it or destroy the burst's key", k.dir.file(name+kekFile), len(raw))
	}
	return seal.KEK(raw), nil
}
