package stager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3"
)

// CollectJob names what must be home.
type CollectJob struct {
	Burst   string
	Source  s3.Endpoint
	Outputs []datasync.Ref    // where results belong; listed for the count
	Uploads []datasync.Upload // as the nodes reported them
}

// Collected is what was verified at home.
type Collected struct {
	Objects int      `json:"objects"`
	Bytes   int64    `json:"bytes"`
	Listed  int      `json:"listed"`  // objects that lie in the outputs now, whoever wrote them
	Results []Result `json:"results"` // by bucket and key
}

// Result is one verified upload.
type Result struct {
	Bucket string `json:"bucket"`
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // of the bytes at home
	ETag   string `json:"etag"`
}

// Collect reads every reported upload at home and compares its digest with
// what the node saw. All that is missing or differs is named in one
// [*IncompleteError]; what the store could not answer is another error, after
// which the caller asks again. Of an upload whose bytes did not pass the node
// (a copy) existence and ETag are compared.
func (s *Stager) Collect(ctx context.Context, job CollectJob) (Collected, error) {
	src, err := s3.NewSource(job.Source)
	if err != nil {
		return Collected{}, fmt.Errorf("collect burst %s: %w", job.Burst, err)
	}
	uploads := slices.Clone(job.Uploads)
	slices.SortFunc(uploads, func(a, b datasync.Upload) int {
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key), a.At.Compare(b.At))
	})
	uploads = latest(uploads)
	results, faults := make([]Result, len(uploads)), make([]error, len(uploads))
	slots := make(chan struct{}, s.cfg.Parallel)
	var wg sync.WaitGroup
	for i, u := range uploads {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			results[i], faults[i] = verify(ctx, src, u)
		})
	}
	wg.Wait()
	var out Collected
	for _, ref := range job.Outputs {
		objects, err := src.List(ctx, ref)
		if err != nil {
			return Collected{}, fmt.Errorf("collect burst %s: %w", job.Burst, err)
		}
		out.Listed += len(objects)
	}
	short := &IncompleteError{Burst: job.Burst}
	for i, err := range faults {
		switch {
		case err == nil:
			out.Objects++
			out.Bytes += results[i].Size
			out.Results = append(out.Results, results[i])
		case errors.Is(err, errNotHome):
			short.Missing = append(short.Missing, fmt.Sprintf("s3://%s/%s: %v", uploads[i].Bucket, uploads[i].Key, err))
		default:
			return Collected{}, fmt.Errorf("collect burst %s: %w", job.Burst, err)
		}
	}
	if len(short.Missing) > 0 {
		return out, short
	}
	return out, nil
}

// latest keeps the last of several uploads to one key; several nodes of a
// burst may each report theirs.
func latest(sorted []datasync.Upload) []datasync.Upload {
	var out []datasync.Upload
	for _, u := range sorted {
		if n := len(out); n > 0 && out[n-1].Bucket == u.Bucket && out[n-1].Key == u.Key {
			out[n-1] = u
			continue
		}
		out = append(out, u)
	}
	return out
}

// errNotHome marks what is certain: the store answered, and the object is not
// what was uploaded.
var errNotHome = errors.New("not home")

// verify compares one upload with what lies at home.
func verify(ctx context.Context, src *s3.Source, u datasync.Upload) (Result, error) {
	var pieces []int64
	for _, p := range u.Parts {
		pieces = append(pieces, p.Size)
	}
	got, err := src.Digest(ctx, u.Bucket, u.Key, pieces)
	if errors.Is(err, s3.ErrNotFound) {
		return Result{}, fmt.Errorf("%w: it does not exist", errNotHome)
	}
	if err != nil {
		return Result{}, err
	}
	switch {
	case u.Size >= 0 && got.Size != u.Size:
		return Result{}, fmt.Errorf("%w: it has %d bytes, %d were uploaded", errNotHome, got.Size, u.Size)
	case u.SHA256 != "" && got.SHA256 != u.SHA256:
		return Result{}, fmt.Errorf("%w: its SHA-256 is %.12s..., %.12s... was uploaded", errNotHome, got.SHA256, u.SHA256)
	case len(u.Parts) > 0 && !slices.Equal(got.Parts, u.Parts):
		return Result{}, fmt.Errorf("%w: its parts differ from those that were uploaded", errNotHome)
	case u.SHA256 == "" && len(u.Parts) == 0 && got.ETag != u.ETag:
		return Result{}, fmt.Errorf("%w: its ETag is %s, %s was uploaded", errNotHome, got.ETag, u.ETag)
	}
	return Result{Bucket: u.Bucket, Key: u.Key, Size: got.Size, SHA256: got.SHA256, ETag: got.ETag}, nil
}

// WipeJob names the staging to wipe.
type WipeJob struct {
	Burst   string
	Staging s3.Endpoint
}

// Wiped is what a wipe removed, for the certificate. It is returned only when
// the store confirmed that nothing is left.
type Wiped struct {
	Bucket          string    `json:"bucket"`
	ObjectsDeleted  int       `json:"objectsDeleted"`
	VersionsDeleted int       `json:"versionsDeleted"`
	MarkersDeleted  int       `json:"markersDeleted"`
	UploadsAborted  int       `json:"uploadsAborted"`
	Passes          int       `json:"passes"`          // the last two found nothing
	FinalListSHA256 string    `json:"finalListSha256"` // of the last, empty listing
	BucketDeletedAt time.Time `json:"deletedBucketAt"`
}

// maxPasses bounds a wipe that never comes to rest: something still writes.
const maxPasses = 100

// Wipe ends the burst's staging in this process and removes everything in its
// staging bucket, pass by pass, until two passes in a row found nothing; then
// the bucket. A wipe that failed may be repeated; a repeat after success, or
// for a burst that never staged, finds no bucket and counts nothing. Numbers
// are of this call.
func (s *Stager) Wipe(ctx context.Context, job WipeJob) (Wiped, error) {
	s.halt(job.Burst)
	bucket := BucketName(job.Burst)
	w := Wiped{Bucket: bucket}
	fail := func(err error) (Wiped, error) {
		return Wiped{}, fmt.Errorf("wipe the staging of burst %s: %w", job.Burst, err)
	}
	staging, err := s3.NewStaging(job.Staging)
	if err != nil {
		return fail(err)
	}
	there, err := staging.Exists(ctx, bucket)
	if err != nil {
		return fail(err)
	}
	// cases: F4 VaultS3#47 (phantom uploads: repeat until stable)
	for empty := 0; there && empty < 2; w.Passes++ {
		if w.Passes == maxPasses {
			return fail(fmt.Errorf("after %d passes bucket %s still fills up: stop whoever writes to it", maxPasses, bucket))
		}
		swept, err := staging.Sweep(ctx, bucket)
		if err != nil {
			return fail(err)
		}
		w.ObjectsDeleted += swept.Objects
		w.VersionsDeleted += swept.Versions
		w.MarkersDeleted += swept.Markers
		w.UploadsAborted += swept.Uploads
		w.FinalListSHA256 = swept.ListSHA256
		empty++
		if !swept.Empty() {
			empty = 0
		}
	}
	if err := staging.RemoveBucket(ctx, bucket); err != nil {
		return fail(err)
	}
	w.BucketDeletedAt = s.cfg.Now().UTC()
	return w, nil
}

// halt ends the background job of a burst and waits for it: first the writers
// stop, then the wipe begins. cases: F5 runs-on#329
func (s *Stager) halt(burst string) {
	s.mu.Lock()
	r := s.runs[burst]
	delete(s.runs, burst)
	s.mu.Unlock()
	if r != nil {
		r.stop()
		<-r.done
	}
}
