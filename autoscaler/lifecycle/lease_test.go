package lifecycle

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// Behind the last lease of a leased burst: the longest wait for results and
// wipe, the dead-man switch, one sweep, and the provider's deletion.
const (
	sweepTime  = time.Minute
	deleteTime = 5 * time.Minute
	stopTime   = 20*time.Minute + 2*time.Minute + sweepTime + deleteTime
)

// purse is a real ledger, in the epoch of one leader.
type purse struct {
	*ledger.Ledger
	b     *bench
	epoch int64
	calls int // of Extend
}

func (p *purse) Reserve(ctx context.Context, r quota.Reservation) (quota.Receipt, error) {
	return p.Ledger.Reserve(ctx, p.epoch, r)
}

func (p *purse) Extend(ctx context.Context, x quota.Extension) (quota.Receipt, error) {
	p.calls++
	return p.Ledger.Extend(ctx, p.epoch, x.Burst, x.Key, x.More, x.Until)
}

func (p *purse) Settle(ctx context.Context, s quota.Settlement) (quota.Receipt, error) {
	return p.Ledger.Settle(ctx, p.epoch, s)
}

func (p *purse) RecordUsage(ctx context.Context, u []quota.Usage) error {
	return p.Ledger.RecordUsage(ctx, p.epoch, u)
}

// lead is a new leader: whoever led before is fenced off.
func (p *purse) lead() {
	p.b.t.Helper()
	var err error
	if p.epoch, err = p.BeginEpoch(p.b.t.Context(), "controller"); err != nil {
		p.b.t.Fatal(err)
	}
}

// limit sets the tenant's one hard budget.
func (p *purse) limit(text string) {
	p.b.t.Helper()
	limit, err := money.Parse(text)
	if err == nil {
		err = p.SetBudgets(p.b.t.Context(), p.epoch, []quota.Budget{
			{ID: "t-1/month", Scope: quota.ScopeTenant, Subject: "t-1", Window: quota.WindowMonth, Limit: limit, Hard: true},
		})
	}
	if err != nil {
		p.b.t.Fatal(err)
	}
}

func (p *purse) account() quota.Account {
	p.b.t.Helper()
	a, err := p.Account(p.b.t.Context(), string(burstUID))
	if err != nil {
		p.b.t.Fatal(err)
	}
	return a
}

// verified fails the test unless the ledger verifies.
func (p *purse) verified() {
	p.b.t.Helper()
	r, err := p.Verify(p.b.t.Context())
	if err != nil || !r.OK {
		p.b.t.Fatalf("the ledger does not verify: %v\n%s", err, r)
	}
}

// leased is a burst whose money is booked slice by slice on a real ledger. It is
// created at 10:00. Its one machine costs 0.001 EUR a second; it may run for two
// hours, so its deadline is 12:40, and its first slice reaches to 11:08.
func leased(t testing.TB, limit string) (*bench, *purse) {
	t.Helper()
	b := newBench(t, 1, 1, func(burst *v1alpha1.Burst) {
		begin := burst.CreationTimestamp.Time
		s := &burst.Spec
		s.Mode, s.Ceiling = quota.ModeLease, "11.28 EUR"
		s.Deadline = metav1.NewTime(begin.Add(40*time.Minute + s.MaxRunTime.Duration))
		s.Until = metav1.NewTime(s.Deadline.Add(stopTime))
		first := metav1.NewTime(begin.Add(40*time.Minute + stopTime))
		s.FirstUntil = &first
	})
	l, err := ledger.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), ledger.Options{Now: func() time.Time { return b.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &purse{Ledger: l, b: b}
	p.lead()
	p.limit(limit)
	b.money = p
	b.agents.drains = true
	b.restart()
	return b, p
}

// covered fails the test when a machine may live longer than money stands behind
// it: until its node has ended itself by the lease, or until the sweeper and the
// cloud have by the stamp.
func (b *bench) covered(p *purse) {
	b.t.Helper()
	lease := b.burst().Status.Lease
	for _, v := range b.yard.views {
		if !v.Gone.IsZero() {
			continue
		}
		a := p.account()
		end := latest(v.Stamped, lease.Hard.Add(b.r.Settings.DeadMan)).Add(sweepTime + deleteTime)
		if a.State == quota.Settled || end.After(a.Until) {
			b.t.Fatalf("at %s machine %s may live until %s; the account is %s and its money reaches to %s", b.now, v.Name, end, a.State, a.Until)
		}
		if cost := a.Until.Sub(a.Reservation.From).Milliseconds() * 1e3; a.Pending.Nano < cost {
			b.t.Fatalf("until %s the machine can cost %d nano-units, %v is reserved", a.Until, cost, a.Pending)
		}
	}
}

// runs lets the pod run for so long once it is let in, or until its node asks
// it to stop.
func (b *bench) runs(d time.Duration) {
	b.work.onAdmit = func(name string) {
		b.place(name, 0, corev1.PodRunning)
		b.later(d, func() { b.place(name, 0, corev1.PodSucceeded) })
	}
}

// stops is the node's side of a soft end: the pod fails and the node is drained.
func (b *bench) stops() {
	lease := b.burst().Status.Lease
	if lease == nil || !b.now.After(lease.Soft.Add(time.Minute)) || !b.has(v1alpha1.PodsAdmitted) {
		return
	}
	b.pod("pod-0", func(p *corev1.Pod) {
		if p.Status.Phase == corev1.PodRunning {
			p.Status.Phase = corev1.PodFailed
		}
	})
}

// TestALeaseIsExtendedThriceAndDone: each slice is booked when half of the lease
// before it is left, once, and what was not needed goes back.
func TestALeaseIsExtendedThriceAndDone(t *testing.T) {
	b, p := leased(t, "100.00 EUR")
	b.runs(time.Hour)
	for end := b.now.Add(3 * time.Hour); !b.has(v1alpha1.Complete) && b.now.Before(end); b.step() {
		before := p.calls
		b.covered(p)
		if lease := b.burst().Status.Lease; p.calls > before && lease.Hard.Sub(b.now) > b.r.Settings.LeaseTime/2 {
			t.Errorf("a slice was asked for with %s of the lease left", lease.Hard.Sub(b.now))
		}
	}
	if !b.has(v1alpha1.Complete) {
		t.Fatalf("%v, last error %v", b.facts(), b.last)
	}
	a := p.account()
	if a.Extensions != 3 || p.calls != 3 || a.State != quota.Settled || !a.Overrun.IsZero() {
		t.Errorf("%d slices in %d calls, account %+v", a.Extensions, p.calls, a)
	}
	m := b.burst().Status.Machines[0]
	if want := m.Gone.Sub(m.Created.Time).Milliseconds() * 1e3; a.Spent.Nano != want || a.Released.Nano != a.Reserved.Nano-want {
		t.Errorf("spent %v of %v, released %v; the machine cost %d nano-units", a.Spent, a.Reserved, a.Released, want)
	}
	if c := b.burst().Status.Cost; c.Slices != 3 || c.Reserved != moneyOf(a.Reserved) {
		t.Errorf("the burst says %+v, the ledger %v", c, a.Reserved)
	}
	p.verified()
}

// TestARefusedSliceEndsGracefully: there is money for one more slice and not for
// two. The work is asked to stop at once, its results come home, the node is
// wiped, all before the lease's soft end; and its user reads which budget is
// short by what, and what may be done.
func TestARefusedSliceEndsGracefully(t *testing.T) {
	b, p := leased(t, "5.00 EUR")
	b.runs(2 * time.Hour)
	var soft time.Time
	for end := b.now.Add(3 * time.Hour); !b.has(v1alpha1.Failed) && b.now.Before(end); b.step() {
		b.covered(p)
		if lease := b.burst().Status.Lease; !b.has(v1alpha1.Ending) && lease != nil {
			soft = lease.Soft.Time
		}
		b.stops()
		wiping := slices.ContainsFunc(b.nodesTold(), func(wipe bool) bool { return wipe })
		if wiping && !b.has(v1alpha1.ResultsHome) {
			t.Fatal("the node is told to wipe before its results are home")
		}
		if at := (record{b.burst(), b.now}).at(v1alpha1.Ending); !at.IsZero() && b.burst().Status.Lease.Soft.After(at) {
			t.Fatalf("the burst is ending since %s, its pods are asked to stop at %s", at, b.burst().Status.Lease.Soft)
		}
		if b.has(v1alpha1.ResultsHome) && !b.agents.reports[b.yard.views[0].Name].Drained && b.yard.views[0].Gone.IsZero() {
			t.Fatal("the results are taken for whole while the pods still give them back")
		}
	}
	for _, want := range []string{v1alpha1.EndBudgetExceeded, `budget "t-1/month" is short by`, "in 2026-11", "raise its limit by"} {
		if got := b.fact(v1alpha1.Failed); !strings.Contains(got, want) {
			t.Errorf("Failed = %s, want %q in it", got, want)
		}
		if !slices.ContainsFunc(b.work.told, func(text string) bool {
			return strings.HasPrefix(text, v1alpha1.Ending) && (want == v1alpha1.EndBudgetExceeded || strings.Contains(text, want))
		}) {
			t.Errorf("the user was not told %q at the end: %q", want, b.work.told)
		}
	}
	if gone := b.yard.views[0].Gone; gone.IsZero() || !gone.Before(soft) || !b.is(v1alpha1.ResultsHome) || !b.is(v1alpha1.Wiped) {
		t.Errorf("the machine was gone at %s, the soft end was %s; %v", gone, soft, b.facts())
	}
	if a := p.account(); a.Extensions != 1 || !a.Overrun.IsZero() || a.Spent.IsZero() {
		t.Errorf("account %+v", a)
	}
	p.verified()
}

func (b *bench) is(fact string) bool { return strings.HasPrefix(b.fact(fact), "True") }

// nodesTold says of each node whether it was told to wipe.
func (b *bench) nodesTold() (wipe []bool) {
	for _, o := range b.agents.told {
		wipe = append(wipe, o.Wipe != nil)
	}
	return wipe
}

// TestTheControllerIsAwayOverAnExtension: nobody asks for the next slice, so the
// node ends itself by the lease that it holds, the sweeper deletes the machine by
// its stamp, and the money that was booked covers all of it.
func TestTheControllerIsAwayOverAnExtension(t *testing.T) {
	b, p := leased(t, "100.00 EUR")
	b.runs(2 * time.Hour)
	b.live(v1alpha1.PodsAdmitted)
	for !b.now.After(b.burst().CreationTimestamp.Add(20 * time.Minute)) {
		b.step()
	}
	lease, stamp := b.burst().Status.Lease, b.yard.views[0].Stamped
	b.now = lease.Hard.Add(time.Minute) // the node is ending itself and still reports
	b.agents.tick()
	b.restart()
	b.step()
	if p.calls > 0 {
		t.Fatal("a slice was booked for a lease that has run out")
	}
	b.yard.off()
	b.agents.silent = true
	b.pod("pod-0", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	b.timers = nil
	b.now = stamp.Add(sweepTime + deleteTime)
	b.yard.views[0].Gone = b.now
	b.now = b.now.Add(time.Hour)
	b.liveOn(2 * time.Hour)
	a := p.account()
	if a.State != quota.Settled || !a.Overrun.IsZero() || a.Extensions != 0 {
		t.Errorf("account %+v", a)
	}
	if got := b.fact(v1alpha1.WorkDone); !strings.Contains(got, v1alpha1.EndMachineLost) {
		t.Errorf("WorkDone = %s", got)
	}
	p.verified()
}

// TestTheStopOfEndlessWorkIsAnnounced at its admission, and again half an hour
// ahead, once; then its pods are stopped at that time.
func TestTheStopOfEndlessWorkIsAnnounced(t *testing.T) {
	b, p := leased(t, "100.00 EUR")
	b.runs(5 * time.Hour)
	for end := b.now.Add(4 * time.Hour); !b.has(v1alpha1.Failed) && b.now.Before(end); b.step() {
		b.covered(p)
		b.stops()
	}
	stop := b.burst().Spec.Deadline.Add(-b.r.Settings.LeaseStop)
	at := stop.UTC().Format(time.RFC3339)
	for _, fact := range []string{v1alpha1.PodsAdmitted, v1alpha1.StopAnnounced} {
		if !slices.ContainsFunc(b.work.told, func(text string) bool { return strings.HasPrefix(text, fact) && strings.Contains(text, at) }) {
			t.Errorf("nobody was told at %s that it stops at %s: %q", fact, at, b.work.told)
		}
	}
	if told := (record{b.burst(), b.now}).at(v1alpha1.StopAnnounced); told.Before(stop.Add(-announced)) || told.After(stop.Add(-announced).Add(time.Minute)) {
		t.Errorf("announced at %s, the work is stopped at %s", told, stop)
	}
	if got := b.fact(v1alpha1.WorkDone); !strings.Contains(got, v1alpha1.EndOutOfTime) || !strings.Contains(got, at) {
		t.Errorf("WorkDone = %s", got)
	}
	if a := p.account(); !a.Overrun.IsZero() || a.Reserved.Nano > a.Reservation.Ceiling.Nano {
		t.Errorf("account %+v", a)
	}
	p.verified()
}

// TestNobodyPaysForAFirstSliceThatIsShort: the first slice is asked for before
// anything is bought.
func TestNobodyPaysForAFirstSliceThatIsShort(t *testing.T) {
	b, _ := leased(t, "4.00 EUR")
	b.liveOn(time.Hour)
	if got := b.fact(v1alpha1.Failed); !strings.Contains(got, "short by 0.08 EUR") || len(b.yard.views) > 0 {
		t.Errorf("Failed = %s, machines %v", got, b.yard.views)
	}
}

// TestASettlementThatWasBookedStands: the controller before this one has settled
// the burst, in the words of its version, and died. That is no reason to wait.
func TestASettlementThatWasBookedStands(t *testing.T) {
	b, p := leased(t, "100.00 EUR")
	b.runs(10 * time.Minute)
	b.live(v1alpha1.KeyDestroyed)
	start := b.burst().Status.Machines[0].Created.Time
	first := quota.Settlement{Burst: string(burstUID), Actual: money.Amount{Nano: 1e9, Currency: "EUR"}, MachineStart: start, MachineEnd: start.Add(time.Hour), Seconds: 1000, Cause: "Succeeded"}
	if _, err := p.Settle(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	b.liveOn(time.Hour)
	if c := b.burst().Status.Cost; !b.has(v1alpha1.Complete) || c.Spent != "1.00 EUR" || c.MachineSeconds != 1000 {
		t.Errorf("%v, cost %+v", b.facts(), c)
	}
}
