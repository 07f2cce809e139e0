package controller

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/autoscaler/lifecycle"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/quota"
)

// leaderFunc is a runnable of the leader that is done when it returns nil.
type leaderFunc func(context.Context) error

func (f leaderFunc) Start(ctx context.Context) error { return f(ctx) }
func (f leaderFunc) NeedLeaderElection() bool        { return true }

func hostOf(address string) string {
	if host, _, err := net.SplitHostPort(address); err == nil {
		return host
	}
	return address
}

// pods reaches the users' work.
func (p *process) pods() *lifecycle.Pods {
	return &lifecycle.Pods{
		Client: p.mgr.GetClient(), Owners: ownerReader{p.mgr.GetAPIReader(), p.mgr.GetCache(), p.watched},
		Approver: p.approver, Kubelets: p.kube, Events: p.mgr.GetEventRecorder("spillway"),
	}
}

// addLife adds the burst reconciler, woken by its own objects, by its machines
// and by the agents' reports.
func (p *process) addLife(context.Context) error {
	data, err := p.stager()
	if err != nil {
		return err
	}
	p.data = data
	machines := &capi.Machines{Client: p.mgr.GetClient(), Reader: p.mgr.GetAPIReader(), Cluster: p.cluster()}
	life := &lifecycle.Reconciler{
		Client: p.mgr.GetClient(), Reader: p.mgr.GetAPIReader(), Ledger: p.treasury, Data: data, Nodes: p.hub, Records: p.records, Workload: p.pods(),
		Machines: machines,
		Joins: &lifecycle.NodeJoins{Client: p.mgr.GetClient(), Secret: p.keys.join.Seed(), Drop: machines.DropUserData, Site: link.Join{
			APIServer: "https://" + p.Endpoint, ClusterCA: p.ClusterCA, Installation: p.Life.Installation,
			Controller: p.Link, ControllerCA: p.keys.caPEM, Gate: "https://" + p.Gate, GateCA: p.keys.caPEM,
			Store: p.StoreAddress, Region: p.StoreRegion, LeaseKey: p.keys.lease.Public().(ed25519.PublicKey),
		}},
		LeaseKey: p.keys.lease, Settings: p.Life, Now: time.Now, Log: p.Log, Hook: p.StepHook, Noted: p.meters.noted,
	}
	reports := make(chan event.GenericEvent, 64)
	ears := &listener{hub: p.hub, client: p.mgr.GetClient(), ledger: p.treasury, wake: reports, log: p.Log}
	if err := p.mgr.Add(ears); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(p.mgr).Named("burst").
		For(&v1alpha1.Burst{}).
		Watches(&infrav1.SpillwayMachine{}, handler.EnqueueRequestsFromMapFunc(burstOfMachine)).
		WatchesRawSource(source.Channel(reports, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 8,
			// A deadline must not be found out a quarter of an hour late, as
			// the usual limit of 1000 s would have it.
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 15*time.Second),
		}).
		Complete(life)
}

func burstOfMachine(_ context.Context, o client.Object) []reconcile.Request {
	r := reconcile.Request{}
	r.Namespace, r.Name = o.GetLabels()[v1alpha1.BurstNamespaceLabel], o.GetLabels()[v1alpha1.BurstNameLabel]
	if r.Name == "" {
		return nil
	}
	return []reconcile.Request{r}
}

// addPlanning adds the cycle and what wakes it.
func (p *process) addPlanning(ctx context.Context) error {
	wake := make(chan struct{}, 1)
	offers := &observe.OfferBook{
		Drivers: p.drivers.of, Every: p.OffersEvery, Stale: 10 * p.OffersEvery, Timeout: 10 * time.Second, Now: time.Now, Log: p.Log,
	}
	if err := p.addMarket(offers); err != nil {
		return err
	}
	mirror := observe.NewMirror()
	mirror.Wake = func() {
		select {
		case wake <- struct{}{}:
		default: // one is under way
		}
	}
	if err := mirror.Follow(ctx, p.mgr.GetCache()); err != nil {
		return err
	}
	observer := &observe.Observer{
		Cache: p.mgr.GetCache(), Mirror: mirror, Table: p.table, Watched: p.watched, Synced: p.mgr.GetCache().WaitForCacheSync, Settings: p.Planning, Now: time.Now,
		Offers: offers,
		Scales: &observe.Scales{
			Need: p.data.Need, Every: 5 * time.Minute, Again: time.Minute, Timeout: 2 * time.Minute, Now: time.Now, Log: p.Log, Wake: mirror.Wake,
		},
		Book: func(ctx context.Context) (quota.Book, error) {
			tenants, clouds := &v1alpha1.BurstTenantList{}, &v1alpha1.BurstProviderList{}
			for _, list := range []client.ObjectList{tenants, clouds} {
				if err := p.mgr.GetClient().List(ctx, list); err != nil {
					return quota.Book{}, fmt.Errorf("list %T: %w", list, err)
				}
			}
			return p.treasury.book(ctx, clouds.Items, tenants.Items)
		},
	}
	cycle := &lifecycle.Cycle{
		Client: p.mgr.GetClient(), Observe: observer.State, Teller: p.pods(), Decided: p.decided,
		Wake: wake, Every: p.CycleEvery, Idle: p.CycleIdle, Log: p.Log,
	}
	if err := p.mgr.Add(cycle); err != nil {
		return err
	}
	nudge := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		mirror.Wake()
		return reconcile.Result{}, nil
	})
	spec := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	demand := ctrl.NewControllerManagedBy(p.mgr).Named("demand").
		For(&v1alpha1.Burst{}).
		Watches(&batchv1.Job{}, &handler.EnqueueRequestForObject{}, spec).
		Watches(&v1alpha1.BurstTenant{}, &handler.EnqueueRequestForObject{}, spec).
		Watches(&v1alpha1.BurstProvider{}, &handler.EnqueueRequestForObject{})
	for _, w := range p.watched {
		if w.Named { // its status says what its pods don't
			demand.Watches(w.Object(), &handler.EnqueueRequestForObject{})
			continue
		}
		demand.Watches(w.Object(), &handler.EnqueueRequestForObject{}, spec)
	}
	return demand.Complete(nudge)
}

// decided sees every state with its plan.
func (p *process) decided(s plan.State, d plan.Plan) {
	p.meters.decided(d)
	if p.desk != nil {
		p.desk.Hang(s, d)
	}
	p.capture(s, d)
}

// captureEvery is how old the newest captured state may get. To write one down
// takes longer than to decide on it.
const captureEvery = time.Minute

// capture keeps the state behind every decision to buy, so that it can be
// decided on again, and a new one.
func (p *process) capture(s plan.State, decided plan.Plan) {
	bursts := decided.Bursts()
	if len(bursts) == 0 && s.Now.Sub(p.captured).Abs() < captureEvery {
		return
	}
	p.captured = s.Now
	dir := filepath.Join(p.DataDir, "captured")
	names := []string{"state.json"}
	for _, b := range bursts {
		names = append(names, b.Name+".json")
	}
	data, err := json.Marshal(plan.Captured(s))
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	for _, name := range names {
		if err == nil {
			err = replace(filepath.Join(dir, name), data)
		}
	}
	if err != nil { // a decision is worth more than its record
		p.Log.Warn("the state of a decision is not kept", "error", err)
	}
}

func replace(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// addSweeper adds the sweep inside the cluster; `spillway sweep` is the one
// outside.
func (p *process) addSweeper(context.Context) error {
	known := func(ctx context.Context) (infra.Records, error) {
		r := infra.Records{Tokens: map[string]bool{}, Reservations: map[string]bool{}}
		machines := &infrav1.SpillwayMachineList{}
		if err := p.mgr.GetAPIReader().List(ctx, machines, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
			return r, fmt.Errorf("list SpillwayMachines: %w", err)
		}
		for _, m := range machines.Items {
			r.Tokens[m.Spec.Token] = true
		}
		book, err := p.treasury.ledger.Book(ctx)
		if err != nil {
			return r, fmt.Errorf("list reservations: %w", err)
		}
		for burst := range book.Open {
			r.Reservations[burst] = true
		}
		return r, nil
	}
	return p.mgr.Add(leaderFunc(func(ctx context.Context) error {
		turn := time.NewTicker(p.SweepEvery)
		defer turn.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-turn.C:
				if err := p.sweepAll(ctx, known); err != nil && ctx.Err() == nil {
					p.Log.Error("sweep failed; it is tried again", "error", err)
				}
			}
		}
	}))
}

func (p *process) sweepAll(ctx context.Context, known func(context.Context) (infra.Records, error)) error {
	clouds := &v1alpha1.BurstProviderList{}
	if err := p.mgr.GetClient().List(ctx, clouds); err != nil {
		return fmt.Errorf("list providers: %w", err)
	}
	machines := &capi.Machines{Client: p.mgr.GetClient(), Reader: p.mgr.GetAPIReader(), Cluster: p.cluster()}
	strays, err := machines.DropStrays(ctx)
	for _, node := range strays {
		p.Log.Warn("sweeper deletes a Node that belongs to no machine", "node", node)
	}
	err = errors.Join(err, p.lookForUnowned(ctx), p.prune(ctx))
	problems := make([]error, len(clouds.Items))
	var sweeps sync.WaitGroup
	for i, cloud := range clouds.Items { // a slow cloud does not hold up the others
		sweeps.Go(func() { problems[i] = p.sweep(ctx, cloud.Name, known) })
	}
	sweeps.Wait()
	return errors.Join(append(problems, err)...)
}

func (p *process) sweep(ctx context.Context, cloud string, known func(context.Context) (infra.Records, error)) error {
	driver, err := p.drivers.of(ctx, cloud)
	if err != nil {
		return err
	}
	report, err := infra.Sweep(ctx, driver, known, p.Sweep, time.Now)
	for _, d := range report.Asked {
		p.Log.Warn("sweeper deletes a machine", "provider", cloud, "id", d.Machine.ID, "burst", d.Machine.Burst, "reason", d.Reason)
	}
	if report.Alert != "" {
		p.Log.Error("sweeper stopped: "+report.Alert, "provider", cloud)
	}
	return err
}
