package fake

import (
	"slices"
	"time"
)

// Effect is one way in which a call goes wrong.
type Effect string

// The effects. Those that end in "Later" and NeverBoots answer the create with
// success and show themselves afterwards.
const (
	SoldOut          Effect = "sold out"           // refused, nothing made
	LimitReached     Effect = "limit reached"      // refused, nothing made
	Invalid          Effect = "invalid"            // refused, nothing made
	HalfMade         Effect = "half made"          // refused as sold out, port and volume left behind
	Throttle         Effect = "throttle"           // 429, nothing done
	Forbidden        Effect = "forbidden"          // 401, nothing done
	ServerError      Effect = "server error"       // 503, nothing done
	ServerErrorAfter Effect = "server error after" // done, then 503
	LostRequest      Effect = "lost request"       // connection cut, nothing done
	LostResponse     Effect = "lost response"      // done, then connection cut
	FalseNotFound    Effect = "false not found"    // 404 for what exists, nothing done
	Gateway          Effect = "gateway"            // 404 page of a proxy that is not the API, nothing done
	Slow             Effect = "slow"               // done, answered after Delay
	SoldOutLater     Effect = "sold out later"     // accepted, then failed: no host
	BreaksLater      Effect = "breaks later"       // accepted, then failed for a reason nobody knows
	VanishesLater    Effect = "vanishes later"     // accepted, then terminated by the cloud itself
	NeverBoots       Effect = "never boots"        // runs and bills, but nobody is home
	StuckDelete      Effect = "stuck delete"       // delete accepted, shown as deleting, and forgotten until it is asked again
	Incomplete       Effect = "incomplete list"    // 200 with a body that ends in the middle
)

// refuses reports whether the effect is the cloud's no to one request.
func (e Effect) refuses() bool { return e == SoldOut || e == LimitReached || e == Invalid }

// Fault makes calls go wrong.
type Fault struct {
	Op         string // "offers", "create", "extend", "delete", "list", "usage" or "get"
	Effect     Effect
	Times      int           // how many calls; 0 means one
	RetryAfter time.Duration // for Throttle; 0 sends none
	Delay      time.Duration // for Slow
}

// Script appends faults. Each call takes the first fault that is scripted for
// its operation; they wear off in order.
func (c *Cloud) Script(faults ...Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range faults {
		f.Times = max(f.Times, 1)
		c.faults = append(c.faults, f)
	}
}

// Heal forgets all scripted faults that have not happened yet.
func (c *Cloud) Heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = nil
}

// take returns the fault that the next call of op meets; the zero Fault means
// none. The caller holds the lock.
func (c *Cloud) take(op string) Fault { return take(&c.faults, op) }

// take takes the first fault of op out of a script.
func take(script *[]Fault, op string) Fault {
	for i, f := range *script {
		if f.Op != op {
			continue
		}
		if f.Times > 1 {
			(*script)[i].Times--
		} else {
			*script = slices.Delete(*script, i, i+1)
		}
		return f
	}
	return Fault{}
}
