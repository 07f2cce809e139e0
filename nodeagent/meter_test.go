package nodeagent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
)

// bench is a node whose clock, pods and disk are the test's.
type bench struct {
	fatal func(...any)
	dir   string
	boot  string
	now   time.Duration // since boot
	skew  time.Duration // of the wall clock
	pods  map[string]Pod
	meter *meter
}

func began() time.Time { return time.Date(2026, 5, 1, 8, 0, 0, 0, time.UTC) }

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{fatal: t.Fatal, dir: t.TempDir(), boot: "boot-1", pods: map[string]Pod{}}
	b.start()
	return b
}

// start opens journal and meter, as a new agent process does.
func (b *bench) start() {
	j, err := openJournal(b.dir)
	if err != nil {
		b.fatal(err)
	}
	j.sync = func(*os.File) error { return nil } // a killed process loses nothing that it wrote
	m, err := newMeter(j, "node-1", "burst-1", b.boot, func() time.Duration { return b.now }, func() time.Time { return b.at().Add(b.skew) })
	if err != nil {
		b.fatal(err)
	}
	b.meter = m
}

// kill ends the agent as kill -9 does; what was not synced may be torn.
func (b *bench) kill(torn []byte) {
	if err := b.meter.journal.close(); err != nil {
		b.fatal(err)
	}
	path := filepath.Join(b.dir, "usage.journal")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, append(data, torn...), 0o600)
	}
	if err != nil {
		b.fatal(err)
	}
}

func (b *bench) look() {
	var pods []Pod
	for _, p := range b.pods {
		pods = append(pods, p)
	}
	if err := b.meter.look(pods, []Device{{ID: "gpu-0", Model: "Fake"}, {ID: "gpu-1", Model: "Fake"}}); err != nil {
		b.fatal(err)
	}
}

// pass lets time pass, with a look every second.
func (b *bench) pass(d time.Duration) {
	for end := b.now + d; b.now < end; {
		b.now += min(time.Second, end-b.now)
		b.look()
	}
}

func (b *bench) at() time.Time { return began().Add(b.now) }

func (b *bench) run(uid string, devices ...string) {
	b.pods[uid] = Pod{UID: uid, Namespace: "team", Name: uid, Owner: "job-" + uid, GPUs: devices, Started: b.at().Add(b.skew)}
}

func (b *bench) finish(uid string) {
	p := b.pods[uid]
	p.Finished = b.at().Add(b.skew)
	b.pods[uid] = p
}

// lines renders the pending usage, one record a line.
func (b *bench) lines() []string {
	var out []string
	for _, u := range b.meter.journal.pending(1000) {
		out = append(out, fmt.Sprintf("%s %s %v-%v", u.PodUID, u.Device, u.Start.Sub(began()), u.End.Sub(began())))
	}
	slices.Sort(out)
	return out
}

// Usage is what runs on the node, looked at again and again; nothing is reckoned
// from counters that others keep.
// cases: H-22 kubernetes-sigs/kueue#14609
func TestMeter(t *testing.T) {
	tests := map[string]struct {
		play func(*bench)
		want []string
	}{
		"one record for each pod and device": {
			play: func(b *bench) {
				b.pass(10 * time.Second)
				b.run("a", "gpu-0", "gpu-1")
				b.pass(60 * time.Second)
				b.finish("a")
				b.pass(5 * time.Second)
			},
			want: []string{"a gpu-0 10s-1m10s", "a gpu-1 10s-1m10s"},
		},
		"a pod that vanishes ends at the first look without it": {
			play: func(b *bench) {
				b.run("a", "gpu-0")
				b.pass(30 * time.Second)
				delete(b.pods, "a")
				b.pass(5 * time.Second)
			},
			want: []string{"a gpu-0 0s-31s"},
		},
		// cases: N33 k8s#119423, #132020: terminated pods are still listed.
		"a finished pod that is still listed does not share its device": {
			play: func(b *bench) {
				b.run("a", "gpu-0")
				b.pass(10 * time.Second)
				b.finish("a")
				b.run("b", "gpu-0")
				b.pass(10 * time.Second)
				b.finish("b")
				b.pass(10 * time.Second)
			},
			want: []string{"a gpu-0 0s-10s", "b gpu-0 10s-20s"},
		},
		// cases: N33: two pods that both claim to run on one device.
		"of two claims the later pod has the device": {
			play: func(b *bench) {
				b.run("a", "gpu-0")
				b.pass(10 * time.Second)
				b.run("b", "gpu-0")
				b.pass(10 * time.Second)
				b.finish("b")
				delete(b.pods, "a")
				b.pass(time.Second)
			},
			want: []string{"a gpu-0 0s-10s", "b gpu-0 10s-20s"},
		},
		// The start of the second is known by a clock that was stepped since. The
		// first was seen with the device until the last look, and pays for that.
		"a clock step between a start and the look at it takes nothing from the pod before": {
			play: func(b *bench) {
				b.run("a", "gpu-0")
				b.pass(30 * time.Second)
				delete(b.pods, "a")
				b.run("b", "gpu-0")
				b.skew = 20 * time.Second
				b.pass(10 * time.Second)
				delete(b.pods, "b")
				b.look()
			},
			want: []string{"a gpu-0 0s-30s", "b gpu-0 30s-40s"},
		},
		// cases: N36: the same name, another pod.
		"a pod that is made again under its name is two records": {
			play: func(b *bench) {
				b.run("uid-1", "gpu-0")
				b.pass(10 * time.Second)
				delete(b.pods, "uid-1")
				b.now += 500 * time.Millisecond
				b.run("uid-2", "gpu-0")
				b.pass(10 * time.Second)
				b.finish("uid-2")
				b.look()
			},
			want: []string{"uid-1 gpu-0 0s-10.5s", "uid-2 gpu-0 10.5s-20.5s"},
		},
		// cases: N37: one device shown by two ways.
		"a device that is listed twice counts once": {
			play: func(b *bench) {
				b.run("a", "gpu-0", "gpu-0")
				b.pass(10 * time.Second)
				b.finish("a")
				b.look()
			},
			want: []string{"a gpu-0 0s-10s"},
		},
		// cases: N34 k8s#117955: UnexpectedAdmissionError costs nothing.
		"a pod that the node refused costs nothing": {
			play: func(b *bench) {
				b.pods["a"] = Pod{UID: "a", GPUs: []string{"gpu-0"}, Finished: b.at()}
				b.pass(10 * time.Second)
			},
		},
		"a pod between two looks is recorded once": {
			play: func(b *bench) {
				b.pass(10 * time.Second)
				b.now += 100 * time.Millisecond
				b.run("a", "gpu-0")
				b.now += 300 * time.Millisecond
				b.finish("a")
				b.pass(10 * time.Second)
			},
			want: []string{"a gpu-0 10.1s-10.4s"},
		},
		"a step of the wall clock makes no seconds": {
			play: func(b *bench) {
				b.pass(10 * time.Second)
				b.run("a", "gpu-0")
				b.pass(10 * time.Second)
				b.skew = -time.Hour
				b.pass(10 * time.Second)
				b.finish("a")
				b.pass(time.Second)
				b.skew = time.Hour
				b.run("b", "gpu-1")
				b.pass(10 * time.Second)
				b.finish("b")
				b.look()
			},
			want: []string{"a gpu-0 10s-30s", "b gpu-1 31s-41s"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tt.play(b)
			if diff := gocmp.Diff(tt.want, b.lines()); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

func TestMeterAfterAKill(t *testing.T) {
	tests := map[string]struct {
		down func(*bench) // while the agent is dead
		want []string
	}{
		"a pod that goes on is one record": {
			down: func(b *bench) { b.now += 20 * time.Second },
			want: []string{"a gpu-0 0s-1m0s"},
		},
		"a pod that ended meanwhile ends when it did": {
			down: func(b *bench) { b.now += 5 * time.Second; b.finish("a"); b.now += 15 * time.Second },
			want: []string{"a gpu-0 0s-35s"},
		},
		"a pod that is gone ends at the last beat": {
			down: func(b *bench) { delete(b.pods, "a"); b.now += 20 * time.Second },
			want: []string{"a gpu-0 0s-21s"},
		},
		// cases: N34: after a reboot the interval ends at the last heartbeat.
		"a reboot ends the record at the last beat": {
			down: func(b *bench) {
				b.boot, b.pods = "boot-2", map[string]Pod{}
				b.now, b.skew = 5*time.Second, 60*time.Second
			},
			want: []string{"a gpu-0 0s-21s"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.run("a", "gpu-0")
			b.pass(30 * time.Second)
			b.kill([]byte("0000"))
			tt.down(b)
			b.start()
			b.pass(10 * time.Second)
			if p, ok := b.pods["a"]; ok && p.Finished.IsZero() {
				b.finish("a")
			}
			b.look()
			if diff := gocmp.Diff(tt.want, b.lines()); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAcknowledge(t *testing.T) {
	b := newBench(t)
	for i := range 3 {
		uid := fmt.Sprint("pod-", i)
		b.run(uid, "gpu-0")
		b.pass(5 * time.Second)
		delete(b.pods, uid)
		b.pass(time.Second)
	}
	j := b.meter.journal
	all := j.pending(100)
	if len(all) != 3 || len(j.pending(2)) != 2 {
		t.Fatalf("pending %d, want 3", len(all))
	}
	for name, ack := range map[string]struct {
		id  string
		seq int64
	}{
		"another journal":              {"other", all[2].Seq},
		"what was never written":       {j.id, j.lastSeq + 1},
		"nothing":                      {"", 0},
		"before the first":             {j.id, all[0].Seq - 1},
		"another journal, never there": {"other", 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			if err := j.acknowledge(ack.id, ack.seq); err != nil || len(j.pending(100)) != 3 {
				t.Errorf("acknowledge: %v, %d pending", err, len(j.pending(100)))
			}
		})
	}
	if err := j.acknowledge(j.id, all[1].Seq); err != nil {
		t.Fatal(err)
	}
	b.kill(nil)
	b.start()
	if diff := gocmp.Diff(all[2:], b.meter.journal.pending(100)); diff != "" {
		t.Errorf("pending after an acknowledgement and a kill (-want +got):\n%s", diff)
	}
}

// A journal that is damaged is kept, said to be damaged, and never gives a
// number twice.
func TestDamagedJournal(t *testing.T) {
	b := newBench(t)
	for i := range 4 {
		b.run(fmt.Sprint(i), "gpu-0")
		b.pass(3 * time.Second)
		delete(b.pods, fmt.Sprint(i))
		b.pass(time.Second)
	}
	before := b.meter.journal.pending(100)
	b.kill(nil)
	path := filepath.Join(b.dir, "usage.journal")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, fmt.Appendf(nil, `"seq":%d`, before[2].Seq))
	data[at] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start()
	if b.meter.journal.lost == 0 {
		t.Error("the damage was not noticed")
	}
	b.run("new", "gpu-0")
	b.pass(3 * time.Second)
	delete(b.pods, "new")
	b.pass(time.Second)
	after := b.meter.journal.pending(100)
	used := map[int64]string{}
	for _, u := range append(before, after...) {
		if pod, ok := used[u.Seq]; ok && pod != u.PodUID {
			t.Errorf("number %d stands for %s and for %s", u.Seq, pod, u.PodUID)
		}
		used[u.Seq] = u.PodUID
	}
	if kept, _ := filepath.Glob(path + ".damaged-*"); len(kept) != 1 {
		t.Errorf("the damaged file was not kept: %v", kept)
	}
}

// The journal does not grow for ever, and compaction loses nothing.
// An agent that is started again on a full disk must run: it is the dead-man.
// What it has recorded is still sent.
func TestJournalOnAFullDisk(t *testing.T) {
	full := func(string, []byte) error { return errors.New("no space left on device") }
	for name, torn := range map[string]string{"whole": "", "torn": "0000 {half"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.run("pod-1", "gpu-0")
			b.pass(time.Minute)
			b.finish("pod-1")
			b.look()
			want := b.meter.journal.pending(10)
			b.kill([]byte(torn))
			j, err := openJournalBy(b.dir, full)
			if err != nil || len(want) == 0 {
				t.Fatalf("%v, %d records before", err, len(want))
			}
			if diff := gocmp.Diff(want, j.pending(10)); diff != "" {
				t.Error(diff)
			}
			if err := j.acknowledge(j.id, want[len(want)-1].Seq); err != nil {
				t.Error(err)
			}
			if err := j.close(); err != nil {
				t.Fatal(err)
			}
			again, err := openJournal(b.dir)
			if err != nil || len(again.pending(10)) != 0 || again.lost != 0 {
				t.Errorf("what was written behind it: %v, %+v", err, again)
			}
		})
	}
	if _, err := openJournalBy(t.TempDir(), full); err == nil {
		t.Error("a journal begins on a full disk")
	}
}

func TestCompaction(t *testing.T) {
	b := newBench(t)
	j := b.meter.journal
	b.run("long", "gpu-1")
	for i := range 6000 {
		uid := fmt.Sprint("pod-", i)
		b.run(uid, "gpu-0")
		b.now += time.Second
		b.look()
		delete(b.pods, uid)
		b.now += time.Second
		b.look()
		if err := j.acknowledge(j.id, j.lastSeq-2); err != nil {
			t.Fatal(err)
		}
	}
	if j.size > 2*compactAt {
		t.Errorf("the journal has %d bytes", j.size)
	}
	want, open := j.pending(10), len(j.open)
	b.kill(nil)
	b.start()
	if diff := gocmp.Diff(want, b.meter.journal.pending(10)); diff != "" || len(b.meter.journal.open) != open {
		t.Errorf("after compaction and a kill: %d open, pending (-want +got):\n%s", len(b.meter.journal.open), diff)
	}
	b.finish("long")
	b.look()
	last := b.meter.journal.pending(100)
	if u := last[len(last)-1]; u.PodUID != "long" || u.End.Sub(u.Start) != 12000*time.Second {
		t.Errorf("the long pod's record: %+v", u)
	}
}

// TestMeterAgainstTruth plays random days of a node, with kills and wall clock
// steps, against what really happened: nobody pays for more than he held, no
// second of a device is paid twice, and a kill costs at most its own time. Only
// a kill together with a stepped wall clock leaves that time in doubt.
func TestMeterAgainstTruth(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := &bench{fatal: rt.Fatal, dir: t.TempDir(), boot: "boot-1", pods: map[string]Pod{}}
		b.start()
		b.look()
		truth := map[string]time.Duration{}
		began := map[string]time.Duration{}
		holder := map[string]string{}
		var lost, over time.Duration
		stop := func(device string, keep bool) {
			uid := holder[device]
			truth[uid] = b.now - began[uid]
			delete(holder, device)
			if keep {
				b.finish(uid)
			} else {
				delete(b.pods, uid)
			}
		}
		received := map[int64]quota.Usage{}
		for i := range rapid.IntRange(1, 30).Draw(rt, "events") {
			device := rapid.SampledFrom([]string{"gpu-0", "gpu-1"}).Draw(rt, "device")
			keep := rapid.Bool().Draw(rt, "keep")
			if holder[device] != "" {
				stop(device, keep)
			} else {
				uid := fmt.Sprint("pod-", i)
				holder[device], began[uid] = uid, b.now
				b.run(uid, device)
			}
			switch rapid.IntRange(0, 9).Draw(rt, "then") {
			case 0:
				b.kill([]byte(rapid.SampledFrom([]string{"", "0", "deadbeef {", "00000000 {}\n"}).Draw(rt, "torn")))
				down := time.Duration(rapid.IntRange(0, 60).Draw(rt, "down")) * time.Second
				lost += down + beatEvery + 2*time.Second
				b.now += down
				b.start()
			case 1:
				b.skew = time.Duration(rapid.IntRange(-3600, 3600).Filter(func(s int) bool { return s != 0 }).Draw(rt, "skew")) * time.Second
			case 2:
				collect(b, received, rt)
			}
			b.pass(time.Duration(rapid.IntRange(0, 90_000).Draw(rt, "ms")) * time.Millisecond)
		}
		for device := range holder {
			stop(device, true)
		}
		b.pass(2 * time.Second)
		collect(b, received, rt)
		if b.skew != 0 { // how the clock stood when a pod started is not known
			over = lost
		}
		compare(rt, received, truth, lost, over)
	})
}

// collect is a controller that takes records, sometimes twice.
func collect(b *bench, received map[int64]quota.Usage, rt *rapid.T) {
	j := b.meter.journal
	for _, u := range j.pending(1000) {
		if old, ok := received[u.Seq]; ok && gocmp.Diff(old, u) != "" {
			rt.Fatalf("record %d came with two contents", u.Seq)
		}
		received[u.Seq] = u
		if rapid.Bool().Draw(rt, "ack") {
			if err := j.acknowledge(j.id, u.Seq); err != nil {
				rt.Fatal(err)
			}
		}
	}
}

func compare(rt *rapid.T, received map[int64]quota.Usage, truth map[string]time.Duration, lost, over time.Duration) {
	const slack = 2 * time.Second
	paid := map[string]time.Duration{}
	byDevice := map[string][]quota.Usage{}
	for _, u := range received {
		paid[u.PodUID] += u.End.Sub(u.Start)
		byDevice[u.Device] = append(byDevice[u.Device], u)
	}
	for uid, held := range truth {
		if paid[uid] > held+slack+over || paid[uid] < held-slack-lost {
			rt.Errorf("%s held %v and pays %v", uid, held, paid[uid])
		}
	}
	for device, list := range byDevice {
		slices.SortFunc(list, func(a, b quota.Usage) int { return cmp.Or(a.Start.Compare(b.Start), a.End.Compare(b.End)) })
		for i := 1; i < len(list); i++ {
			if list[i].Start.Before(list[i-1].End) {
				rt.Errorf("%s: %s until %v and %s from %v", device, list[i-1].PodUID, list[i-1].End, list[i].PodUID, list[i].Start)
			}
		}
	}
}
