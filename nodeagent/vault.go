package nodeagent

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"spillway.dev/spillway/datasync/seal"
)

// errNoKey is returned by a vault that holds no key.
var errNoKey = errors.New("no data key is held")

// vault keeps the burst's data key in one page of memory of its own: locked
// against swapping where the machine allows it, left out of core dumps, and
// overwritten when the key is destroyed.
//
// Who asks for the key gets a copy and must destroy it. What a cipher keeps
// while it works is freed memory of this process afterwards, and gone with it.
type vault struct {
	mu       sync.Mutex
	page     []byte
	held     bool
	received bool // a key was put in at some time
	locked   error
}

func newVault() (*vault, error) {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("reserve memory for the data key: %w", err)
	}
	return &vault{page: page, locked: errors.Join(unix.Mlock(page), unix.Madvise(page, unix.MADV_DONTDUMP))}, nil
}

// put takes over the key and overwrites the caller's slice.
func (v *vault) put(key []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	copy(v.page, key)
	clear(key)
	v.held, v.received = true, true
}

// key returns a copy of what the page holds, which is all zeros after destroy:
// the canary is tried with it either way. err is errNoKey when no key is held.
func (v *vault) key() (seal.DataKey, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var k seal.DataKey
	copy(k[:], v.page)
	if !v.held {
		return k, errNoKey
	}
	return k, nil
}

// destroy overwrites the page and reads it back.
func (v *vault) destroy() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.page)
	v.held = false
	for _, b := range v.page {
		if b != 0 {
			return errors.New("the key's memory was not overwritten")
		}
	}
	return nil
}

// has says whether a key is held now and whether one ever was.
func (v *vault) has() (held, received bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held, v.received
}

// close gives the page back, overwritten.
func (v *vault) close() error {
	err := v.destroy()
	v.mu.Lock()
	defer v.mu.Unlock()
	page := v.page
	v.page = nil
	return errors.Join(err, unix.Munmap(page))
}
