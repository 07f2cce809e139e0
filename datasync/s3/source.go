package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
)

// Source reads a source store. It is safe for concurrent use.
type Source struct{ core *minio.Core }

// NewSource returns a reader of the store; it does not connect yet.
func NewSource(e Endpoint) (*Source, error) {
	c, err := e.connect()
	if err != nil {
		return nil, err
	}
	return &Source{core: c}, nil
}

// List returns all objects of a ref in the order of the store, with key,
// size, ETag and time; [Source.Pin] completes them. A bucket that does not
// exist is [ErrNotFound], an empty prefix has no objects.
func (s *Source) List(ctx context.Context, ref datasync.Ref) ([]datasync.Object, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []datasync.Object
	opts := minio.ListObjectsOptions{Prefix: ref.Prefix, Recursive: true}
	for o := range s.core.ListObjectsIter(ctx, ref.Bucket, opts) {
		if o.Err != nil {
			return nil, classify(o.Err, "list %s", ref)
		}
		all = append(all, datasync.Object{
			Bucket: ref.Bucket, Key: o.Key, ETag: o.ETag, Size: o.Size, LastModified: o.LastModified.UTC(),
		})
	}
	return all, nil
}

// Pin returns the current version of an object with all headers that belong
// to it.
func (s *Source) Pin(ctx context.Context, bucket, key string) (datasync.Object, error) {
	var header http.Header
	info, err := s.core.StatObject(withTap(ctx, &header), bucket, key, minio.StatObjectOptions{Checksum: true})
	if err != nil {
		return datasync.Object{}, classify(err, "look at s3://%s/%s", bucket, key)
	}
	return pinned(bucket, info, header), nil
}

func pinned(bucket string, info minio.ObjectInfo, header http.Header) datasync.Object {
	return datasync.Object{
		Bucket: bucket, Key: info.Key, ETag: info.ETag, VersionID: info.VersionID,
		Size: info.Size, LastModified: info.LastModified.UTC(),
		ContentType: header.Get("Content-Type"), Metadata: objectHeaders(header),
	}
}

// Take is Pin and Open in one request.
func (s *Source) Take(ctx context.Context, bucket, key string) (datasync.Object, io.ReadCloser, error) {
	var header http.Header
	asked, cancel := context.WithCancelCause(ctx)
	body, info, _, err := s.core.GetObject(withTap(asked, &header), bucket, key, minio.GetObjectOptions{Checksum: true})
	if err != nil {
		cancel(nil)
		return datasync.Object{}, nil, classify(err, "read s3://%s/%s", bucket, key)
	}
	o := pinned(bucket, info, header)
	return o, s.resume(ctx, o, s3wire.Watch(cancel, body)), nil
}

// Open reads exactly the pinned version; [ErrChanged] when it is no longer
// the current one. A connection that breaks or falls silent is taken up again
// where it broke, if the object is still that version.
func (s *Source) Open(ctx context.Context, o datasync.Object) (io.ReadCloser, error) {
	body, err := s.from(ctx, o, 0)
	if err != nil {
		return nil, err
	}
	return s.resume(ctx, o, body), nil
}

func (s *Source) resume(ctx context.Context, o datasync.Object, body io.ReadCloser) io.ReadCloser {
	return s3wire.Resume(o.Size, body, func(offset int64) (io.ReadCloser, error) { return s.from(ctx, o, offset) })
}

// from reads a version from an offset on.
func (s *Source) from(ctx context.Context, o datasync.Object, offset int64) (io.ReadCloser, error) {
	opts := minio.GetObjectOptions{VersionID: o.VersionID}
	err := opts.SetMatchETag(o.ETag)
	if err == nil && offset > 0 {
		err = opts.SetRange(offset, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("read s3://%s/%s: %w", o.Bucket, o.Key, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	body, info, _, err := s.core.GetObject(ctx, o.Bucket, o.Key, opts)
	if err != nil {
		cancel(nil)
		return nil, classify(err, "read s3://%s/%s", o.Bucket, o.Key)
	}
	body = s3wire.Watch(cancel, body)
	if info.Size != o.Size-offset {
		_ = body.Close()
		return nil, fmt.Errorf("read s3://%s/%s: the store sends %d bytes from byte %d on, not %d", o.Bucket, o.Key, info.Size, offset, o.Size-offset)
	}
	return body, nil
}

// Digest is what an object at home really holds.
type Digest struct {
	Size   int64
	SHA256 string // hex
	ETag   string
	Parts  []datasync.Part // one for each size asked for, then the rest if any
}

// Digest reads the current version of an object and hashes it, as a whole and
// in pieces of the given sizes. A body shorter or longer than announced is an
// error.
func (s *Source) Digest(ctx context.Context, bucket, key string, pieces []int64) (Digest, error) {
	body, info, _, err := s.core.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return Digest{}, classify(err, "read s3://%s/%s", bucket, key)
	}
	defer body.Close()
	whole := sha256.New()
	d := Digest{ETag: info.ETag}
	src := io.TeeReader(body, whole)
	for _, size := range pieces {
		part := sha256.New()
		n, err := io.CopyN(part, src, size)
		if err != nil && err != io.EOF {
			return Digest{}, fmt.Errorf("read s3://%s/%s: %w", bucket, key, err)
		}
		d.Size += n
		d.Parts = append(d.Parts, datasync.Part{Size: n, SHA256: hex.EncodeToString(part.Sum(nil))})
	}
	part := sha256.New()
	n, err := io.Copy(part, src)
	if err != nil {
		return Digest{}, fmt.Errorf("read s3://%s/%s: %w", bucket, key, err)
	}
	d.Size += n
	if n > 0 || len(pieces) == 0 {
		d.Parts = append(d.Parts, datasync.Part{Size: n, SHA256: hex.EncodeToString(part.Sum(nil))})
	}
	if d.Size != info.Size {
		return Digest{}, fmt.Errorf("read s3://%s/%s: got %d of %d bytes", bucket, key, d.Size, info.Size)
	}
	d.SHA256 = hex.EncodeToString(whole.Sum(nil))
	return d, nil
}

// objectHeaders keeps the headers that belong to the object and not to one
// answer. Those with a field of their own in [datasync.Object] are left out.
func objectHeaders(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		switch name {
		case "Date", "Server", "Connection", "Keep-Alive", "Transfer-Encoding", "Content-Length", "Content-Range",
			"Etag", "Last-Modified", "Content-Type", "X-Amz-Version-Id", "X-Amz-Request-Id", "X-Amz-Id-2":
			continue
		}
		out[name] = strings.Join(values, ", ")
	}
	return out
}
