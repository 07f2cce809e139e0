package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/quota"
)

// attend does what the burst's nodes need at every visit, whatever step the
// burst is in: their usage is booked, the lease renewed, and each is told all
// its orders again, so that a restart of the controller forgets nothing. What
// fails for one node or one order does not keep the others from theirs.
func (r *Reconciler) attend(ctx context.Context, b record) error {
	if !b.has(v1alpha1.MachineRequested) || b.has(v1alpha1.MachineGone) {
		return nil
	}
	problems := []error{r.renew(ctx, b)}
	for _, node := range b.nodes() {
		report, _, ok := r.Nodes.Report(node)
		if !ok {
			continue
		}
		ack, err := r.bookUsage(ctx, b, report)
		problems = append(problems, err)
		orders, err := r.orders(ctx, b, node, report)
		problems = append(problems, err)
		if len(orders.Lease.Payload) == 0 {
			continue // nothing could be signed
		}
		orders.UsageAck, orders.UsageJournal = ack, report.Journal
		r.Nodes.Tell(node, orders)
	}
	return errors.Join(problems...)
}

// bookUsage books what a node measured and returns the last booked number. Who
// pays is the controller's word, never the node's.
func (r *Reconciler) bookUsage(ctx context.Context, b record, report link.Report) (int64, error) {
	if len(report.Usage) == 0 {
		return 0, nil
	}
	last := int64(0)
	for i := range report.Usage {
		u := &report.Usage[i]
		u.Node, u.Tenant, u.Burst, u.Namespace, u.Owner = report.Node, b.Spec.TenantID, b.uid(), b.Namespace, string(b.Spec.Gang.UID)
		u.GPUModel = b.Spec.Offer.GPUModel
		last = max(last, u.Seq)
	}
	if err := Booked(r.Log, report.Node, r.Ledger.RecordUsage(ctx, report.Usage)); err != nil {
		return 0, fmt.Errorf("book usage of node %s: %w", report.Node, err)
	}
	return last, nil
}

// Booked tells usage that may be acknowledged from usage that must come again.
// The ledger books the good records of a report and refuses the bad ones for
// good: those are said once, and never hold up what follows them.
func Booked(log *slog.Logger, node string, err error) error {
	if errors.Is(err, quota.ErrInvalid) || errors.Is(err, quota.ErrConflict) {
		log.Error("usage records are refused and not booked", "node", node, "error", err)
		return nil
	}
	return err
}

// orders is all that a node is to know now. The key is told until it is held.
func (r *Reconciler) orders(ctx context.Context, b record, node string, report link.Report) (link.Orders, error) {
	lease, err := r.sign(b, node)
	if err != nil {
		return link.Orders{}, err
	}
	o := link.Orders{Lease: lease}
	if b.wiping() {
		o.Wipe = b.wipeOrder()
		return o, nil
	}
	if b.ending() && b.letIn() { // the gate forgets at a restart, and results still come
		return o, r.Data.Prepare(ctx, b.Burst, b.Spec.Deadline.Time)
	}
	proven := b.has(v1alpha1.NodeJoined) && b.bootOf(node) == report.BootID
	if !proven || !b.has(v1alpha1.Staged) || b.ending() {
		return o, nil
	}
	key, stage, err := r.Data.Release(ctx, b.Burst, report)
	if err != nil {
		return o, fmt.Errorf("release data key to node %s: %w", node, err)
	}
	o.Key, o.Stage = key, stage
	return o, nil
}

// bootOf is the boot that a node proved itself with; another boot of the same
// machine gets no key.
func (b record) bootOf(node string) string {
	for _, m := range b.Status.Machines {
		if m.Name == node {
			return m.BootID
		}
	}
	return ""
}

// renew moves the lease on, in the order ledger, stamp, lease: first the money
// reaches to its end and the whole way to stop behind it, then the stamp at the
// cloud, and a lease is signed only up to what both hold. Nodes that are not
// heard get none: a lease for nobody would keep a dead machine on the meter. One
// that has run out is not renewed: its node has ended itself.
func (r *Reconciler) renew(ctx context.Context, b record) error {
	if !b.has(v1alpha1.NodeJoined) || b.has(v1alpha1.Wiped) || b.has(v1alpha1.WipeUnproven) {
		return nil
	}
	hard, due := r.nextLease(b)
	if !due || !r.heard(b) {
		return nil
	}
	hard, no, err := r.paid(ctx, b, hard)
	if err != nil {
		return fmt.Errorf("money for the next lease: %w", err)
	}
	if no != "" {
		return r.stopUnpaid(ctx, b, no)
	}
	l := b.Status.Lease
	if first := l.Soft.Equal(&l.Hard); !first && !hard.After(l.Hard.Time) {
		return nil
	}
	stamp, spare := hard.Add(r.Settings.DeadMan), r.Settings.LeaseEvery
	if b.sliced() {
		spare = 0 // no machine outlives what is booked for it
	}
	views, err := r.Machines.Read(ctx, b.UID)
	if err != nil {
		return err
	}
	for _, v := range views {
		if v.Stamped.Before(stamp.Truncate(time.Second)) {
			return r.Machines.Stamp(ctx, b.UID, stamp.Add(spare))
		}
	}
	return r.save(ctx, b, func() {
		b.Status.Lease = &v1alpha1.BurstLease{
			Serial: l.Serial + 1, Issued: metav1.NewTime(b.now), Hard: metav1.NewTime(hard), Soft: metav1.NewTime(hard.Add(-r.Settings.LeaseStop)),
		}
	})
}

// nextLease is how far the next lease is to reach, and whether it is time for
// it: in mode safe now and then, in mode lease when half of the one before is
// left, because each asks the budgets for money.
func (r *Reconciler) nextLease(b record) (hard time.Time, due bool) {
	l, every := b.Status.Lease, r.Settings.LeaseEvery
	if b.sliced() {
		every = r.Settings.LeaseTime / 2
	}
	hard = earlier(b.now.Add(r.Settings.LeaseTime), b.Spec.Deadline.Time).Truncate(time.Second)
	if b.now.After(l.Hard.Time) {
		return hard, false
	}
	if first := l.Soft.Equal(&l.Hard); first {
		return hard, true
	}
	left := l.Hard.Sub(b.now)
	return hard, left <= r.Settings.LeaseTime-every && hard.After(l.Hard.Time)
}

// stopUnpaid ends a burst whose next slice was refused, while the money that is
// booked still covers a graceful end: its pods are asked to stop now, their
// results come home, and the node is wiped, all before the old lease's soft end.
// A burst that is ending anyway goes on ending by the lease that it has.
func (r *Reconciler) stopUnpaid(ctx context.Context, b record, no string) error {
	if b.ending() || b.has(v1alpha1.WorkDone) {
		return nil
	}
	message := fmt.Sprintf("stopped: the next slice of its money was refused: %s", no)
	l := b.Status.Lease
	err := r.save(ctx, b, func() {
		b.Status.Lease = &v1alpha1.BurstLease{Serial: l.Serial + 1, Issued: metav1.NewTime(b.now), Soft: metav1.NewTime(b.now), Hard: l.Hard}
		b.end(v1alpha1.EndBudgetExceeded, message)
	})
	if err != nil {
		return err
	}
	r.Log.Info("burst is ending", "burst", b.Name, "namespace", b.Namespace, "step", b.Status.Step, "reason", v1alpha1.EndBudgetExceeded, "message", message)
	return r.Workload.Tell(ctx, b.Burst)
}

// heard reports whether every node of the burst was in contact lately.
func (r *Reconciler) heard(b record) bool {
	for _, node := range b.nodes() {
		if _, seen, ok := r.Nodes.Report(node); !ok || r.silent(b, seen) {
			return false
		}
	}
	return true
}

// silent reports whether a node that was last heard then is out of contact: a
// quiet one speaks once in [link.HoldFor].
func (r *Reconciler) silent(b record, seen time.Time) bool {
	return b.now.Sub(seen) > max(r.Settings.LeaseEvery, 2*link.HoldFor)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
