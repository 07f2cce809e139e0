package stager

import (
	"context"
	"errors"
	"time"

	"spillway.dev/spillway/datasync/seal"
)

var errTodo = errors.New("being built")

// Stager stages, collects and wipes for any number of bursts.
type Stager struct{ cfg Config }

// New returns a Stager; Close ends its background jobs.
func New(cfg Config) *Stager { return &Stager{cfg: cfg} }

// Close stops all background jobs and waits for them.
func (s *Stager) Close() error { return nil }

// Need says what a burst would have to move: objects and plaintext bytes.
func (s *Stager) Need(ctx context.Context, job StageJob) (objects int, bytes int64, err error) {
	return 0, 0, errTodo
}

// Stage starts or reports the staging of a burst. The first call starts a
// background job; every call returns how far it is. A failed job returns its
// error once and is started again by the next call.
func (s *Stager) Stage(ctx context.Context, job StageJob) (Progress, error) {
	return Progress{}, errTodo
}

// Collect verifies that all reported uploads are home.
func (s *Stager) Collect(ctx context.Context, job CollectJob) (Collected, error) {
	return Collected{}, errTodo
}

// Wipe stops the burst's staging and removes all of its staging bucket.
func (s *Stager) Wipe(ctx context.Context, job WipeJob) (Wiped, error) { return Wiped{}, errTodo }

// Error names input, tenant and what the tenant may read.
func (e *RefusedError) Error() string { return "refused" }

// Error names what is missing.
func (e *IncompleteError) Error() string { return "incomplete" }

// FileKeys keeps the keys of bursts in a directory.
type FileKeys struct{}

// NewFileKeys opens or makes the directory.
func NewFileKeys(dir string, random interface{ Read([]byte) (int, error) }, now func() time.Time) (*FileKeys, error) {
	return nil, errTodo
}

// Create implements [Keys].
func (k *FileKeys) Create(ctx context.Context, burst string) (seal.DataKey, error) {
	return seal.DataKey{}, errTodo
}

// Get implements [Keys].
func (k *FileKeys) Get(ctx context.Context, burst string) (seal.DataKey, error) {
	return seal.DataKey{}, errTodo
}

// Destroy implements [Keys]; it is never proven.
func (k *FileKeys) Destroy(ctx context.Context, burst string) (Destruction, error) {
	return Destruction{}, errTodo
}
