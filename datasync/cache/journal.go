package cache

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"spillway.dev/spillway/datasync"
)

// partID is one try at one part: two tries with the same number differ in
// their ETag, and the client's list says which of them counts.
//
// cases: H13 hybrid-cache 1.11.0
type partID struct{ number, etag string }

// journal records what jobs wrote, in memory.
type journal struct {
	mu    sync.Mutex
	done  map[place]Upload
	parts map[string]map[partID]datasync.Part // by upload id
}

func newJournal() *journal {
	return &journal{done: map[place]Upload{}, parts: map[string]map[partID]datasync.Part{}}
}

func (j *journal) record(u Upload) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.done[place{u.Bucket, u.Key}] = u
}

func (j *journal) remove(p place) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.done, p)
}

func (j *journal) part(upload string, id partID, size int64, sum string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.parts[upload] == nil {
		j.parts[upload] = map[partID]datasync.Part{}
	}
	j.parts[upload][id] = datasync.Part{Size: size, SHA256: sum}
}

func (j *journal) abort(upload string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.parts, upload)
}

// complete records a finished multipart upload from the parts in ids. When
// one of them didn't pass here, size and digest stay unknown.
func (j *journal) complete(upload string, u Upload, ids []partID) {
	j.mu.Lock()
	defer j.mu.Unlock()
	known := j.parts[upload]
	delete(j.parts, upload)
	for _, id := range ids {
		part, ok := known[id]
		if !ok || part.SHA256 == "" {
			u.Size, u.Parts = -1, nil
			break
		}
		u.Size += part.Size
		u.Parts = append(u.Parts, part)
	}
	if len(ids) == 0 {
		u.Size = -1
	}
	j.done[place{u.Bucket, u.Key}] = u
}

func (j *journal) list() []Upload {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.done), func(a, b Upload) int {
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key))
	})
}
