package cache

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/s3wire"
	"spillway.dev/spillway/datasync/seal"
)

// asker is who asks, as far as a front can tell: the digest of access key,
// region, service and session token. The front has no secrets and can't check
// the signature, so an asker is what a request claims. That is enough among the
// pods of one gang, which hold the same keys, and nowhere else.
type asker [sha256.Size]byte

// known is false for the zero asker: the request goes home, whatever the
// manifest allows.
func (a asker) known() bool { return a != asker{} }

// askerOf returns who asks. It is not known where the client is not a pod of the
// burst's own gang, or the request is not one whose meaning lies in the
// object's name alone. A presigned request is strict, since whoever signed it
// has limited how long it holds.
func (f *Front) askerOf(r *http.Request) asker {
	if f.cfg.Own == nil || f.shelf.strict() {
		return asker{}
	}
	for name := range r.Header {
		if name := strings.ReplaceAll(strings.ToLower(name), "_", "-"); strings.HasPrefix(name, "x-amz-") && !harmless(name) {
			return asker{}
		}
	}
	sig, err := s3wire.ReadSignature(r)
	if err != nil || sig.Scope == "" || !f.cfg.Own(r) {
		return asker{}
	}
	return sha256.Sum256([]byte(sig.Scope + "\x00" + strings.Join(r.Header["X-Amz-Security-Token"], "\x00")))
}

// harmless headers don't change whether a store lets somebody read.
func harmless(name string) bool {
	switch name {
	case "x-amz-date", "x-amz-content-sha256", "x-amz-security-token", "x-amz-checksum-mode", "x-amz-user-agent":
		return true
	}
	return false
}

// strict says that no word of the store counts for longer than one request.
func (s *shelf) strict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fresh.Mode == datasync.Strict
}

// grant notes that the store has let somebody read this very version, in
// answer to a request that began at a time.
func (s *shelf) grant(e *entry, who asker, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !who.known() {
		return
	}
	if e.granted == nil {
		e.granted = map[asker]time.Time{}
	}
	e.granted[who] = at
}

// counts says whether the store's word for somebody still counts. What it has
// said about a pinned version counts as long as the version is served.
func (s *shelf) counts(e *entry, who asker, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, granted := e.granted[who]
	return granted && (e.pinned || s.fresh.Mode == datasync.Lease && now.Sub(at) < s.fresh.For)
}

// pins says that a version of the object is to be served whatever the store has
// by now.
func (s *shelf) pins(p place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[p]
	return e != nil && e.pinned
}

// getPinned answers with the manifest's version, once the store has let this
// client read the object, in whatever version. A store that refuses, or has the
// object no longer, gives the answer itself.
func (f *Front) getPinned(w http.ResponseWriter, r *http.Request, e *entry, who asker, key seal.DataKey) {
	part, ok := readSpan(r.Header["Range"], e.object.Size)
	if !ok {
		f.pass(w, r, "range")
		return
	}
	fresh, ok := f.allowed(w, r, e, who)
	if ok && !f.deliver(w, r, e, part, key, fresh) {
		s3wire.Refuse(w, r, http.StatusServiceUnavailable, "ServiceUnavailable",
			"The version that this run is pinned to cannot be fetched from the staging store right now; try again.")
	}
}

// headPinned answers a HEAD of a pinned version, so that it agrees with what a
// GET gives; false leaves the request to the store.
func (f *Front) headPinned(w http.ResponseWriter, r *http.Request, t s3wire.Target) bool {
	who := f.askerOf(r)
	if !who.known() || notCacheable(r, t) != "" || r.Header.Get("Range") != "" {
		return false
	}
	e, _ := f.shelf.find(place{t.Bucket, t.Key})
	if e == nil || !e.pinned {
		return false
	}
	if fresh, ok := f.allowed(w, r, e, who); ok {
		writeHead(w, r, e, span{length: e.object.Size}, fresh)
	}
	return true
}

// allowed says whether the store has let a client read the object of a pinned
// version, and asks it when it has not been asked. When it is false the client
// has its answer. The headers are those of the store's answer, if there was one.
func (f *Front) allowed(w http.ResponseWriter, r *http.Request, e *entry, who asker) (http.Header, bool) {
	at := f.cfg.Now()
	if f.shelf.counts(e, who, at) {
		f.count.unasked.Add(1)
		return nil, true
	}
	resp, _, err := f.ask(r, e.object)
	if err != nil {
		f.unreachable(w, r, err)
		return nil, false
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusPartialContent, http.StatusNotModified,
		http.StatusRequestedRangeNotSatisfiable: // the last of another version, which is shorter
	default:
		f.answer(w, resp, nil)
		return nil, false
	}
	_ = resp.Body.Close() // of another version: not read
	f.shelf.grant(e, who, at)
	return resp.Header, true
}
