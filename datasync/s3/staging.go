package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/minio/minio-go/v7"
)

// Staging keeps the staging buckets of a store. It is safe for concurrent
// use.
type Staging struct{ core *minio.Core }

// Stored is one object of a staging bucket.
type Stored struct {
	Name string
	Size int64
}

// NewStaging returns a client of the store; it does not connect yet.
func NewStaging(e Endpoint) (*Staging, error) {
	c, err := e.connect()
	if err != nil {
		return nil, err
	}
	return &Staging{core: c}, nil
}

// Ensure makes the bucket when it isn't there.
func (s *Staging) Ensure(ctx context.Context, bucket string) error {
	there, err := s.core.BucketExists(ctx, bucket)
	if err != nil {
		return classify(err, "look for staging bucket %s", bucket)
	}
	if there {
		return nil
	}
	err = s.core.MakeBucket(ctx, bucket, minio.MakeBucketOptions{})
	if code := minio.ToErrorResponse(err).Code; code == minio.BucketAlreadyOwnedByYou {
		return nil
	}
	return classify(err, "make staging bucket %s", bucket)
}

// What stores of this kind hold at most.
const (
	maxObject = 5 << 40
	maxParts  = 10_000
	minPart   = 16 << 20
)

// partSize is the size of the parts of an object in bytes: 16 MiB, or as many
// more as keep it within 10,000 parts. One part lies in memory at a time.
func partSize(size int64) (uint64, error) {
	switch {
	case size < 0:
		return 0, errors.New("its size is not known: it could turn out to need more parts than a store takes")
	case size > maxObject:
		return 0, fmt.Errorf("it has %d bytes, and a store holds 5 TiB in one object: split it", size)
	}
	const mib = 1 << 20
	part := (size + maxParts - 1) / maxParts
	return uint64(max(minPart, (part+mib-1)/mib*mib)), nil
}

// Put stores exactly size bytes of r under name. A reader that fails or ends
// early leaves no object.
func (s *Staging) Put(ctx context.Context, bucket, name string, r io.Reader, size int64) error {
	part, err := partSize(size)
	if err != nil {
		return fmt.Errorf("stage %s/%s: %w", bucket, name, err)
	}
	info, err := s.core.Client.PutObject(ctx, bucket, name, r, size, minio.PutObjectOptions{
		ContentType: "application/octet-stream",
		NumThreads:  1,
		PartSize:    part,
	})
	if minio.ToErrorResponse(err).Code == minio.NoSuchUpload {
		// Completed by a request whose answer was lost, an upload is not there
		// any more for the one that was sent again.
		if there, statErr := s.Stat(ctx, bucket, name); statErr == nil && there.Size == size {
			return nil
		}
	}
	if err != nil {
		return classify(err, "stage %s/%s", bucket, name)
	}
	if info.Size != size {
		return fmt.Errorf("stage %s/%s: %d of %d bytes were stored", bucket, name, info.Size, size)
	}
	return nil
}

// Stat looks at one object; [ErrNotFound] when there is none.
func (s *Staging) Stat(ctx context.Context, bucket, name string) (Stored, error) {
	info, err := s.core.StatObject(ctx, bucket, name, minio.StatObjectOptions{})
	if err != nil {
		return Stored{}, classify(err, "look at %s/%s", bucket, name)
	}
	return Stored{Name: name, Size: info.Size}, nil
}

// Get reads one object.
func (s *Staging) Get(ctx context.Context, bucket, name string) (io.ReadCloser, error) {
	body, _, _, err := s.core.GetObject(ctx, bucket, name, minio.GetObjectOptions{})
	if err != nil {
		return nil, classify(err, "read %s/%s", bucket, name)
	}
	return body, nil
}

// List returns all objects by name. A bucket that does not exist has none.
func (s *Staging) List(ctx context.Context, bucket string) (map[string]Stored, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := map[string]Stored{}
	for o := range s.core.ListObjectsIter(ctx, bucket, minio.ListObjectsOptions{Recursive: true}) {
		if isNotFound(o.Err) {
			return map[string]Stored{}, nil
		}
		if o.Err != nil {
			return nil, classify(o.Err, "list staging bucket %s", bucket)
		}
		all[o.Key] = Stored{Name: o.Key, Size: o.Size}
	}
	return all, nil
}

// Presign returns a URL that reads the object without credentials for a time
// of at most 7 days, which is what the signature scheme allows.
func (s *Staging) Presign(ctx context.Context, bucket, name string, valid time.Duration) (string, error) {
	valid = min(max(valid, time.Second), 7*24*time.Hour)
	u, err := s.core.PresignedGetObject(ctx, bucket, name, valid, nil)
	if err != nil {
		return "", classify(err, "presign %s/%s", bucket, name)
	}
	return u.String(), nil
}

// Swept counts what one pass of [Staging.Sweep] found and removed.
type Swept struct {
	Objects, Versions, Markers, Uploads int
	ListSHA256                          string // digest of the whole listing that the pass found
}

// Empty reports whether the pass found nothing.
func (s Swept) Empty() bool { return s.Objects+s.Versions+s.Markers+s.Uploads == 0 }

// Sweep lists everything in the bucket (current objects, versions, delete
// markers, unfinished uploads), page by page to the end, and removes it. The
// counts are of what the store confirmed one by one; whatever it refused is
// an error that names how many and the first.
func (s *Staging) Sweep(ctx context.Context, bucket string) (Swept, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out Swept
	list := sha256.New()
	if err := s.abortUploads(ctx, bucket, list, &out); err != nil {
		return out, err
	}
	found, err := s.everything(ctx, bucket)
	if err != nil {
		return out, err
	}
	for _, o := range found {
		fmt.Fprintf(list, "object %q %q %v\n", o.Key, o.VersionID, o.IsDeleteMarker)
	}
	out.ListSHA256 = hex.EncodeToString(list.Sum(nil))
	return out, s.remove(ctx, bucket, found, &out)
}

func (s *Staging) abortUploads(ctx context.Context, bucket string, list io.Writer, out *Swept) error {
	for u := range s.core.ListIncompleteUploads(ctx, bucket, "", true) {
		if u.Err != nil {
			return classify(u.Err, "list unfinished uploads of %s", bucket)
		}
		fmt.Fprintf(list, "upload %q %q\n", u.Key, u.UploadID)
		err := s.core.AbortMultipartUpload(ctx, bucket, u.Key, u.UploadID)
		if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchUpload {
			return classify(err, "abort an upload to %s/%s", bucket, u.Key)
		}
		out.Uploads++
	}
	return nil
}

// everything lists all versions, or all objects where the store knows no
// versions.
func (s *Staging) everything(ctx context.Context, bucket string) ([]minio.ObjectInfo, error) {
	all, err := s.list(ctx, bucket, true)
	if minio.ToErrorResponse(err).StatusCode == http.StatusNotImplemented {
		all, err = s.list(ctx, bucket, false)
	}
	return all, classify(err, "list all versions of %s", bucket)
}

func (s *Staging) list(ctx context.Context, bucket string, versions bool) ([]minio.ObjectInfo, error) {
	var all []minio.ObjectInfo
	opts := minio.ListObjectsOptions{Recursive: true, WithVersions: versions}
	for o := range s.core.ListObjectsIter(ctx, bucket, opts) {
		if o.Err != nil {
			return nil, o.Err
		}
		all = append(all, o)
	}
	return all, nil
}

// versionID is one version of one object in a bucket.
type versionID struct{ key, version string }

// idOf treats the version "null", which is the only one of an object in a
// bucket without versions, as none: stores write it or leave it out.
func idOf(key, version string) versionID {
	if version == "null" {
		version = ""
	}
	return versionID{key, version}
}

// remove deletes what was found, one answer per object.
func (s *Staging) remove(ctx context.Context, bucket string, found []minio.ObjectInfo, out *Swept) error {
	open := map[versionID]minio.ObjectInfo{}
	batch := make(chan minio.ObjectInfo, len(found))
	for _, o := range found {
		open[idOf(o.Key, o.VersionID)] = o
		batch <- o
	}
	close(batch)
	var refused []error
	for r := range s.core.RemoveObjectsWithResult(ctx, bucket, batch, minio.RemoveObjectsOptions{}) {
		if r.Err != nil {
			refused = append(refused, fmt.Errorf("%s: %w", r.ObjectName, r.Err))
			continue
		}
		id := idOf(r.ObjectName, r.ObjectVersionID)
		o, asked := open[id]
		if !asked {
			continue
		}
		delete(open, id)
		switch {
		case o.IsDeleteMarker:
			out.Markers++
		case id.version == "" || o.IsLatest:
			out.Objects++
		default:
			out.Versions++
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("empty %s: %w", bucket, err)
	}
	if len(refused) > 0 {
		return fmt.Errorf("empty %s: the store kept %d of %d: %w", bucket, len(refused), len(found), refused[0])
	}
	if len(open) > 0 {
		return fmt.Errorf("empty %s: the store did not confirm %d of %d deletions", bucket, len(open), len(found))
	}
	return nil
}

// RemoveBucket removes an empty bucket and looks that it is gone. A bucket
// that isn't there is no error.
func (s *Staging) RemoveBucket(ctx context.Context, bucket string) error {
	if err := s.core.RemoveBucket(ctx, bucket); err != nil && !isNotFound(err) {
		return classify(err, "remove staging bucket %s", bucket)
	}
	there, err := s.Exists(ctx, bucket)
	if err == nil && there {
		err = errors.New("the store accepted the removal and still has it")
	}
	if err != nil {
		return fmt.Errorf("remove staging bucket %s: %w", bucket, err)
	}
	return nil
}

// Exists reports whether the bucket is there.
func (s *Staging) Exists(ctx context.Context, bucket string) (bool, error) {
	there, err := s.core.BucketExists(ctx, bucket)
	return there, classify(err, "look for staging bucket %s", bucket)
}

func isNotFound(err error) bool {
	return err != nil && minio.ToErrorResponse(err).StatusCode == http.StatusNotFound
}
