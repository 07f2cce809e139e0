package ec2fake

import (
	"fmt"
	"time"
)

// The kinds of resources, as TagSpecification names them.
const (
	kindInstance  = "instance"
	kindVolume    = "volume"
	kindInterface = "network-interface"
)

// The states of an instance ("InstanceState").
const (
	statePending      = "pending"
	stateRunning      = "running"
	stateShuttingDown = "shutting-down"
	stateTerminated   = "terminated"
	stateStopped      = "stopped"
)

// stateCode is the number of a state ("InstanceState").
func stateCode(state string) int {
	return map[string]int{
		statePending: 0, stateRunning: 16, stateShuttingDown: 32, stateTerminated: 48, stateStopped: 80,
	}[state]
}

// keptFor is how long a terminated instance stays visible ("TerminateInstances":
// approximately one hour).
const keptFor = time.Hour

// reason is why a state was reached ("StateReason").
type reason struct{ code, message string }

type instance struct {
	id, state  string
	kind       Type
	image      Image
	subnet     Subnet
	token      string // ClientToken
	onShutdown string
	public     bool
	asked      map[string]string
	tags       tags

	launched, visible time.Time
	boots             time.Time // zero: never
	fails             *Fault    // at the end of its boot time
	ended             time.Time
	terminates        time.Time
	why               reason
	transition        string // "reason": StateTransitionReason
}

type volume struct {
	id, zone, device string
	sizeGiB          int
	kind             string
	encrypted        bool
	deletes          bool   // DeleteOnTermination
	instance         string // attached to; empty: available
	made, visible    time.Time
	tags             tags
}

// state is "Volume", Status.
func (v *volume) state() string {
	if v.instance == "" {
		return "available"
	}
	return "in-use"
}

type netInterface struct {
	id       string
	subnet   Subnet
	groups   []string
	address  string
	deletes  bool
	instance string
	made     time.Time
	visible  time.Time
	tags     tags
}

// state is "NetworkInterface", Status.
func (n *netInterface) state() string {
	if n.instance == "" {
		return "available"
	}
	return "in-use"
}

// advance lets everything happen that is due, and returns the time.
func (c *Cloud) advance() time.Time {
	now := c.cfg.Now()
	for _, i := range sorted(c.instances) {
		if i.state == statePending && !i.boots.IsZero() && !now.Before(i.boots) {
			if i.fails == nil {
				i.state = stateRunning
			} else {
				c.end(i, i.boots, reason{i.fails.Code, i.fails.Code + ": " + i.fails.Message}, i.fails.Code)
				i.terminates = i.boots
			}
		}
		if i.state == stateShuttingDown && !now.Before(i.terminates) {
			i.state = stateTerminated
			c.detach(i)
		}
		if i.state == stateTerminated && now.Sub(i.terminates) >= keptFor {
			delete(c.instances, i.id)
		}
	}
	return now
}

// end begins the end of an instance.
func (c *Cloud) end(i *instance, now time.Time, why reason, transition string) {
	if i.state == stateShuttingDown || i.state == stateTerminated {
		return
	}
	i.state, i.ended, i.terminates = stateShuttingDown, now, now.Add(c.timing.TerminateTakes)
	i.why, i.transition = why, transition
}

// detach ends what is attached to an instance that has terminated, or keeps it
// where it was told so ("EbsBlockDevice" and
// "InstanceNetworkInterfaceSpecification", DeleteOnTermination).
func (c *Cloud) detach(i *instance) {
	for id, v := range c.volumes {
		if v.instance != i.id {
			continue
		}
		v.instance = ""
		if v.deletes {
			delete(c.volumes, id)
		}
	}
	for id, n := range c.interfaces {
		if n.instance != i.id {
			continue
		}
		n.instance = ""
		if n.deletes {
			delete(c.interfaces, id)
		}
	}
}

// byUser is the transition that the API itself causes.
func byUser(now time.Time) string {
	return fmt.Sprintf("User initiated (%s GMT)", now.UTC().Format("2006-01-02 15:04:05"))
}

// tags are the tags of a resource, with the times from which they are seen.
type tags []tagged

type tagged struct {
	key, value string
	from       time.Time
}

// seen is what a describe action shows.
func (t tags) seen(now time.Time) map[string]string {
	shown := map[string]string{}
	for _, tag := range t {
		if !tag.from.After(now) {
			shown[tag.key] = tag.value
		}
	}
	return shown
}

// all is what the account holds, seen or not.
func (t tags) all(now time.Time) map[string]string {
	last := now
	for _, tag := range t {
		if tag.from.After(last) {
			last = tag.from
		}
	}
	return t.seen(last)
}
