package quota

import (
	"errors"
	"fmt"
	"sort"
	"time"
	_ "time/tzdata" // month bounds are known on hosts that have no zones installed

	"spillway.dev/spillway/quota/money"
)

// Scope says whose money a [Budget] bounds.
type Scope string

// Scopes. The subject of a budget is the id of the project, tenant or provider.
const (
	ScopeProject  Scope = "project"
	ScopeTenant   Scope = "tenant"
	ScopeProvider Scope = "provider"
	ScopeGlobal   Scope = "global"
)

// Window says over which time the limit of a [Budget] holds.
type Window string

// Windows. Months and days are those of the budget's time zone.
const (
	WindowMonth Window = "month"
	WindowDay   Window = "day"
	WindowFixed Window = "fixed" // from Start until End, once
)

// DefaultZone is the time zone of budgets that name none.
const DefaultZone = "Europe/Berlin"

// maxPeriods bounds how many windows one reservation may touch in one budget.
const maxPeriods = 400

// Budget bounds what may be spent and promised in each of its windows.
type Budget struct {
	ID      string       `json:"id"`
	Scope   Scope        `json:"scope"`
	Subject string       `json:"subject,omitzero"` // whose; empty for global, and for a budget that applies only where a reservation names it
	Window  Window       `json:"window"`
	Zone    string       `json:"zone,omitzero"` // IANA name; empty is DefaultZone
	Limit   money.Amount `json:"limit"`         // per window; 0 allows nothing
	Hard    bool         `json:"hard,omitzero"` // a soft budget only counts, it never refuses
	Start   time.Time    `json:"start,omitzero"`
	End     time.Time    `json:"end,omitzero"`     // Start and End are for fixed windows only
	Retired bool         `json:"retired,omitzero"` // set by the ledger when the budget is removed
}

// Period is one window of one budget.
type Period struct {
	ID    string // "2026-10", "2026-10-25" or "fixed"
	Start time.Time
	End   time.Time // exclusive; both in UTC
}

// seconds is how long p and [from, until) overlap.
func (p Period) seconds(from, until time.Time) int64 {
	if from.Before(p.Start) {
		from = p.Start
	}
	if until.After(p.End) {
		until = p.End
	}
	return max(0, int64(until.Sub(from)/time.Second))
}

// Validate returns the first thing that makes b impossible, wrapped in [ErrInvalid].
func (b Budget) Validate() error {
	if err := validIDs("id", b.ID); err != nil {
		return fmt.Errorf("budget: %w", err)
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("budget %q: %w: %s", b.ID, ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch b.Scope {
	case ScopeProject, ScopeTenant, ScopeProvider:
	case ScopeGlobal:
		if b.Subject != "" {
			return bad("a global budget has no subject, but %q is set", b.Subject)
		}
	default:
		return bad("scope %q is not project, tenant, provider or global", b.Scope)
	}
	if !validText(b.Subject) {
		return bad("subject %q", b.Subject)
	}
	if b.Limit.Nano < 0 || !b.Limit.Currency.Valid() {
		return bad("limit %v must not be negative and needs a currency", b.Limit)
	}
	if _, err := b.Location(); err != nil {
		return bad("time zone %q: %v; use an IANA name such as %s", b.Zone, err, DefaultZone)
	}
	switch b.Window {
	case WindowMonth, WindowDay:
		if !b.Start.IsZero() || !b.End.IsZero() {
			return bad("start and end are for fixed windows only")
		}
	case WindowFixed:
		if err := validSpan(b.Start, b.End); err != nil {
			return bad("fixed window: %v", err)
		}
	default:
		return bad("window %q is not month, day or fixed", b.Window)
	}
	return nil
}

func (b Budget) normal() Budget {
	b.Start, b.End = utc(b.Start), utc(b.End)
	if b.Zone == "" {
		b.Zone = DefaultZone
	}
	return b
}

// sameWindows reports whether amounts booked under a still mean the same under b.
func (b Budget) sameWindows(a Budget) bool {
	return a.Scope == b.Scope && a.Subject == b.Subject && a.Window == b.Window &&
		a.Zone == b.Zone && a.Limit.Currency == b.Limit.Currency
}

// Location loads the time zone of b. It is slow; see [Budget.PeriodsIn]. The
// zone "Local" is none: it would be another one on the next host.
func (b Budget) Location() (*time.Location, error) {
	switch b.Zone {
	case "":
		return time.LoadLocation(DefaultZone)
	case "Local":
		return nil, errors.New("it depends on the host")
	}
	return time.LoadLocation(b.Zone)
}

// Periods returns the windows of b that [from, until) touches, in order.
//
// Every budget covers all of the time that it is asked about, except a fixed
// one: time outside its window is [ErrNoBudget]. The bounds follow the rules of
// the time zone, so October 2026 in Berlin has 745 hours.
func (b Budget) Periods(from, until time.Time) ([]Period, error) {
	loc, err := b.Location()
	if err != nil {
		return nil, fmt.Errorf("budget %q: %w: time zone: %w", b.ID, ErrInvalid, err)
	}
	return b.PeriodsIn(loc, from, until)
}

// PeriodsIn is [Budget.Periods] for callers that keep the budget's location.
func (b Budget) PeriodsIn(loc *time.Location, from, until time.Time) ([]Period, error) {
	if err := validSpan(from, until); err != nil {
		return nil, fmt.Errorf("budget %q: %w", b.ID, err)
	}
	if b.Window == WindowFixed {
		p := Period{ID: "fixed", Start: utc(b.Start), End: utc(b.End)}
		if from.Before(p.Start) || until.After(p.End) {
			return nil, fmt.Errorf("%w: budget %q covers %s until %s only, asked was %s until %s",
				ErrNoBudget, b.ID, stamp(p.Start), stamp(p.End), stamp(from), stamp(until))
		}
		return []Period{p}, nil
	}
	// Start a day early: where midnight comes twice, the local date is not yet the window.
	early := from.In(loc).AddDate(0, 0, -1)
	var periods []Period
	for y, m, d := early.Date(); ; {
		p := b.periodOf(y, m, d, loc)
		if !p.Start.Before(until) {
			return periods, nil
		}
		if len(periods) == maxPeriods {
			return nil, fmt.Errorf("budget %q: %w: %s until %s touches more than %d windows", b.ID, ErrInvalid, stamp(from), stamp(until), maxPeriods)
		}
		if p.End.After(from) && p.Start.Before(p.End) {
			periods = append(periods, p)
		}
		y, m, d = b.next(y, m, d)
	}
}

// periodOf returns the month or day that holds the given local day.
func (b Budget) periodOf(year int, month time.Month, day int, loc *time.Location) Period {
	id := fmt.Sprintf("%04d-%02d-%02d", year, month, day)
	if b.Window == WindowMonth {
		id, day = fmt.Sprintf("%04d-%02d", year, month), 1
	}
	y, m, d := b.next(year, month, day)
	return Period{ID: id, Start: startOfDay(year, month, day, loc), End: startOfDay(y, m, d, loc)}
}

// next returns the first day of the window behind the one that holds a day.
func (b Budget) next(year int, month time.Month, day int) (int, time.Month, int) {
	if b.Window == WindowMonth {
		return time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Date()
	}
	return time.Date(year, month, day+1, 0, 0, 0, 0, time.UTC).Date()
}

// startOfDay returns the moment at which the local clock reaches a day. Where
// midnight is skipped (or the whole day is) that is the moment of the jump;
// where midnight comes twice it is one of the two, always the same.
func startOfDay(year int, month time.Month, day int, loc *time.Location) time.Time {
	const reach = 26 * 3600 // no zone is further from UTC, in seconds
	local := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix()
	i := sort.Search(2*reach, func(i int) bool {
		at := local - reach + int64(i)
		_, offset := time.Unix(at, 0).In(loc).Zone()
		return at+int64(offset) >= local
	})
	return time.Unix(local-reach+int64(i), 0).UTC()
}

// period returns the window with the given id, as Periods has named it.
func (b Budget) period(id string) (Period, error) {
	loc, err := b.Location()
	if err != nil {
		return Period{}, fmt.Errorf("budget %q: %w: time zone: %w", b.ID, ErrInvalid, err)
	}
	layout := "2006-01"
	switch b.Window {
	case WindowFixed:
		return Period{ID: "fixed", Start: utc(b.Start), End: utc(b.End)}, nil
	case WindowDay:
		layout = time.DateOnly
	}
	day, err := time.Parse(layout, id)
	if err != nil {
		return Period{}, fmt.Errorf("budget %q: %w: window %q: %w", b.ID, ErrInvalid, id, err)
	}
	return b.periodOf(day.Year(), day.Month(), day.Day(), loc), nil
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }
