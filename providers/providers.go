// Package providers is the contract between Spillway and a cloud.
//
// A driver turns one approved request into one machine, and the machine back
// into nothing. It keeps no state: the cloud is the record, and [Driver.List]
// is how a restarted controller learns what it is still paying for.
//
// Three laws hold for every driver; package conformance tests them.
//
// The law of tokens: a token names one machine for ever. Calls of Create with
// equal tokens yield one machine, at the same time or hours apart, whether or
// not the answer of an earlier call was lost. A caller takes a new token for a
// new attempt and never asks again for a token whose machine it has seen.
//
// The law of leftovers: a machine is everything that the cloud bills for its
// token: instance, ports, volumes, addresses. Its entry leaves List only when
// nothing billable carries the token any more. A Create that is refused leaves
// nothing behind, or says [CleanupFailed].
//
// The law of the zero Kind: every error that crosses is an [*Error], and its
// [Kind] says what the caller may do next, not what the cloud called it. The
// zero Kind is the dangerous one: after [OutcomeUnknown] a machine may exist,
// so the caller looks for its token in List before it asks again. An error
// that nobody recognises is OutcomeUnknown; it is never SoldOut.
//
// Vocabulary: an [Offer] is one thing a cloud sells, a [Request] is one
// approved purchase of it, a [Machine] is what List shows for one token, and a
// [MeterRule] is how the cloud turns time into billed time. An installation is
// one Spillway with its own ledger; several may share an account, and none
// ever touches a machine of another.
package providers

import (
	"context"
	"strings"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Driver buys and returns machines in one account of one region of one cloud,
// on behalf of one installation.
//
// No method waits for a machine to boot or to be deleted. All methods are safe
// for concurrent use, return within a second after their context ends, and
// return an [*Error] when they fail.
type Driver interface {
	// Offers lists what the account can buy, sold-out offers included.
	Offers(ctx context.Context) ([]Offer, error)

	// Create asks for one machine; equal tokens yield one machine. The machine
	// carries token, installation, burst, tenant and expiry stamp from its
	// first second on: no later call is needed to make it findable. A new
	// machine may stay out of List for up to [ListDelay].
	Create(ctx context.Context, req Request) (Machine, error)

	// Extend moves the expiry stamp of a machine to a later time. A stamp
	// never moves back: an earlier time changes nothing and returns nil, so a
	// renewal that arrives late can't shorten a newer one.
	Extend(ctx context.Context, id string, until time.Time) error

	// Delete asks for the end of a machine and of all its parts, half-made
	// ones included. Nil means "asked, look again"; Kind NotFound means that
	// the cloud knows nothing of this installation under that id. A machine of
	// another installation is NotFound and stays untouched.
	Delete(ctx context.Context, id string) error

	// List returns every machine or leftover part that carries this
	// installation's tag, in every state and from every page. An entry goes
	// only when nothing billable carries its token.
	List(ctx context.Context) ([]Machine, error)
}

// ListDelay is the longest time that a new machine may stay out of
// [Driver.List]. A caller whose Create has an unknown outcome looks at once and
// once more after this time.
const ListDelay = time.Minute

// UsageReporter is the optional ability of a driver to tell from the cloud's
// own records when a machine was created, started and deleted, also after it
// has left List.
type UsageReporter interface {
	// Usage returns the cloud's record of the machine with this token. Kind
	// NotFound means that the cloud has no such record.
	Usage(ctx context.Context, token string) (Machine, error)
}

// Offer is one thing that a cloud sells, with its price and the time at which
// its availability was observed.
type Offer struct {
	Provider     string `json:"provider"`     // name of the BurstProvider
	Region       string `json:"region"`       // region in the cloud's own words
	Zone         string `json:"zone"`         // empty: the cloud chooses
	InstanceType string `json:"instanceType"` // flavor or type in the cloud's own words
	CapacityType string `json:"capacityType"` // "on-demand" or "spot"
	Country      string `json:"country"`      // ISO 3166-1 alpha-2 of the data centre

	GPUModel    string `json:"gpuModel"`    // for example "H100-80"
	GPUs        int    `json:"gpus"`        // whole devices in the machine
	GPUResource string `json:"gpuResource"` // extended resource, for example "nvidia.com/gpu"

	MilliCPU  int64  `json:"milliCPU"`
	MemoryMiB int64  `json:"memoryMiB"`
	DiskGiB   int64  `json:"diskGiB"`
	Arch      string `json:"arch"` // "amd64" or "arm64"

	Price   money.Rate        `json:"price"` // of the whole machine; zero is unknown, never free
	Meter   MeterRule         `json:"meter"`
	SoldOut bool              `json:"soldOut"`
	Seen    time.Time         `json:"seen"` // when the cloud last said so
	Labels  map[string]string `json:"labels,omitempty"`
}

// Key names an offer: provider/region/zone/type/capacity. It is stable across
// calls and restarts, and two offers differ in it when they differ in any of
// the five; a slash inside a part is written %2F.
func (o Offer) Key() string {
	return part(o.Provider) + "/" + part(o.Region) + "/" + part(o.Zone) + "/" + part(o.InstanceType) + "/" + part(o.CapacityType)
}

// part is a name as a part of a key.
func part(name string) string {
	if !strings.ContainsAny(name, "%/") {
		return name
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(name)
}

// Request is one approved purchase. All of it is final: a changed request is a
// new attempt with a new token.
type Request struct {
	Token        string    `json:"token"`        // the law of tokens; 1 to 64 characters of [A-Za-z0-9-]
	Installation string    `json:"installation"` // must be the driver's own
	Burst        string    `json:"burst"`        // UID of the Burst
	Tenant       string    `json:"tenant"`       // opaque id
	Name         string    `json:"name"`         // name of the node to be
	Offer        Offer     `json:"offer"`
	UserData     []byte    `json:"userData"` // cloud-init, read by the machine at boot
	Expires      time.Time `json:"expires"`  // first expiry stamp; never zero
}

// Machine is what a cloud holds for one token.
type Machine struct {
	ID           string `json:"id"` // the cloud's own id
	Token        string `json:"token"`
	Installation string `json:"installation"`
	Burst        string `json:"burst"`
	Tenant       string `json:"tenant"`
	Name         string `json:"name"`
	Provider     string `json:"provider"`
	Region       string `json:"region"`
	Zone         string `json:"zone"` // where it really is
	InstanceType string `json:"instanceType"`

	State     State  `json:"state"`
	Fault     string `json:"fault,omitempty"`     // the cloud's own words on a failure, for people
	FaultKind Kind   `json:"faultKind,omitempty"` // what the fault means; OutcomeUnknown when the driver can't tell

	Created time.Time `json:"created"` // the cloud accepted the request
	Started time.Time `json:"started"` // it ran for the first time; zero: never
	Deleted time.Time `json:"deleted"` // nothing of it is left; zero: not yet
	Expires time.Time `json:"expires"` // the expiry stamp; zero: lost or unreadable

	Addresses []string `json:"addresses,omitempty"`
	Parts     []Part   `json:"parts,omitempty"` // what exists now besides the instance
}

// Part is a billable thing beside the instance that belongs to a machine.
type Part struct {
	Kind string `json:"kind"` // "port", "volume", "address", "gpu"
	ID   string `json:"id"`
}

// State is how far a machine is. The empty State means that the cloud did not
// say: it is never taken for gone.
type State string

// The states of a machine. Any of them may cost money, but Deleted.
const (
	StatePending  State = "pending"  // accepted, not running yet
	StateRunning  State = "running"  // running; says nothing about the node
	StateStopped  State = "stopped"  // powered off; most clouds bill on
	StateFailed   State = "failed"   // the cloud gave up, Fault says why
	StateDeleting State = "deleting" // delete accepted
	StateLeftover State = "leftover" // no instance (any more), but parts of it
	StateDeleted  State = "deleted"  // nothing left; only in usage records
)
