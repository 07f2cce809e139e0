package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"spillway.dev/spillway/nodeagent/link"
)

// The dead-man's schedule. Wipe and OffBy count from the hard end.
const (
	stopAgain   = 5 * time.Second   // pods that did not stop are asked again
	stopTry     = 10 * time.Second  // one request to stop
	wipeWithin  = 90 * time.Second  // after that the machine goes off, wiped or not
	wipeAtLeast = 30 * time.Second  // for a machine that slept through its hard end or was started after it
	offTry      = 5 * time.Second   // one request to power off
	offAgain    = time.Second       // pause between two of them
	OffBy       = 120 * time.Second // the last moment for the machine to be off
	lookAtClock = time.Second       // how often the lease clock is read
)

// Phase is where a node stands in its lease. It only ever rises.
type Phase int

// The phases of a node.
const (
	Working  Phase = iota // soft lies ahead
	Draining              // soft has passed: no new work, pods are asked to stop
	Ending                // hard has passed: wipe and power off
)

func (p Phase) String() string {
	return [...]string{"working", "draining", "ending"}[p]
}

// Ender does what the ends of a lease ask for. A call that hangs is left
// behind when its context ends.
type Ender interface {
	// Stop asks all pods to end and returns nil when none runs any more.
	Stop(ctx context.Context, reason string) error
	// Wipe wipes the node, as far as it gets until ctx ends.
	Wipe(ctx context.Context, reason string) error
	// PowerOff returns nil when the machine is going off.
	PowerOff(ctx context.Context, reason string) error
}

// Keeper is the dead-man switch: it keeps a node's lease on a clock that
// nobody can set, and ends the node when the lease ends.
//
// A lease is anchored once: its ends are turned into readings of Since when it
// arrives, by the controller's clock when there was contact. From then on no
// step of any wall clock moves them.
type Keeper struct {
	since func() time.Duration // monotonic, counts sleep too
	ender Ender

	mu       sync.Mutex
	kept     Kept
	phase    Phase
	changed  chan struct{} // closed when the phase or an end has changed
	onChange func(Kept)
}

// Kept is the lease as the keeper counts it, in a form that a restarted agent
// can take up again on the same boot.
type Kept struct {
	Boot     string        `json:"boot"`     // boot id that Soft and Hard belong to
	Serial   int64         `json:"serial"`   // of the lease, 0 for none
	Soft     time.Duration `json:"soft"`     // reading of Since
	Hard     time.Duration `json:"hard"`     // reading of Since
	Anchored bool          `json:"anchored"` // by the controller's clock, not by the node's own
	Drained  bool          `json:"drained"`  // soft has passed once; a later lease does not undo it
	// Lease is the newest lease as it was signed, for a node that boots again.
	Lease link.SignedLease `json:"lease"`
}

// NewKeeper returns a keeper that counts kept on since. changed, when not nil,
// is called with every change that a restarted agent must know, in order.
func NewKeeper(kept Kept, since func() time.Duration, ender Ender, changed func(Kept)) *Keeper {
	k := &Keeper{since: since, ender: ender, kept: kept, changed: make(chan struct{}), onChange: changed}
	if kept.Drained {
		k.phase = Draining
	}
	k.look()
	return k
}

// FirstLease anchors a lease before there was any contact, by the node's own
// wall clock. A wall clock that is behind can't make it longer than it was
// when it was signed.
func FirstLease(boot string, l link.Lease, signed link.SignedLease, since time.Duration, wall time.Time) Kept {
	soft, hard := l.Soft.Sub(wall), l.Hard.Sub(wall)
	if !l.Issued.IsZero() {
		soft, hard = min(soft, l.Soft.Sub(l.Issued)), min(hard, l.Hard.Sub(l.Issued))
	}
	return Kept{Boot: boot, Serial: l.Serial, Soft: since + soft, Hard: since + hard, Lease: signed}
}

// Offer takes up a newer lease and returns whether it did. asked is a reading
// of Since at which the controller's clock showed no later time than received;
// counting from there, delays in the network can only shorten a lease.
//
// A lower serial is ignored. The same serial is taken once more when it was
// anchored by the node's own clock only. A node that is ending takes nothing.
func (k *Keeper) Offer(l link.Lease, signed link.SignedLease, asked time.Duration, received time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookLocked()
	again := l.Serial == k.kept.Serial && !k.kept.Anchored
	if k.phase == Ending || (l.Serial <= k.kept.Serial && !again) {
		return false
	}
	k.kept.Serial, k.kept.Lease, k.kept.Anchored = l.Serial, signed, true
	k.kept.Soft, k.kept.Hard = asked+l.Soft.Sub(received), asked+l.Hard.Sub(received)
	k.lookLocked()
	k.announce()
	k.wake()
	return true
}

// Phase returns where the node stands now.
func (k *Keeper) Phase() Phase { return k.look() }

// Serial returns the serial of the lease that the node lives by.
func (k *Keeper) Serial() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.kept.Serial
}

// Left returns how long the node may still work and how long it may live.
func (k *Keeper) Left() (soft, hard time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.since()
	return k.kept.Soft - now, k.kept.Hard - now
}

func (k *Keeper) look() Phase {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lookLocked()
}

// lookLocked reads the clock and raises the phase when an end has passed.
func (k *Keeper) lookLocked() Phase {
	now := k.since()
	before := k.phase
	switch {
	case now >= k.kept.Hard:
		k.phase = Ending
	case now >= k.kept.Soft && k.phase == Working:
		k.phase = Draining
	}
	if k.phase > Working && !k.kept.Drained {
		k.kept.Drained = true
		k.announce()
	}
	if k.phase != before {
		k.wake()
	}
	return k.phase
}

// wake lets await look again.
func (k *Keeper) wake() {
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *Keeper) announce() {
	if k.onChange != nil {
		k.onChange(k.kept)
	}
}

// Run keeps the lease until the node has ended. It returns nil when the
// machine is going off, an error when that could not be reached by OffBy after
// the hard end, and ctx's error when the agent was told to end.
func (k *Keeper) Run(ctx context.Context) error {
	if err := k.await(ctx, Draining); err != nil {
		return err
	}
	draining, ended := context.WithCancel(ctx)
	defer ended()
	go k.drain(draining)
	if err := k.await(ctx, Ending); err != nil {
		return err
	}
	ended()
	return k.end(ctx)
}

// await looks at the clock, often enough that also a machine that slept sees
// its lease end within a second of waking.
func (k *Keeper) await(ctx context.Context, phase Phase) error {
	for {
		k.mu.Lock()
		reached := k.lookLocked() >= phase
		changed := k.changed
		k.mu.Unlock()
		if reached {
			return nil
		}
		soft, hard := k.Left()
		next := min(hard, lookAtClock)
		if soft > 0 {
			next = min(soft, next)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(next):
		}
	}
}

// drain asks the pods to stop until they have.
func (k *Keeper) drain(ctx context.Context) {
	for ctx.Err() == nil {
		err := bounded(ctx, stopTry, func(ctx context.Context) error {
			return k.ender.Stop(ctx, "the lease's soft end has passed without contact to the controller")
		})
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(stopAgain):
		}
	}
}

// end wipes, then powers off, and never waits for the one beyond its time.
func (k *Keeper) end(ctx context.Context) error {
	const reason = "the lease's hard end has passed"
	_, left := k.Left() // zero, or negative when the clock was read late
	giveUp := k.since() + max(OffBy+left, wipeAtLeast+wipeAtLeast)
	wipeErr := bounded(ctx, max(wipeWithin+left, wipeAtLeast), func(ctx context.Context) error {
		return k.ender.Wipe(ctx, reason)
	})
	for {
		err := bounded(ctx, offTry, func(ctx context.Context) error {
			return k.ender.PowerOff(ctx, reason)
		})
		if err == nil {
			return nil
		}
		if k.since() >= giveUp {
			return fmt.Errorf("power off after the lease's hard end: %w: let the service manager force it", errors.Join(err, wipeErr))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(offAgain):
		}
	}
}

// bounded runs f and returns when it returns or d is over, whichever comes
// first. A call that does not heed its context is left behind.
func bounded(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
