package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"spillway.dev/spillway/nodeagent/link"
)

// report says all that is true of the node now.
func (a *Agent) report() link.Report {
	c := a.config
	a.mu.Lock()
	r := link.Report{
		Node: c.Join.NodeName, Burst: c.Join.Burst, BootID: c.Boot, Agent: c.Version,
		Readiness: a.ready, Drained: a.drained, Clock: a.clock, Problem: clip(a.problem),
		HPKE: a.hpke, Wipe: a.session.Proof, Draining: a.wiping,
	}
	r.Staged.ManifestSHA256 = a.staged
	if a.session.Proof != nil {
		r.ProofKey = a.session.ProofKey
	} else if a.proofKey != nil {
		r.ProofKey = a.proofKey[32:]
	}
	a.mu.Unlock()
	r.Journal, r.Usage = a.journal.id, a.journal.pending(link.MaxUsage)
	if a.keeper == nil {
		return r
	}
	r.Lease = a.keeper.Serial()
	r.Draining = r.Draining || a.keeper.Phase() != Working
	r.KeyHeld, _ = a.vault.has()
	var left int
	if r.Uploads, left = reportable(a.front.Uploads()); left > 0 {
		r.Problem = fmt.Sprintf("%d older results are not reported: a report holds %d at most", left, link.MaxUploads)
	}
	s := a.front.Stats()
	r.Cache = link.Cache{
		BytesStaged: s.BytesStaged, BytesServed: s.BytesServed, BytesUpstream: s.BytesUpstream,
		NotModified: s.NotModified, PassedThrough: s.Passed, Refused: s.Refused, Failed: s.Damaged,
	}
	r.Staged.Objects, r.Staged.Of = s.ObjectsLocal, s.Objects
	return r
}

// maxResults is how many bytes of a report its results may take.
const maxResults = link.MaxBody / 2

// reportable keeps results within what a report may carry, for a report that
// is too large is refused, and a node that can't report loses its lease. The
// newest come first; where they are many and in many parts, older ones go
// without the digests of their parts, and their ETag is compared at home. What
// still has no room is left.
func reportable(all []link.Upload) (some []link.Upload, left int) {
	slices.SortStableFunc(all, func(a, b link.Upload) int { return b.At.Compare(a.At) })
	size := func(u link.Upload) int {
		data, _ := json.Marshal(u) // plain data
		return len(data) + 1
	}
	used := 0
	for i, u := range all {
		n := size(u)
		if used+n > maxResults && len(u.Parts) > 0 {
			u.Parts = nil
			n = size(u)
		}
		if used+n > maxResults || i == link.MaxUploads {
			return some, len(all) - i
		}
		used += n
		some = append(some, u)
	}
	return some, 0
}

// heard takes in one reply. It must not block: the lease comes with the next.
func (a *Agent) heard(h link.Heard) {
	a.mu.Lock()
	a.clock = h.Clock
	a.told++
	a.mu.Unlock()
	o := h.Reply.Orders
	if err := a.journal.acknowledge(o.UsageJournal, o.UsageAck); err != nil {
		a.trouble("the acknowledgement of usage was not recorded", err)
	}
	if a.keeper == nil {
		return
	}
	if len(o.Lease.Payload) > 0 {
		a.takeLease(o.Lease, h)
	}
	if o.Wipe != nil {
		a.takeWipe(*o.Wipe)
		return
	}
	if o.Key != nil {
		if err := a.takeKey(*o.Key); err != nil {
			a.trouble("the data key was not taken", err)
		}
	}
	if o.Stage != nil {
		a.mu.Lock()
		a.stage = o.Stage
		a.mu.Unlock()
		a.nudgeCache()
	}
}

func (a *Agent) notHeard(err error, pause time.Duration) {
	a.config.Log.Warn("the controller was not reached", "error", err.Error(), "next_try_in", pause.String())
}

// takeLease offers a lease to the keeper when it is this node's.
func (a *Agent) takeLease(signed link.SignedLease, h link.Heard) {
	l, err := link.OpenLease(a.config.Join.LeaseKey, signed, a.config.Join.NodeName)
	if err == nil && l.Burst != a.config.Join.Burst {
		err = fmt.Errorf("it belongs to burst %s, this node to burst %s", l.Burst, a.config.Join.Burst)
	}
	if err != nil {
		a.trouble("a lease was not taken", err)
		return
	}
	if a.keeper.Offer(l, signed, h.Asked, h.Reply.Received) {
		soft, hard := a.keeper.Left()
		a.config.Log.Info("lease taken", "serial", l.Serial, "soft_in", soft.String(), "hard_in", hard.String())
	}
}

// takeKey opens the data key for the first time. A key that was sealed to an
// agent process before this one is not an error: the controller will see the
// new public key and seal again.
func (a *Agent) takeKey(sealed link.SealedKey) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nodeKey == nil || a.wiping || a.session.WipeBegun || a.keeper.Phase() != Working || !sealed.For(a.hpke) {
		return nil
	}
	key, err := a.nodeKey.Open(sealed, a.config.Join.Burst, a.config.Join.NodeName)
	if err != nil {
		return err
	}
	defer clear(key)
	// First the note that a key was here, then the key: a crash in between
	// claims too much, never too little.
	if err := a.rememberLocked(func(s *session) { s.KeyReceived, s.KeyDestroyed = true, false }); err != nil {
		return err
	}
	a.vault.put(key)
	a.nodeKey = nil
	if err := a.makeCanary(); err != nil {
		return errors.Join(err, a.vault.destroy())
	}
	a.config.Log.Info("data key received")
	a.nudgeCache()
	return nil
}

func (a *Agent) makeCanary() error {
	key, err := a.vault.key()
	if err != nil {
		return err
	}
	defer key.Destroy()
	return a.canary.make(key)
}

func (a *Agent) nudgeCache() {
	select {
	case a.stageWork <- struct{}{}:
	default:
	}
}

// fillCache gives key and manifest to the front and keeps at it until the
// cache is filled.
func (a *Agent) fillCache(ctx context.Context) {
	var done string
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.stageWork:
		}
		a.mu.Lock()
		stage, wiping := a.stage, a.wiping
		a.mu.Unlock()
		name := "on demand"
		if stage != nil {
			name = stage.ManifestSHA256
		}
		key, err := a.vault.key()
		if err != nil || wiping || name == done {
			continue
		}
		err = a.staging.run(ctx, func(ctx context.Context) error { return a.front.Stage(ctx, key, stage) })
		key.Destroy()
		switch {
		case ctx.Err() != nil:
			return
		case a.isWiping():
			continue
		case err != nil:
			a.trouble("the cache is not filled", err)
			time.AfterFunc(stageAgain, a.nudgeCache)
			continue
		}
		done = name
		a.mu.Lock()
		if stage != nil {
			a.staged = name
		}
		a.mu.Unlock()
		a.config.Log.Info("the cache is ready", "manifest", name)
		a.client.Kick()
	}
}

// trouble logs what went wrong and tells the controller, once a problem.
func (a *Agent) trouble(what string, err error) {
	text := what
	if err != nil {
		text = fmt.Sprintf("%s: %v", what, err)
	}
	a.mu.Lock()
	same := a.problem == text
	a.problem = text
	a.mu.Unlock()
	if !same {
		a.config.Log.Error(text)
		a.client.Kick()
	}
}

// watchPods counts usage and knows who is on this node.
func (a *Agent) watchPods(ctx context.Context) {
	for {
		if err := a.lookAtPods(ctx); err != nil && ctx.Err() == nil {
			a.trouble("the pods on this node are not known", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookAtPods):
		}
	}
}

func (a *Agent) lookAtPods(ctx context.Context) error {
	pods, err := a.config.Machine.Pods(ctx)
	if err != nil {
		return err
	}
	a.pods.set(pods)
	a.mu.Lock()
	devices := a.devices
	drained := true
	for _, p := range pods {
		drained = drained && !p.Finished.IsZero()
	}
	changed := drained != a.drained
	a.drained = drained
	a.mu.Unlock()
	before := a.journal.lastUsage()
	if err := a.meter.look(pods, devices); err != nil {
		return err
	}
	if changed || a.journal.lastUsage() != before {
		a.client.Kick()
	}
	return nil
}

// watchNode reads the evidence for readiness.
func (a *Agent) watchNode(ctx context.Context) {
	for {
		a.mu.Lock()
		clock, was := a.clock, a.ready.OK()
		a.mu.Unlock()
		ready := a.looker.look(ctx, clock)
		devices, err := a.config.Machine.Devices(ctx)
		a.mu.Lock()
		a.ready = ready
		if err == nil {
			a.devices = devices
		}
		a.mu.Unlock()
		if ready.OK() != was {
			a.client.Kick()
		}
		pause := lookAround
		if !ready.OK() {
			pause = time.Second // someone waits for this node
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// loadLease takes up the lease where an agent before this one left it, or
// begins with the lease in the join data.
func (a *Agent) loadLease() (Kept, error) {
	c := a.config
	signed := c.Join.Lease
	data, err := os.ReadFile(filepath.Join(c.State, keptFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Kept{}, fmt.Errorf("read the kept lease: %w", err)
	}
	var kept Kept
	if err == nil {
		switch err := json.Unmarshal(data, &kept); {
		case err != nil: // the first lease is never longer; a node without any would live on
			c.Log.Error("the kept lease is not readable: the first one counts again", "file", keptFile, "error", err.Error())
			kept = Kept{}
		case kept.Boot == c.Boot:
			return kept, nil
		default:
			signed = kept.Lease // a new boot: the clock since boot began anew
		}
	}
	l, err := link.OpenLease(c.Join.LeaseKey, signed, c.Join.NodeName)
	if err != nil {
		return Kept{}, fmt.Errorf("the first lease is not usable: %w: have the machine booted again with fresh join data", err)
	}
	if l.Burst != c.Join.Burst {
		return Kept{}, fmt.Errorf("the first lease belongs to burst %s, the join data to burst %s: render them again", l.Burst, c.Join.Burst)
	}
	fresh := FirstLease(c.Boot, l, signed, c.Since(), c.Wall())
	fresh.Drained = kept.Drained
	a.saveLease(fresh)
	return fresh, nil
}

// saveLease keeps the lease for an agent that is started again. A disk that
// refuses does not end the node: the lease goes on in memory.
func (a *Agent) saveLease(k Kept) {
	data, err := json.Marshal(k)
	if err == nil {
		err = writeFile(filepath.Join(a.config.State, keptFile), data)
	}
	if err != nil {
		a.config.Log.Error("the lease was not written down; a restarted agent counts it by the wall clock", "error", err.Error())
	}
}

func (a *Agent) loadSession() error {
	data, err := os.ReadFile(filepath.Join(a.config.State, sessionFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the agent before this one left: %w", err)
	}
	if err := json.Unmarshal(data, &a.session); err != nil {
		// The dead-man must run all the same; the worst is taken for true.
		a.config.Log.Error("what the agent before this one left is not readable", "file", sessionFile, "error", err.Error())
		a.session = session{KeyReceived: true}
	}
	a.earlier = a.session.KeyReceived && !a.session.KeyDestroyed
	return nil
}

func (a *Agent) remember(change func(*session)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rememberLocked(change)
}

func (a *Agent) rememberLocked(change func(*session)) error {
	next := a.session
	change(&next)
	data, err := json.Marshal(next)
	if err == nil {
		err = writeFile(filepath.Join(a.config.State, sessionFile), data)
	}
	if err != nil {
		return fmt.Errorf("write the agent's session: %w: make room on the disk", err)
	}
	a.session = next
	return nil
}
