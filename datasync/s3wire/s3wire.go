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

var (
	// ErrHost says that a request names a host that is not the store's.
	ErrHost = errors.New("host is not one of the store's names")
	// ErrTwoReadings says that a request can be read in more than one way, so
	// that whoever decides about it may decide about another than the store
	// carries out.
	ErrTwoReadings = errors.New("the request can be read in two ways")
)

// Target is what a request is about. An empty Key means the bucket, an empty
// Bucket the service.
type Target struct {
	Bucket string
	Key    string // decoded once, otherwise bytes as they are
}

// String writes the target as an S3 URL.
func (t Target) String() string { return "s3://" + t.Bucket + "/" + t.Key }

// ReadTarget finds bucket and key. hosts and domains are names of the store
// without port: a request to one of the hosts is path style, one to
// bucket.NAME of the domains is virtual-host style, and any other host is
// [ErrHost], since the store may read it in a way of its own.
func ReadTarget(r *http.Request, hosts, domains []string) (Target, error) {
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
	for _, name := range domains {
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
	switch {
	case len(r.Header["X-Amz-Copy-Source"]) > 1:
		return Target{}, true, errors.New("header x-amz-copy-source is there twice")
	case value == "":
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
// a presigned signature and x-id, which means nothing, in order. The error is
// [ErrTwoReadings] for a query of which this reader would overlook a part.
func SubResources(r *http.Request) (url.Values, []string, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: its query has a broken escape or a semicolon", ErrTwoReadings)
	}
	if strings.Contains(r.RequestURI, "#") {
		return nil, nil, fmt.Errorf("%w: its target has a bare #", ErrTwoReadings)
	}
	var names []string
	for name := range query {
		switch strings.ToLower(name) {
		case "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature",
			"x-amz-security-token", "x-amz-content-sha256", "x-amz-region-set", "x-id", "awsaccesskeyid", "signature", "expires":
		default:
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return query, names, nil
}

// Signature is how a request is signed. Nothing here is verified.
type Signature struct {
	Scheme string   // "v4", "v2", or "" for none
	Signed []string // v4: the signed headers, in lower case
	// Scope is the access key with region and service, but for the day; only of
	// a v4 signature in the Authorization header. It is no secret, and no proof.
	Scope string
}

// ReadSignature reads the Authorization header or the query of a presigned
// request. A request with two signatures, or two lists of signed headers, is
// [ErrTwoReadings]: stores differ in which of them they take.
func ReadSignature(r *http.Request) (Signature, error) {
	query := r.URL.Query()
	auth := r.Header["Authorization"]
	var scope string
	presigned := query.Has("X-Amz-Signature") || query.Has("Signature") && query.Has("AWSAccessKeyId")
	lists := query["X-Amz-SignedHeaders"]
	if len(auth) == 1 {
		for field := range strings.FieldsFuncSeq(auth[0], func(c rune) bool { return c == ',' || c == ' ' || c == '\t' }) {
			if list, ok := strings.CutPrefix(field, "SignedHeaders="); ok {
				lists = append(lists, list)
			}
			if credential, ok := strings.CutPrefix(field, "Credential="); ok {
				scope = undated(credential)
			}
		}
	}
	if len(auth) > 1 || len(auth) == 1 && presigned || len(lists) > 1 {
		return Signature{}, fmt.Errorf("%w: it is signed twice", ErrTwoReadings)
	}
	var signed []string
	if len(lists) == 1 {
		signed = strings.Split(strings.ToLower(lists[0]), ";")
	}
	switch {
	case len(auth) == 1 && strings.HasPrefix(auth[0], "AWS4-"), query.Has("X-Amz-Signature"):
		return Signature{Scheme: "v4", Signed: signed, Scope: scope}, nil
	case len(auth) == 1 && strings.HasPrefix(auth[0], "AWS "), presigned:
		return Signature{Scheme: "v2"}, nil
	}
	return Signature{}, nil
}

// undated is KEY/DAY/REGION/SERVICE/aws4_request without the day, or empty.
func undated(credential string) string {
	parts := strings.Split(credential, "/")
	if len(parts) < 5 || parts[0] == "" { // some stores allow slashes in access keys
		return ""
	}
	return strings.Join(slices.Delete(parts, len(parts)-4, len(parts)-3), "/")
}

// UnsignedAmz returns the x-amz-* headers of a request that its signature
// does not cover, in lower case and in order. Some stores obey them all the
// same, so whoever guards a store refuses such a request. An underscore counts
// as a dash, as it does for servers that hand headers on as variables.
func UnsignedAmz(r *http.Request) ([]string, error) {
	sig, err := ReadSignature(r)
	if err != nil {
		return nil, err
	}
	var loose []string
	for name := range r.Header {
		lower := strings.ToLower(name)
		amz := strings.HasPrefix(strings.ReplaceAll(lower, "_", "-"), "x-amz-")
		if amz && sig.Scheme != "v2" && !slices.Contains(sig.Signed, lower) {
			loose = append(loose, lower)
		}
	}
	slices.Sort(loose)
	return loose, nil
}
