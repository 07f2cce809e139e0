package quota_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// leased is a burst of one machine at 3.60 EUR an hour (0.001 EUR a second),
// metered by the second, with 10 minutes to stop in. Its first slice reaches an
// hour far, a lease of it 50 minutes.
func leased(uid, from, ceiling string) quota.Reservation {
	r := quota.Reservation{
		Burst: uid, Tenant: "vision", Project: "train", Provider: "ovh", Mode: quota.ModeLease,
		Amount: eur("3.60"), Ceiling: eur(ceiling), From: at(from), Until: at(from).Add(time.Hour),
		Price: money.Rate{NanoPerHour: 3_600_000_000, Currency: "EUR"},
		Terms: quota.Terms{Machines: 1, Stop: 10 * time.Minute},
	}
	return r
}

// slice asks for what lets a lease reach so far.
func (w *world) slice(burst string, hard time.Time) *world {
	w.t.Helper()
	x, ok, err := w.book.Open[burst].Next(hard)
	if err != nil || !ok {
		w.t.Fatalf("no next slice: %t, %v", ok, err)
	}
	return w.apply(w.book.Extend(x))
}

func TestASliceMovesTheLeaseAndPaysForItsWayToStop(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "6")).
		reserve(leased("a", "2026-10-05 08:00", "100")).accepted().holds("team", "2026-10", "0", "3.60")
	if got, want := w.book.Open["a"].LeaseBy(), at("2026-10-05 08:50"); !got.Equal(want) {
		t.Errorf("a lease may reach to %s, want %s", got, want)
	}
	w.slice("a", at("2026-10-05 09:20")).accepted().holds("team", "2026-10", "0", "5.40")
	if a := w.book.Open["a"]; !a.LeaseBy().Equal(at("2026-10-05 09:20")) || a.Pending != eur("5.40") || a.Extensions != 1 {
		t.Errorf("the account behind the slice is %+v", a)
	}
	w.slice("a", at("2026-10-05 09:35")).short("team", "0.30").holds("team", "2026-10", "0", "5.40").
		slice("a", at("2026-10-05 09:30")).accepted().holds("team", "2026-10", "0", "6")
}

// A slice that was booked is not asked for again, and none is left out.
func TestSlicesAreNumberedAndExact(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "100")).reserve(leased("a", "2026-10-05 08:00", "100")).accepted()
	x, _, err := w.book.Open["a"].Next(at("2026-10-05 09:20"))
	if err != nil || x.Key != "1" || x.More != eur("1.80") {
		t.Fatalf("Next = %+v, %v", x, err)
	}
	later := x
	later.Key = "2"
	w.apply(w.book.Extend(later)).refused(quota.ErrInvalid)
	for name, change := range map[string]func(*quota.Extension){
		"less than it can cost": func(x *quota.Extension) { x.More = eur("1.79") },
		"more than it can cost": func(x *quota.Extension) { x.More = eur("1.81") },
		"money and no time":     func(x *quota.Extension) { x.Until = time.Time{} },
		"time and no money":     func(x *quota.Extension) { x.More = money.Amount{} },
	} {
		t.Run(name, func(t *testing.T) {
			bad := x
			change(&bad)
			if _, err := w.book.Extend(bad); !errors.Is(err, quota.ErrInvalid) {
				t.Errorf("Extend = %v, want ErrInvalid", err)
			}
		})
	}
	w.apply(w.book.Extend(x)).accepted().apply(w.book.Extend(x)).refused(quota.ErrInvalid)
	w.apply(w.book.Shrink(quota.Reduction{Burst: "a", To: eur("1"), Reason: "sold out"})).accepted()
	if y, _, err := w.book.Open["a"].Next(at("2026-10-05 11:00")); err == nil {
		w.apply(w.book.Extend(y)).refused(quota.ErrDraining)
	}
}

// The slices end where the ceiling does, to the second.
func TestTheCeilingEndsTheSlices(t *testing.T) {
	w := given(t, hard("team", quota.ScopeTenant, "vision", "100")).reserve(leased("a", "2026-10-05 08:00", "5.405")).accepted().
		slice("a", at("2026-10-05 12:00")).accepted()
	a := w.book.Open["a"]
	if want := at("2026-10-05 09:30").Add(5 * time.Second); !a.Until.Equal(want) || a.Reserved != eur("5.405") {
		t.Errorf("the money reaches to %s with %v, want %s", a.Until, a.Reserved, want)
	}
	if x, ok, err := a.Next(at("2026-10-05 12:00")); ok || err != nil {
		t.Errorf("beyond the ceiling there is a slice: %+v, %v", x, err)
	}
}

func TestTermsThatCanNotBe(t *testing.T) {
	for name, change := range map[string]func(*quota.Reservation){
		"mode safe":           func(r *quota.Reservation) { r.Mode = quota.ModeSafe },
		"no price":            func(r *quota.Reservation) { r.Price = money.Rate{} },
		"no ceiling":          func(r *quota.Reservation) { r.Ceiling = money.Amount{} },
		"another currency":    func(r *quota.Reservation) { r.Price.Currency = "USD" },
		"no machine":          func(r *quota.Reservation) { r.Terms.Machines = 0 },
		"no way to stop":      func(r *quota.Reservation) { r.Terms.Stop = 0 },
		"only a way to stop":  func(r *quota.Reservation) { r.Terms.Stop = time.Hour },
		"a negative unit":     func(r *quota.Reservation) { r.Terms.Meter.Unit = -time.Second },
		"an uncovered minute": func(r *quota.Reservation) { r.Until = r.Until.Add(time.Minute) },
		"a whole too much":    func(r *quota.Reservation) { r.Amount = eur("7.20") },
	} {
		t.Run(name, func(t *testing.T) {
			r := leased("a", "2026-10-05 08:00", "100")
			change(&r)
			w := given(t, hard("team", quota.ScopeTenant, "vision", "100"))
			w.reserve(r).refused(quota.ErrInvalid)
		})
	}
}

// Over a month end each month holds what can fall into it, and not the whole:
// an extension in November asks nothing of October.
func TestSlicesOverAMonthEnd(t *testing.T) {
	// Half an hour before midnight in Berlin, and half an hour behind it.
	w := given(t, hard("team", quota.ScopeTenant, "vision", "5")).reserve(leased("a", "2026-10-31 22:30", "100")).accepted()
	w.holds("team", "2026-10", "0", "1.802").holds("team", "2026-11", "0", "1.802")
	w.slice("a", at("2026-10-31 23:50")).accepted()
	w.holds("team", "2026-10", "0", "1.802").holds("team", "2026-11", "0", "3.602")
	w.slice("a", at("2026-11-01 00:20")).short("team", "0.402")
	w.settle(quota.Settlement{Burst: "a", Actual: eur("5.40"), MachineStart: at("2026-10-31 22:30"), MachineEnd: at("2026-11-01 00:00"), Seconds: 5400}).accepted().
		holds("team", "2026-10", "1.80", "0").holds("team", "2026-11", "3.60", "0")
}

// What is rounded up can all fall into one window: a machine that is billed by the
// started hour runs for two seconds before midnight and just short of an hour
// behind it, and pays for two.
func TestAWindowHoldsWhatIsRoundedUp(t *testing.T) {
	r := leased("a", "2026-10-31 22:59", "100")
	r.From = r.From.Add(58 * time.Second)
	r.Until, r.Amount, r.Terms.Meter.Unit = r.From.Add(3601*time.Second), eur("7.20"), time.Hour
	given(t, hard("team", quota.ScopeTenant, "vision", "20")).reserve(r).accepted().holds("team", "2026-11", "0", "7.20").
		settle(quota.Settlement{Burst: "a", Actual: eur("7.20"), MachineStart: r.From, MachineEnd: r.Until, Seconds: 7200}).accepted().
		holds("team", "2026-11", "7.196001111", "0")
}

// A machine that outlives its money is paid for by the operator, and no window
// pays more than it promised.
func TestAMachineThatOutlivesItsSlices(t *testing.T) {
	given(t, hard("team", quota.ScopeTenant, "vision", "5")).
		reserve(leased("a", "2026-10-31 22:30", "100")).accepted().
		settle(quota.Settlement{Burst: "a", Actual: eur("36"), MachineStart: at("2026-10-31 22:30"), MachineEnd: at("2026-11-01 08:30"), Seconds: 36000}).accepted().
		holds("team", "2026-10", "1.798", "0").holds("team", "2026-11", "1.802", "0")
}

// plot is one random life of a burst that is paid slice by slice.
type plot struct {
	*rapid.T
	book   quota.Book
	limits map[string]money.Amount
	r      quota.Reservation
}

// TestSlicesCoverTheirMachines: in random lives, over month ends, with budgets
// that are lowered on the way, by every meter rule: no window of a hard budget
// is promised more than its limit; what is reserved is exactly what the machines
// can cost until the end; and whatever they are billed when they are gone by
// then, it is charged in full, in the very windows in which they ran.
// cases: C-29 SchedMD/slurm non-safe mode, C-14 kubernetes-sigs/kueue KEP-6143
func TestSlicesCoverTheirMachines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &plot{T: t, limits: map[string]money.Amount{}}
		p.limit("month", quota.WindowMonth)
		p.limit("day", quota.WindowDay)
		p.reservation()
		if !p.apply(p.book.Reserve(p.r)) {
			return
		}
		for range rapid.IntRange(0, 12).Draw(t, "moves") {
			if rapid.IntRange(0, 4).Draw(t, "move") == 0 {
				p.limit("day", quota.WindowDay)
				continue
			}
			a := p.book.Open["a"]
			x, ok, err := a.Next(a.LeaseBy().Add(p.upTo("further", 9*time.Hour)))
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				p.apply(p.book.Extend(x))
			}
		}
		p.end()
	})
}

func (p *plot) upTo(what string, most time.Duration) time.Duration {
	return time.Duration(rapid.Int64Range(1, int64(most/time.Second)).Draw(p.T, what)) * time.Second
}

func (p *plot) limit(id string, w quota.Window) {
	set := []quota.Budget{}
	p.limits[id] = money.Amount{Nano: rapid.Int64Range(0, 400e9).Draw(p.T, "limit"), Currency: "EUR"}
	for id, limit := range p.limits {
		b := p.book.Budgets[id]
		if b.ID == "" {
			b = quota.Budget{ID: id, Scope: quota.ScopeGlobal, Window: w, Hard: true}
		}
		b.Limit, b.Retired = limit, false
		set = append(set, b)
	}
	if ev, changed, err := p.book.SetBudgets(set); err != nil || changed && !p.apply(ev, nil) {
		p.Fatal(err)
	}
}

func (p *plot) reservation() {
	m := money.Meter{
		Unit:    rapid.SampledFrom([]time.Duration{0, 7 * time.Second, time.Minute, time.Hour, 24 * time.Hour}).Draw(p.T, "unit"),
		Minimum: rapid.SampledFrom([]time.Duration{0, time.Minute, 5 * time.Hour}).Draw(p.T, "minimum"), Aligned: rapid.Bool().Draw(p.T, "aligned"),
	}
	from := at("2026-10-30 12:00").Add(p.upTo("from", 60*time.Hour))
	p.r = quota.Reservation{
		Burst: "a", Tenant: "t", Provider: "p", Mode: quota.ModeLease, From: from, Until: from.Add(time.Hour + p.upTo("first", 9*time.Hour)),
		Price:   money.Rate{NanoPerHour: rapid.Int64Range(1, 9e9).Draw(p.T, "price"), Currency: "EUR"},
		Ceiling: money.Amount{Nano: 600e9, Currency: "EUR"},
		Terms:   quota.Terms{Machines: rapid.Int64Range(1, 3).Draw(p.T, "machines"), Meter: m, Stop: p.upTo("stop", time.Hour)},
	}
	var err error
	if p.r.Amount, err = p.r.Worst(p.r.Until); err != nil {
		p.Fatal(err)
	}
}

// apply takes in what was accepted, and holds it against the limits and the worst case.
func (p *plot) apply(ev quota.Event, err error) bool {
	if _, short := errors.AsType[*quota.ShortError](err); short || errors.Is(err, quota.ErrInvalid) && ev.Kind == "" && p.r.Amount.Nano > p.r.Ceiling.Nano {
		return false
	}
	if err != nil {
		p.Fatal(err)
	}
	if _, err := p.book.Apply(ev); err != nil {
		p.Fatal(err)
	}
	if ev.Kind != quota.KindReserve && ev.Kind != quota.KindExtend {
		return true
	}
	for _, e := range ev.Entries {
		if h, _, ok := e.Debit.Window(); ok {
			held := p.book.Windows[h.Budget][h.Period]
			if limit := p.limits[h.Budget]; held.Reserved.Nano > limit.Nano {
				p.Fatalf("budget %s in %s has promised %v of %v", h.Budget, h.Period, held.Reserved, limit)
			}
		}
	}
	a := p.book.Open["a"]
	if worst, err := p.r.Worst(a.Until); err != nil || a.Pending != worst || a.Pending.Nano > p.r.Ceiling.Nano {
		p.Fatalf("until %s the machines can cost %v (%v), %v is reserved, the ceiling is %v", a.Until, worst, err, a.Pending, p.r.Ceiling)
	}
	return true
}

// end settles what the machines are billed, all gone by the end of the money.
func (p *plot) end() {
	a := p.book.Open["a"]
	span := a.Until.Sub(p.r.From)
	start := p.r.From.Add(p.upTo("start", span) - time.Second)
	s := quota.Settlement{Burst: "a", MachineStart: start, MachineEnd: start.Add(p.upTo("ran", a.Until.Sub(start)))}
	billed := p.r.Terms.Meter.Billed(s.MachineStart, s.MachineEnd)
	one, err := p.r.Price.For(int64((billed+time.Second-1)/time.Second), money.Whole)
	if err != nil {
		p.Fatal(err)
	}
	if s.Actual, err = one.Mul(p.r.Terms.Machines); err != nil {
		p.Fatal(err)
	}
	ev, err := p.book.Settle(s)
	if err != nil {
		p.Fatalf("settle %v of %v: %v", s.Actual, a.Pending, err)
	}
	closed, err := p.book.Apply(ev)
	if err != nil || !closed.Overrun.IsZero() || closed.Spent.Nano != s.Actual.Nano {
		p.Fatalf("the bill is %v, charged are %v, the operator pays %v: %v", s.Actual, closed.Spent, closed.Overrun, err)
	}
	for id, windows := range p.book.Windows {
		for window, held := range windows {
			fell := closed.Metered().Amount(closed.Spent, held.Start, held.End)
			if off := held.Spent.Nano - fell.Nano; off < -3 || off > 3 || !held.Reserved.IsZero() {
				p.Fatalf("%s in %s has spent %v and holds %v; %v fell into it", id, window, held.Spent, held.Reserved, fell)
			}
		}
	}
}
