package infra

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/providers"
)

// follow reads what became of a machine that was bought. It never creates.
func (p *pass) follow(ctx context.Context) (ctrl.Result, error) {
	if p.sm.Status.GoneAt != nil {
		return ctrl.Result{}, nil
	}
	if wait := p.quietFor(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	d, err := p.driver(ctx)
	if err != nil {
		p.notReady(ReasonCloudTrouble, err.Error())
		return ctrl.Result{RequeueAfter: p.timing.Trouble}, nil
	}
	found, err := p.look(ctx, d)
	if err != nil {
		return p.trouble(err), nil
	}
	if len(found) == 0 {
		return p.missing(ctx, d), nil
	}
	m := pick(found, p.sm.Status.InstanceID)
	if !refused(p.sm) {
		p.set(Purchased, metav1.ConditionTrue, ReasonListed, "instance "+p.sm.Status.InstanceID)
	}
	if m.ID != p.sm.Status.InstanceID { // the recorded one is gone, another of our token is there
		err := p.dropOthers(ctx, d, found, "")
		if err != nil {
			return ctrl.Result{}, err
		}
		return p.missing(ctx, d), nil
	}
	if err := p.dropOthers(ctx, d, found, m.ID); err != nil {
		return ctrl.Result{}, err
	}
	return p.observe(ctx, d, m)
}

// missing deals with a recorded machine that the list does not show: right
// after a create that means nothing (cases: D-39 karpenter#371, #4165); later
// it counts when a second look agrees, and then the attempt is over. Nothing
// is created again (cases: B-17 cluster-api-provider-openstack#1741, H-8
// cloudpilot-ai/karpenter-provider-gcp#176).
func (p *pass) missing(ctx context.Context, d providers.Driver) ctrl.Result {
	if reason, age := p.purchase(); reason == ReasonBought && age < p.timing.LookAgain {
		return ctrl.Result{RequeueAfter: min(p.timing.Poll, p.timing.LookAgain-age)}
	}
	p.notReady(ReasonMissing, "the cloud's list does not show instance "+p.sm.Status.InstanceID)
	since := p.seenSince()
	if wait := p.timing.LookAgain - p.now.Sub(since); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}
	}
	words := "instance " + p.sm.Status.InstanceID + " is gone without our doing"
	m, awaited := p.usage(ctx, d, since.Add(p.timing.LookAgain))
	if awaited {
		return ctrl.Result{RequeueAfter: p.timing.Trouble}
	}
	if m.Fault != "" {
		words += ": " + m.Fault
	}
	since = latest(m.Deleted, since)
	p.sm.Status.State = string(providers.StateDeleted)
	p.sm.Status.GoneAt = stamp(ceil(since))
	p.refuse(RefusedVanished, words)
	return ctrl.Result{}
}

// ceil moves the end of a meter up to what the API server can keep: a time
// that is cut off there would bill too little.
func ceil(t time.Time) time.Time {
	if whole := t.Truncate(precision); whole.Before(t) {
		return whole.Add(precision)
	}
	return t
}

// latest prefers the cloud's own time of the end over ours.
func latest(clouds, ours time.Time) time.Time {
	if clouds.IsZero() {
		return ours
	}
	return clouds
}

// readySince is when condition Ready took its present reason.
func (p *pass) readySince() time.Time {
	for _, c := range p.sm.Status.Conditions {
		if c.Type == Ready {
			return c.LastTransitionTime.Time
		}
	}
	return p.now
}

// seenSince is readySince as the bound of a meter: what the API server has cut
// off of it would bill too little.
func (p *pass) seenSince() time.Time {
	since := p.readySince()
	if since.Equal(p.now) {
		return since
	}
	return since.Add(precision)
}

// usage asks the cloud's own records, where the driver can, and takes over what
// they say of the beginning. A record that can't be had now is awaited for a
// while, as what a cloud bills goes by it; from then on our own times stand, and
// the machine is zero.
func (p *pass) usage(ctx context.Context, d providers.Driver, since time.Time) (m providers.Machine, awaited bool) {
	reporter, ok := d.(providers.UsageReporter)
	if !ok {
		return providers.Machine{}, false
	}
	m, err := reporter.Usage(ctx, p.sm.Spec.Token)
	if err != nil {
		none := providers.KindOf(err) == providers.NotFound || providers.KindOf(err) == providers.Rejected
		return providers.Machine{}, !none && p.now.Sub(since) < p.timing.Evidence
	}
	s := &p.sm.Status
	if s.InstanceID == "" { // bought by a call whose answer was lost, and ended by another hand since
		s.InstanceID = m.ID
	}
	if !m.Created.IsZero() {
		s.CreatedAt = stamp(m.Created)
	}
	if !m.Started.IsZero() {
		s.StartedAt = stamp(m.Started)
	}
	return m, false
}

// observe writes what the cloud says about the machine, and moves its stamp.
func (p *pass) observe(ctx context.Context, d providers.Driver, m providers.Machine) (ctrl.Result, error) {
	s := &p.sm.Status
	s.State, s.FailureDomain = string(m.State), m.Zone
	s.ExpiresAt = stamp(m.Expires)
	s.Addresses = nil
	for _, a := range m.Addresses {
		s.Addresses = append(s.Addresses, infrav1.MachineAddress{Type: "InternalIP", Address: a})
	}
	if !m.Created.IsZero() {
		s.CreatedAt = stamp(m.Created)
	}
	if !m.Started.IsZero() {
		s.StartedAt = stamp(m.Started)
	}
	after := p.timing.Poll
	switch m.State {
	case providers.StateRunning:
		yes := true
		s.Initialization = &infrav1.MachineInitialization{Provisioned: &yes}
		p.set(Ready, metav1.ConditionTrue, ReasonRunning, "instance "+m.ID+" runs")
		after = p.timing.Watch
	case providers.StateStopped:
		p.notReady(ReasonPoweredOff, "instance "+m.ID+" has powered off; the cloud keeps it and may bill on")
		after = p.timing.Watch
	case providers.StateFailed, providers.StateLeftover:
		// cases: B-14 cluster-api-provider-openstack#3375, D-25
		p.refuse(refusalOf(m.FaultKind), failure(m))
		return ctrl.Result{}, nil
	case providers.StateDeleting:
		p.notReady(ReasonDeleting, "instance "+m.ID+" is being deleted by another hand")
	default:
		p.notReady(ReasonBooting, "instance "+m.ID+" is "+words(m.State))
	}
	if p.sm.Spec.Expires.After(m.Expires) {
		return p.extend(ctx, d, m.ID, after)
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// failure is the cloud's own words, or ours when it has none.
func failure(m providers.Machine) string {
	if m.Fault != "" {
		return m.Fault
	}
	if m.State == providers.StateLeftover {
		return "only parts of instance " + m.ID + " exist"
	}
	return "the cloud reports instance " + m.ID + " as failed and says no more"
}

func words(s providers.State) string {
	if s == "" {
		return "in a state that the cloud does not name"
	}
	return string(s)
}

// extend carries the stamp to the cloud.
func (p *pass) extend(ctx context.Context, d providers.Driver, id string, after time.Duration) (ctrl.Result, error) {
	until := p.sm.Spec.Expires.Time
	err := d.Extend(ctx, id, until)
	if hookErr := p.did(ctx, ActExtend); hookErr != nil {
		return ctrl.Result{}, hookErr
	}
	if err != nil {
		p.log().WarnContext(ctx, "stamp not moved, will be tried again", "machine", p.sm.Name, "until", until, "error", err)
		return ctrl.Result{RequeueAfter: min(after, p.timing.Trouble)}, nil
	}
	p.sm.Status.ExpiresAt = stamp(until)
	return ctrl.Result{RequeueAfter: after}, nil
}
