// Package infra is the Cluster API infrastructure controller (InfraMachine
// contract v1beta2) over any driver: it turns one SpillwayMachine into one
// machine at a cloud, and back into nothing; and it is the sweeper that ends
// what nobody knows.
//
// The promise: however often and wherever the process dies, one SpillwayMachine
// buys one machine. The order of every purchase is: finalizer, intent written
// down, look into the cloud's list, the ledger's one-time permit, create; after
// a create with an unknown outcome look at once and once more a minute later.
// Once an instance is recorded nothing is ever created again. The object goes
// only when the cloud's list no longer shows anything under its token: "not
// found" alone is not believed.
//
// Vocabulary: a refusal is a typed no of the market or the ledger that ends
// the attempt (see [Refusal]); the gate is the pre-terminate hook on the
// Machine, without whose removal nothing is destroyed; a doomed machine is one
// that a [SweepPlan] deletes; the stamp is the time from which on anybody may
// delete a machine.
package infra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/providers"
)

// Permits is the ledger's word on a purchase: nil once for each burst, machine
// and leader epoch, an error of package quota otherwise.
type Permits interface {
	Permit(ctx context.Context, burst string, ordinal int) error
}

// Timing is how long the controller waits. Zero fields take the defaults.
type Timing struct {
	Call      time.Duration // bound of one call of a cloud; 30 s, which must be less than LookAgain
	LookAgain time.Duration // between the two looks after an unknown outcome; [providers.ListDelay]
	Poll      time.Duration // while something is under way; 2 s
	Watch     time.Duration // while a machine runs; 30 s
	Trouble   time.Duration // after a call that failed; 15 s
	Evidence  time.Duration // how long the cloud's own record of the end is awaited; 10 min
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Call, 30 * time.Second},
		{&t.LookAgain, providers.ListDelay},
		{&t.Poll, 2 * time.Second},
		{&t.Watch, 30 * time.Second},
		{&t.Trouble, 15 * time.Second},
		{&t.Evidence, 10 * time.Minute},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return t
}

// Acts after which [Reconciler.Hook] is called, each before its fact is
// recorded.
const (
	ActPermit    = "permit"    // the ledger has given the permit
	ActCreate    = "create"    // the cloud was asked for a machine
	ActDuplicate = "duplicate" // the cloud was asked to delete a duplicate
	ActExtend    = "extend"    // the stamp was moved
	ActDelete    = "delete"    // the cloud was asked to delete
	ActGone      = "gone"      // the cloud's list is empty of it
)

// Reconciler carries SpillwayMachines. Its fields are set once, before it runs.
type Reconciler struct {
	Client client.Client
	// Reader reads past the cache: a purchase never rests on old news.
	Reader client.Reader
	// Drivers returns the driver of a provider by name, with the credential
	// that is valid now.
	Drivers func(ctx context.Context, provider string) (providers.Driver, error)
	Permits Permits
	Timing  Timing
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
	// Hook, when set, is called right after each outside act and before its
	// fact is recorded; tests kill the controller there.
	Hook func(ctx context.Context, act string)
	// Log takes what no condition can say; nil means [slog.Default].
	Log *slog.Logger

	quiet sync.Map // provider name -> time.Time until which it wants no calls; losing it costs one call
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	again := true // a test may run a second manager in one process
	err := ctrl.NewControllerManagedBy(mgr).
		Named("spillwaymachine").
		For(&infrav1.SpillwayMachine{}).
		Watches(&clusterv1.Machine{}, handler.EnqueueRequestsFromMapFunc(ofMachine)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10, SkipNameValidation: &again}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the SpillwayMachine controller: %w", err)
	}
	return nil
}

// ofMachine names the SpillwayMachine of a Machine.
func ofMachine(_ context.Context, obj client.Object) []reconcile.Request {
	m, ok := obj.(*clusterv1.Machine)
	if !ok || m.Spec.InfrastructureRef.APIGroup != infrav1.Group {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{
		Namespace: m.Namespace, Name: m.Spec.InfrastructureRef.Name,
	}}}
}

// Reconcile implements [reconcile.Reconciler].
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	sm := &infrav1.SpillwayMachine{}
	if err := r.Reader.Get(ctx, req.NamespacedName, sm); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("read SpillwayMachine %s: %w", req, err)
	}
	p := &pass{Reconciler: r, sm: sm, saved: sm.DeepCopy(), timing: r.Timing.withDefaults(), now: r.clock()}
	res, err := p.run(ctx)
	if ctx.Err() != nil { // killed: what was not recorded is found again
		return ctrl.Result{}, ctx.Err()
	}
	if apierrors.IsConflict(err) { // overtaken: what this pass knows is old news
		return ctrl.Result{}, err
	}
	if saveErr := p.save(ctx, false); saveErr != nil {
		return ctrl.Result{}, errors.Join(err, saveErr)
	}
	return res, err
}

func (r *Reconciler) clock() time.Time {
	if r.Now != nil {
		return r.Now()
	}
	return time.Now()
}

func (r *Reconciler) log() *slog.Logger {
	if r.Log != nil {
		return r.Log
	}
	return slog.Default()
}

// pass is one look at one SpillwayMachine.
type pass struct {
	*Reconciler
	sm     *infrav1.SpillwayMachine
	saved  *infrav1.SpillwayMachine // as the API server has it
	timing Timing
	now    time.Time
}

// driver returns the provider's driver, every call of it bounded.
func (p *pass) driver(ctx context.Context) (providers.Driver, error) {
	d, err := p.Drivers(ctx, p.sm.Spec.Provider)
	if err != nil {
		return nil, err
	}
	return providers.Wrap(d, Bound(p.timing.Call)), nil
}

// did reports an outside act to the hook. Its error means that the process was
// killed: nothing may be recorded any more.
func (p *pass) did(ctx context.Context, act string) error {
	if p.Hook != nil {
		p.Hook(ctx, act)
	}
	return ctx.Err()
}

// run does what is due and says when to look again.
func (p *pass) run(ctx context.Context) (ctrl.Result, error) {
	machine, err := p.machine(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !p.sm.DeletionTimestamp.IsZero() {
		return p.destroy(ctx, machine)
	}
	if machine == nil {
		p.notReady(ReasonWaitingForMachine, "no Machine owns this object yet")
		return ctrl.Result{}, nil
	}
	cluster := &clusterv1.Cluster{}
	key := client.ObjectKey{Namespace: p.sm.Namespace, Name: machine.Spec.ClusterName}
	if err := p.Reader.Get(ctx, key, cluster); err != nil {
		return ctrl.Result{}, fmt.Errorf("read Cluster %s of Machine %s: %w", key, machine.Name, err)
	}
	if p.paused(cluster) {
		return ctrl.Result{}, nil
	}
	if added, err := p.ensureFinalizer(ctx); err != nil || added {
		return ctrl.Result{}, err // the write brings the next pass
	}
	switch {
	case p.sm.Status.InstanceID != "":
		return p.follow(ctx)
	case refused(p.sm):
		return ctrl.Result{}, nil
	case !machine.DeletionTimestamp.IsZero() || !cluster.DeletionTimestamp.IsZero():
		// cases: B-26 kubernetes-sigs/cluster-api#9629
		p.notReady(ReasonDeleting, "Machine or Cluster is being deleted: nothing is bought any more")
		return ctrl.Result{}, nil
	}
	userData, ready, err := p.userData(ctx, machine, cluster)
	if err != nil || !ready {
		return ctrl.Result{RequeueAfter: p.timing.Trouble}, err
	}
	return p.buy(ctx, userData)
}

// machine returns the Machine that owns the object, or nil.
func (p *pass) machine(ctx context.Context) (*clusterv1.Machine, error) {
	for _, ref := range p.sm.OwnerReferences {
		group := clusterv1.GroupVersion.Group
		if ref.Kind != "Machine" || len(ref.APIVersion) <= len(group) || ref.APIVersion[:len(group)+1] != group+"/" {
			continue
		}
		m := &clusterv1.Machine{}
		err := p.Reader.Get(ctx, client.ObjectKey{Namespace: p.sm.Namespace, Name: ref.Name}, m)
		if apierrors.IsNotFound(err) || (err == nil && m.UID != ref.UID) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read Machine %s: %w", ref.Name, err)
		}
		return m, nil
	}
	return nil, nil
}

// userData reads what the machine will boot with; ready is false while it is
// awaited. Only the name of the Secret counts: Cluster API never reports
// bootstrap data of our own as created (cases: B-22 metal3-io/
// cluster-api-provider-metal3#2086, cluster-api PR#11459).
func (p *pass) userData(ctx context.Context, m *clusterv1.Machine, cl *clusterv1.Cluster) (data []byte, ready bool, err error) {
	if up := cl.Status.Initialization.InfrastructureProvisioned; up == nil || !*up {
		p.notReady(ReasonWaitingForCluster, "Cluster "+cl.Name+" is not provisioned yet")
		return nil, false, nil
	}
	if m.Spec.Bootstrap.DataSecretName == nil {
		p.notReady(ReasonWaitingForBootstrap, "Machine "+m.Name+" names no bootstrap data yet")
		return nil, false, nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: p.sm.Namespace, Name: *m.Spec.Bootstrap.DataSecretName}
	err = p.Reader.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) || (err == nil && len(secret.Data["value"]) == 0) {
		p.notReady(ReasonWaitingForBootstrap, "Secret "+key.Name+" with the bootstrap data is not there yet")
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read bootstrap data %s: %w", key, err)
	}
	return secret.Data["value"], true, nil
}
