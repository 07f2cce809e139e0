package fake

import (
	"context"
	"slices"
	"time"

	"spillway.dev/spillway/providers"
)

// record is a machine with what the cloud knows about its future.
type record struct {
	m         providers.Machine
	faultCode string // the fault in the API's words
	userData  []byte
	visible   time.Time // lists show it from here on
	due       time.Time // next change of state; zero: none
	fate      Effect    // what happens instead of booting
	asked     bool      // delete was asked
	partsOnly bool      // there never was an instance
	cancel    context.CancelFunc
	returned  chan struct{} // closed when Boot has returned; nil: it never ran
}

// stop ends the machine's Boot; it does not wait.
func (r *record) stop() {
	if r.cancel != nil {
		r.cancel()
	}
}

// bury marks that nothing of the machine is left.
func (r *record) bury(at time.Time) {
	if r.m.State == providers.StateDeleted {
		return
	}
	r.m.State = providers.StateDeleted
	r.m.Deleted = at
	r.m.Parts, r.m.Addresses = nil, nil
	r.due = time.Time{}
}

// halted reports whether no Boot of the machine is running.
func (r *record) halted() bool {
	if r.returned == nil {
		return true
	}
	select {
	case <-r.returned:
		return true
	default:
		return false
	}
}

// settle brings every machine up to the present; the caller holds the lock.
func (c *Cloud) settle() {
	now := c.now()
	for _, r := range c.machines {
		if r.due.IsZero() || r.due.After(now) {
			continue
		}
		switch r.m.State {
		case providers.StatePending:
			c.wake(r)
		case providers.StateDeleting:
			if r.halted() { // a machine that still runs is not gone
				r.bury(r.due)
			}
		default:
			r.due = time.Time{}
		}
	}
}

// wake ends the wait of a pending machine: it boots, or meets its fate.
func (c *Cloud) wake(r *record) {
	at := r.due
	r.due = time.Time{}
	switch r.fate {
	case SoldOutLater:
		r.m.State = providers.StateFailed
		r.m.Fault, r.faultCode = "No valid host was found. ", codeNoHost
	case BreaksLater:
		r.m.State = providers.StateFailed
		r.m.Fault, r.faultCode = "Build of instance aborted: disk pressure", "build_aborted"
	case VanishesLater:
		r.m.Fault, r.faultCode = "address space exhausted", "address_space"
		r.bury(at)
	case NeverBoots:
		r.m.State, r.m.Started = providers.StateRunning, at // and nobody is home
	default:
		r.m.State, r.m.Started = providers.StateRunning, at
		c.boot(r)
	}
}

// boot runs the machine's program; the caller holds the lock.
func (c *Cloud) boot(r *record) {
	if c.Boot == nil || c.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.returned = cancel, make(chan struct{})
	m, userData := copyOf(r.m), slices.Clone(r.userData)
	c.boots.Go(func() {
		c.Boot(ctx, m, userData)
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		close(r.returned)
		if r.m.State == providers.StateRunning {
			r.m.State = providers.StateStopped
		}
		c.settle()
	})
}

// make puts a new machine into the account; the caller holds the lock.
func (c *Cloud) make(req providers.Request, fate Effect) *record {
	now := c.now()
	r := &record{
		m: providers.Machine{
			ID: c.nextID("srv"), Token: req.Token, Installation: req.Installation,
			Burst: req.Burst, Tenant: req.Tenant, Name: req.Name,
			Provider: c.cfg.Provider, Region: c.cfg.Region, Zone: req.Offer.Zone,
			InstanceType: req.Offer.InstanceType, State: providers.StatePending,
			Created: now, Expires: req.Expires,
			Parts: []providers.Part{
				{Kind: "port", ID: c.nextID("port")},
				{Kind: "volume", ID: c.nextID("vol")},
			},
		},
		userData: slices.Clone(req.UserData),
		visible:  now.Add(c.cfg.Timing.ListLag),
		due:      now.Add(c.cfg.Timing.BootTakes),
		fate:     fate,
	}
	c.machines = append(c.machines, r)
	c.after(c.cfg.Timing.BootTakes)
	return r
}

// halfMake makes the parts of a machine that the cloud then refuses.
func (c *Cloud) halfMake(req providers.Request) *record {
	r := c.make(req, "")
	r.m.State, r.due, r.visible, r.partsOnly = providers.StateLeftover, time.Time{}, r.m.Created, true
	return r
}

// remove accepts the delete of a machine; the caller holds the lock.
func (c *Cloud) remove(r *record) {
	if r.asked {
		return
	}
	r.asked = true
	r.stop()
	takes := c.cfg.Timing.DeleteTakes
	if r.m.State == providers.StateLeftover {
		takes = 0 // no instance to wait for
	}
	r.m.State = providers.StateDeleting
	r.due = c.now().Add(takes)
	c.after(takes)
	c.settle()
}

// find returns the living machine with this id, or nil.
func (c *Cloud) find(id string) *record {
	for _, r := range c.machines {
		if r.m.ID == id && r.m.State != providers.StateDeleted {
			return r
		}
	}
	return nil
}

// byToken returns the newest machine that an installation made with a token,
// deleted ones included, or nil.
func (c *Cloud) byToken(installation, token string) *record {
	for _, r := range slices.Backward(c.machines) {
		if r.m.Token == token && r.m.Installation == installation {
			return r
		}
	}
	return nil
}

// copyOf returns a machine that shares nothing with the cloud's own.
func copyOf(m providers.Machine) providers.Machine {
	m.Parts = slices.Clone(m.Parts)
	m.Addresses = slices.Clone(m.Addresses)
	return m
}
