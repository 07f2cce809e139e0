package infra

import (
	"context"
	"fmt"
	"strings"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/providers"
)

// destroy ends the machine and lets the object go when the cloud's list shows
// nothing of it any more.
func (p *pass) destroy(ctx context.Context, machine *clusterv1.Machine) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(p.sm, infrav1.MachineFinalizer) {
		return ctrl.Result{}, nil
	}
	if until, held := p.gate(machine); held {
		p.notReady(ReasonHeldByGate, fmt.Sprintf(
			"Machine %s still holds its pre-terminate hook: results and wipe are not decided. Delete the Burst instead; at %s the machine is destroyed all the same",
			machine.Name, until.UTC().Format(time.RFC3339)))
		return ctrl.Result{RequeueAfter: min(until.Sub(p.now), p.timing.Watch)}, nil
	}
	d, err := p.driver(ctx)
	if err != nil {
		return p.blocked(err), nil
	}
	found, err := p.look(ctx, d)
	if err != nil {
		return p.blocked(err), nil
	}
	if len(found) > 0 {
		return p.remove(ctx, d, found)
	}
	if wait := p.unseen(); wait > 0 {
		return p.removeUnseen(ctx, d, wait)
	}
	return p.gone(ctx, d)
}

// gate reports whether the Machine still holds the deletion back, and until
// when: whoever deletes the SpillwayMachine directly does not get round the
// wipe (cases: B-38, Cluster API's isNodeDrainAllowed).
func (p *pass) gate(machine *clusterv1.Machine) (until time.Time, held bool) {
	if machine == nil {
		return time.Time{}, false
	}
	hooked := false
	for key := range machine.Annotations {
		hooked = hooked || strings.HasPrefix(key, clusterv1.PreTerminateDeleteHookAnnotationPrefix)
	}
	until = p.sm.Spec.Expires.Time
	if forced, err := time.Parse(time.RFC3339, p.sm.Annotations[infrav1.ForceDestroyAnnotation]); err == nil && forced.Before(until) {
		until = forced
	}
	return until, hooked && p.now.Before(until)
}

// blocked says that a machine may still cost money and can't be deleted now.
// The finalizer stays, for ever if need be (cases: D-10
// cluster-api-provider-openstack#906, B-25 cluster-api-provider-aws#2606).
func (p *pass) blocked(err error) ctrl.Result {
	wait := p.timing.Trouble
	if providers.KindOf(err) == providers.Throttled {
		wait = max(providers.RetryAfterOf(err), p.timing.Poll)
	}
	p.notReady(ReasonCleanupBlocked, "can't be deleted now and may still be billed: "+err.Error())
	return ctrl.Result{RequeueAfter: wait}
}

// remove asks for the end of everything that the list shows. A delete that was
// accepted and does not end is asked for again (cases: B-32
// cluster-api-provider-ionoscloud#363).
func (p *pass) remove(ctx context.Context, d providers.Driver, found []providers.Machine) (ctrl.Result, error) {
	again := p.reason() != ReasonDeleting || p.now.Sub(p.readySince()) >= p.timing.LookAgain
	p.seen(found)
	for _, m := range found {
		p.sm.Status.State = string(m.State)
		if m.State == providers.StateDeleting && !again {
			continue
		}
		err := d.Delete(ctx, m.ID)
		if hookErr := p.did(ctx, ActDelete); hookErr != nil {
			return ctrl.Result{}, hookErr
		}
		if err != nil && providers.KindOf(err) != providers.NotFound {
			return p.blocked(err), nil
		}
		// "not found" is no proof: the list is
	}
	p.notReady(ReasonDeleting, "the cloud was asked to delete it and still lists it")
	if again {
		p.touch(Ready)
	}
	return ctrl.Result{RequeueAfter: p.timing.Poll}, nil
}

// seen records what the meter needs of a machine that is met for the first time
// when it is to go: it was bought by a call whose answer was lost, and it costs.
func (p *pass) seen(found []providers.Machine) {
	m := pick(found, p.sm.Status.InstanceID)
	if m.State == providers.StateLeftover || p.sm.Status.InstanceID != "" && p.sm.Status.InstanceID != m.ID {
		return
	}
	s := &p.sm.Status
	s.InstanceID = m.ID
	if !m.Created.IsZero() {
		s.CreatedAt = stamp(m.Created)
	}
	if !m.Started.IsZero() {
		s.StartedAt = stamp(m.Started)
	}
}

// reason is the present reason of condition Ready.
func (p *pass) reason() string {
	for _, c := range p.sm.Status.Conditions {
		if c.Type == Ready {
			return c.Reason
		}
	}
	return ""
}

// unseen is how long an empty list proves nothing yet: a machine that was asked
// for and never seen may still turn up.
func (p *pass) unseen() time.Duration {
	switch reason, age := p.purchase(); reason {
	case ReasonAsking, ReasonOutcomeUnknown, ReasonBought:
		return p.timing.LookAgain + precision - age
	default:
		return 0
	}
}

// removeUnseen deletes by id what the list does not show yet.
func (p *pass) removeUnseen(ctx context.Context, d providers.Driver, wait time.Duration) (ctrl.Result, error) {
	if id := p.sm.Status.InstanceID; id != "" {
		err := d.Delete(ctx, id)
		if hookErr := p.did(ctx, ActDelete); hookErr != nil {
			return ctrl.Result{}, hookErr
		}
		if err != nil && providers.KindOf(err) != providers.NotFound {
			return p.blocked(err), nil
		}
	}
	p.notReady(ReasonDeleting, "the cloud does not list it; looked at again before that counts as gone")
	return ctrl.Result{RequeueAfter: min(wait, p.timing.Poll)}, nil
}

// gone records the bounds of the cloud's meter, then lets the object go: in
// this order, so that the times outlive a crash in between.
func (p *pass) gone(ctx context.Context, d providers.Driver) (ctrl.Result, error) {
	if hookErr := p.did(ctx, ActGone); hookErr != nil {
		return ctrl.Result{}, hookErr
	}
	p.notReady(ReasonGone, "the cloud lists nothing of it any more")
	if p.sm.Status.GoneAt == nil {
		since := p.seenSince() // the first pass that has seen it gone
		m, awaited := p.usage(ctx, d, since)
		if awaited {
			return ctrl.Result{RequeueAfter: p.timing.Trouble}, nil
		}
		p.sm.Status.GoneAt = stamp(ceil(latest(m.Deleted, since)))
	}
	p.sm.Status.State = string(providers.StateDeleted)
	if err := p.save(ctx, false); err != nil {
		return ctrl.Result{}, err
	}
	old := p.sm.DeepCopy()
	controllerutil.RemoveFinalizer(p.sm, infrav1.MachineFinalizer)
	if err := p.patch(ctx, old); err != nil {
		return ctrl.Result{}, fmt.Errorf("let SpillwayMachine %s go: %w", p.sm.Name, err)
	}
	return ctrl.Result{}, nil
}
