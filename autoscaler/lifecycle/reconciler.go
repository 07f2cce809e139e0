package lifecycle

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// outcome is what an act found. The zero outcome means done: record the fact.
type outcome struct {
	// wait holds the burst here and asks again after this time.
	wait time.Duration
	// pass goes on to the next act and asks again after this time.
	pass time.Duration
	// instead is recorded in place of the act's fact.
	instead string
	// The zero values record True and Done.
	status          metav1.ConditionStatus
	reason, message string
	// end stops the way forward: no fact is recorded, Ending is.
	end string
}

// act talks to one outside system and records one fact.
type act struct {
	fact string
	do   func(context.Context, record) (outcome, error)
	// owed acts run for ending bursts too: they give something back.
	owed bool
	// due says whether the act applies; nil means always.
	due func(record) bool
}

// step is a named list of acts.
type step struct {
	name string
	acts []act
}

// Reconciler carries bursts through their steps. All fields are needed.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache: an act never rests on old news about what
	// was done already.
	Reader   client.Reader
	Ledger   Ledger
	Machines Machines
	Joins    Joins
	Data     Data
	Nodes    Nodes
	Records  Records
	Workload Workload
	LeaseKey ed25519.PrivateKey
	Settings Settings
	Now      func() time.Time
	Log      *slog.Logger
	// Noted, when set, sees every fact that was recorded.
	Noted func(fact, reason string)
	// Hook, when set, is called after every outside act and before its fact
	// is recorded. Crash tests kill the controller there.
	Hook func(ctx context.Context, step, fact string)
}

// steps is the way of a burst, in order.
func (r *Reconciler) steps() []step {
	return []step{
		{"reserve", r.reserve()},
		{"stage", r.stage()},
		{"create", r.create()},
		{"join", r.join()},
		{"admit", r.admit()},
		{"watch", r.watch()},
		{"collect", r.collect()},
		{"wipe", r.wipe()},
		{"destroy", r.destroy()},
		{"settle", r.settle()},
	}
}

// Reconcile takes the burst as far as it can go now. When another has written
// the burst meanwhile, it is read and walked again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, req)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
	}
	return result, err
}

func (r *Reconciler) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	burst := &v1alpha1.Burst{}
	if err := r.Reader.Get(ctx, req.NamespacedName, burst); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	b := record{burst, r.Now()}
	if b.over() {
		return ctrl.Result{}, r.letGo(ctx, burst)
	}
	if controllerutil.AddFinalizer(burst, v1alpha1.BurstFinalizer) {
		if err := r.Client.Update(ctx, burst); err != nil {
			return ctrl.Result{}, fmt.Errorf("burst %s: add finalizer before anything is done: %w", req.NamespacedName, err)
		}
	}
	if !burst.DeletionTimestamp.IsZero() && !b.ending() && !b.has(v1alpha1.WorkDone) {
		if err := r.save(ctx, b, func() { b.end(v1alpha1.EndDeleted, "the Burst was deleted") }); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.unneeded(ctx, b); err != nil {
		return ctrl.Result{}, fmt.Errorf("burst %s: look after its pods: %w", req.NamespacedName, err)
	}
	if err := r.overdue(ctx, b); err != nil {
		return ctrl.Result{}, fmt.Errorf("burst %s: is it overdue: %w", req.NamespacedName, err)
	}
	// Nodes that can't be attended do not hold up the walk: it is what ends them.
	attended := r.attend(ctx, b)
	if apierrors.IsConflict(attended) {
		return ctrl.Result{}, attended
	}
	after, err := r.walk(ctx, b)
	if err != nil {
		err = fmt.Errorf("burst %s, step %s: %w", req.NamespacedName, b.Status.Step, err)
	}
	if attended != nil {
		err = errors.Join(err, fmt.Errorf("burst %s: attend its nodes: %w", req.NamespacedName, attended))
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// walk runs the acts in order until one holds the burst. It returns the
// shortest time after which any act wants to be asked again (cases: H-26
// aws/karpenter-provider-aws#663, where the longest won).
func (r *Reconciler) walk(ctx context.Context, b record) (time.Duration, error) {
	var soonest time.Duration
	for _, s := range r.steps() {
		for _, a := range s.acts {
			if b.has(a.fact) || b.ending() && !a.owed || a.due != nil && !a.due(b) {
				continue
			}
			out, err := r.take(ctx, b, s.name, a)
			if err != nil {
				return 0, err
			}
			soonest = sooner(sooner(soonest, out.pass), out.wait)
			if out.wait > 0 {
				return soonest, nil
			}
		}
	}
	return soonest, nil
}

// take runs one act and records its fact.
func (r *Reconciler) take(ctx context.Context, b record, step string, a act) (outcome, error) {
	before := b.Status.DeepCopy()
	b.Status.Step = step
	b.now = r.Now()
	out, err := a.do(ctx, b)
	if err != nil {
		return out, err
	}
	if out.wait > 0 || out.pass > 0 {
		if equality.Semantic.DeepEqual(before, &b.Status) {
			return out, nil
		}
		return out, r.patch(ctx, b, before)
	}
	if r.Hook != nil {
		r.Hook(ctx, step, a.fact)
	}
	if out.end != "" {
		b.end(out.end, out.message)
		r.Log.Info("burst is ending", "burst", b.Name, "namespace", b.Namespace, "step", step, "reason", out.end, "message", out.message)
	} else {
		fact := cmp.Or(out.instead, a.fact)
		b.note(fact, cmp.Or(out.status, metav1.ConditionTrue), cmp.Or(out.reason, "Done"), out.message)
		r.Log.Info("burst fact", "burst", b.Name, "namespace", b.Namespace, "step", step, "fact", fact, "message", out.message)
	}
	if err := r.patch(ctx, b, before); err != nil {
		return out, err
	}
	if r.Noted != nil {
		r.Noted(cmp.Or(out.instead, a.fact), cmp.Or(out.end, out.reason, "Done"))
	}
	return out, r.Workload.Tell(ctx, b.Burst)
}

// save changes the burst's status outside of an act. What could not be written
// is not there: nobody may act on it.
func (r *Reconciler) save(ctx context.Context, b record, change func()) error {
	before := b.Status.DeepCopy()
	change()
	err := r.patch(ctx, b, before)
	if err != nil {
		b.Status = *before
	}
	b.Status.Step = before.Step // of the act under way, not yet written
	return err
}

// patch writes the status, and fails when another has written it meanwhile.
func (r *Reconciler) patch(ctx context.Context, b record, before *v1alpha1.BurstStatus) error {
	old := b.Burst.DeepCopy()
	old.Status = *before
	err := r.Client.Status().Patch(ctx, b.Burst, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("record facts: %w", err)
	}
	return nil
}

// letGo removes the finalizer of a burst that is settled.
func (r *Reconciler) letGo(ctx context.Context, b *v1alpha1.Burst) error {
	if !controllerutil.RemoveFinalizer(b, v1alpha1.BurstFinalizer) {
		return nil
	}
	if err := r.Client.Update(ctx, b); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("burst %s/%s: remove finalizer after settlement: %w", b.Namespace, b.Name, err)
	}
	return nil
}

func sooner(a, b time.Duration) time.Duration {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}
