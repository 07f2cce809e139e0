package openstack

import (
	"context"
	"sync"
)

// turns lets one caller a key at a time. The zero value is ready.
type turns struct {
	mu    sync.Mutex
	taken map[string]chan struct{}
}

// take waits for the key, or for the end of ctx. The caller calls done when it
// has finished.
func (t *turns) take(ctx context.Context, key string) (done func(), err error) {
	for {
		t.mu.Lock()
		before, busy := t.taken[key]
		if !busy {
			mine := make(chan struct{})
			if t.taken == nil {
				t.taken = map[string]chan struct{}{}
			}
			t.taken[key] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.taken, key)
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
