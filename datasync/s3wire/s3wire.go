// Package s3wire reads S3 requests as they come over the wire and passes them
// on unaltered. The front of a burst node and the on-prem gate both stand
// between a job and its store; neither may change a byte that is signed, and
// both must agree on what a request is about.
//
// # Words
//
//   - target: bucket and key of a request, path style or virtual-host style
//     ([Target]).
//   - sub-resource: a query parameter that makes a request about something
//     other than the object's bytes, such as acl or partNumber.
//   - signature: which headers the client has signed ([Signature]). This
//     package never checks one; only the store can.
//
// # Promise
//
// A forwarded request has the path, query, Host and body of the original,
// byte by byte: nothing is cleaned, decoded or encoded again, no header is
// added. An answer comes back with its own headers and its own length; one
// that breaks off upstream breaks off towards the client too, and never looks
// complete. Credentials are never part of an error or of a log line.
package s3wire

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
)

// ErrHost says that a request names a host that is not the store's.
var ErrHost = errors.New("host is not one of the store's names")

// Target is what a request is about. An empty Key means the bucket, an empty
// Bucket the service.
type Target struct {
	Bucket string
	Key    string // decoded once, otherwise bytes as they are
}

// String writes the target as an S3 URL.
func (t Target) String() string { return "s3://" + t.Bucket + "/" + t.Key }

// ReadTarget finds bucket and key. hosts are the store's names without port:
// a request to one of them is path style, one to bucket.NAME is virtual-host
// style, and any other host is [ErrHost], since the store may read it in a
// way of its own.
func ReadTarget(r *http.Request, hosts []string) (Target, error) {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(host)
	key := strings.TrimPrefix(r.URL.Path, "/")
	if slices.Contains(hosts, host) {
		bucket, key, _ := strings.Cut(key, "/")
		return Target{Bucket: bucket, Key: key}, nil
	}
	for _, name := range hosts {
		if bucket, ok := strings.CutSuffix(host, "."+name); ok && net.ParseIP(name) == nil {
			return Target{Bucket: bucket, Key: key}, nil
		}
	}
	return Target{}, fmt.Errorf("%q: %w", r.Host, ErrHost)
}

// Cleaned is the target that a store would see that folds "//", "." and ".."
// in paths, as some do. Whoever decides about a target must allow this one
// too.
func (t Target) Cleaned() Target {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+t.Bucket+"/"+t.Key), "/"), "/")
	if strings.HasSuffix(t.Key, "/") && key != "" {
		key += "/"
	}
	return Target{Bucket: bucket, Key: key}
}

// ReadCopySource parses the header x-amz-copy-source; ok is false when the
// request has none.
func ReadCopySource(r *http.Request) (t Target, ok bool, err error) {
	value := r.Header.Get("X-Amz-Copy-Source")
	if value == "" {
		return Target{}, false, nil
	}
	value, _, _ = strings.Cut(value, "?")
	decoded, err := url.PathUnescape(value)
	if err != nil {
		return Target{}, true, fmt.Errorf("header x-amz-copy-source: %w", err)
	}
	bucket, key, found := strings.Cut(strings.TrimPrefix(decoded, "/"), "/")
	if !found || bucket == "" || key == "" {
		return Target{}, true, errors.New("header x-amz-copy-source names no object")
	}
	return Target{Bucket: bucket, Key: key}, true, nil
}

// SubResources returns the names of the query parameters but those that carry
// a presigned signature and x-id, which means nothing, in order.
func SubResources(query url.Values) []string {
	var names []string
	for name := range query {
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(lower, "x-amz-"), lower == "x-id",
			name == "AWSAccessKeyId", name == "Signature", name == "Expires":
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Signature is how a request is signed. Nothing here is verified.
type Signature struct {
	Scheme string   // "v4", "v2", or "" for none
	Signed []string // v4: the signed headers, in lower case
}

// ReadSignature reads the Authorization header or the query of a presigned
// request.
func ReadSignature(r *http.Request) Signature {
	query := r.URL.Query()
	auth := r.Header.Get("Authorization")
	switch {
	case strings.HasPrefix(auth, "AWS4-"):
		for field := range strings.FieldsFuncSeq(auth, func(c rune) bool { return c == ',' || c == ' ' }) {
			if list, ok := strings.CutPrefix(field, "SignedHeaders="); ok {
				return Signature{Scheme: "v4", Signed: splitSigned(list)}
			}
		}
		return Signature{Scheme: "v4"}
	case strings.HasPrefix(auth, "AWS "):
		return Signature{Scheme: "v2"}
	case query.Has("X-Amz-Signature"):
		return Signature{Scheme: "v4", Signed: splitSigned(query.Get("X-Amz-SignedHeaders"))}
	case query.Has("Signature") && query.Has("AWSAccessKeyId"):
		return Signature{Scheme: "v2"}
	}
	return Signature{}
}

func splitSigned(list string) []string { return strings.Split(strings.ToLower(list), ";") }

// UnsignedAmz returns the x-amz-* headers of a request that its signature
// does not cover, in lower case and in order. Some stores obey them all the
// same, so whoever guards a store refuses such a request.
func UnsignedAmz(r *http.Request) []string {
	sig := ReadSignature(r)
	var loose []string
	for name := range r.Header {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, "x-amz-") && sig.Scheme != "v2" && !slices.Contains(sig.Signed, lower) {
			loose = append(loose, lower)
		}
	}
	slices.Sort(loose)
	return loose
}
