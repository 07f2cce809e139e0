package wipe

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mrand "math/rand/v2"
	"os"
	"slices"
)

// maxPasses bounds how often Erase goes over an area in which something keeps
// writing.
const maxPasses = 5

// Erase overwrites every regular file under dir with random bytes, syncs it,
// unlinks it, removes the folders, and looks again until it finds dir empty;
// dir itself stays. It never leaves dir: symbolic links, sockets and devices
// are unlinked, not followed. A missing dir is an empty area.
//
// When ctx ends, what is left is unlinked without being overwritten, which
// Area.Overwritten shows: a wipe that is out of time still removes the names.
// The counts are right also when an error is returned; the error joins
// everything that could not be erased.
//
// Overwriting reaches the blocks that the file system shows. What a flash
// drive or a provider's storage keeps elsewhere is covered by the destruction
// of the key only.
func Erase(ctx context.Context, dir string) (Area, error) {
	area := Area{Path: dir}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		area.Empty = true
		return area, nil
	}
	if err != nil {
		return area, fmt.Errorf("erase %s: %w", dir, err)
	}
	defer root.Close() //nolint:errcheck // a folder opened for reading has nothing to lose

	noise, err := newNoise()
	if err != nil {
		return area, fmt.Errorf("erase %s: %w", dir, err)
	}
	e := eraser{root: root, noise: noise, area: &area}
	for range maxPasses {
		err = e.pass(ctx)
		if empty, readErr := isEmpty(root); readErr != nil {
			err = errors.Join(err, readErr)
		} else if empty {
			area.Empty = true
			break
		}
	}
	if err == nil && !area.Empty {
		err = errors.New("something still writes into it: stop its writer and erase again")
	}
	if err != nil {
		return area, fmt.Errorf("erase %s: %w", dir, err)
	}
	return area, nil
}

// newNoise returns a fast stream that nobody can predict.
func newNoise() (io.Reader, error) {
	var seed [32]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, fmt.Errorf("read randomness: %w", err)
	}
	return mrand.NewChaCha8(seed), nil
}

type eraser struct {
	root  *os.Root
	noise io.Reader
	area  *Area
}

// pass goes over the area once, files first, then folders from the deepest up.
func (e *eraser) pass(ctx context.Context) error {
	var errs []error
	var folders []string
	errs = append(errs, fs.WalkDir(e.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // someone else removed it, which is fine
		case err != nil && d != nil && d.IsDir():
			return e.unlock(name, err, &errs)
		case err != nil:
			errs = append(errs, err)
		case name == ".":
		case d.IsDir():
			folders = append(folders, name)
		default:
			errs = append(errs, e.file(ctx, name, d))
		}
		return nil
	}))
	slices.Reverse(folders)
	for _, name := range folders {
		if err := e.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, syncRoot(e.root))...)
}

// unlock opens a folder that we may not read, so that the next pass can.
func (e *eraser) unlock(name string, cause error, errs *[]error) error {
	*errs = append(*errs, cause)
	if err := e.root.Chmod(name, 0o700); err != nil {
		*errs = append(*errs, err)
	}
	return fs.SkipDir
}

// file overwrites and unlinks one entry that is not a folder.
func (e *eraser) file(ctx context.Context, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var overwriteErr error
	overwritten := false
	if info.Mode().IsRegular() && ctx.Err() == nil {
		overwriteErr = e.overwrite(ctx, name, info.Size())
		overwritten = overwriteErr == nil
	}
	if err := e.root.Remove(name); err != nil {
		return errors.Join(overwriteErr, err)
	}
	if info.Mode().IsRegular() {
		e.area.Files++
		e.area.Bytes += info.Size()
		if overwritten {
			e.area.Overwritten++
		}
	}
	return overwriteErr
}

// overwrite replaces the content in place. A file without write permission is
// given it: the agent owns its areas.
func (e *eraser) overwrite(ctx context.Context, name string, size int64) (err error) {
	f, err := e.root.OpenFile(name, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrPermission) {
		if err := e.root.Chmod(name, 0o600); err != nil {
			return err
		}
		f, err = e.root.OpenFile(name, os.O_WRONLY, 0)
	}
	if err != nil {
		return fmt.Errorf("overwrite: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	for left := size; left > 0; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("overwrite %s: %w", name, err)
		}
		n, err := io.CopyN(w, e.noise, min(left, 16<<20))
		if err != nil {
			return fmt.Errorf("overwrite %s: %w", name, err)
		}
		left -= n
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("overwrite %s: %w", name, err)
	}
	return f.Sync()
}

func isEmpty(root *os.Root) (bool, error) {
	d, err := root.Open(".")
	if err != nil {
		return false, err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	_, err = d.ReadDir(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// syncRoot makes the removal of names durable.
func syncRoot(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // opened for reading
	return d.Sync()
}
