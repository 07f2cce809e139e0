//go:build !postgres

package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// disk is a file layer of SQLite over the real one, with a disk's failings: it
// counts syncs, can be slow at them or fail, and knows at any moment what a
// power cut would leave.
type disk struct {
	name string
	base uintptr // the file layer below
	keep []any   // what SQLite points to

	mu     sync.Mutex
	open   map[uintptr]string // path of an open file
	images map[string]*image  // by path; nil: nothing is kept of what is written
	syncs  int
	fail   bool          // syncs fail
	slow   time.Duration // what each sync takes longer
	held   chan struct{} // a sync waits until it is closed
}

// image is what is known of a file: what is on the disk for certain, and what
// was written since.
type image struct {
	synced  []byte
	pending []change
}

// change is a write, or with nil data a truncation to a size.
type change struct {
	at   int64
	data []byte
}

func (c change) apply(to []byte) []byte {
	if c.data == nil {
		return append(slices.Clip(to[:min(c.at, int64(len(to)))]), make([]byte, max(0, c.at-int64(len(to))))...)
	}
	if end := c.at + int64(len(c.data)); end > int64(len(to)) {
		to = append(to, make([]byte, end-int64(len(to)))...)
	}
	copy(to[c.at:], c.data)
	return to
}

// The signatures of C, as the translated library has them.
type (
	openCall     = func(tls *libc.TLS, vfs, path, file uintptr, flags int32, outFlags uintptr) int32
	deleteCall   = func(tls *libc.TLS, vfs, path uintptr, syncFolder int32) int32
	closeCall    = func(tls *libc.TLS, file uintptr) int32
	writeCall    = func(tls *libc.TLS, file, data uintptr, n int32, at int64) int32
	truncateCall = func(tls *libc.TLS, file uintptr, size int64) int32
	syncCall     = func(tls *libc.TLS, file uintptr, flags int32) int32
)

// function makes a Go function of a pointer to one in the library.
func function[F any](pointer uintptr) F {
	return *(*F)(unsafe.Pointer(&struct{ uintptr }{pointer}))
}

// pointer is the other way; the function must be kept.
func (d *disk) pointer(f any) uintptr {
	d.keep = append(d.keep, f)
	return (*[2]uintptr)(unsafe.Pointer(&f))[1]
}

// at is what lies at an address of the library's memory.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

func newDisk(t testing.TB) *disk {
	t.Helper()
	tls := libc.NewTLS()
	t.Cleanup(tls.Close)
	d := &disk{name: fmt.Sprintf("disk-%p", t), base: sqlite3.Xsqlite3_vfs_find(tls, 0), open: map[uintptr]string{}}
	size := int(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{}))
	own := libc.Xmalloc(tls, libc.Tsize_t(size))
	vfs := at[sqlite3.Tsqlite3_vfs](own)
	*vfs = *at[sqlite3.Tsqlite3_vfs](d.base)
	name, err := libc.CString(d.name)
	if err != nil {
		t.Fatal(err)
	}
	vfs.FzName, vfs.FpNext = name, 0
	methods := map[uintptr]uintptr{} // those of the base, and ours
	vfs.FxOpen = d.pointer(openCall(func(tls *libc.TLS, _, path, file uintptr, flags int32, out uintptr) int32 {
		rc := function[openCall](at[sqlite3.Tsqlite3_vfs](d.base).FxOpen)(tls, d.base, path, file, flags, out)
		d.mu.Lock()
		defer d.mu.Unlock()
		f := at[sqlite3.Tsqlite3_file](file)
		if rc != sqlite3.SQLITE_OK || f.FpMethods == 0 {
			return rc
		}
		if methods[f.FpMethods] == 0 {
			methods[f.FpMethods] = d.methods(tls, f.FpMethods)
		}
		f.FpMethods = methods[f.FpMethods]
		if path != 0 {
			d.open[file] = libc.GoString(path)
		}
		return rc
	}))
	vfs.FxDelete = d.pointer(deleteCall(func(tls *libc.TLS, _, path uintptr, syncFolder int32) int32 {
		d.mu.Lock()
		delete(d.images, libc.GoString(path))
		d.mu.Unlock()
		return function[deleteCall](at[sqlite3.Tsqlite3_vfs](d.base).FxDelete)(tls, d.base, path, syncFolder)
	}))
	if rc := sqlite3.Xsqlite3_vfs_register(tls, own, 0); rc != sqlite3.SQLITE_OK {
		t.Fatalf("register the file layer: %d", rc)
	}
	return d
}

// methods are those of a file below, with ours in their place.
func (d *disk) methods(tls *libc.TLS, below uintptr) uintptr {
	base := *at[sqlite3.Tsqlite3_io_methods](below)
	own := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(base)))
	m := at[sqlite3.Tsqlite3_io_methods](own)
	*m = base
	m.FxClose = d.pointer(closeCall(func(tls *libc.TLS, file uintptr) int32 {
		d.mu.Lock()
		delete(d.open, file)
		d.mu.Unlock()
		return function[closeCall](base.FxClose)(tls, file)
	}))
	m.FxWrite = d.pointer(writeCall(func(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32 {
		d.note(file, change{offset, slices.Clone(unsafe.Slice(at[byte](data), n))})
		return function[writeCall](base.FxWrite)(tls, file, data, n, offset)
	}))
	m.FxTruncate = d.pointer(truncateCall(func(tls *libc.TLS, file uintptr, size int64) int32 {
		d.note(file, change{at: size})
		return function[truncateCall](base.FxTruncate)(tls, file, size)
	}))
	m.FxSync = d.pointer(syncCall(func(tls *libc.TLS, file uintptr, flags int32) int32 {
		if !d.sync(file) {
			return sqlite3.SQLITE_IOERR_FSYNC
		}
		return function[syncCall](base.FxSync)(tls, file, flags)
	}))
	return own
}

func (d *disk) note(file uintptr, c change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if path := d.open[file]; d.images != nil && path != "" {
		if d.images[path] == nil {
			d.images[path] = &image{}
		}
		d.images[path].pending = append(d.images[path].pending, c)
	}
}

func (d *disk) sync(file uintptr) bool {
	d.mu.Lock()
	d.syncs++
	held, slow := d.held, d.slow
	d.mu.Unlock()
	if held != nil {
		<-held
	}
	if slow > 0 {
		<-time.After(slow)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail {
		return false
	}
	if m := d.images[d.open[file]]; m != nil {
		for _, c := range m.pending {
			m.synced = c.apply(m.synced)
		}
		m.pending = nil
	}
	return true
}

// cut writes into a folder what would be left if the power failed now: all that
// was synced, and of what was not any part. It returns how many writes are lost.
func (d *disk) cut(t testing.TB, rng *rand.Rand, dir string) (lost int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for path, m := range d.images {
		left := slices.Clone(m.synced)
		for _, c := range m.pending {
			if rng.IntN(2) == 0 {
				left = c.apply(left)
			} else {
				lost++
			}
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), left, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return lost
}

// count is how many syncs there were.
func (d *disk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// hold makes syncs wait until the returned function is called.
func (d *disk) hold() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.held = held
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.held = nil
		close(held)
	}
}

func (d *disk) failing(fail bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}
