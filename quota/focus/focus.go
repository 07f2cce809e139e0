// Package focus writes settled bursts as a Cost and Usage dataset of FOCUS, the
// FinOps Open Cost and Usage Specification: version 1.4, or 1.2 for tools that
// know no newer one. It is pure: accounts of the ledger in, CSV out.
//
// An export carries one [View], never both: what the providers charge
// ([ViewProvider]) or what a tenant is charged ([ViewTenant]). Adding the two up
// would count every euro twice, so each row says its view in x_View, and the
// party that charges in InvoiceIssuerName and ServiceProviderName.
//
// One row is one machine in one UTC hour of one local month, or one burst where
// its machines are not known. BilledCost and
// EffectiveCost are what the ledger posted, laid evenly over the metered time:
// the rows of a month add up to its statement to the nano-unit. ListCost and
// ContractedCost are the product of unit price and quantity, exactly as the
// specification asks; the quantity is rounded to 1e-12 hours, so they differ
// from the posted cost by rounding (the ledger rounds each machine up to a
// nano-unit), and by whatever a settlement holds beside price times time. What
// the operator pays for the tenant (a provider's fault, cost beyond the
// reservation) is a row of its own with the category Credit. A burst without a
// recorded price is an Adjustment: there is no quantity that its cost could
// come from.
//
// On-prem usage has no price in the ledger and is left out: a row of 0 would
// say that it was free. Names of tenants and projects, regions, zones, labels
// and invoices are not in the ledger either; their columns are null.
package focus

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// View says whose charges an export carries.
type View string

// Views.
const (
	ViewTenant   View = "tenant"   // what the operator charges its tenants
	ViewProvider View = "provider" // what the providers charge the operator
)

// Version is a version of FOCUS.
type Version string

// Versions that can be written.
const (
	V12 Version = "1.2" // ratified 2025-05-29
	V14 Version = "1.4" // ratified 2026-06-04
)

func (v Version) check() error {
	if v != V12 && v != V14 {
		return fmt.Errorf("FOCUS version %q is %w: say 1.2 or 1.4", v, ErrUnknown)
	}
	return nil
}

// ErrUnknown says that a view or version is none that this package writes.
var ErrUnknown = errors.New("unknown")

// Export is what to write.
type Export struct {
	Version  Version
	View     View
	Operator string       // legal name of the unit that runs Spillway and charges the tenants
	Month    quota.Period // the billing period
	Accounts []quota.Receipt
	Usage    []quota.UsageHour // what was measured in the month, for x_GpuSeconds
}

// measured is share-seconds by burst and UTC hour.
type measured map[hourOf]int64

type hourOf struct {
	burst string
	hour  int64 // Unix seconds
}

func (x Export) measured() measured {
	m := make(measured)
	for _, u := range x.Usage {
		m[hourOf{u.Burst, u.Hour.Unix()}] += u.ShareSeconds
	}
	return m
}

// Write writes the header and the rows in the order of the accounts, oldest
// hour first. Accounts that are not settled, or cost nothing, have no rows.
func Write(w io.Writer, x Export) error {
	if err := x.Version.check(); err != nil {
		return err
	}
	if x.View != ViewTenant && x.View != ViewProvider {
		return fmt.Errorf("view %q is %w: say tenant or provider", x.View, ErrUnknown)
	}
	if x.Operator == "" && x.View == ViewTenant {
		return fmt.Errorf("FOCUS export of %s: %w: name the unit that charges the tenants; FOCUS wants it in every row", x.Month.ID, quota.ErrInvalid)
	}
	if !x.Month.WholeHours() {
		return fmt.Errorf("FOCUS export of %s: %w: the month does not start and end on whole UTC hours; choose another zone", x.Month.ID, quota.ErrInvalid)
	}
	columns := Columns(x.Version)
	out := csv.NewWriter(w)
	record := make([]string, len(columns))
	for i, c := range columns {
		record[i] = c.Name
	}
	if err := out.Write(record); err != nil {
		return fmt.Errorf("FOCUS export of %s: %w", x.Month.ID, err)
	}
	gpus := x.measured()
	for _, r := range x.Accounts {
		charges, err := x.charges(r, gpus)
		if err != nil {
			return fmt.Errorf("FOCUS export of %s: burst %q: %w", x.Month.ID, r.Reservation.Burst, err)
		}
		for _, c := range charges {
			for i, column := range columns {
				record[i] = column.value(c)
			}
			if err := out.Write(record); err != nil {
				return fmt.Errorf("FOCUS export of %s: %w", x.Month.ID, err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("FOCUS export of %s: %w", x.Month.ID, err)
	}
	return nil
}

// charge is one row before it is written.
type charge struct {
	export   Export
	account  quota.Receipt
	from     time.Time
	until    time.Time
	billed   money.Amount
	category string
	quantity int64  // billed machine time in 1e-12 hours
	consumed int64  // the same in nanoseconds
	gpus     int64  // share-seconds that were measured, of all machines of the burst
	machine  string // as the provider calls it; empty for all of the burst
	reason   string // of a credit or a correction
	class    string // "Correction", or nothing
}

// Categories of charges (ChargeCategory) that are written.
const (
	usage      = "Usage"
	credit     = "Credit"
	adjustment = "Adjustment"
	correction = "Correction" // a class of charges (ChargeClass)
)

// charges cuts the cost of one burst into the rows of the month.
func (x Export) charges(r quota.Receipt, gpus measured) ([]charge, error) {
	if r.State != quota.Settled {
		return nil, nil
	}
	var rows []charge
	for i, p := range r.Postings() {
		more, err := x.posted(r, p, gpus)
		if err != nil {
			return nil, err
		}
		for j := range more {
			if i > 0 { // the time that was billed stands in the rows of the settlement
				c := &more[j]
				c.class, c.reason, c.quantity, c.consumed, c.gpus = correction, "correction", 0, 0, 0
				if c.category == usage {
					c.category = adjustment
				}
			}
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// posted cuts one posting into the rows of the month.
func (x Export) posted(r quota.Receipt, p quota.Posting, gpus measured) ([]charge, error) {
	actual, err := p.Spent.Add(p.Waived)
	if err == nil {
		actual, err = actual.Add(p.Overrun)
	}
	if err != nil || actual.IsZero() && p.Spent.IsZero() {
		return nil, err
	}
	seconds := r.Settlement.Seconds
	if seconds > maxSeconds {
		return nil, fmt.Errorf("%d machine seconds: %w", seconds, money.ErrOverflow)
	}
	s := r.Laid(p)
	from, until := latest(s.From, x.Month.Start), earliest(s.Until, x.Month.End)
	var rows []charge
	for from.Before(until) {
		next := earliest(until, from.Truncate(time.Hour).Add(time.Hour))
		c := charge{
			export: x, account: r, from: from, until: next, category: usage,
			billed:   s.Amount(actual, from, next),
			quantity: s.Part(hours(seconds), from, next),
			consumed: s.Part(seconds*nano, from, next),
			gpus:     gpus[hourOf{r.Reservation.Burst, from.Truncate(time.Hour).Unix()}],
		}
		if r.Reservation.Price.Currency != actual.Currency || seconds == 0 {
			c.category, c.quantity, c.consumed = adjustment, 0, 0
		}
		if !actual.IsZero() { // a correction may only change who pays
			parts, err := c.byMachine()
			if err != nil {
				return nil, err
			}
			rows = append(rows, parts...)
		}
		if x.View == ViewTenant {
			rows = appendCredit(rows, c, s.Amount(p.Spent, from, next))
		}
		from = next
	}
	return rows, nil
}

// byMachine cuts a row of usage into those of the burst's machines, by what each
// was billed. What was measured stands in the first of them.
func (c charge) byMachine() ([]charge, error) {
	machines := c.account.Settlement.Machines
	if c.category != usage || len(machines) == 0 {
		return []charge{c}, nil
	}
	costs, seconds := make([]int64, len(machines)), make([]int64, len(machines))
	for i, m := range machines {
		costs[i], seconds[i] = m.Cost.Nano, m.Seconds
	}
	billed, err := c.billed.Split(costs...)
	if err != nil {
		return nil, err
	}
	parts := make([]charge, len(machines))
	quantity, err := money.Amount{Nano: c.quantity}.Split(seconds...)
	if err != nil {
		return nil, err
	}
	consumed, err := money.Amount{Nano: c.consumed}.Split(seconds...)
	if err != nil {
		return nil, err
	}
	for i, m := range machines {
		parts[i] = c
		parts[i].machine, parts[i].billed, parts[i].quantity, parts[i].consumed = m.ID, billed[i], quantity[i].Nano, consumed[i].Nano
		if i > 0 {
			parts[i].gpus = 0
		}
	}
	return parts, nil
}

// appendCredit adds what the operator takes over of c.
func appendCredit(rows []charge, c charge, charged money.Amount) []charge {
	c.billed.Nano = charged.Nano - c.billed.Nano
	if c.billed.IsZero() {
		return rows
	}
	c.category, c.quantity, c.consumed, c.gpus = credit, 0, 0, 0
	c.reason = "paid by the operator: cost beyond the reservation"
	if !c.account.Waived.IsZero() {
		c.reason = "paid by the operator: the provider failed"
	}
	return append(rows, c)
}

func latest(a, b time.Time) time.Time {
	return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare)
}

func earliest(a, b time.Time) time.Time {
	return slices.MinFunc([]time.Time{a, b}, time.Time.Compare)
}

// sku names what is bought: an instance type of a provider.
func (c charge) sku() string {
	r := c.account.Reservation
	if c.category != usage {
		return ""
	}
	return strings.TrimSuffix(r.Provider+"/"+r.Offer, "/")
}
