package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
)

// partSuffix marks files that are still being written.
const partSuffix = ".part"

// errFull says that an entry can't be kept within the bound of the disk.
var errFull = errors.New("the cache is full")

// errPinned says that another version of an object is the one to be served.
var errPinned = errors.New("another version is pinned")

// place is where an object lives in the source store.
type place struct{ bucket, key string }

// entry is one version of one object. Its fields but failed, local,
// used and granted never change; the last three belong to the shelf.
type entry struct {
	object    datasync.Object
	file      string // path of the ciphertext
	sealed    int64  // its size in bytes
	context   seal.Context
	staged    bool // the manifest names it: it can be fetched again
	pinned    bool // and it is served whatever the store has by now
	checksums bool // its headers hold the object's checksums, if any

	fetching chan struct{} // full while the ciphertext is brought in
	failed   time.Time     // when that last failed; belongs to who fills fetching
	local    bool          // the ciphertext is on the disk, whole
	used     int64         // when it was last asked for, as a count

	granted map[asker]time.Time // until when the store's word counts; belongs to the shelf
}

// shelf knows the entries and owns the directory.
type shelf struct {
	dir string
	max int64

	mu      sync.Mutex
	entries map[place]*entry
	filling map[place]*fill
	bytes   int64 // ciphertext on the disk
	clock   int64
	fresh   datasync.Freshness // of the manifest
}

func openShelf(dir string, maxBytes int64) (*shelf, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	return &shelf{dir: dir, max: maxBytes, entries: map[place]*entry{}, filling: map[place]*fill{}}, nil
}

// adopt takes over a manifest: entries on the disk stay when the manifest
// names them with the same size, everything else goes.
func (s *shelf) adopt(burst string, m datasync.Manifest) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[place]*entry{}
	keep := map[string]bool{}
	var bytes int64
	for _, o := range m.Objects {
		e := &entry{
			object: o, file: filepath.Join(s.dir, filepath.Base(o.Staged)), sealed: o.StagedSize,
			context: datasync.InputContext(burst, o), staged: true, checksums: true, fetching: make(chan struct{}, 1),
			pinned: m.Freshness.Mode == datasync.Pinned,
		}
		if o.Staged == "" || seal.Size(o.Size) != o.StagedSize {
			return fmt.Errorf("manifest: object %d has no staged form of the right size", len(next))
		}
		if info, err := os.Stat(e.file); err == nil && info.Size() == e.sealed {
			e.local = true
			bytes += e.sealed
			keep[filepath.Base(e.file)] = true
		}
		next[place{o.Bucket, o.Key}] = e
	}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("cache directory: %w", err)
	}
	for _, file := range files {
		if !keep[file.Name()] {
			if err := os.RemoveAll(filepath.Join(s.dir, file.Name())); err != nil {
				return fmt.Errorf("cache directory: %w", err)
			}
		}
	}
	s.entries, s.bytes, s.fresh = next, bytes, m.Freshness
	return nil
}

// find returns the entry of an object, or nil, and whether its ciphertext is
// on the disk.
func (s *shelf) find(p place) (e *entry, local bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.entries[p]
	if e == nil {
		return nil, false
	}
	s.clock++
	e.used = s.clock
	return e, e.local
}

// begin returns the fill of an entry that came as a miss, and whether the
// caller is the one to carry it out.
func (s *shelf) begin(f *Front, p place) (c *fill, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.filling[p]; c != nil {
		return c, false
	}
	c = &fill{front: f, place: p, known: make(chan struct{}), progress: progress{changed: make(chan struct{})}}
	s.filling[p] = c
	return c, true
}

func (s *shelf) end(p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.filling, p)
}

// place makes a finished temporary file the ciphertext of e.
func (s *shelf) keep(e *entry, temp string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := place{e.object.Bucket, e.object.Key}
	if old := s.entries[p]; old != nil && old != e && old.pinned {
		return errPinned // came in while the manifest was taken over
	}
	if err := s.makeRoom(e.sealed); err != nil {
		return err
	}
	if err := os.Rename(temp, e.file); err != nil {
		return fmt.Errorf("keep cache entry: %w", err)
	}
	if old := s.entries[p]; old != nil && old != e {
		s.forget(old, old.file != e.file)
	}
	e.local = true
	s.clock++
	e.used = s.clock
	s.bytes += e.sealed
	s.entries[p] = e
	return nil
}

// makeRoom evicts what was not used for longest.
func (s *shelf) makeRoom(need int64) error {
	if s.max <= 0 {
		return nil
	}
	if need > s.max {
		return errFull
	}
	for s.bytes+need > s.max {
		var oldest *entry
		for _, e := range s.entries {
			if e.local && (oldest == nil || e.used < oldest.used) {
				oldest = e
			}
		}
		if oldest == nil {
			return errFull
		}
		s.forget(oldest, true)
	}
	return nil
}

// drop forgets the ciphertext of e, if e is still the one in place. gone says
// that the version itself is no longer current: then the entry goes too.
func (s *shelf) drop(e *entry, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := place{e.object.Bucket, e.object.Key}
	if s.entries[p] != e {
		return
	}
	s.forget(e, true)
	if gone {
		delete(s.entries, p)
	}
}

// outdate drops an entry of which the store has another version by now, unless
// this one is the one to be served.
func (s *shelf) outdate(e *entry) {
	if !e.pinned {
		s.drop(e, true)
	}
}

// invalidate forgets whatever is known of an object.
func (s *shelf) invalidate(p place) {
	if e, _ := s.find(p); e != nil {
		s.drop(e, true)
	}
}

// forget makes e non-local; the caller holds mu. An entry that can't be
// fetched again goes as a whole.
func (s *shelf) forget(e *entry, unlink bool) {
	if e.local {
		e.local = false
		s.bytes -= e.sealed
		if unlink {
			_ = os.Remove(e.file) // a file that stays is ciphertext, and the wipe finds it
		}
	}
	if p := (place{e.object.Bucket, e.object.Key}); !e.staged && s.entries[p] == e {
		delete(s.entries, p)
	}
}

// staged counts the manifest's entries and those on the disk.
func (s *shelf) staged() (all, local int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.staged {
			all++
			if e.local {
				local++
			}
		}
	}
	return all, local
}

// missing returns the staged entries that are not on the disk.
func (s *shelf) missing() []*entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*entry
	for _, e := range s.entries {
		if e.staged && !e.local {
			out = append(out, e)
		}
	}
	return out
}

// wipe removes every file in the directory, known or not, and the directory.
func (s *shelf) wipe() (Wiped, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries, s.bytes = map[place]*entry{}, 0
	var w Wiped
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("wipe cache: %w", err)
	}
	var failed []error
	for _, file := range files {
		info, err := file.Info()
		if err == nil {
			err = os.RemoveAll(filepath.Join(s.dir, file.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = append(failed, err)
			continue
		}
		w.Files++
		w.Bytes += info.Size()
	}
	if len(failed) == 0 {
		failed = append(failed, os.Remove(s.dir))
	}
	if err := errors.Join(failed...); err != nil {
		return w, fmt.Errorf("wipe cache: %w", err)
	}
	return w, nil
}

// isLocal reports whether the ciphertext of e is on the disk.
func (s *shelf) isLocal(e *entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.local
}
