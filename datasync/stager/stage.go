package stager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/seal"
)

// run is the staging of one burst in this process.
type run struct {
	stop context.CancelFunc
	done chan struct{} // closed at the end

	mu       sync.Mutex
	progress Progress
	err      error
}

// snapshot returns how far the run is and, once it has ended, its error.
func (r *run) snapshot() (p Progress, ended bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.done:
		ended = true
	default:
	}
	return r.progress, ended, r.err
}

func (r *run) update(change func(*Progress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.progress)
}

// input is one pinned object and where it is read.
type input struct {
	object datasync.Object
	source *s3.Source
}

// Need says what a burst would have to move: objects and plaintext bytes. It
// only lists, and returns a [*RefusedError] as Stage would.
func (s *Stager) Need(ctx context.Context, job StageJob) (objects int, bytes int64, err error) {
	inputs, err := s.inputs(ctx, job)
	if err != nil {
		return 0, 0, err
	}
	for _, in := range inputs {
		bytes += in.object.Size
	}
	return len(inputs), bytes, nil
}

// Stage starts or reports the staging of a burst. The first call starts a
// background job, which outlives ctx; every call returns how far it is. An
// error ends the job: it is returned once, and the next call starts again
// where the staging bucket stands. Once done, calls return the same manifest
// until its URLs are about to end, or are asked for to last longer; then it is
// written anew.
func (s *Stager) Stage(ctx context.Context, job StageJob) (Progress, error) {
	if err := ctx.Err(); err != nil {
		return Progress{}, err
	}
	if err := s.checkInputs(job); err != nil {
		return Progress{Burst: job.Burst}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return Progress{}, errors.New("stager is closed")
	}
	if r := s.runs[job.Burst]; r != nil {
		p, ended, err := r.snapshot()
		switch {
		case ended && err != nil:
			delete(s.runs, job.Burst)
			return p, fmt.Errorf("stage burst %s: %w", job.Burst, err)
		case !ended || !p.Expires.Before(s.expiry(job)):
			return p, nil
		}
	}
	return s.start(job), nil
}

// urlLife is the longest life of a presigned URL.
const urlLife = 7 * 24 * time.Hour

// expiry is when the manifest's URLs have to end at the earliest. It moves in
// steps when the job wants more than a presigned URL can give.
func (s *Stager) expiry(job StageJob) time.Time {
	longest := s.cfg.Now().Add(urlLife - 24*time.Hour)
	if job.Expires.After(longest) {
		return longest
	}
	return job.Expires
}

// start begins a run; the caller holds mu.
func (s *Stager) start(job StageJob) Progress {
	ctx, stop := context.WithCancel(s.ctx)
	r := &run{stop: stop, done: make(chan struct{}), progress: Progress{Burst: job.Burst, Started: s.cfg.Now().UTC()}}
	s.runs[job.Burst] = r
	s.wg.Go(func() {
		defer stop()
		err := s.stage(ctx, job, r)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		close(r.done)
	})
	p, _, _ := r.snapshot()
	return p
}

// checkInputs holds every input against the tenant's sources.
func (s *Stager) checkInputs(job StageJob) error {
	for _, in := range job.Inputs {
		if job.sourceOf(in) == nil {
			return &RefusedError{Input: in, Tenant: job.Tenant, Sources: job.refs()}
		}
	}
	return nil
}

// sourceOf returns the source that an input lies in, or nil.
func (j StageJob) sourceOf(in datasync.Ref) *Source {
	for i, src := range j.Sources {
		for _, ref := range src.refs() {
			if ref.Contains(in) {
				return &j.Sources[i]
			}
		}
	}
	return nil
}

func (j StageJob) refs() []datasync.Ref {
	var all []datasync.Ref
	for _, src := range j.Sources {
		all = append(all, src.refs()...)
	}
	return all
}

func (s Source) refs() []datasync.Ref {
	if len(s.Prefixes) == 0 {
		return []datasync.Ref{{Bucket: s.Bucket}}
	}
	var all []datasync.Ref
	for _, p := range s.Prefixes {
		all = append(all, datasync.Ref{Bucket: s.Bucket, Prefix: p})
	}
	return all
}

// inputs lists everything that the inputs name, each object once, sorted.
func (s *Stager) inputs(ctx context.Context, job StageJob) ([]input, error) {
	if err := s.checkInputs(job); err != nil {
		return nil, err
	}
	var all []input
	for _, ref := range job.Inputs {
		src, err := s3.NewSource(job.sourceOf(ref).Endpoint)
		if err != nil {
			return nil, err
		}
		objects, err := src.List(ctx, ref)
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			all = append(all, input{o, src})
		}
	}
	byPlace := func(a, b input) int {
		return cmp.Or(cmp.Compare(a.object.Bucket, b.object.Bucket), cmp.Compare(a.object.Key, b.object.Key))
	}
	slices.SortStableFunc(all, byPlace)
	return slices.CompactFunc(all, func(a, b input) bool { return byPlace(a, b) == 0 }), nil
}

// stage does the work of a run: list, move what isn't there, write the
// manifest.
func (s *Stager) stage(ctx context.Context, job StageJob, r *run) error {
	key, err := s.cfg.Keys.Create(ctx, job.Burst)
	if err != nil {
		return err
	}
	inputs, err := s.inputs(ctx, job)
	if err != nil {
		return err
	}
	r.update(func(p *Progress) {
		p.Objects = len(inputs)
		for _, in := range inputs {
			p.Bytes += in.object.Size
		}
	})
	staging, err := s3.NewStaging(job.Staging)
	if err != nil {
		return err
	}
	m := &mover{stager: s, run: r, burst: job.Burst, bucket: BucketName(job.Burst), key: key, staging: staging}
	if err := staging.Ensure(ctx, m.bucket); err != nil {
		return err
	}
	if m.there, err = staging.List(ctx, m.bucket); err != nil {
		return err
	}
	old, err := s.readManifest(ctx, m)
	if err != nil {
		return err
	}
	m.known = digests(old)
	objects, err := m.moveAll(ctx, inputs)
	if err != nil {
		return err
	}
	return s.publish(ctx, job, m, old, objects)
}

// mover moves objects into one staging bucket.
type mover struct {
	stager  *Stager
	run     *run
	burst   string
	bucket  string
	key     seal.DataKey
	staging *s3.Staging
	there   map[string]s3.Stored         // what the bucket held at the start
	known   map[datasync.ObjectID]string // digests in the manifest that was there
}

// moveAll stages all inputs, some at a time, and stops at the first error.
func (m *mover) moveAll(ctx context.Context, inputs []input) ([]datasync.Object, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	objects := make([]datasync.Object, len(inputs))
	next := make(chan int)
	var wg sync.WaitGroup
	for range m.stager.cfg.Parallel {
		wg.Go(func() {
			for i := range next {
				o, err := m.move(ctx, inputs[i])
				if err != nil {
					cancel(err)
					return
				}
				objects[i] = o
			}
		})
	}
feed:
	for i := range inputs {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return objects, nil
}

// moveTries is how often an object is tried that changes under our hands, or
// whose way breaks.
const moveTries = 5

// move stages one object, at the version that it has now.
func (m *mover) move(ctx context.Context, in input) (datasync.Object, error) {
	var err error
	for try := range moveTries {
		var o datasync.Object
		if o, err = m.moveOnce(ctx, in); err == nil {
			m.run.update(func(p *Progress) {
				p.ObjectsDone++
				p.BytesDone += o.Size
				p.Bytes += o.Size - in.object.Size // it may have changed since the listing
			})
			return o, nil
		}
		if errors.Is(err, s3.ErrDenied) {
			return datasync.Object{}, err
		}
		select {
		case <-ctx.Done():
			return datasync.Object{}, err
		case <-time.After(100 * time.Millisecond << try):
		}
	}
	return datasync.Object{}, fmt.Errorf("gave up after %d tries: %w", moveTries, err)
}

func (m *mover) moveOnce(ctx context.Context, in input) (o datasync.Object, err error) {
	if len(m.there) == 0 { // nothing of it can be staged already: one request is enough
		o, body, err := in.source.Take(ctx, in.object.Bucket, in.object.Key)
		if err != nil {
			return o, err
		}
		o.Staged, o.StagedSize = datasync.StagedName(m.key, o), seal.Size(o.Size)
		o.SHA256, err = m.put(ctx, o, body)
		return o, err
	}
	if o, err = in.source.Pin(ctx, in.object.Bucket, in.object.Key); err != nil {
		return o, err
	}
	o.Staged, o.StagedSize = datasync.StagedName(m.key, o), seal.Size(o.Size)
	if o.SHA256, err = m.stagedDigest(ctx, in.source, o); err == nil && o.SHA256 == "" {
		var body io.ReadCloser
		if body, err = in.source.Open(ctx, o); err == nil {
			o.SHA256, err = m.put(ctx, o, body)
		}
	}
	return o, err
}

// stagedDigest returns the digest of an object that is staged already, or "".
// The name binds the version and a store shows only whole objects, so name and
// size are enough to know it; node and manifest check every byte later.
func (m *mover) stagedDigest(ctx context.Context, src *s3.Source, o datasync.Object) (string, error) {
	if there, ok := m.there[o.Staged]; !ok || there.Size != o.StagedSize {
		return "", nil
	}
	if sum := m.known[o.ID()]; sum != "" {
		return sum, nil
	}
	body, err := src.Open(ctx, o) // read at home; nothing goes out again
	if err != nil {
		return "", err
	}
	defer body.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, body); err != nil || n != o.Size {
		return "", fmt.Errorf("read s3://%s/%s: got %d of %d bytes: %w", o.Bucket, o.Key, n, o.Size, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// put seals a version into the staging bucket, closes its body and returns its
// digest.
func (m *mover) put(ctx context.Context, o datasync.Object, body io.ReadCloser) (string, error) {
	defer body.Close()
	sum := sha256.New()
	box, err := seal.NewReader(io.TeeReader(body, sum), o.Size, m.key, datasync.InputContext(m.burst, o), m.stager.cfg.Random)
	if err != nil {
		return "", err
	}
	sent := &countingReader{Reader: box, ctx: ctx, stager: m.stager, run: m.run}
	if err := m.staging.Put(ctx, m.bucket, o.Staged, sent, o.StagedSize); err != nil {
		return "", err
	}
	if sent.bytes != o.StagedSize { // then the digest is not that of the whole
		return "", fmt.Errorf("stage %s/%s: the store has it after %d of %d bytes", m.bucket, o.Staged, sent.bytes, o.StagedSize)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// countingReader counts what goes out, and lets it go at the pace of the hour.
type countingReader struct {
	io.Reader
	ctx    context.Context
	stager *Stager
	run    *run
	bytes  int64
}

// onePiece is how much goes out between two looks at the pace.
const onePiece = 64 << 10

// Read implements [io.Reader].
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p[:min(len(p), onePiece)])
	if paceErr := c.stager.pace.pass(c.ctx, n); paceErr != nil {
		return 0, paceErr
	}
	c.bytes += int64(n)
	c.stager.cfg.Sent(n)
	c.run.update(func(p *Progress) { p.BytesMoved += int64(n) })
	return n, err
}
