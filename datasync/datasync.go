// Package datasync holds what the two sides of a burst agree on about data:
// which inputs a gang names, which versions of them are pinned, where their
// ciphertext lies, what still has to move, and what came back.
//
// It decides and never acts: no network, no clock, no randomness, no files.
// The packages below it act: s3 talks to stores, stager fills the staging
// store and brings results home, cache serves the jobs on a burst node.
//
// # Words
//
//   - source store: the on-prem S3 store that jobs name in their manifests.
//   - staging store: a bucket near the burst nodes; it holds ciphertext under
//     opaque names, for one burst, and is wiped with it.
//   - ref: a bucket and a prefix, written s3://bucket/prefix ([Ref]).
//   - manifest: the list of pinned objects of a burst, signed at home and
//     sealed under the burst's data key ([Manifest]). A node believes nothing
//     that is not in it.
//   - upload: an object that a job wrote through the front ([Upload]).
//
// # Promise
//
// A manifest that opens is complete, of this burst, and was signed at home:
// an object left out, swapped or taken from another burst is an error. Keys
// are opaque bytes here; nothing cleans, folds or decodes them.
package datasync

import (
	"fmt"
	"strings"
	"time"
)

// Ref names the objects of a bucket that start with a prefix.
type Ref struct {
	Bucket string `json:"bucket"`
	Prefix string `json:"prefix"` // bytes as they are; empty means the whole bucket
}

// ParseRefs reads the value of the annotations spillway.dev/inputs and
// spillway.dev/outputs: S3 URLs, separated by commas, blanks around them
// ignored. An empty value has no refs. The error names the part that is not
// an S3 URL and shows a right one.
func ParseRefs(value string) ([]Ref, error) {
	var refs []Ref
	for part := range strings.SplitSeq(value, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		ref, err := ParseRef(part)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// ParseRef reads one S3 URL.
func ParseRef(s string) (Ref, error) {
	rest, ok := strings.CutPrefix(s, "s3://")
	bucket, prefix, _ := strings.Cut(rest, "/")
	if !ok || bucket == "" || strings.ContainsAny(bucket, " \t\r\n?#@:") {
		return Ref{}, fmt.Errorf("%q is not an S3 URL: write s3://bucket/prefix/", s)
	}
	return Ref{Bucket: bucket, Prefix: prefix}, nil
}

// String writes the ref as an S3 URL.
func (r Ref) String() string { return "s3://" + r.Bucket + "/" + r.Prefix }

// Covers reports whether the object lies in the ref.
func (r Ref) Covers(bucket, key string) bool {
	return r.Bucket == bucket && strings.HasPrefix(key, r.Prefix)
}

// Contains reports whether every object that other can name lies in r.
func (r Ref) Contains(other Ref) bool { return r.Covers(other.Bucket, other.Prefix) }

// Object is one version of one source object, and where its ciphertext lies.
// All sizes but StagedSize are of the plaintext.
type Object struct {
	Bucket       string    `json:"bucket"`
	Key          string    `json:"key"`
	ETag         string    `json:"etag"` // without quotes, opaque
	VersionID    string    `json:"versionId,omitempty"`
	Size         int64     `json:"size"`
	LastModified time.Time `json:"lastModified"`
	ContentType  string    `json:"contentType,omitempty"`
	// Metadata are the other headers of the source's answer that belong to
	// the object (x-amz-meta-*, Content-Encoding, Cache-Control, checksums),
	// by canonical header name.
	Metadata map[string]string `json:"metadata,omitempty"`
	SHA256   string            `json:"sha256,omitempty"` // hex, of the plaintext
	// Staged is the opaque name in the staging bucket, StagedSize the size of
	// the ciphertext there, URL a presigned GET of it. The manifest is sealed,
	// so the URL is as secret as the data.
	Staged     string `json:"staged,omitempty"`
	StagedSize int64  `json:"stagedSize,omitempty"`
	URL        string `json:"url,omitempty"`
}

// ID identifies the version: equal IDs have equal bytes.
func (o Object) ID() ObjectID {
	return ObjectID{Bucket: o.Bucket, Key: o.Key, VersionID: o.VersionID, ETag: o.ETag}
}

// ObjectID is the identity of one version of a source object.
type ObjectID struct{ Bucket, Key, VersionID, ETag string }

// Bytes adds up the plaintext sizes of objects.
func Bytes(objects []Object) int64 {
	var n int64
	for _, o := range objects {
		n += o.Size
	}
	return n
}

// Missing returns the objects of want that are not in have, in the order of
// want.
func Missing(want []Object, have map[ObjectID]bool) []Object {
	var out []Object
	for _, o := range want {
		if !have[o.ID()] {
			out = append(out, o)
		}
	}
	return out
}

// Estimate is how long so many bytes take at a rate in bytes per second,
// rounded up to whole seconds. An unknown rate (zero or less) gives false:
// the caller must not take that for "no time".
func Estimate(bytes, rate int64) (time.Duration, bool) {
	if rate <= 0 {
		return 0, false
	}
	seconds := bytes / rate
	if bytes%rate != 0 {
		seconds++
	}
	const longest = int64(1<<63-1) / int64(time.Second)
	return time.Duration(min(seconds, longest)) * time.Second, true
}

// Upload is an object that a job wrote through the front of a burst node, as
// the front saw its bytes.
type Upload struct {
	Bucket string    `json:"bucket"`
	Key    string    `json:"key"`
	Size   int64     `json:"size"`             // bytes of the object; -1 when the front saw none (a copy)
	ETag   string    `json:"etag"`             // the store's answer, without quotes
	SHA256 string    `json:"sha256,omitempty"` // hex; empty for multipart uploads, see Parts
	Parts  []Part    `json:"parts,omitempty"`  // of a multipart upload, in order
	At     time.Time `json:"at"`
}

// Part is one part of a multipart upload.
type Part struct {
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}
