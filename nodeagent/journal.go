package nodeagent

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"spillway.dev/spillway/quota"
)

// compactAt is the size in bytes from which the journal is rewritten without
// what is over and acknowledged.
const compactAt = 1 << 20

// holding is a pod's hold on one device.
type holding struct {
	PodUID string `json:"pod"`
	Device string `json:"device"`
}

// interval is a holding that is not over yet.
type interval struct {
	holding
	Namespace string    `json:"namespace"`
	Owner     string    `json:"owner"`
	Model     string    `json:"model"`
	Start     time.Time `json:"start"`
}

// entry is one line of the journal: a number and one fact.
type entry struct {
	Seq     int64        `json:"seq"`
	Journal string       `json:"journal,omitempty"` // first line: the journal's id
	Boot    *bootAnchor  `json:"boot,omitempty"`
	Open    *interval    `json:"open,omitempty"`
	Close   *quota.Usage `json:"close,omitempty"`
	Beat    time.Time    `json:"beat,omitzero"` // the node was looked at: the open intervals held, no others
	Ack     int64        `json:"ack,omitempty"` // records up to this Seq have arrived
	Done    *ended       `json:"done,omitempty"`
	Forget  *holding     `json:"forget,omitempty"` // the pod is not listed any more

	Free map[string]time.Time `json:"free,omitempty"`
}

// ended is a holding that is over and recorded.
type ended struct {
	holding
	End time.Time `json:"end"`
}

// bootAnchor ties the clock since boot to the wall clock, once per boot.
// Usage times are counted from it, so that a step of the wall clock neither
// makes nor loses seconds.
type bootAnchor struct {
	ID    string        `json:"id"`
	Wall  time.Time     `json:"wall"`
	Since time.Duration `json:"since"`
}

func (b bootAnchor) at(since time.Duration) time.Time { return b.Wall.Add(since - b.Since) }

// journal is the append-only file of usage. Every entry is durable before the
// call that wrote it returns. Entries carry a checksum; what a crash left
// half-written at the end is cut off, and its numbers are not used again.
//
// One goroutine writes intervals, others read what is pending and acknowledge:
// boot, beat, open, done and free change in the writer's calls only.
type journal struct {
	path    string
	sync    func(*os.File) error       // makes a write durable
	replace func(string, []byte) error // replaces a file

	mu      sync.Mutex
	file    *os.File
	size    int64
	id      string
	lastSeq int64
	boot    bootAnchor
	beat    time.Time
	open    map[holding]interval
	done    map[holding]time.Time // ended holdings whose pod may still be listed, with their end
	free    map[string]time.Time  // by device, the end of its last record: no record begins before it
	unacked []quota.Usage         // by rising Seq
	lost    int64                 // bytes that could not be read at the start
}

// openJournal reads the journal in dir, or begins one. A disk that is full
// keeps no agent from starting again: what is there is then gone on with.
func openJournal(dir string) (*journal, error) { return openJournalBy(dir, writeFile) }

func openJournalBy(dir string, replace func(string, []byte) error) (*journal, error) {
	j := &journal{
		path: filepath.Join(dir, "usage.journal"), sync: (*os.File).Sync, replace: replace,
		open: map[holding]interval{}, done: map[holding]time.Time{}, free: map[string]time.Time{},
	}
	data, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read usage journal: %w", err)
	}
	good := j.replay(data)
	j.lost = int64(len(data)) - good
	j.lastSeq += j.lost // each lost entry had at least a byte, so no number comes twice
	begun := j.id != ""
	if !begun {
		j.id = rand.Text()
	}
	err = nil
	if j.lost > 0 {
		err = replace(fmt.Sprintf("%s.damaged-%d", j.path, j.lastSeq), data)
	}
	if err == nil {
		err = j.rewrite()
	}
	if err != nil && begun {
		err = j.goOn(good)
	}
	if err != nil {
		return nil, fmt.Errorf("write usage journal %s: %w: make room on the disk", j.path, err)
	}
	return j, nil
}

// goOn appends to the file as it is, behind its good bytes.
func (j *journal) goOn(good int64) error {
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if err := f.Truncate(good); err != nil {
		return errors.Join(err, f.Close())
	}
	j.file, j.size = f, good
	return nil
}

// replay applies all whole entries and returns how many bytes they take.
func (j *journal) replay(data []byte) int64 {
	var good int64
	for line := range bytes.Lines(data) {
		e, ok := parseEntry(line)
		if !ok {
			break
		}
		j.apply(e)
		good += int64(len(line))
	}
	return good
}

func (j *journal) apply(e entry) {
	j.lastSeq = max(j.lastSeq, e.Seq)
	switch {
	case e.Journal != "":
		j.id = e.Journal
	case e.Boot != nil:
		j.boot, j.beat = *e.Boot, time.Time{}
	case e.Open != nil:
		j.open[e.Open.holding] = *e.Open
		delete(j.done, e.Open.holding)
	case e.Close != nil:
		h := holding{e.Close.PodUID, e.Close.Device}
		delete(j.open, h)
		j.done[h] = e.Close.End
		j.free[h.Device] = later(j.free[h.Device], e.Close.End)
		j.unacked = append(j.unacked, *e.Close)
	case e.Done != nil:
		j.done[e.Done.holding] = e.Done.End
	case e.Free != nil:
		j.free = e.Free
	case e.Forget != nil:
		delete(j.done, *e.Forget)
	case e.Ack != 0:
		j.unacked = slices.DeleteFunc(j.unacked, func(u quota.Usage) bool { return u.Seq <= e.Ack })
	case !e.Beat.IsZero():
		j.beat = e.Beat
	}
}

// append makes entries durable and applies them. build gets the number of the
// next entry. Nothing is applied when the disk refuses.
func (j *journal) append(build func(seq int64) entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := build(j.lastSeq + 1)
	e.Seq = j.lastSeq + 1
	line, err := formatEntry(e)
	if err != nil {
		return fmt.Errorf("write usage journal: %w", err)
	}
	if _, err = j.file.WriteAt(line, j.size); err == nil {
		err = j.sync(j.file)
	}
	if err != nil {
		err = errors.Join(err, j.file.Truncate(j.size))
		return fmt.Errorf("write usage journal %s: %w: make room on the disk", j.path, err)
	}
	j.size += int64(len(line))
	j.apply(e)
	if j.size > compactAt && j.size > 2*int64(len(j.snapshot())) {
		_ = j.rewrite() // the entry is durable; a file that can't be rewritten goes on growing
	}
	return nil
}

// rewrite replaces the file by what still matters.
func (j *journal) rewrite() error {
	data := j.snapshot()
	if err := j.replace(j.path, data); err != nil {
		return err
	}
	f, err := os.OpenFile(j.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	old := j.file
	j.file, j.size = f, int64(len(data))
	if old != nil {
		return old.Close()
	}
	return nil
}

// snapshot writes the present state as entries that replay to it.
func (j *journal) snapshot() []byte {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	put := func(e entry) {
		line, err := formatEntry(e)
		if err != nil {
			panic(fmt.Sprintf("usage journal: an entry that was read can't be written: %v", err))
		}
		w.Write(line) //nolint:errcheck // a buffer in memory does not fail
	}
	put(entry{Seq: j.lastSeq, Journal: j.id})
	if j.boot.ID != "" {
		put(entry{Boot: &j.boot})
	}
	for _, u := range j.unacked {
		put(entry{Seq: u.Seq, Close: &u})
	}
	for h, end := range j.done {
		put(entry{Done: &ended{h, end}})
	}
	if len(j.free) > 0 {
		put(entry{Free: j.free})
	}
	for _, i := range j.open {
		put(entry{Open: &i})
	}
	if !j.beat.IsZero() {
		put(entry{Beat: j.beat})
	}
	w.Flush() //nolint:errcheck // a buffer in memory does not fail
	return b.Bytes()
}

// pending returns the oldest records that were not acknowledged, at most n.
func (j *journal) pending(n int) []quota.Usage {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.unacked[:min(n, len(j.unacked))])
}

// lastUsage returns the number of the newest record that is not acknowledged.
func (j *journal) lastUsage() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.unacked) == 0 {
		return 0
	}
	return j.unacked[len(j.unacked)-1].Seq
}

// acknowledge drops records that have arrived. An acknowledgement for another
// journal, or beyond what was ever written, means nothing.
func (j *journal) acknowledge(id string, seq int64) error {
	j.mu.Lock()
	foreign := id != j.id || seq > j.lastSeq
	nothing := len(j.unacked) == 0 || j.unacked[0].Seq > seq
	j.mu.Unlock()
	if foreign || nothing {
		return nil
	}
	return j.append(func(int64) entry { return entry{Ack: seq} })
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.file.Close()
}

// A line is a CRC-32 of the rest in hex, a blank, and JSON.
func formatEntry(e entry) ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(data), data), nil
}

func parseEntry(line []byte) (entry, bool) {
	body, whole := bytes.CutSuffix(line, []byte("\n"))
	sum, data, ok := bytes.Cut(body, []byte(" "))
	if !whole || !ok {
		return entry{}, false
	}
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.ChecksumIEEE(data) {
		return entry{}, false
	}
	var e entry
	err = json.Unmarshal(data, &e)
	return e, err == nil
}
