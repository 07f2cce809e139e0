package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"spillway.dev/spillway/quota/money"
)

// OnPrem is the place of usage that no burst belongs to.
const OnPrem = "on-prem"

// StatementInput is what a [Statement] is made of: a ledger at one moment.
type StatementInput struct {
	Tenant   string
	Month    string // "2026-11", local in Zone
	Zone     string // IANA name; empty is DefaultZone
	Book     Book
	Accounts []Account   // of all tenants
	Usage    []UsageHour // of the tenant in the month
}

// Statement says what one tenant used and was charged in one local month.
//
// Charges are the settled costs of bursts, laid evenly over the time that their
// machines were metered in ([Account.Metered]); a burst over a month end is in
// both statements with its part. What was posted after a month was closed (a late
// settlement, a correction) is in the first month that was open then, so the
// statement of a closed month, made of the ledger at its closing, never changes. Nothing is charged for on-prem usage: the
// ledger has no prices for it. Each [Cost] is given exactly and in cents, and
// the cents of every table add up to those of the totals.
type Statement struct {
	Tenant  string           `json:"tenant"`
	Month   string           `json:"month"`
	Zone    string           `json:"zone"`
	Start   time.Time        `json:"start"` // [Start, End) in UTC
	End     time.Time        `json:"end"`
	Hours   int64            `json:"hours"`
	Totals  []StatementTotal `json:"totals"` // by currency
	Time    PlaceTime        `json:"time"`
	Lines   []StatementLine  `json:"lines"`
	Days    []StatementDay   `json:"days"` // all days of the month
	Budgets []StatementLimit `json:"budgets"`
	Bursts  []StatementBurst `json:"bursts"`
	Open    []ExposedBurst   `json:"open"` // not settled: their cost will follow
}

// Cost is money, exactly and rounded to cents.
type Cost struct {
	Exact   money.Amount `json:"exact"`
	Rounded money.Amount `json:"rounded"`
}

// GPUTime is time of GPUs, exactly and in hundredths of a GPU-hour.
type GPUTime struct {
	ShareSeconds int64 `json:"shareSeconds"` // seconds times 1/840 GPU
	Hundredths   int64 `json:"gpuHourHundredths"`
}

// PlaceTime is GPU time at home and on rented machines.
type PlaceTime struct {
	OnPrem GPUTime `json:"onPrem"`
	Burst  GPUTime `json:"burst"`
}

// StatementTotal is the money of one currency.
type StatementTotal struct {
	Charged Cost `json:"charged"`
	Waived  Cost `json:"waived"`  // the provider failed: paid by the operator
	Overrun Cost `json:"overrun"` // beyond the reservation: paid by the operator
}

// StatementLine is usage and charges of one project, place and GPU model. Usage
// on-prem carries no project in the ledger, only its namespace.
type StatementLine struct {
	Project   string  `json:"project,omitzero"`
	Namespace string  `json:"namespace,omitzero"`
	Place     string  `json:"place"` // OnPrem, or the provider; empty where the ledger does not know the burst
	GPUModel  string  `json:"gpuModel,omitzero"`
	Time      GPUTime `json:"time"`
	Charged   []*Cost `json:"charged"` // by currency
}

// StatementDay is one local day.
type StatementDay struct {
	Day     string    `json:"day"` // "2026-11-02"
	Time    PlaceTime `json:"time"`
	Charged []*Cost   `json:"charged"` // by currency
}

// StatementLimit is one budget of the tenant or its projects, in one window
// that the month touches, as it is booked now.
type StatementLimit struct {
	Budget   string       `json:"budget"`
	Scope    Scope        `json:"scope"`
	Window   string       `json:"window"`
	Hard     bool         `json:"hard"`
	Limit    money.Amount `json:"limit"`
	Spent    money.Amount `json:"spent"`
	Reserved money.Amount `json:"reserved"`
	Free     money.Amount `json:"free"`
}

// StatementBurst is one settled burst, with what falls into the month.
type StatementBurst struct {
	Burst     string     `json:"burst"`
	Project   string     `json:"project,omitzero"`
	Namespace string     `json:"namespace,omitzero"`
	Owner     string     `json:"owner,omitzero"`
	Provider  string     `json:"provider"`
	Offer     string     `json:"offer,omitzero"`
	Price     money.Rate `json:"price,omitzero"` // per machine and hour
	From      time.Time  `json:"from"`           // metered, also outside the month
	Until     time.Time  `json:"until"`
	Billed    int64      `json:"billedSeconds"` // as the provider bills, of all machines, also outside the month
	Part      bool       `json:"part"`          // some of it lies outside the month
	Charged   Cost       `json:"charged"`
	Waived    Cost       `json:"waived"`
	Overrun   Cost       `json:"overrun"`
	Cause     string     `json:"cause,omitzero"`     // why it ended
	Corrected bool       `json:"corrected,omitzero"` // the amounts hold corrections
}

// NewStatement makes the statement of one tenant. Its zone must be one whose
// month starts and ends on whole UTC hours, in which usage is summed up.
func NewStatement(in StatementInput) (Statement, error) {
	p, err := Month(in.Zone, in.Month)
	if err != nil {
		return Statement{}, fmt.Errorf("statement: %w", err)
	}
	days, err := p.Days(in.Zone)
	if err != nil {
		return Statement{}, fmt.Errorf("statement: %w", err)
	}
	for _, d := range days {
		if !d.WholeHours() {
			return Statement{}, fmt.Errorf("statement: %w: in %s the day %s does not start on a whole UTC hour, in which usage is summed up; choose another zone", ErrInvalid, in.Zone, d.ID)
		}
	}
	m := newMonth(in, p, days)
	for _, a := range in.Accounts {
		if a.Reservation.Tenant == in.Tenant {
			if err := m.burst(a); err != nil {
				return Statement{}, fmt.Errorf("statement: burst %q: %w", a.Reservation.Burst, err)
			}
		}
	}
	for _, u := range in.Usage {
		m.usage(u)
	}
	if err := m.addLimits(in.Book); err != nil {
		return Statement{}, fmt.Errorf("statement: %w", err)
	}
	return m.finish()
}

// month is a statement in the making.
type month struct {
	Statement
	period Period
	days   []Period
	known  map[string]Account // bursts of the tenant
	models map[string]string  // GPU model by burst, from its usage
	lines  map[lineKey]*StatementLine
	limit  map[string]bool // budgets that the tenant's bursts name
	parts  map[string]bool // projects of the tenant's bursts
}

type lineKey struct{ project, namespace, place, model string }

func newMonth(in StatementInput, p Period, days []Period) *month {
	m := &month{
		Statement: Statement{
			Tenant: in.Tenant, Month: in.Month, Zone: cmp.Or(in.Zone, DefaultZone), Start: p.Start, End: p.End, Hours: p.Hours(),
			Totals: []StatementTotal{}, Lines: []StatementLine{}, Budgets: []StatementLimit{}, Bursts: []StatementBurst{}, Open: []ExposedBurst{},
		},
		period: p, days: days, known: make(map[string]Account), models: make(map[string]string),
		lines: make(map[lineKey]*StatementLine), limit: make(map[string]bool), parts: make(map[string]bool),
	}
	for _, d := range days {
		m.Days = append(m.Days, StatementDay{Day: d.ID, Charged: []*Cost{}})
	}
	for _, u := range in.Usage {
		if u.Burst != "" && m.models[u.Burst] == "" {
			m.models[u.Burst] = u.GPUModel
		}
	}
	return m
}

// burst takes in one account of the tenant.
func (m *month) burst(a Account) error {
	r := a.Reservation
	m.known[r.Burst] = a
	m.parts[r.Project] = true
	for _, id := range r.Budgets {
		m.limit[id] = true
	}
	if a.State != Settled {
		if !m.period.touches(r.From, a.Until) {
			return nil
		}
		b, err := a.exposed(a.Until) // never late: there is no clock here
		m.Open = append(m.Open, b)
		return err
	}
	b, touched, err := m.posted(a)
	if err != nil || !touched {
		return err
	}
	m.Bursts = append(m.Bursts, b)
	line := m.line(lineKey{r.Project, r.Namespace, r.Provider, m.models[r.Burst]})
	return charge(&line.Charged, b.Charged.Exact)
}

// posted is what was posted for a settled burst and falls into the month, and
// whether anything does. The days get their parts.
func (m *month) posted(a Account) (b StatementBurst, touched bool, err error) {
	r, s := a.Reservation, a.Metered()
	zero := Cost{Exact: money.Zero(a.Spent.Currency)}
	b = StatementBurst{
		Burst: r.Burst, Project: r.Project, Namespace: r.Namespace, Owner: r.Owner, Provider: r.Provider,
		Offer: r.Offer, Price: r.Price, From: s.From, Until: s.Until, Billed: a.Settlement.Seconds,
		Part: s.From.Before(m.Start) || s.Until.After(m.End), Cause: a.Settlement.Cause,
		Charged: zero, Waived: zero, Overrun: zero,
	}
	for i, p := range a.Postings() {
		laid := a.Laid(p)
		nothing := p.Spent.IsZero() && p.Waived.IsZero() && p.Overrun.IsZero()
		if nothing || !m.period.touches(laid.From, laid.Until) {
			continue
		}
		touched = true
		b.Corrected = b.Corrected || i > 0
		in := func(total money.Amount) money.Amount { return laid.Amount(total, m.Start, m.End) }
		err := firstError(add(&b.Charged.Exact, in(p.Spent)), add(&b.Waived.Exact, in(p.Waived)), add(&b.Overrun.Exact, in(p.Overrun)))
		for j, d := range m.days {
			err = firstError(err, charge(&m.Days[j].Charged, laid.Amount(p.Spent, d.Start, d.End)))
		}
		if err != nil {
			return b, false, err
		}
	}
	return b, touched, nil
}

// charge adds an amount to the cost of its currency.
func charge(costs *[]*Cost, a money.Amount) error {
	if a.IsZero() {
		return nil
	}
	i, found := slices.BinarySearchFunc(*costs, a.Currency, func(c *Cost, want money.Currency) int {
		return cmp.Compare(c.Exact.Currency, want)
	})
	if !found {
		*costs = slices.Insert(*costs, i, &Cost{Exact: money.Zero(a.Currency)})
	}
	return add(&(*costs)[i].Exact, a)
}

func (m *month) line(k lineKey) *StatementLine {
	if m.lines[k] == nil {
		m.lines[k] = &StatementLine{Project: k.project, Namespace: k.namespace, Place: k.place, GPUModel: k.model, Charged: []*Cost{}}
	}
	return m.lines[k]
}

// usage takes in one hour.
func (m *month) usage(u UsageHour) {
	day := slices.IndexFunc(m.days, func(d Period) bool { return !u.Hour.Before(d.Start) && u.Hour.Before(d.End) })
	if day < 0 {
		return
	}
	k := lineKey{"", u.Namespace, OnPrem, u.GPUModel}
	today, month := &m.Days[day].Time.OnPrem, &m.Time.OnPrem
	if u.Burst != "" {
		r := m.known[u.Burst].Reservation
		k = lineKey{r.Project, cmp.Or(r.Namespace, u.Namespace), r.Provider, u.GPUModel}
		today, month = &m.Days[day].Time.Burst, &m.Time.Burst
	}
	m.line(k).Time.ShareSeconds += u.ShareSeconds
	today.ShareSeconds += u.ShareSeconds
	month.ShareSeconds += u.ShareSeconds
}

// limits reports whether a budget is the tenant's or one of its projects'.
func (m *month) limits(b Budget) bool {
	switch b.Scope {
	case ScopeTenant:
		return b.Subject == m.Tenant || m.limit[b.ID]
	case ScopeProject:
		return b.Subject != "" && m.parts[b.Subject] || m.limit[b.ID]
	}
	return false
}

// addLimits lists the windows of the tenant's budgets that the month touches.
func (m *month) addLimits(b Book) error {
	for _, id := range slices.Sorted(maps.Keys(b.Budgets)) {
		budget := b.Budgets[id]
		if !m.limits(budget) {
			continue
		}
		windows, err := budget.Periods(m.Start, m.End)
		if budget.Window == WindowFixed {
			windows, err = []Period{{ID: "fixed", Start: budget.Start, End: budget.End}}, nil
		}
		if err != nil {
			return err
		}
		for _, w := range windows {
			held, booked := b.Windows[id][w.ID]
			// Every month has its line; days and fixed windows only where something is booked.
			if !w.touches(m.Start, m.End) || budget.Window != WindowMonth && !booked || budget.Retired && !booked {
				continue
			}
			zero := money.Zero(budget.Limit.Currency)
			l := StatementLimit{
				Budget: id, Scope: budget.Scope, Window: w.ID, Hard: budget.Hard, Limit: budget.Limit,
				Spent: cmp.Or(held.Spent, zero), Reserved: cmp.Or(held.Reserved, zero), Free: budget.Limit,
			}
			if err := firstError(sub(&l.Free, l.Spent), sub(&l.Free, l.Reserved)); err != nil {
				return fmt.Errorf("budget %q: %w", id, err)
			}
			m.Budgets = append(m.Budgets, l)
		}
	}
	return nil
}

// finish adds up, sorts, and rounds every table by itself.
func (m *month) finish() (Statement, error) {
	totals := make(map[money.Currency]*StatementTotal)
	for _, b := range m.Bursts {
		c := b.Charged.Exact.Currency
		if totals[c] == nil {
			zero := Cost{Exact: money.Zero(c)}
			totals[c] = &StatementTotal{Charged: zero, Waived: zero, Overrun: zero}
		}
		t := totals[c]
		if err := firstError(add(&t.Charged.Exact, b.Charged.Exact), add(&t.Waived.Exact, b.Waived.Exact), add(&t.Overrun.Exact, b.Overrun.Exact)); err != nil {
			return Statement{}, fmt.Errorf("statement: total: %w", err)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(totals)) {
		m.Totals = append(m.Totals, *totals[c])
	}
	for _, l := range m.lines {
		m.Lines = append(m.Lines, *l)
	}
	slices.SortFunc(m.Lines, func(a, b StatementLine) int {
		if a.Project == b.Project && a.Namespace == b.Namespace && a.Place != b.Place {
			switch OnPrem { // home comes first
			case a.Place:
				return -1
			case b.Place:
				return 1
			}
		}
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Place, b.Place), cmp.Compare(a.GPUModel, b.GPUModel))
	})
	slices.SortFunc(m.Bursts, func(a, b StatementBurst) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Burst, b.Burst))
	})
	slices.SortFunc(m.Open, func(a, b ExposedBurst) int { return cmp.Compare(a.Burst, b.Burst) })
	m.round()
	return m.Statement, nil
}

// round rounds each table by itself, so that its parts add up to the total.
func (m *month) round() {
	var charged, waived, overrun, byLine, byDay []*Cost
	for i := range m.Totals {
		t := &m.Totals[i]
		roundCosts([]*Cost{&t.Charged})
		roundCosts([]*Cost{&t.Waived})
		roundCosts([]*Cost{&t.Overrun})
	}
	for i := range m.Bursts {
		b := &m.Bursts[i]
		charged, waived, overrun = append(charged, &b.Charged), append(waived, &b.Waived), append(overrun, &b.Overrun)
	}
	var homeLines, lines, homeDays, days []*GPUTime
	for i := range m.Lines {
		l := &m.Lines[i]
		if byLine = append(byLine, l.Charged...); l.Place == OnPrem {
			homeLines = append(homeLines, &l.Time)
		} else {
			lines = append(lines, &l.Time)
		}
	}
	for i := range m.Days {
		d := &m.Days[i]
		homeDays, days, byDay = append(homeDays, &d.Time.OnPrem), append(days, &d.Time.Burst), append(byDay, d.Charged...)
	}
	for _, costs := range [][]*Cost{charged, waived, overrun, byLine, byDay} {
		roundCosts(costs)
	}
	for _, times := range [][]*GPUTime{homeLines, lines, homeDays, days, {&m.Time.OnPrem}, {&m.Time.Burst}} {
		roundTimes(times)
	}
}
