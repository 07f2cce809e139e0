// Package fake is a cloud in memory: it sells machines over HTTP, bills for
// their parts, and fails on command.
//
// A [Cloud] outlives the controller that buys from it. Its account can be
// audited from outside: [Cloud.Snapshot] shows every machine ever made,
// whatever the API says, and [Cloud.Calls] every call that asked for a change.
// [Dial] is the driver against it, held to the same promises as any other (see
// package conformance).
//
// Vocabulary: a machine has parts (a port and a volume) that are billed by
// themselves and can be left behind; to boot is to run [Cloud.Boot]; a [Fault]
// makes the next calls go wrong; a planted machine was put there by somebody
// else's hand.
package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"spillway.dev/spillway/providers"
)

// Config is what a cloud is made of. The zero value of a duration means "at
// once".
type Config struct {
	Provider string            // name of the provider, also its path in [Serve]
	Region   string            // the one region of this cloud
	Country  string            // where it stands, ISO 3166-1 alpha-2
	Secrets  []string          // bearer tokens that are accepted
	Offers   []providers.Offer // Provider, Region and Country are filled in when empty
	Timing   Timing

	// Tokenless makes a machine for every create that is done, as clouds without
	// a client token do. The driver of [Dial] does not make up for that: what
	// buys through it has to look first.
	Tokenless bool

	// Now is the cloud's clock. Nil means [time.Now], with timers that let
	// machines boot and vanish by themselves; with a clock of its own, a cloud
	// moves only when it is called or on [Cloud.Tick].
	Now func() time.Time
}

// Timing is how long the cloud takes.
type Timing struct {
	BootTakes   time.Duration // from accepted to running
	DeleteTakes time.Duration // from delete accepted to nothing left
	ListLag     time.Duration // how long a new machine stays out of lists
}

// Cloud is one account of one cloud. It is safe for concurrent use.
type Cloud struct {
	// Boot is what "a machine boots" means; nil boots nothing. It is set before
	// the first machine is bought and runs in a goroutine of its own. Its
	// context ends when the machine is deleted; when it returns by itself, the
	// machine has powered off, which does not stop the bill.
	Boot func(ctx context.Context, m providers.Machine, userData []byte)

	mu       sync.Mutex
	cfg      Config
	secrets  map[string]bool
	offers   []providers.Offer
	machines []*record
	faults   []Fault
	calls    []Call
	serial   int
	closed   bool
	boots    sync.WaitGroup
}

// New returns a cloud without machines.
func New(cfg Config) *Cloud {
	c := &Cloud{cfg: cfg, secrets: map[string]bool{}}
	for _, s := range cfg.Secrets {
		c.secrets[s] = true
	}
	for _, o := range cfg.Offers {
		o.Labels = maps.Clone(o.Labels)
		if o.Provider == "" {
			o.Provider = cfg.Provider
		}
		if o.Region == "" {
			o.Region = cfg.Region
		}
		if o.Country == "" {
			o.Country = cfg.Country
		}
		c.offers = append(c.offers, o)
	}
	return c
}

// Close ends every running Boot and waits until they have returned. The
// account stays readable; nothing boots any more.
func (c *Cloud) Close() {
	c.mu.Lock()
	c.closed = true
	for _, r := range c.machines {
		r.stop()
	}
	c.mu.Unlock()
	c.boots.Wait()
}

// Provider returns the provider's name.
func (c *Cloud) Provider() string { return c.cfg.Provider }

// Tick lets everything happen that is due on the cloud's clock.
func (c *Cloud) Tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
}

// Tune changes how long the cloud takes, for machines bought and deletes asked
// from now on.
func (c *Cloud) Tune(t Timing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cfg.Timing = t
}

// SellOut sets whether the offer with this key is sold out.
func (c *Cloud) SellOut(offerKey string, soldOut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.offers {
		if c.offers[i].Key() == offerKey {
			c.offers[i].SoldOut = soldOut
		}
	}
}

// Rotate replaces the accepted bearer tokens.
func (c *Cloud) Rotate(secrets ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.secrets)
	for _, s := range secrets {
		c.secrets[s] = true
	}
}

// Plant puts a machine into the account by another hand than the driver's: a
// foreign one, a duplicate, one that nobody knows. Empty ID, State, Provider,
// Region and Created are filled in. It returns the machine as planted.
func (c *Cloud) Plant(m providers.Machine) providers.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if m.ID == "" {
		m.ID = c.nextID("srv")
	}
	if m.State == "" {
		m.State = providers.StateRunning
	}
	if m.Provider == "" {
		m.Provider, m.Region = c.cfg.Provider, c.cfg.Region
	}
	if m.Created.IsZero() {
		m.Created = now
	}
	if m.State == providers.StateRunning && m.Started.IsZero() {
		m.Started = m.Created
	}
	c.machines = append(c.machines, &record{m: m, visible: now, partsOnly: m.State == providers.StateLeftover})
	return copyOf(m)
}

// Vanish removes a machine out of band, all parts included, as a cloud's own
// staff or an outage does. An unknown id is ignored.
func (c *Cloud) Vanish(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.machines {
		if r.m.ID == id {
			r.stop()
			r.bury(c.now())
		}
	}
}

// Snapshot lists every machine ever made, deleted ones included, oldest first:
// the truth, whatever the API shows.
func (c *Cloud) Snapshot() []providers.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	out := make([]providers.Machine, 0, len(c.machines))
	for _, r := range c.machines {
		out = append(out, copyOf(r.m))
	}
	return out
}

// Billing lists what still costs money: every machine of the snapshot of which
// anything is left, foreign ones included.
func (c *Cloud) Billing() []providers.Machine {
	return slices.DeleteFunc(c.Snapshot(), func(m providers.Machine) bool {
		return m.State == providers.StateDeleted
	})
}

// Call is one call that asked for a change.
type Call struct {
	At     time.Time
	Op     string // "create", "extend" or "delete"
	Token  string // of the machine asked about; empty when unknown
	ID     string // of the machine made, changed or asked for
	Done   bool   // the cloud did what was asked
	Status int    // HTTP status that was sent; 0: the connection was cut
}

// Calls returns the log of mutating calls, oldest first.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// now reads the cloud's clock.
func (c *Cloud) now() time.Time {
	if c.cfg.Now != nil {
		return c.cfg.Now()
	}
	return time.Now()
}

// nextID numbers things; the caller holds the lock.
func (c *Cloud) nextID(prefix string) string {
	c.serial++
	return fmt.Sprintf("%s-%s-%04d", prefix, c.cfg.Provider, c.serial)
}

// after makes sure that the cloud looks at its clock again in d; the caller
// holds the lock.
func (c *Cloud) after(d time.Duration) {
	if c.cfg.Now == nil && d > 0 {
		time.AfterFunc(d, c.Tick)
	}
}
