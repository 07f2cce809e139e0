package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"spillway.dev/spillway/quota/money"
)

// Modes of a [Reservation].
const (
	// ModeSafe reserves the whole run before it starts. It is the default.
	ModeSafe = "safe"
	// ModeLease reserves slice by slice, each with its whole way to stop: see [Terms].
	ModeLease = "lease"
)

// Reservation asks for the worst case of one burst: machine, boot, lease, the
// way down, side resources, egress, up to the proven end of the machine.
type Reservation struct {
	Burst     string       `json:"burst"` // UID; the idempotency key
	Tenant    string       `json:"tenant"`
	Project   string       `json:"project,omitzero"`
	Provider  string       `json:"provider"`
	Namespace string       `json:"namespace,omitzero"`
	Owner     string       `json:"owner,omitzero"`   // opaque id of the workload
	Budgets   []string     `json:"budgets,omitzero"` // checked besides those that [Book.Path] finds by subject
	Amount    money.Amount `json:"amount"`           // worst case, more than zero
	Ceiling   money.Amount `json:"ceiling,omitzero"` // bound for all extensions; the zero value leaves that to the budgets
	From      time.Time    `json:"from"`             // start of the time the money is for
	Until     time.Time    `json:"until"`            // end of it, exclusive; its passing frees nothing
	Offer     string       `json:"offer,omitzero"`   // key of the offer, for people
	Price     money.Rate   `json:"price,omitzero"`   // frozen here; the zero value is unknown
	Mode      string       `json:"mode,omitzero"`    // ModeSafe or ModeLease
	Terms     Terms        `json:"terms,omitzero"`   // how it is billed, of one that is taken slice by slice
}

// Extension adds a slice to a reservation, or moves its end, or both. The slices
// of a reservation with [Terms] are numbered from 1, in their order: see
// [Account.Next].
type Extension struct {
	Burst string       `json:"burst"`
	Key   string       `json:"key"`            // idempotency key within the burst
	More  money.Amount `json:"more,omitzero"`  // added to the reservation; may be zero
	Until time.Time    `json:"until,omitzero"` // new end; never earlier than the old one; zero leaves it
}

// Reduction lowers a reservation to what can still be charged. From then on
// the burst is [Draining]: it buys no machine any more.
type Reduction struct {
	Burst  string       `json:"burst"`
	To     money.Amount `json:"to"`
	Reason string       `json:"reason"`
}

// Permit allows one create call: for one machine of one burst, by one leader.
type Permit struct {
	Burst   string `json:"burst"`
	Ordinal int    `json:"ordinal"` // number of the machine within the burst, from 0
	Epoch   int64  `json:"epoch"`
}

// Causes of a [Settlement] that change who pays. Any other text is allowed and
// charged to the tenant.
const (
	// CauseProviderFault says that the provider failed (no boot, no join, a
	// dead GPU, a lost machine): the operator pays, the tenant is charged nothing.
	CauseProviderFault = "provider-fault"
)

// Settlement closes the account of a burst after its machines are proven gone.
type Settlement struct {
	Burst        string       `json:"burst"`
	Actual       money.Amount `json:"actual,omitzero"`       // what the provider bills for it; zero when nothing was bought
	MachineStart time.Time    `json:"machineStart,omitzero"` // metered time; both zero when nothing was bought
	MachineEnd   time.Time    `json:"machineEnd,omitzero"`
	Seconds      int64        `json:"seconds,omitzero"` // metered machine seconds, summed over machines
	Cause        string       `json:"cause,omitzero"`   // why it ended
	// Machines are the parts of Actual and Seconds by machine; none where the
	// parts are not known.
	Machines []MachineBill `json:"machines,omitempty"`
}

// MachineBill is what the provider bills for one machine of a burst.
type MachineBill struct {
	ID      string       `json:"id"` // as the provider calls it
	Start   time.Time    `json:"start"`
	End     time.Time    `json:"end"` // Start and End bound its metered time
	Seconds int64        `json:"seconds"`
	Cost    money.Amount `json:"cost"`
}

// Normal returns r as it is stored and compared: times in UTC, budgets sorted
// and each once, the default mode written out.
func (r Reservation) Normal() Reservation {
	r.From, r.Until = utc(r.From), utc(r.Until)
	r.Budgets = slices.Compact(slices.Sorted(slices.Values(r.Budgets)))
	if r.Mode == "" {
		r.Mode = ModeSafe
	}
	return r
}

// Validate returns the first thing that makes r impossible, wrapped in
// [ErrInvalid]. It looks at r alone, not at budgets.
func (r Reservation) Validate() error {
	switch err := validIDs("burst", r.Burst, "tenant", r.Tenant, "provider", r.Provider); {
	case err != nil:
		return fmt.Errorf("reservation for burst %q: %w", r.Burst, err)
	case r.Amount.Nano <= 0 || !r.Amount.Currency.Valid():
		return fmt.Errorf("reservation for burst %q: %w: amount %v must be more than zero and have a currency", r.Burst, ErrInvalid, r.Amount)
	case r.Ceiling != money.Amount{} && (r.Ceiling.Currency != r.Amount.Currency || r.Ceiling.Nano < r.Amount.Nano):
		return fmt.Errorf("reservation for burst %q: %w: amount %v is above its ceiling %v", r.Burst, ErrInvalid, r.Amount, r.Ceiling)
	case r.Price != money.Rate{} && (r.Price.NanoPerHour <= 0 || !r.Price.Currency.Valid()):
		return fmt.Errorf("reservation for burst %q: %w: price %v must be more than zero and have a currency, or be left out", r.Burst, ErrInvalid, r.Price)
	case r.Mode != "" && r.Mode != ModeSafe && r.Mode != ModeLease:
		return fmt.Errorf("reservation for burst %q: %w: mode %q is neither %q nor %q", r.Burst, ErrInvalid, r.Mode, ModeSafe, ModeLease)
	}
	err := validSpan(r.From, r.Until)
	if err == nil {
		err = r.validTerms()
	}
	if err != nil {
		return fmt.Errorf("reservation for burst %q: %w", r.Burst, err)
	}
	return nil
}

// Normal returns x as it is stored and compared.
func (x Extension) Normal() Extension {
	x.Until = utc(x.Until)
	x.More = plain(x.More)
	return x
}

// Validate returns the first thing that makes x impossible, wrapped in [ErrInvalid].
func (x Extension) Validate() error {
	switch err := validIDs("burst", x.Burst, "key", x.Key); {
	case err != nil:
		return fmt.Errorf("extension of burst %q: %w", x.Burst, err)
	case x.More.Nano < 0:
		return fmt.Errorf("extension of burst %q: %w: amount %v is negative", x.Burst, ErrInvalid, x.More)
	case x.More.IsZero() && x.Until.IsZero():
		return fmt.Errorf("extension of burst %q: %w: it asks for neither money nor time", x.Burst, ErrInvalid)
	case !x.Until.IsZero() && !saneTime(x.Until):
		return fmt.Errorf("extension of burst %q: %w: end %v", x.Burst, ErrInvalid, x.Until)
	}
	return nil
}

// Normal returns d as it is stored and compared.
func (d Reduction) Normal() Reduction {
	d.To = plain(d.To)
	return d
}

// Validate returns the first thing that makes d impossible, wrapped in [ErrInvalid].
func (d Reduction) Validate() error {
	if err := validIDs("burst", d.Burst, "reason", d.Reason); err != nil {
		return fmt.Errorf("reduction of burst %q: %w", d.Burst, err)
	}
	if d.To.Nano < 0 {
		return fmt.Errorf("reduction of burst %q: %w: amount %v is negative", d.Burst, ErrInvalid, d.To)
	}
	return nil
}

// Normal returns s as it is stored and compared.
func (s Settlement) Normal() Settlement {
	s.MachineStart, s.MachineEnd = utc(s.MachineStart), utc(s.MachineEnd)
	s.Actual = plain(s.Actual)
	s.Machines = slices.Clone(s.Machines)
	for i := range s.Machines {
		m := &s.Machines[i]
		m.Start, m.End, m.Cost = utc(m.Start), utc(m.End), plain(m.Cost)
	}
	return s
}

// Validate returns the first thing that makes s impossible, wrapped in
// [ErrInvalid]: a negative amount or duration is never credit for anybody.
func (s Settlement) Validate() error {
	if err := validIDs("burst", s.Burst); err != nil {
		return fmt.Errorf("settlement of burst %q: %w", s.Burst, err)
	}
	start, end := s.MachineStart, s.MachineEnd
	switch {
	case s.Actual.Nano < 0:
		return fmt.Errorf("settlement of burst %q: %w: actual cost %v is negative", s.Burst, ErrInvalid, s.Actual)
	case s.Seconds < 0:
		return fmt.Errorf("settlement of burst %q: %w: %d machine seconds", s.Burst, ErrInvalid, s.Seconds)
	case start.IsZero() != end.IsZero() || end.Before(start):
		return fmt.Errorf("settlement of burst %q: %w: the machine ran from %v to %v", s.Burst, ErrInvalid, start, end)
	case !start.IsZero() && (!saneTime(start) || !saneTime(end)):
		return fmt.Errorf("settlement of burst %q: %w: the machine ran from %v to %v", s.Burst, ErrInvalid, start, end)
	}
	if err := s.validMachines(); err != nil {
		return fmt.Errorf("settlement of burst %q: %w", s.Burst, err)
	}
	return nil
}

// validMachines checks that the machines, when they are named, are all of the bill.
func (s Settlement) validMachines() error {
	if len(s.Machines) == 0 {
		return nil
	}
	left, seconds := s.Actual, s.Seconds
	for i, m := range s.Machines {
		err := validIDs("machine", m.ID)
		if err == nil {
			err = sub(&left, m.Cost)
		}
		switch {
		case err != nil:
			return err
		case m.Cost.Nano < 0 || m.Seconds < 0 || m.Start.Before(s.MachineStart) || m.End.After(s.MachineEnd) || m.End.Before(m.Start):
			return fmt.Errorf("%w: the bill of machine %q is %+v", ErrInvalid, m.ID, m)
		case slices.ContainsFunc(s.Machines[:i], func(other MachineBill) bool { return other.ID == m.ID }):
			return fmt.Errorf("%w: machine %q is billed twice", ErrInvalid, m.ID)
		}
		seconds -= m.Seconds
	}
	if !left.IsZero() || seconds != 0 {
		return fmt.Errorf("%w: its machines leave %v and %d seconds of the bill", ErrInvalid, left, seconds)
	}
	return nil
}

// maxID is the longest id that the ledger takes, in bytes.
const maxID = 253

// validIDs checks pairs of a name and an id; the first bad one is the error.
func validIDs(pairs ...string) error {
	for i := 0; i+1 < len(pairs); i += 2 {
		if id := pairs[i+1]; id == "" || !validText(id) {
			return fmt.Errorf("%w: %s %q must have 1 to %d printable characters", ErrInvalid, pairs[i], id, maxID)
		}
	}
	return nil
}

func validText(s string) bool {
	return len(s) <= maxID && strings.ToValidUTF8(s, "") == s && !strings.ContainsFunc(s, unicode.IsControl)
}

func validSpan(from, until time.Time) error {
	if !saneTime(from) || !saneTime(until) || !from.Before(until) {
		return fmt.Errorf("%w: time from %v until %v must have a start before its end", ErrInvalid, from, until)
	}
	return nil
}

// saneTime keeps out the zero time and what would overflow Unix nanoseconds.
func saneTime(t time.Time) bool {
	return t.Year() >= 2000 && t.Year() < 2200
}

// utc drops the zone and the monotonic reading, and leaves the zero time alone.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Round(0)
}

// plain writes nothing as the zero value, whatever its currency was.
func plain(a money.Amount) money.Amount {
	if a.Nano == 0 {
		return money.Amount{}
	}
	return a
}
