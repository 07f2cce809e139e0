package main

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

const long = 10 * time.Minute

// TestLifeOfABurstNode runs the agent from the first lease to power off, with a
// real hub, a real front and a gate that sees what leaves the node.
func TestLifeOfABurstNode(t *testing.T) {
	w := newWorld(t, long, 2*long)
	agent := w.agent("--front", w.front)

	r := w.report("the first report", func(r link.Report) bool { return r.Clock.Known })
	if r.KeyHeld || r.Lease != 1 || r.Burst != burstUID {
		t.Errorf("first report: %+v", r)
	}
	w.report("all evidence but the host's own swap is good", func(r link.Report) bool {
		for _, e := range r.Readiness.Evidence {
			if !e.OK && e.Gate != "swap" {
				return false
			}
		}
		return len(r.Readiness.Evidence) == 6
	})

	// Without a key the front is a plain passage.
	if body, err := w.job("GET", "/data/train/part-0", ""); err != nil || body != secret {
		t.Errorf("before the key: %q, %v", body, err)
	}
	if full, _ := w.gate.counts(); full != 1 {
		t.Errorf("the gate sent %d bodies", full)
	}

	// The key, sealed to this agent process, and the staged data.
	sealed, err := link.SealKey(r.HPKE, burstUID, nodeName, w.dataKey)
	if err != nil {
		t.Fatal(err)
	}
	orders := link.Orders{Key: &sealed, Stage: w.stage()}
	w.hub.Tell(nodeName, orders)
	r = w.report("the cache is filled", func(r link.Report) bool { return r.Staged.ManifestSHA256 != "" })
	if !r.KeyHeld || r.Staged.Objects != 1 || r.Cache.BytesStaged == 0 {
		t.Errorf("after the key: %+v", r)
	}
	if body, err := w.job("GET", "/data/train/part-0", ""); err != nil || body != secret {
		t.Errorf("from the cache: %q, %v", body, err)
	}
	if full, not := w.gate.counts(); full != 1 || not != 1 {
		t.Errorf("the gate sent %d bodies and %d times 304, want the store's word and the node's bytes", full, not)
	}
	if _, err := w.job("PUT", "/out/model", "the result"); err != nil {
		t.Fatal(err)
	}
	w.machine.run("pod-1")
	w.report("the result is reported", func(r link.Report) bool { return len(r.Uploads) == 1 && r.Uploads[0].Key == "model" })
	w.report("the pod is seen", func(r link.Report) bool { return !r.Drained })
	noClearText(t, w)

	// The wipe: pods, key, front, canary, area.
	orders.Key, orders.Stage = nil, nil
	orders.Wipe = &link.WipeOrder{ID: "order-1", Reason: "the work is done"}
	w.hub.Tell(nodeName, orders)
	r = w.report("the wipe's proof", func(r link.Report) bool { return r.Wipe != nil && len(r.Usage) == 1 })
	checkProof(t, w, r)
	if r.Usage[0].PodUID != "pod-1" || r.Usage[0].Burst != burstUID || r.Usage[0].Tenant != "" {
		t.Errorf("usage: %+v", r.Usage[0])
	}

	// A key that is told again after the wipe is not taken.
	again, err := link.SealKey(r.HPKE, burstUID, nodeName, w.dataKey)
	if err != nil {
		t.Fatal(err)
	}
	w.hub.Tell(nodeName, link.Orders{Key: &again, UsageAck: r.Usage[0].Seq, UsageJournal: r.Journal, Lease: w.lease(2, long, 2*long)})
	r = w.report("the next lease and the acknowledgement", func(r link.Report) bool { return r.Lease == 2 && len(r.Usage) == 0 })
	if r.KeyHeld {
		t.Error("a wiped node took a key")
	}

	// The last lease ends.
	w.hub.Tell(nodeName, link.Orders{Lease: w.lease(3, time.Second, 2*time.Second)})
	if code := agent.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, offs := w.machine.asked(); offs != 1 {
		t.Errorf("%d orders to power off", offs)
	}
}

// checkProof verifies the node's proof and looks itself.
func checkProof(t *testing.T, w *world, r link.Report) {
	t.Helper()
	p, err := wipe.Verify(ed25519.PublicKey(r.ProofKey), *r.Wipe)
	if err != nil {
		t.Fatal(err)
	}
	if p.Level() != wipe.Complete || p.OrderID != "order-1" || p.FilesRemoved < 2 || !p.KeyReceived || !p.Canary.OpenedBefore {
		t.Errorf("proof: level %q, reasons %q, %+v", p.Level(), p.Reasons(), p)
	}
	if _, err := w.job("GET", "/data/train/part-0", ""); err == nil {
		t.Error("the front still serves")
	}
	if r.KeyHeld || !r.Draining {
		t.Errorf("after the wipe: key held %t, draining %t", r.KeyHeld, r.Draining)
	}
	if stops, _ := w.machine.asked(); stops == 0 {
		t.Error("nobody asked the pods to stop")
	}
	left, err := os.ReadDir(filepath.Join(w.state(), "sealed"))
	if err != nil || len(left) > 0 {
		t.Errorf("left in the area: %v, %v", left, err)
	}
}

// noClearText searches the node's disk, and shows that the search would find
// something.
func noClearText(t *testing.T, w *world) {
	t.Helper()
	for what, needle := range map[string]string{"cleartext": secret[:16], "the data key": string(w.dataKey[:])} {
		if found := w.onDisk(needle); len(found) > 0 {
			t.Errorf("%s in %v", what, found)
		}
	}
	control := filepath.Join(w.state(), "control")
	if err := os.WriteFile(control, []byte("x"+secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if found := w.onDisk(secret[:16]); len(found) != 1 {
		t.Errorf("the search is blind: %v", found)
	}
	if err := os.Remove(control); err != nil {
		t.Fatal(err)
	}
}

// The controller is gone for good: the pods are stopped, the node is wiped and
// off, and the log says why. cases: N57: nothing happens before soft.
func TestControllerGone(t *testing.T) {
	w := newWorld(t, 4*time.Second, 6*time.Second)
	w.machine.run("pod-1")
	w.machine.mu.Lock()
	w.machine.deaf = true // not even that stops it
	w.machine.mu.Unlock()
	w.hubTCP.Close()
	agent := w.agent("--front", w.front)
	if code := agent.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	stops, offs := w.machine.asked()
	if stops == 0 || offs != 1 {
		t.Errorf("%d orders to stop, %d to power off", stops, offs)
	}
	for _, want := range []string{"pods are being stopped", "the lease has ended: the node is wiped and powered off", "the machine is going off"} {
		if !strings.Contains(agent.log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// An expired first lease never starts work: nothing listens, and the machine
// goes off.
func TestExpiredLeaseAtStart(t *testing.T) {
	w := newWorld(t, -2*time.Minute, -time.Minute)
	agent := w.agent("--front", w.front)
	if code := agent.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, offs := w.machine.asked(); offs != 1 {
		t.Errorf("%d orders to power off", offs)
	}
	if log := agent.log.String(); !strings.Contains(log, "no work is begun") {
		t.Errorf("log: %s", log)
	}
}

// A lease that another key signed, or of another node or burst, is not taken,
// and an old one that is told again changes nothing.
func TestHostileLeases(t *testing.T) {
	w := newWorld(t, long, 2*long)
	w.agent("--front", w.front)
	w.report("the first report", func(link.Report) bool { return true })
	w.hub.Tell(nodeName, link.Orders{Lease: w.lease(5, long, 2*long)})
	w.report("a real lease", func(r link.Report) bool { return r.Lease == 5 })
	_, foreign, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(key ed25519.PrivateKey, l link.Lease) link.SignedLease {
		l.Soft, l.Hard = time.Now(), time.Now() // it would end the node at once
		s, err := link.SignLease(key, l)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for name, lease := range map[string]link.SignedLease{
		"signature does not match": sign(foreign, link.Lease{Burst: burstUID, Node: nodeName, Serial: 9}),
		"names node other":         sign(w.leaseKey, link.Lease{Burst: burstUID, Node: "other", Serial: 9}),
		"belongs to burst other":   sign(w.leaseKey, link.Lease{Burst: "other", Node: nodeName, Serial: 9}),
	} {
		t.Run(name, func(t *testing.T) {
			w.hub.Tell(nodeName, link.Orders{Lease: lease})
			r := w.report("the refusal", func(r link.Report) bool { return strings.Contains(r.Problem, name) })
			if r.Lease != 5 || r.Draining {
				t.Errorf("lease %d, draining %t", r.Lease, r.Draining)
			}
		})
	}
	w.hub.Tell(nodeName, link.Orders{Lease: sign(w.leaseKey, link.Lease{Burst: burstUID, Node: nodeName, Serial: 4})})
	time.AfterFunc(2*time.Second, func() {
		w.hub.Tell(nodeName, link.Orders{Lease: w.lease(6, long, 2*long)})
	})
	if r := w.report("the lease after the old one", func(r link.Report) bool { return r.Lease == 6 }); r.Draining {
		t.Error("a replayed lease ended the node's work")
	}
}

// Usage survives kill -9 and is sent until it is acknowledged, under the same
// key. On-prem there is no lease and no front.
func TestUsageSurvivesAKill(t *testing.T) {
	w := newWorld(t, long, 2*long)
	w.join.Burst = ""
	first := w.agent("--on-prem")
	w.machine.run("pod-1")
	w.report("the pod is seen", func(r link.Report) bool { return !r.Drained && r.Clock.Known })
	w.machine.finish("pod-1")
	before := w.report("its record", func(r link.Report) bool { return len(r.Usage) == 1 })
	w.machine.run("pod-2")
	w.report("the next pod is seen", func(r link.Report) bool { return !r.Drained })
	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	first.exit()
	w.hub.Forget(nodeName)

	second := w.agent("--on-prem")
	w.report("the second agent", func(r link.Report) bool { return r.Clock.Known })
	w.machine.finish("pod-2")
	after := w.report("both records", func(r link.Report) bool { return len(r.Usage) == 2 })
	if after.Usage[0] != before.Usage[0] {
		t.Errorf("the record changed:\n%+v\n%+v", before.Usage[0], after.Usage[0])
	}
	if u := after.Usage[1]; u.PodUID != "pod-2" || key(u) == key(after.Usage[0]) {
		t.Errorf("the record of the pod that ran across the kill: %+v", u)
	}
	w.hub.Tell(nodeName, link.Orders{UsageJournal: after.Journal, UsageAck: after.Usage[1].Seq})
	w.report("nothing is left to send", func(r link.Report) bool { return len(r.Usage) == 0 })
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := second.exit(); code != 0 {
		t.Errorf("told to end: exit code %d", code)
	}
}

func key(u quota.Usage) [4]any { return [4]any{u.Node, u.Boot, u.Journal, u.Seq} }

// An agent that was killed with the key says so in its proof: the wipe is not
// complete, whatever the next process does.
func TestKillWithTheKeyIsSaid(t *testing.T) {
	w := newWorld(t, long, 2*long)
	first := w.agent("--front", w.front)
	w.releaseKey()
	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	first.exit()
	w.hub.Forget(nodeName)
	w.agent("--front", w.front)
	w.releaseKey()
	p := w.wipe()
	if p.Level() != wipe.Partial || !strings.Contains(strings.Join(p.Reasons(), ";"), "earlier agent process") {
		t.Errorf("level %q, reasons %q", p.Level(), p.Reasons())
	}
}

// What an agent process left behind is not forgotten when one after it ends in
// order: no later proof may say that every copy of the key was overwritten.
func TestKillWithTheKeyIsNeverForgotten(t *testing.T) {
	w := newWorld(t, long, 2*long)
	for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		agent := w.agent("--front", w.front)
		w.releaseKey()
		if err := agent.cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		agent.exit()
		w.hub.Forget(nodeName)
	}
	w.agent("--front", w.front)
	w.releaseKey()
	if p := w.wipe(); p.Level() != wipe.Partial || !strings.Contains(strings.Join(p.Reasons(), ";"), "earlier agent process") {
		t.Errorf("level %q, reasons %q", p.Level(), p.Reasons())
	}
}

// An agent that was started again in order and gets no key before the wipe
// does not say that none was ever here.
func TestKeyOfAnEarlierProcessIsSaid(t *testing.T) {
	w := newWorld(t, long, 2*long)
	first := w.agent("--front", w.front)
	w.releaseKey()
	if err := first.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	first.exit()
	w.hub.Forget(nodeName)
	w.hub.Tell(nodeName, link.Orders{})
	w.agent("--front", w.front)
	p := w.wipe()
	if !p.KeyReceived || p.Level() == wipe.Complete {
		t.Errorf("level %q, %+v", p.Level(), p)
	}
	for _, s := range p.Steps {
		if strings.Contains(s.Detail, "no key was ever received") {
			t.Errorf("step %q says %q", s.Name, s.Detail)
		}
	}
}

// What jobs wrote is known to the agent that is started after a kill, also
// when the controller has forgotten it: else nobody would look at home whether
// it is there. The list on the disk names no object.
func TestResultsSurviveAKill(t *testing.T) {
	w := newWorld(t, long, 2*long)
	first := w.agent("--front", w.front)
	if _, err := w.job("PUT", "/out/before-the-key", "early"); err != nil {
		eventually(t, "the front listens", func() bool { _, err = w.job("PUT", "/out/before-the-key", "early"); return err == nil })
	}
	w.releaseKey()
	for _, key := range []string{"model", "rewritten", "removed"} {
		for _, method := range []string{"PUT", "PUT"} {
			if _, err := w.job(method, "/out/"+key, "the result"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.job("DELETE", "/out/removed", ""); err != nil {
		t.Fatal(err)
	}
	want := w.report("the results", func(r link.Report) bool { return len(r.Uploads) == 3 }).Uploads
	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	first.exit()
	w.hub.Forget(nodeName)
	for _, name := range []string{"model", "rewritten", "before-the-key"} {
		if found := w.onDisk(name); len(found) > 0 {
			t.Errorf("the name of a result lies in %v", found)
		}
	}
	w.agent("--front", w.front)
	w.releaseKey()
	got := w.report("the results again", func(r link.Report) bool { return len(r.Uploads) == 3 }).Uploads
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if p := w.wipe(); p.FilesRemoved < 2 {
		t.Errorf("the wipe removed %d files, want the canary and the list of results", p.FilesRemoved)
	}
}

// The dead-man needs nothing but the join data: not the certificate that the
// kubelet may never get, not the files of an agent before this one.
func TestDeadManNeedsNoFiles(t *testing.T) {
	w := newWorld(t, 2*time.Second, 3*time.Second)
	if err := os.MkdirAll(w.state(), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lease.json", "session.json"} {
		if err := os.WriteFile(filepath.Join(w.state(), name), []byte("{torn"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	agent := w.agent("--front", w.front, "--client-cert", "/nowhere", "--client-key", "/nowhere")
	if code := agent.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, offs := w.machine.asked(); offs != 1 {
		t.Errorf("%d orders to power off", offs)
	}
}

// A wipe is for good: an agent that is started again after it takes no key,
// serves nothing, and reports the same proof.
func TestWipeIsForGood(t *testing.T) {
	w := newWorld(t, long, 2*long)
	first := w.agent("--front", w.front)
	w.report("a report", func(link.Report) bool { return true })
	w.hub.Tell(nodeName, link.Orders{Wipe: &link.WipeOrder{ID: "order-1"}})
	before := w.report("the proof", func(r link.Report) bool { return r.Wipe != nil })
	if err := first.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	first.exit()
	w.hub.Forget(nodeName)
	w.agent("--front", w.front)
	after := w.report("the proof again", func(r link.Report) bool { return r.Wipe != nil })
	p, err := wipe.Verify(after.ProofKey, *after.Wipe)
	if err != nil || !bytes.Equal(before.Wipe.Payload, after.Wipe.Payload) || p.KeyReceived {
		t.Errorf("proof after a restart: %v, %+v", err, p)
	}
	sealed, err := link.SealKey(after.HPKE, burstUID, nodeName, w.dataKey)
	if err != nil {
		t.Fatal(err)
	}
	w.hub.Tell(nodeName, link.Orders{Key: &sealed, Lease: w.lease(2, long, 2*long)})
	if r := w.report("the lease that came with the key", func(r link.Report) bool { return r.Lease == 2 }); r.KeyHeld {
		t.Error("a wiped node took a key")
	}
	if _, err := w.job("GET", "/data/train/part-0", ""); err == nil {
		t.Error("a wiped node serves")
	}
}

// A lease that ends while the controller can still be reached: the proof
// arrives before the machine is off.
func TestLastWord(t *testing.T) {
	w := newWorld(t, long, 2*long)
	agent := w.agent("--front", w.front)
	w.report("a report", func(link.Report) bool { return true })
	w.hub.Tell(nodeName, link.Orders{Lease: w.lease(2, 500*time.Millisecond, time.Second)})
	if code := agent.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	r, _, ok := w.hub.Report(nodeName)
	if !ok || r.Wipe == nil {
		t.Fatal("the proof did not arrive")
	}
	p, err := wipe.Verify(r.ProofKey, *r.Wipe)
	if err != nil || p.OrderID != "" || !strings.Contains(p.Cause, "hard end") {
		t.Errorf("proof: %v, %+v", err, p)
	}
}

func TestWrongUsage(t *testing.T) {
	w := newWorld(t, long, 2*long)
	empty := filepath.Join(w.dir, "empty.json")
	if err := os.WriteFile(empty, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := func(join string) []string {
		return []string{"--join", join, "--client-cert", "c", "--client-key", "k", "--state", w.state(), "--pods", "p"}
	}
	tests := map[string]struct {
		args []string
		code int
		want string
	}{
		"no flags":              {nil, 2, "--join is missing"},
		"an unknown flag":       {[]string{"--lease-forever"}, 2, "flag provided but not defined"},
		"an argument":           {append(all("j"), "--on-prem", "more"), 2, `unexpected argument "more"`},
		"neither front nor not": {all("j"), 2, "give --front on a burst node, or --on-prem"},
		"both":                  {append(all("j"), "--on-prem", "--front", "127.0.0.1:1"), 2, "give --front on a burst node, or --on-prem"},
		"help":                  {[]string{"--help"}, 0, "usage: spillway-agent"},
		"no join data":          {append(all("/nowhere"), "--on-prem"), 1, "read join data: open /nowhere: no such file"},
		"empty join data":       {append(all(empty), "--on-prem"), 1, "join data lacks nodeName"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := start(t, tt.args...)
			if code := c.exit(); code != tt.code || !strings.Contains(c.log.String(), tt.want) {
				t.Errorf("exit code %d, want %d, and %q in:\n%s", code, tt.code, tt.want, c.log)
			}
		})
	}
}
