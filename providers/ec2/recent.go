package ec2

import (
	"sync"
	"time"
)

// recent keeps what this process has told or heard a moment ago and the cloud's
// lists may not show yet. It is a hint: what it forgets is looked up.
type recent[T any] struct {
	length time.Duration

	mu  sync.Mutex
	all map[string]noted[T]
}

type noted[T any] struct {
	value T
	at    time.Time
}

func newRecent[T any](length time.Duration) *recent[T] {
	return &recent[T]{length: length, all: map[string]noted[T]{}}
}

// note keeps a value, and lets go of what is old.
func (r *recent[T]) note(key string, value T, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, n := range r.all {
		if now.Sub(n.at) > r.length {
			delete(r.all, k)
		}
	}
	r.all[key] = noted[T]{value, now}
}

// forget drops a value that is known to be over.
func (r *recent[T]) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}

// read returns a value that is not old, or the zero value.
func (r *recent[T]) read(key string, now time.Time) (value T, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.all[key]
	if !ok || now.Sub(n.at) > r.length {
		return value, false
	}
	return n.value, true
}
