package stager

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// keyDir is a directory with small secret files, each written whole or not at
// all and durable before the call returns.
type keyDir struct {
	path   string
	random io.Reader // what erased files are overwritten with
}

const tempFile = ".tmp"

// openKeyDir opens or makes the directory, for its owner only. A directory
// that others may enter is refused.
func openKeyDir(path string, random io.Reader) (keyDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return keyDir{}, fmt.Errorf("key directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return keyDir{}, fmt.Errorf("key directory: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return keyDir{}, fmt.Errorf("key directory %s is open to others (%v): run chmod 700 %s", path, info.Mode().Perm(), path)
	}
	return keyDir{path: path, random: random}, nil
}

// kekName is what key services and files know a burst's key by: burst names
// are no file names, and not every key service takes every character.
func kekName(burst string) string {
	sum := sha256.Sum256([]byte(burst))
	return hex.EncodeToString(sum[:16])
}

func (d keyDir) file(name string) string { return filepath.Join(d.path, name) }

// read returns a file's bytes; [fs.ErrNotExist] says that there is none.
func (d keyDir) read(name string) ([]byte, error) { return os.ReadFile(d.file(name)) }

func (d keyDir) write(name string, data []byte) error {
	path := d.file(name)
	f, err := os.OpenFile(path+tempFile, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+tempFile, path)
	}
	if err != nil {
		return err
	}
	return d.sync()
}

// readJSON reads a file into v; a file that is damaged is an error that names
// it, never an absent one.
func (d keyDir) readJSON(name string, v any) error {
	data, err := d.read(name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("file %s is damaged: %w: restore it or destroy the burst's key", d.file(name), err)
	}
	return nil
}

func (d keyDir) writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return d.write(name, data)
}

// erase overwrites and unlinks a file and what a crash left of writing it; a
// file that isn't there is erased.
func (d keyDir) erase(name string) error {
	for _, path := range []string{d.file(name), d.file(name) + tempFile} {
		if err := d.eraseFile(path); err != nil {
			return err
		}
	}
	return nil
}

func (d keyDir) eraseFile(path string) error {
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
	if _, err := io.CopyN(f, d.random, info.Size()); err != nil {
		return fmt.Errorf("overwrite %s: %w", path, err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("overwrite %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return d.sync()
}

func (d keyDir) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// lock keeps everybody else, in this process and in any other, from what the
// name stands for.
func (d keyDir) lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(d.file("lock-"+name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing gives the lock back
}
