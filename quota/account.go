package quota

import (
	"time"

	"spillway.dev/spillway/quota/money"
)

// State is how far the account of a burst has come.
type State string

// States of an [Account].
const (
	Reserved State = "reserved" // machines may be bought
	Draining State = "draining" // shrunk to what leftovers may cost
	Settled  State = "settled"  // closed
)

// Account is the account of one burst: what was reserved for it and where that
// went. Always Reserved = Pending + Spent + Waived + Released.
type Account struct {
	Reservation Reservation  `json:"reservation"` // as first accepted
	State       State        `json:"state"`
	Reserved    money.Amount `json:"reserved"` // all that was ever reserved, extensions included
	Pending     money.Amount `json:"pending"`  // still promised
	Spent       money.Amount `json:"spent"`    // charged to the tenant
	Waived      money.Amount `json:"waived"`   // paid by the operator: the provider failed
	Released    money.Amount `json:"released"` // given back to the budgets
	Overrun     money.Amount `json:"overrun"`  // paid by the operator, beyond Reserved
	Until       time.Time    `json:"until"`    // end of the time that is reserved for
	ReservedAt  time.Time    `json:"reservedAt"`
	ChangedAt   time.Time    `json:"changedAt"` // last event
	SettledAt   time.Time    `json:"settledAt,omitzero"`
	Settlement  Settlement   `json:"settlement,omitzero"`
	Extensions  int          `json:"extensions,omitzero"`
	Reductions  int          `json:"reductions,omitzero"`
	Permits     []Permit     `json:"permits,omitempty"`
	Corrections []Posting    `json:"corrections,omitempty"` // behind the settlement; the sums above hold them
	SpentIn     []Held       `json:"spentIn,omitempty"`     // windows of budgets that Spent counts in, once settled
	OpenSince   time.Time    `json:"openSince,omitzero"`    // start of the first month that was open at the settlement; zero when none was closed
	Holds       []Held       `json:"holds,omitempty"`       // windows of budgets in which Pending counts; empty once settled
}

// heldIn is the amount of one window in a list, nothing when it is not there.
func heldIn(list []Held, h Hold) money.Amount {
	for _, held := range list {
		if held.Hold == h {
			return held.Amount
		}
	}
	return money.Amount{}
}

// Permitted reports whether p was given out already.
func (a Account) Permitted(p Permit) bool {
	for _, given := range a.Permits {
		if given == p {
			return true
		}
	}
	return false
}

// Receipt is the answer of the ledger to one accepted change: where it stands
// in the journal, and the account right behind it. A repeated call gets the
// receipt of the first one.
type Receipt struct {
	Account
	Kind Kind      `json:"kind"`
	Seq  int64     `json:"seq"`  // number in the journal
	At   time.Time `json:"at"`   // record time
	Hash string    `json:"hash"` // of the journal up to here, in hex
}
