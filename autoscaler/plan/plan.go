package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// Plan is the outcome for every gang of a State, in the order of deciding:
// priority, then age, then name.
type Plan struct {
	At        time.Time  `json:"at"`
	Decisions []Decision `json:"decisions"`
}

// Verdict is the kind of an outcome.
type Verdict string

// The verdicts.
const (
	// Wait: nothing is bought now; Until says when to look again.
	Wait Verdict = "wait"
	// Buy: Burst is to be bought.
	Buy Verdict = "burst"
	// WouldBuy: Burst would be bought, but the tenant only observes.
	WouldBuy Verdict = "would burst"
	// Refuse: nothing may be bought until somebody changes something.
	Refuse Verdict = "refuse"
)

// Code is a stable name of a reason, for people to search for and for programs
// to switch on. The list stands in codes.go.
type Code string

// Reason is why: a stable code, the evidence, and what the reader can do.
type Reason struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Decision is the outcome for one gang.
type Decision struct {
	Owner   Owner   `json:"owner"`
	Tenant  string  `json:"tenant,omitempty"` // name of the BurstTenant
	Verdict Verdict `json:"verdict"`
	Reason
	// Until is when time alone can change the outcome; zero: it can't.
	Until time.Time `json:"until,omitzero"`
	// Burst is set for Buy and WouldBuy.
	Burst *Burst `json:"burst,omitempty"`
	// More are bought with it, for other pods of the same owner: independent
	// pods may be split where machines of several types are cheaper, or one
	// burst has not enough of them.
	More []Burst `json:"more,omitempty"`
	// Refusals are all reasons against single offers or against the work
	// itself, sorted by offer.
	Refusals []Refusal `json:"refusals,omitempty"`
}

// Refusal is one reason against one offer, or against the work wherever it
// would go: then Provider and Offer are empty.
type Refusal struct {
	Provider string `json:"provider,omitempty"`
	Offer    string `json:"offer,omitempty"` // key of the offer
	Reason
	// Until is when the reason ends by itself; zero: it does not.
	Until time.Time `json:"until,omitzero"`
}

// Burst is everything that a Burst object needs.
type Burst struct {
	// Name is a hash of the owner's UID and the attempt: creating the same
	// decision twice is one object.
	Name    string `json:"name"`
	Owner   Owner  `json:"owner"`
	Attempt int32  `json:"attempt"`

	Tenant    string `json:"tenant"`              // name of the BurstTenant
	TenantID  string `json:"tenantID"`            // opaque id, for the ledger
	Project   string `json:"project,omitempty"`   // name of the tenant's project
	ProjectID string `json:"projectID,omitempty"` // opaque id, for the ledger

	Together bool `json:"together,omitempty"`
	// Pods are served by this burst and by nothing else of it.
	Pods []Seat `json:"pods"`

	// Offer is bought Machines times, at the price and meter that count.
	Offer    providers.Offer `json:"offer"`
	Machines int32           `json:"machines"`
	// Turns is how many of its pods run one after the other at most, where
	// they take turns; else 0.
	Turns int32 `json:"turns,omitempty"`
	// Hourly is the price of all machines.
	Hourly money.Rate `json:"hourly"`
	// Ceiling is the worst case, Expected the bill if all goes as planned.
	Ceiling  money.Amount `json:"ceiling"`
	Expected money.Amount `json:"expected"`
	// Mode is how the ceiling is reserved: "safe" at once, or "lease" slice by
	// slice, First now and up to FirstUntil.
	Mode       string       `json:"mode"`
	First      money.Amount `json:"first,omitzero"`
	FirstUntil time.Time    `json:"firstUntil,omitzero"`
	// Budgets are the ids of the budgets on the path of the money.
	Budgets []string `json:"budgets"`

	// MaxRun bounds the work, all turns of it; From is the time of the decision; Deadline ends
	// the work whatever happens; Until is when the last machine is proven gone
	// in the worst case.
	MaxRun   time.Duration `json:"maxRun"`
	From     time.Time     `json:"from"`
	Deadline time.Time     `json:"deadline"`
	Until    time.Time     `json:"until"`

	Data v1alpha1.BurstData `json:"data"`
	// Moving is what it takes to bring its inputs there; nil without inputs.
	Moving *Moving `json:"moving,omitempty"`

	// ReadyAt is when its GPUs are expected; LocalAt is when on-prem was
	// expected to be free, zero when nobody knows.
	ReadyAt time.Time `json:"readyAt"`
	LocalAt time.Time `json:"localAt,omitzero"`
}

// Seat is one pod and the machine, by ordinal, that it is expected on.
type Seat struct {
	Name    string    `json:"name"`
	UID     types.UID `json:"uid"`
	Machine int32     `json:"machine"`
}

// Bursts returns what is to be bought, in the order of deciding.
func (p Plan) Bursts() []Burst {
	var out []Burst
	for _, d := range p.Decisions {
		if d.Verdict == Buy {
			out = append(out, d.Bursts()...)
		}
	}
	return out
}

// Bursts are Burst and More.
func (d Decision) Bursts() []Burst {
	if d.Burst == nil {
		return nil
	}
	return append([]Burst{*d.Burst}, d.More...)
}
