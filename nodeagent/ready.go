package nodeagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"spillway.dev/spillway/nodeagent/link"
)

// maxOffset is how far the node's clock may be from the controller's: signed
// requests to the store are refused long after that, results are misdated.
const maxOffset = time.Second

// looker gathers the evidence for a node's readiness. Everything is read anew
// at each look.
type looker struct {
	machine  Machine
	state    string // the agent's folder
	proc     string // usually /proc
	resource string // what devices must be called, empty for any
	devices  int    // how many must be there, 0 for any number
	keyLock  error  // why the key's memory is not locked
	onPrem   bool
	wall     func() time.Time
}

// look reads all evidence. clock is the last comparison with the controller.
func (l looker) look(ctx context.Context, clock link.Offset) link.Ready {
	evidence := []link.Evidence{
		l.clock(clock), l.disk(), l.gpus(ctx),
	}
	if !l.onPrem { // nothing of a burst is in an on-prem node's memory
		evidence = append(evidence, l.swap(), l.cores(), l.locked())
	}
	for i := range evidence {
		evidence[i].At = l.wall()
		evidence[i].Seen = clip(evidence[i].Seen)
	}
	return link.Ready{Evidence: evidence}
}

// clip keeps a text within what a report may carry.
func clip(s string) string {
	if len(s) <= 400 {
		return s
	}
	return strings.ToValidUTF8(s[:400], "")
}

func (l looker) clock(c link.Offset) link.Evidence {
	e := link.Evidence{Gate: "clock", From: "controller's clock in the last reply", Seen: "not compared yet"}
	if c.Known {
		e.Seen = fmt.Sprintf("%v ahead, ±%v", c.Ahead, c.Error)
		e.OK = c.Ahead.Abs()-c.Error < maxOffset && c.Error < maxOffset // what is hardly known is no evidence
	}
	return e
}

// swap is good when no page of memory can reach a disk.
func (l looker) swap() link.Evidence {
	e := link.Evidence{Gate: "swap", From: filepath.Join(l.proc, "swaps")}
	data, err := os.ReadFile(e.From)
	if err != nil {
		e.Seen = err.Error()
		return e
	}
	var areas []string
	for i, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if fields := strings.Fields(line); i > 0 && len(fields) > 0 {
			areas = append(areas, fields[0])
		}
	}
	e.OK, e.Seen = len(areas) == 0, "none"
	if !e.OK {
		e.Seen = "memory can be written to " + strings.Join(areas, ", ")
	}
	return e
}

// cores is good when this process, which holds the key, leaves no core dump.
func (l looker) cores() link.Evidence {
	e := link.Evidence{Gate: "core dumps", From: "getrlimit(RLIMIT_CORE), prctl(PR_GET_DUMPABLE)"}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		e.Seen = err.Error()
		return e
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		e.Seen = err.Error()
		return e
	}
	e.OK = limit.Cur == 0 && dumpable == 0
	e.Seen = fmt.Sprintf("limit %d bytes, dumpable %d", limit.Cur, dumpable)
	return e
}

func (l looker) locked() link.Evidence {
	e := link.Evidence{Gate: "key memory", From: "mlock, madvise(MADV_DONTDUMP)", OK: l.keyLock == nil, Seen: "locked, not dumped"}
	if l.keyLock != nil {
		e.Seen = "not locked: " + l.keyLock.Error()
	}
	return e
}

// disk is good when a file can be written, made durable and removed there.
func (l looker) disk() link.Evidence {
	e := link.Evidence{Gate: "disk", From: l.state}
	probe := filepath.Join(l.state, "probe")
	if err := writeFile(probe, []byte("probe\n")); err != nil {
		e.Seen = err.Error()
		return e
	}
	if err := os.Remove(probe); err != nil {
		e.Seen = err.Error()
		return e
	}
	var st unix.Statfs_t
	if err := unix.Statfs(l.state, &st); err != nil {
		e.Seen = err.Error()
		return e
	}
	e.OK, e.Seen = true, fmt.Sprintf("%d MiB free", int64(st.Bavail)*st.Bsize>>20)
	return e
}

// gpus is good when the machine lists as many healthy devices as promised.
func (l looker) gpus(ctx context.Context) link.Evidence {
	e := link.Evidence{Gate: "gpus", From: "the machine's device list"}
	devices, err := l.machine.Devices(ctx)
	if err != nil {
		e.Seen = err.Error()
		return e
	}
	healthy := 0
	var models []string
	for _, d := range devices {
		if l.resource != "" && d.Resource != l.resource {
			continue
		}
		if d.Healthy {
			healthy++
		}
		models = append(models, d.Model)
	}
	e.OK = healthy >= l.devices && healthy == len(models)
	e.Seen = fmt.Sprintf("%d healthy of %d (%s), %d promised", healthy, len(models), strings.Join(models, ", "), l.devices)
	return e
}
