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

// journal records what jobs wrote: in memory, and from [journal.unlock] on
// also on the disk.
type journal struct {
	mu    sync.Mutex
	done  map[place]Upload
	parts map[string]map[partID]datasync.Part // by upload id

	wanted bool     // there will be a file
	early  []change // before there is one
	kept   *kept
	failed func(error) // hears that a change is in memory only
}

func newJournal(wanted bool, failed func(error)) *journal {
	return &journal{
		done: map[place]Upload{}, parts: map[string]map[partID]datasync.Part{},
		wanted: wanted, failed: failed,
	}
}

// unlock takes up what is in the file, as the past of what was recorded since
// the start. It returns at once when it was called before.
func (j *journal) unlock(open func() (*kept, []change, error)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.wanted {
		return
	}
	k, past, err := open()
	if err != nil {
		j.failed(err)
	}
	if k == nil {
		return // tried again with the next manifest
	}
	j.wanted, j.kept = false, k
	now := j.early
	j.done, j.early = map[place]Upload{}, nil
	for _, c := range past {
		j.apply(c)
	}
	for _, c := range now {
		j.noteLocked(c)
	}
}

// lock closes the file; what is recorded from here on stays in memory.
func (j *journal) lock() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	k := j.kept
	j.wanted, j.early, j.kept = false, nil, nil
	if k == nil {
		return nil
	}
	return k.close()
}

func (j *journal) note(c change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked(c)
}

func (j *journal) noteLocked(c change) {
	j.apply(c)
	if j.wanted {
		j.early = append(j.early, c)
	}
	if j.kept == nil {
		return
	}
	if err := j.kept.add(c); err != nil {
		j.failed(err)
	}
}

func (j *journal) apply(c change) {
	p := place{c.Upload.Bucket, c.Upload.Key}
	if c.Gone {
		delete(j.done, p)
		return
	}
	j.done[p] = c.Upload
}

func (j *journal) record(u Upload) { j.note(change{Upload: u}) }

func (j *journal) remove(p place) {
	j.note(change{Gone: true, Upload: Upload{Bucket: p.bucket, Key: p.key}})
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
	j.noteLocked(change{Upload: u})
}

func (j *journal) list() []Upload {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.SortedFunc(maps.Values(j.done), func(a, b Upload) int {
		return cmp.Or(cmp.Compare(a.Bucket, b.Bucket), cmp.Compare(a.Key, b.Key))
	})
}
