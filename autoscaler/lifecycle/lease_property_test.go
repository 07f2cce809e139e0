package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
)

// drawn lets what the bench finds wrong fail one drawn history.
type drawn struct {
	testing.TB
	r *rapid.T
}

func (d drawn) Helper()                           {}
func (d drawn) Fatal(args ...any)                 { d.r.Fatal(args...) }
func (d drawn) Fatalf(format string, args ...any) { d.r.Fatalf(format, args...) }
func (d drawn) Errorf(format string, args ...any) { d.r.Errorf(format, args...) }

// history is one random life of a leased burst: its controller dies between any
// two acts, comes late or not at all, is followed by another, and the budget
// changes under it.
type history struct {
	*rapid.T
	*bench
	p    *purse
	dead bool            // the controller has died in this pass
	last quota.Extension // that was asked for
	old  int64           // epoch of a leader before
}

var errDied = errors.New("the controller has died")

// dies says now and then that the controller dies here.
func (h *history) dies() bool {
	h.dead = h.dead || rapid.IntRange(0, 11).Draw(h.T, "dies") == 0
	return h.dead
}

// frail are the neighbours of a controller that may die in front of a call, or
// right behind it.
type frail struct {
	*purse
	Machines
	h *history
}

func (m frail) Extend(ctx context.Context, x quota.Extension) (quota.Receipt, error) {
	if m.h.dies() {
		return quota.Receipt{}, errDied
	}
	m.h.last = x
	receipt, err := m.purse.Extend(ctx, x)
	if m.h.dies() {
		return quota.Receipt{}, errDied
	}
	return receipt, err
}

func (m frail) Stamp(ctx context.Context, burst types.UID, until time.Time) error {
	if m.h.dies() {
		return errDied
	}
	err := m.Machines.Stamp(ctx, burst, until)
	if m.h.dies() {
		return errDied
	}
	return err
}

func (m frail) Ensure(ctx context.Context, o capi.Order) error { return m.Machines.Ensure(ctx, o) }

// record is the writing of the burst's facts.
func (h *history) record(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	if h.dies() {
		return errDied
	}
	err := c.SubResource(sub).Patch(ctx, o, p, opts...)
	if h.dies() {
		return errDied
	}
	return err
}

// begin is a new controller process.
func (h *history) begin() {
	h.restart()
	m := frail{h.p, h.yard, h}
	h.r.Ledger, h.r.Machines = m, m
	h.r.Settings.Poll = 4 * time.Minute
	h.r.Client = interceptor.NewClient(h.client.(client.WithWatch), interceptor.Funcs{SubResourcePatch: h.record})
	h.dead = false
}

// nature is what happens to the machine whoever is away: its node ends itself by
// the lease, the sweeper and the cloud end it by the stamp.
func (h *history) nature() {
	lease := h.burst().Status.Lease
	for i := range h.yard.views {
		v := &h.yard.views[i]
		if !v.Bought || !v.Gone.IsZero() {
			continue
		}
		if h.now.After(lease.Hard.Add(h.r.Settings.DeadMan)) {
			v.State, h.agents.silent, h.timers = string(providers.StateStopped), true, nil
			h.pod("pod-0", func(p *corev1.Pod) {
				if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded {
					p.Status.Phase = corev1.PodFailed
				}
			})
		}
		if swept := v.Stamped.Add(sweepTime + deleteTime); !h.now.Before(swept) {
			v.Gone = swept
		}
	}
	h.stops()
}

// pass is one pass of the controller, and a new one when that died.
func (h *history) pass() {
	h.step()
	if h.dead {
		if rapid.Bool().Draw(h.T, "another") {
			h.old = h.p.epoch
			h.p.lead()
		}
		h.begin()
	}
}

// twice sends an extension again that was sent before, or one out of order, or
// one of a leader who was deposed: the account does not move.
func (h *history) twice() {
	if h.last.Key == "" {
		return
	}
	before := h.p.account()
	x, epoch := h.last, h.p.epoch
	again := rapid.SampledFrom([]string{"the same", "out of order", "deposed"}).Draw(h.T, "again")
	switch again {
	case "out of order":
		x.Key += "0"
	case "deposed":
		epoch = h.old
	}
	_, err := h.p.Ledger.Extend(h.t.Context(), epoch, x.Burst, x.Key, x.More, x.Until)
	after := h.p.account()
	if again != "the same" && (err == nil || after.Reserved != before.Reserved) {
		h.Fatalf("slice %+v, %s, in epoch %d: the account went from %v to %v", x, again, epoch, before.Reserved, after.Reserved)
	}
	if worst, err := after.Reservation.Worst(after.Until); err != nil || after.Reserved != worst {
		h.Fatalf("slice %+v sent again: %v are reserved, the machine can cost %v: %v", x, after.Reserved, worst, err)
	}
}

// TestNoMachineRunsWithoutMoney: whatever dies, comes twice, late or out of
// order, whoever leads, and whatever becomes of the budget: at every moment the
// ledger holds the money for all that the machine can still cost, no hard limit
// is passed by a booking, every end is within what was booked, and nothing is
// left behind.
// cases: C-29 SchedMD/slurm non-safe mode; C-23 garrytan/gbrain#4365; C-56 sourcelibrary-v2#4909
func TestNoMachineRunsWithoutMoney(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		b, p := leased(t, "12.00 EUR")
		b.t = drawn{t, r}
		h := &history{T: r, bench: b, p: p, old: p.epoch - 1}
		h.begin()
		h.runs(time.Duration(rapid.IntRange(10, 180).Draw(r, "minutes")) * time.Minute)
		for end := h.now.Add(8 * time.Hour); !h.has(v1alpha1.Complete) && !h.has(v1alpha1.Failed); {
			if h.now.After(end) {
				h.Fatalf("the burst is not over: %v, last error %v", h.facts(), h.bench.last)
			}
			switch rapid.IntRange(0, 19).Draw(r, "move") {
			case 0:
				h.now = h.now.Add(time.Duration(rapid.IntRange(1, 45).Draw(r, "away")) * time.Minute)
			case 1:
				p.limit(rapid.SampledFrom([]string{"0.00 EUR", "4.50 EUR", "6.00 EUR", "12.00 EUR", "90.00 EUR"}).Draw(r, "limit"))
			case 2:
				h.twice()
			case 3:
				h.old = p.epoch
				p.lead()
			default:
				h.pass()
			}
			h.nature()
			h.covered(p)
		}
		if a, err := p.Account(t.Context(), string(burstUID)); err == nil && (a.State != quota.Settled || !a.Overrun.IsZero() || !a.Pending.IsZero()) {
			h.Fatalf("account %+v", a)
		}
		for _, v := range b.yard.views {
			if v.Bought && v.Gone.IsZero() {
				h.Fatalf("machine %s is left", v.Name)
			}
		}
		p.verified()
	})
}
