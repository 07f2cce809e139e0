package cache

import (
	"maps"
	"net/http"
	"strings"

	"spillway.dev/spillway/datasync"
)

// verdict is what the source store says about a version that is known here.
type verdict int

const (
	answered verdict = iota // a refusal, or an answer with another version: the client's
	same                    // this client may read it, and it is still this version
	changed                 // this client may read it, but what is known is out of date
)

// ask sends the client's own request, with one header that no signature covers,
// and learns whether the store allows it and still has the version o. The
// answer is the client's where the verdict is [answered]; otherwise it has no
// body, and its headers tell of the store.
func (f *Front) ask(r *http.Request, o datasync.Object) (*http.Response, verdict, error) {
	gateway := o.Metadata[gatewayMark] != ""
	resp, err := f.read(r, func(out *http.Request) {
		if gateway {
			out.Header.Set("X-Rgw-Auth", "yes")
		} else {
			out.Header.Set("If-None-Match", `"`+o.ETag+`"`)
		}
	})
	if err != nil {
		return nil, answered, err
	}
	verdict := judge(resp, o, gateway)
	if verdict != answered {
		_ = resp.Body.Close() // there is none
		f.count.notModified.Add(1)
	}
	return resp, verdict, nil
}

// gatewayMark is a header in which every object of a Ceph Object Gateway says
// of what type it is. A gateway's bare 304 hides a rewrite that kept the ETag,
// such as a copy onto itself with other metadata. But with the header
// x-rgw-auth it checks signature and rights and answers with all present
// headers and no body: Ceph's doc/radosgw/rgw-cache.rst, and seen on 16.2.15.
const gatewayMark = "X-Rgw-Object-Type"

func judge(resp *http.Response, o datasync.Object, gateway bool) verdict {
	switch {
	case resp.StatusCode == http.StatusNotModified && changedMeanwhile(resp, o):
		return changed
	case resp.StatusCode == http.StatusNotModified:
		return same
	case !gateway || resp.ContentLength != 0 || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return answered
	case describes(resp.Header, o):
		return same
	}
	return changed
}

// changedMeanwhile catches a rewrite that kept the ETag, where the store's
// 304 says when the object was last modified.
func changedMeanwhile(resp *http.Response, o datasync.Object) bool {
	at, err := http.ParseTime(resp.Header.Get("Last-Modified"))
	return err == nil && !at.Equal(o.LastModified.Truncate(1e9))
}

// describes reports whether the headers of an answer are those of o. Checksums
// come on request only, and equal bytes have equal ones.
func describes(h http.Header, o datasync.Object) bool {
	at, err := http.ParseTime(h.Get("Last-Modified"))
	checksum := func(name, _ string) bool { return strings.HasPrefix(name, "X-Amz-Checksum-") }
	now, then := objectHeaders(h), maps.Clone(o.Metadata)
	maps.DeleteFunc(now, checksum)
	maps.DeleteFunc(then, checksum)
	return err == nil && at.Equal(o.LastModified.Truncate(1e9)) && h.Get("Etag") == `"`+o.ETag+`"` &&
		h.Get("Content-Type") == o.ContentType && h.Get("X-Amz-Version-Id") == o.VersionID && maps.Equal(now, then)
}

// objectHeaders keeps the headers that belong to the object and not to one
// answer. Those with a field of their own in [datasync.Object] are left out.
func objectHeaders(h http.Header) map[string]string {
	out := map[string]string{}
	for name, values := range h {
		switch name {
		case "Date", "Server", "Connection", "Keep-Alive", "Content-Length", "Content-Range", "Etag", "Last-Modified", "Content-Type",
			"X-Amz-Version-Id", "X-Amz-Request-Id", "X-Amz-Id-2":
		default:
			out[name] = strings.Join(values, ", ")
		}
	}
	return out
}
