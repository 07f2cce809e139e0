// Package ec2fake is an EC2 endpoint in memory. It speaks the EC2 Query
// protocol as the Amazon EC2 API Reference (version 2016-11-15) states it, and
// is driven by a real SDK only. It is built from the reference, not from what a
// driver sends: what an action does not take is refused as UnknownParameter,
// and each behaviour names the page that states it. It knows nothing of
// Spillway.
//
// Pages are named by their last part: "RunInstances" is
// docs.aws.amazon.com/AWSEC2/latest/APIReference/API_RunInstances.html,
// "errors-overview" is the table of error codes in the same place,
// "idempotency" is ec2-api-idempotency and "eventual consistency" is
// eventual-consistency of the EC2 Developer Guide.
//
// Vocabulary: a [Cloud] is one account in one region; a [Fault] is what it can
// be made to do to one call; a [Resource] is a thing of the account as its owner
// sees it from outside, past the API and its delays.
package ec2fake

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Config is what an account has before anything is bought.
type Config struct {
	Account string            // 12 digits
	Region  string            // that requests must be signed for
	Keys    map[string]string // secret keys by access key id
	Subnets []Subnet
	Images  []Image
	Types   []Type
	VCPUs   int // the account's limit for running on-demand instances; 0: none
	// PageSize bounds every page, whatever a caller asks for; 0: 1000.
	PageSize int
	// Now is the account's clock; signatures are held against the real one.
	Now    func() time.Time
	Timing Timing
}

// Timing is how long the account takes.
type Timing struct {
	BootTakes      time.Duration // pending to running
	TerminateTakes time.Duration // shutting-down to terminated
	// ListLag keeps what is new out of every describe action ("eventual
	// consistency").
	ListLag time.Duration
	// TagLag keeps tags of CreateTags out of describe actions.
	TagLag time.Duration
}

// Subnet is a network in one zone.
type Subnet struct{ ID, VPC, Zone string }

// Image is an AMI.
type Image struct {
	ID, Name, Owner string
	Arch            string // "x86_64" or "arm64"
	RootDevice      string // for example "/dev/xvda"
	SizeGiB         int    // of its snapshot
	Keeps           bool   // its mapping does not delete the volumes on termination
	DataGiB         int    // of a second volume, /dev/sdb; 0: none
}

// Type is an instance type.
type Type struct {
	Name      string
	Arch      string
	VCPUs     int
	MemoryMiB int
	Usage     []string // usage classes; nil: on-demand and spot
	GPUs      []GPU
	Zones     []string // where it is offered
	Empty     []string // where it is offered and has no stock
}

// GPU is a line of an instance type's GpuInfo.
type GPU struct {
	Maker, Name   string
	Count         int // whole devices; 0 for a part of one
	Logical       int
	MemoryMiB     int
	PartitionSize string // a fraction of a device, as written; empty: not told
}

// Cloud is one account in one region. It is safe for concurrent use.
type Cloud struct {
	cfg Config

	mu         sync.Mutex
	keys       map[string]string
	timing     Timing
	instances  map[string]*instance
	volumes    map[string]*volume
	interfaces map[string]*netInterface
	launches   map[string]launch // by client token and where it counts
	made       int               // ids given out
	faults     []Fault
	calls      map[string]int
}

// New returns an account with nothing in it.
func New(cfg Config) *Cloud {
	return &Cloud{
		cfg: cfg, keys: maps.Clone(cfg.Keys), timing: cfg.Timing,
		instances: map[string]*instance{}, volumes: map[string]*volume{}, interfaces: map[string]*netInterface{},
		launches: map[string]launch{}, calls: map[string]int{},
	}
}

// id returns a new id; the reference gives ids 17 hexadecimal digits.
func (c *Cloud) id(kind string) string {
	c.made++
	return fmt.Sprintf("%s-%017x", kind, c.made)
}

// Tune changes the account's times from now on.
func (c *Cloud) Tune(t Timing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timing = t
}

// Rotate replaces the account's keys.
func (c *Cloud) Rotate(keys map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = maps.Clone(keys)
}

// Calls is how often an action was asked for, refused calls included.
func (c *Cloud) Calls(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[action]
}

// Resource is a thing of the account.
type Resource struct {
	Kind     string // "instance", "volume" or "network-interface"
	ID       string
	State    string
	Type     string // of an instance
	Zone     string
	Instance string // that it is attached to
	Tags     map[string]string
	Asked    map[string]string // the parameters of RunInstances, of an instance
}

// Existing lists what the account holds now: instances that have not terminated,
// volumes and network interfaces, in the order in which they were made.
func (c *Cloud) Existing() []Resource {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.advance()
	var all []Resource
	for _, i := range sorted(c.instances) {
		if i.state != stateTerminated {
			all = append(all, Resource{
				Kind: kindInstance, ID: i.id, State: i.state, Type: i.kind.Name, Zone: i.subnet.Zone,
				Tags: i.tags.all(now), Asked: i.asked,
			})
		}
	}
	for _, v := range sorted(c.volumes) {
		all = append(all, Resource{
			Kind: kindVolume, ID: v.id, State: v.state(), Zone: v.zone, Instance: v.instance, Tags: v.tags.all(now),
		})
	}
	for _, n := range sorted(c.interfaces) {
		all = append(all, Resource{
			Kind: kindInterface, ID: n.id, State: n.state(), Zone: n.subnet.Zone, Instance: n.instance, Tags: n.tags.all(now),
		})
	}
	return all
}

// PowerOff lets the guest of an instance shut down ("RunInstances",
// InstanceInitiatedShutdownBehavior: stop unless the request said terminate).
func (c *Cloud) PowerOff(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.advance()
	i, ok := c.instances[id]
	if !ok || i.state != stateRunning {
		return fmt.Errorf("ec2fake: instance %s does not run", id)
	}
	if i.onShutdown != "terminate" {
		i.state = stateStopped
		return nil
	}
	c.end(i, now, reason{"Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown"}, "")
	return nil
}

// sorted returns the things in the order of their ids, which is that of their
// making.
func sorted[T any](all map[string]*T) []*T {
	list := make([]*T, 0, len(all))
	for _, id := range slices.SortedFunc(maps.Keys(all), byNumber) {
		list = append(list, all[id])
	}
	return list
}

// byNumber orders ids of one kind: all have the same length.
func byNumber(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}
