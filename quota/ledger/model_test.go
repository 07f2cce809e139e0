package ledger_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// model is a ledger in plain whole euros: slow, obvious, and written without
// looking at the real one. Windows are "10" and "11" for October and November.
type model struct {
	limit  map[string]int64 // of hard budgets, by id
	spent  map[string]int64 // by budget and window, in half euros
	epoch  int64
	bursts map[string]*modelBurst
	over   int64 // open overrun
}

type modelBurst struct {
	tenant   string
	windows  []string
	asked    int64
	pending  int64
	reserved int64
	draining bool
	settled  bool
	permits  map[string]bool
	extends  map[string]int64
	actual   int64 // of the settlement
	fault    bool
}

func (m *model) path(tenant string) []string { return []string{"all", tenant} }

// room reports whether every window on the path takes n more.
func (m *model) room(tenant string, windows []string, n int64) bool {
	for _, id := range m.path(tenant) {
		for _, w := range windows {
			used := m.spent[id+w]
			for _, b := range m.bursts {
				if !b.settled && slices.Contains(m.path(b.tenant), id) && slices.Contains(b.windows, w) {
					used += 2 * b.pending
				}
			}
			if used+2*n > 2*m.limit[id] {
				return false
			}
		}
	}
	return true
}

func euros(n int64) money.Amount { return money.Amount{Nano: n * 1e9, Currency: "EUR"} }

// play is one random history on two handles of one file, beside its model.
type play struct {
	*rapid.T
	f       *fixture
	handles []*ledger.Ledger
	m       model
	replays []func() // calls that were answered with yes, checked again
}

// TestAgainstTheModel plays random histories of reservations, extensions,
// reductions, settlements and permits, with repetitions, conflicts, stale
// leaders, restarts and changed limits, and compares every answer and every
// balance with the model (I1 to I5 and I9 of the ledger's invariants).
// cases: C-8 kubernetes-sigs/kueue#13044, #11553, #12766; C-26 BerriAI/litellm#27639, #30460, #36926, #40050
func TestAgainstTheModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		f := newFixture(t)
		p := &play{T: r, f: f, handles: []*ledger.Ledger{f.Ledger, f.open()}, m: model{
			limit: map[string]int64{"all": 30, "red": 20, "blue": 15}, spent: map[string]int64{}, epoch: f.epoch, bursts: map[string]*modelBurst{},
		}}
		p.setBudgets()
		moves := []func(){p.reserve, p.reserve, p.reserve, p.extend, p.shrink, p.settle, p.settle, p.permit, p.replay, p.replay, p.newLeader, p.restart, p.limits, p.accept}
		for range rapid.IntRange(5, 40).Draw(r, "length") {
			moves[rapid.IntRange(0, len(moves)-1).Draw(r, "move")]()
			p.compare()
		}
		if report, err := p.ledger().Verify(f.ctx()); err != nil || !report.OK {
			p.Fatalf("%v\n%s", err, report)
		}
		for _, l := range p.handles {
			f.must(l.Close())
		}
	})
}

func (p *play) ledger() *ledger.Ledger { return p.handles[rapid.IntRange(0, 1).Draw(p.T, "handle")] }

// term is the leader's epoch, or now and then that of one who was deposed.
func (p *play) term() (epoch int64, stale bool) {
	stale = rapid.IntRange(0, 9).Draw(p.T, "stale") == 0
	if stale {
		return p.m.epoch - 1, true
	}
	return p.m.epoch, false
}

func (p *play) uid() string { return fmt.Sprint("burst-", rapid.IntRange(0, 7).Draw(p.T, "burst")) }

func (p *play) euros() int64 { return rapid.Int64Range(1, 12).Draw(p.T, "euros") }

// answer checks one answer against the reason that the model has to refuse;
// short stands for any ShortError.
func (p *play) answer(what string, err, want error) {
	p.Helper()
	_, isShort := errors.AsType[*quota.ShortError](err)
	if want == errShort && isShort || want != errShort && errors.Is(err, want) {
		return
	}
	p.Fatalf("%s: error is %v, the model says %v", what, err, want)
}

var errShort = errors.New("short")

func (p *play) reservation(uid string) (quota.Reservation, *modelBurst) {
	b := &modelBurst{
		tenant: rapid.SampledFrom([]string{"red", "blue"}).Draw(p.T, "tenant"), asked: p.euros(),
		permits: map[string]bool{}, extends: map[string]int64{},
	}
	r := quota.Reservation{Burst: uid, Tenant: b.tenant, Provider: "ovh", Amount: euros(b.asked)}
	var at fixture
	switch rapid.IntRange(0, 2).Draw(p.T, "when") {
	case 0:
		r.From, r.Until, b.windows = at.at("2026-10-10 08:00"), at.at("2026-10-10 10:00"), []string{"10"}
	case 1: // one hour on either side of midnight in Berlin
		r.From, r.Until, b.windows = at.at("2026-10-31 22:00"), at.at("2026-11-01 00:00"), []string{"10", "11"}
	case 2:
		r.From, r.Until, b.windows = at.at("2026-11-10 08:00"), at.at("2026-11-10 10:00"), []string{"11"}
	}
	b.pending, b.reserved = b.asked, b.asked
	return r, b
}

func (p *play) reserve() {
	r, b := p.reservation(p.uid())
	epoch, stale := p.term()
	var want error
	old := p.m.bursts[r.Burst]
	switch {
	case stale:
		want = quota.ErrStaleEpoch
	case old != nil && old.asked == b.asked && old.tenant == b.tenant && slices.Equal(old.windows, b.windows):
	case old != nil:
		want = quota.ErrConflict
	case p.m.over > 0:
		want = quota.ErrOverrun
	case !p.m.room(b.tenant, b.windows, b.asked):
		want = errShort
	}
	receipt, err := p.ledger().Reserve(p.f.ctx(), epoch, r)
	p.answer("reserve", err, want)
	if err != nil || old != nil {
		return
	}
	p.m.bursts[r.Burst] = b
	p.remember("reserve", receipt, func(l *ledger.Ledger) (quota.Receipt, error) { return l.Reserve(p.f.ctx(), p.m.epoch, r) })
}

// open is what the model says to a call on a burst that must be open.
func (p *play) open(uid string, stale bool) (*modelBurst, error) {
	b := p.m.bursts[uid]
	switch {
	case stale:
		return b, quota.ErrStaleEpoch
	case b == nil:
		return b, quota.ErrUnknownBurst
	case b.settled:
		return b, quota.ErrSettled
	}
	return b, nil
}

func (p *play) extend() {
	uid, key, more := p.uid(), fmt.Sprint(rapid.IntRange(0, 3).Draw(p.T, "key")), p.euros()
	epoch, stale := p.term()
	b, want := p.open(uid, stale)
	before, again := int64(0), false
	if b != nil {
		before, again = b.extends[key], b.extends[key] != 0
	}
	switch {
	case stale:
	case again && before == more:
		want = nil
	case again:
		want = quota.ErrConflict
	case want == nil && !p.m.room(b.tenant, b.windows, more):
		want = errShort
	}
	receipt, err := p.ledger().Extend(p.f.ctx(), epoch, uid, key, euros(more), time.Time{})
	p.answer("extend", err, want)
	if err != nil || again {
		return
	}
	b.extends[key] = more
	b.pending += more
	b.reserved += more
	p.remember("extend", receipt, func(l *ledger.Ledger) (quota.Receipt, error) {
		return l.Extend(p.f.ctx(), p.m.epoch, uid, key, euros(more), time.Time{})
	})
}

func (p *play) shrink() {
	uid, to := p.uid(), p.euros()
	epoch, stale := p.term()
	b, want := p.open(uid, stale)
	if want == nil && to > b.pending {
		want = quota.ErrInvalid
	}
	_, err := p.ledger().Shrink(p.f.ctx(), epoch, uid, euros(to), "sold out")
	p.answer("shrink", err, want)
	if err == nil {
		b.pending, b.draining = to, true
	}
}

func (p *play) settle() {
	r := quota.Settlement{Burst: p.uid(), Actual: euros(p.euros())}
	fault := rapid.IntRange(0, 4).Draw(p.T, "fault") == 0
	if fault {
		r.Cause = quota.CauseProviderFault
	}
	epoch, stale := p.term()
	b, want := p.open(r.Burst, stale)
	actual := r.Actual.Nano / 1e9
	var at fixture
	if b != nil && len(b.windows) == 2 {
		r.MachineStart, r.MachineEnd = at.at("2026-10-31 22:00"), at.at("2026-11-01 00:00")
	}
	again := b != nil && b.settled
	switch {
	case stale:
	case again && b.actual == actual && b.fault == fault:
		want = nil
	case again:
		want = quota.ErrConflict
	}
	receipt, err := p.ledger().Settle(p.f.ctx(), epoch, r)
	p.answer("settle", err, want)
	if err != nil || again {
		return
	}
	b.settled, b.actual, b.fault = true, actual, fault
	posted := min(actual, b.pending)
	p.m.over += actual - posted
	for _, id := range p.m.path(b.tenant) {
		for _, w := range b.windows {
			if !fault {
				p.m.spent[id+w] += 2 * posted / int64(len(b.windows))
			}
		}
	}
	p.remember("settle", receipt, func(l *ledger.Ledger) (quota.Receipt, error) { return l.Settle(p.f.ctx(), p.m.epoch, r) })
}

func (p *play) permit() {
	uid, ordinal := p.uid(), rapid.IntRange(0, 1).Draw(p.T, "ordinal")
	epoch, stale := p.term()
	b, want := p.open(uid, stale)
	key := fmt.Sprint(ordinal, "/", epoch)
	switch {
	case want != nil:
	case b.draining:
		want = quota.ErrDraining
	case b.permits[key]:
		want = quota.ErrPermitUsed
	}
	err := p.ledger().Permit(p.f.ctx(), epoch, uid, ordinal)
	p.answer("permit", err, want)
	if err == nil {
		b.permits[key] = true
	}
}

// remember keeps a call whose first answer must come again for ever.
func (p *play) remember(what string, first quota.Receipt, call func(*ledger.Ledger) (quota.Receipt, error)) {
	p.replays = append(p.replays, func() {
		again, err := call(p.ledger())
		if err != nil || again.Hash != first.Hash || again.Pending != first.Pending || again.State != first.State {
			p.Fatalf("%s again: %+v, %v; the first answer was %+v", what, again, err, first)
		}
	})
}

func (p *play) replay() {
	if n := len(p.replays); n > 0 {
		p.replays[rapid.IntRange(0, n-1).Draw(p.T, "which")]()
	}
}

func (p *play) newLeader() {
	epoch, err := p.ledger().BeginEpoch(p.f.ctx(), "next")
	if p.m.epoch++; err != nil || epoch != p.m.epoch {
		p.Fatalf("epoch %d, %v; the model says %d", epoch, err, p.m.epoch)
	}
}

func (p *play) restart() {
	p.f.must(p.handles[1].Close())
	p.handles[1] = p.f.open()
}

func (p *play) limits() {
	id := rapid.SampledFrom([]string{"all", "red", "blue"}).Draw(p.T, "budget")
	p.m.limit[id] = rapid.Int64Range(0, 40).Draw(p.T, "limit")
	p.setBudgets()
}

func (p *play) setBudgets() {
	var set []quota.Budget
	for _, id := range slices.Sorted(maps.Keys(p.m.limit)) {
		b := quota.Budget{ID: id, Scope: quota.ScopeTenant, Subject: id, Window: quota.WindowMonth, Limit: euros(p.m.limit[id]), Hard: true}
		if id == "all" {
			b.Scope, b.Subject = quota.ScopeGlobal, ""
		}
		set = append(set, b)
	}
	if err := p.ledger().SetBudgets(p.f.ctx(), p.m.epoch, set); err != nil {
		p.Fatal(err)
	}
}

func (p *play) accept() {
	var want error
	if p.m.over == 0 {
		want = quota.ErrInvalid
	}
	p.answer("accept", p.ledger().AcceptOverrun(p.f.ctx(), p.m.epoch, "EUR", "person-1", "checked"), want)
	p.m.over = 0
}

// compare holds every balance of the real book against the model.
func (p *play) compare() {
	book, err := p.ledger().Book(p.f.ctx())
	if err != nil {
		p.Fatal(err)
	}
	if got := book.Overrun["EUR"].Nano; got != p.m.over*1e9 {
		p.Fatalf("overrun is %d, the model says %d EUR", got, p.m.over)
	}
	for id := range p.m.limit {
		for _, w := range []string{"10", "11"} {
			var reserved int64
			for _, b := range p.m.bursts {
				if !b.settled && slices.Contains(p.m.path(b.tenant), id) && slices.Contains(b.windows, w) {
					reserved += b.pending
				}
			}
			got := book.Windows[id]["2026-"+w]
			if got.Reserved.Nano != reserved*1e9 || got.Spent.Nano != p.m.spent[id+w]*5e8 {
				p.Fatalf("%s in %s: spent %v, reserved %v; the model says %d half euros and %d EUR", id, w, got.Spent, got.Reserved, p.m.spent[id+w], reserved)
			}
		}
	}
	for uid, b := range p.m.bursts {
		if a, open := book.Open[uid]; open == b.settled || open && (a.Pending != euros(b.pending) || a.Reserved != euros(b.reserved) || len(a.Permits) != len(b.permits)) {
			p.Fatalf("account of %s is %+v, the model says %+v", uid, a, b)
		}
	}
}
