package infra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
)

// buy brings the purchase one act forward: intent, look, permit, create.
//
// cases: H-1 kubernetes-sigs/karpenter#1448, H-2 cloudbase/garm#79, H-4
// kubernetes-sigs/cluster-api-provider-openstack#2181, B-11
// kubernetes-sigs/cluster-api-provider-aws#6131
func (p *pass) buy(ctx context.Context, userData []byte) (ctrl.Result, error) {
	if wait := p.quietFor(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	d, err := p.driver(ctx)
	if err != nil {
		p.notReady(ReasonCloudTrouble, err.Error())
		return ctrl.Result{RequeueAfter: p.timing.Trouble}, nil
	}
	if p.sm.Status.IntentAt == nil {
		at := metav1.NewTime(p.now)
		p.sm.Status.IntentAt = &at
		p.set(Purchased, metav1.ConditionUnknown, ReasonIntended, "nothing has been asked of the cloud yet")
		p.notReady(ReasonBuying, "asking "+p.sm.Spec.Provider+" for "+p.sm.Spec.InstanceType)
		if err := p.save(ctx, true); err != nil {
			return ctrl.Result{}, err
		}
	}
	found, err := p.look(ctx, d)
	if err != nil {
		return p.trouble(err), nil
	}
	if len(found) > 0 {
		return p.adopt(ctx, d, found)
	}
	if wait := p.secondLook(); wait > 0 {
		return ctrl.Result{RequeueAfter: wait}, nil
	}
	if reason, age := p.purchase(); reason == ReasonAsking || reason == ReasonOutcomeUnknown {
		// A machine may have come and gone without ever being listed.
		m, awaited := p.usage(ctx, d, p.now.Add(-age))
		if awaited {
			return ctrl.Result{RequeueAfter: p.timing.Trouble}, nil
		}
		if m.ID != "" {
			p.set(Purchased, metav1.ConditionTrue, ReasonListed, "instance "+m.ID+", by the cloud's own record")
			return ctrl.Result{RequeueAfter: p.timing.Poll}, nil
		}
	}
	if !p.now.Before(p.sm.Spec.Expires.Time) {
		p.refuse(RefusedTooLate, "its stamp "+p.sm.Spec.Expires.UTC().Format(time.RFC3339)+" has passed: any sweeper would delete it at once")
		return ctrl.Result{}, nil
	}
	return p.ask(ctx, d, userData)
}

// look lists the cloud and returns what carries this machine's token, compared
// in full (cases: D-17 kubernetes/kops#6650).
func (p *pass) look(ctx context.Context, d providers.Driver) ([]providers.Machine, error) {
	list, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(m providers.Machine) bool {
		return m.Token != p.sm.Spec.Token || m.Installation != p.sm.Spec.Installation
	}), nil
}

// secondLook is how long a create of unknown outcome still has to wait until
// an empty list proves that nothing was made.
func (p *pass) secondLook() time.Duration {
	switch reason, age := p.purchase(); reason {
	case ReasonAsking, ReasonOutcomeUnknown:
		return p.timing.LookAgain + precision - age
	default:
		return 0
	}
}

// ask takes the permit and creates. The caller has looked and found nothing.
func (p *pass) ask(ctx context.Context, d providers.Driver, userData []byte) (ctrl.Result, error) {
	before, _ := p.purchase()
	p.set(Purchased, metav1.ConditionUnknown, ReasonAsking, "a create call may be under way")
	p.touch(Purchased)
	if err := p.save(ctx, true); err != nil {
		return ctrl.Result{}, err
	}
	if res, ok, err := p.permit(ctx, before); !ok {
		return res, err
	}
	m, err := d.Create(ctx, p.request(userData))
	if hookErr := p.did(ctx, ActCreate); hookErr != nil {
		return ctrl.Result{}, hookErr
	}
	p.now = p.clock()
	if err == nil {
		p.bought(m, ReasonBought)
		return p.observe(ctx, d, m)
	}
	switch kind := providers.KindOf(err); {
	case kind.Refusal():
		p.refuse(refusalOf(kind), err.Error())
		return ctrl.Result{}, nil
	case kind == providers.Throttled, kind == providers.Unauthorized:
		p.set(Purchased, metav1.ConditionUnknown, ReasonNotDone, err.Error())
		return p.trouble(err), nil
	default: // look at once, and once more later
		p.set(Purchased, metav1.ConditionUnknown, ReasonOutcomeUnknown, err.Error())
		p.notReady(ReasonBuying, "the outcome of the create is unknown, looking for the machine: "+err.Error())
		found, lookErr := p.look(ctx, d)
		if lookErr == nil && len(found) > 0 {
			return p.adopt(ctx, d, found)
		}
		return ctrl.Result{RequeueAfter: p.timing.LookAgain}, nil
	}
}

// permit asks the ledger; ok says that the create may go ahead. A permit that
// was used in this epoch is worth a further create only when both looks after
// the earlier one have found nothing.
func (p *pass) permit(ctx context.Context, before string) (res ctrl.Result, ok bool, err error) {
	err = p.Permits.Permit(ctx, p.sm.Spec.Burst, int(p.sm.Spec.Ordinal))
	switch {
	case err == nil:
		return res, true, p.did(ctx, ActPermit)
	case errors.Is(err, quota.ErrPermitUsed) && before != ReasonIntended:
		return res, true, nil
	case errors.Is(err, quota.ErrPermitUsed): // by whom? look twice first
		p.set(Purchased, metav1.ConditionUnknown, ReasonOutcomeUnknown, "the permit was used before: looking for the machine")
		return ctrl.Result{RequeueAfter: p.timing.LookAgain}, false, nil
	case errors.Is(err, quota.ErrUnknownBurst), errors.Is(err, quota.ErrSettled), errors.Is(err, quota.ErrDraining):
		p.refuse(RefusedNoReservation, err.Error())
		return res, false, nil
	default: // nothing was asked of the cloud
		p.set(Purchased, metav1.ConditionUnknown, before, "no permit: "+err.Error())
		return res, false, fmt.Errorf("permit for machine %d of burst %s: %w", p.sm.Spec.Ordinal, p.sm.Spec.Burst, err)
	}
}

// request is the whole purchase; the driver finds the offer by its key.
func (p *pass) request(userData []byte) providers.Request {
	s := p.sm.Spec
	return providers.Request{
		Token: s.Token, Installation: s.Installation, Burst: s.Burst, Tenant: s.Tenant, Name: p.sm.Name,
		Offer: providers.Offer{
			Provider: s.Provider, Region: s.Region, Zone: s.Zone,
			InstanceType: s.InstanceType, CapacityType: s.CapacityType,
		},
		UserData: userData, Expires: s.Expires.Time,
	}
}

// bought records the one machine of this object.
func (p *pass) bought(m providers.Machine, reason string) {
	p.sm.Status.InstanceID = m.ID
	at := m.Created
	if at.IsZero() {
		at = p.now
	}
	p.sm.Status.CreatedAt = stamp(at)
	p.set(Purchased, metav1.ConditionTrue, reason, "instance "+m.ID)
}

// adopt takes the machine that an earlier call has made, and deletes any
// further one.
func (p *pass) adopt(ctx context.Context, d providers.Driver, found []providers.Machine) (ctrl.Result, error) {
	winner := pick(found, p.sm.Status.InstanceID)
	if winner.State != providers.StateLeftover { // parts alone are no instance, and have no meter
		p.bought(winner, ReasonListed)
	}
	if err := p.dropOthers(ctx, d, found, winner.ID); err != nil {
		return ctrl.Result{}, err
	}
	return p.observe(ctx, d, winner)
}

// pick chooses among machines of one token, the same one in whatever order
// they are listed: the recorded one, else a healthy one, else the oldest
// (cases: D-4 kubernetes-sigs/cluster-api-provider-openstack#2088).
func pick(found []providers.Machine, recorded string) providers.Machine {
	rank := func(m providers.Machine) int {
		switch {
		case m.ID == recorded:
			return 0
		case m.State == providers.StateRunning, m.State == providers.StatePending:
			return 1
		default:
			return 2
		}
	}
	return slices.MinFunc(found, func(a, b providers.Machine) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
}

// dropOthers asks for the end of every machine of the token but one. A delete
// that fails is repeated on the next pass: the list still shows it.
func (p *pass) dropOthers(ctx context.Context, d providers.Driver, found []providers.Machine, keep string) error {
	for _, m := range found {
		if m.ID == keep || m.State == providers.StateDeleting {
			continue
		}
		err := d.Delete(ctx, m.ID)
		if hookErr := p.did(ctx, ActDuplicate); hookErr != nil {
			return hookErr
		}
		p.log().WarnContext(ctx, "duplicate machine deleted", "machine", p.sm.Name, "token", m.Token, "kept", keep, "duplicate", m.ID, "error", err)
	}
	return nil
}

// quietFor is how long the provider still wants no calls.
func (p *pass) quietFor() time.Duration {
	until, ok := p.quiet.Load(p.sm.Spec.Provider)
	if !ok {
		return 0
	}
	return until.(time.Time).Sub(p.now)
}

// trouble says that the cloud can't be asked now, and when to ask again. A
// throttle quiets every call of the provider, as the limit is the account's.
func (p *pass) trouble(err error) ctrl.Result {
	wait := p.timing.Trouble
	if providers.KindOf(err) == providers.Throttled {
		wait = max(providers.RetryAfterOf(err), p.timing.Poll)
		p.quiet.Store(p.sm.Spec.Provider, p.now.Add(wait))
	}
	p.notReady(ReasonCloudTrouble, err.Error())
	return ctrl.Result{RequeueAfter: wait}
}

// precision is what the API server keeps of a time: it cuts off the rest.
const precision = time.Second

// stamp is a time for a status field, or nil.
func stamp(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t)
	return &m
}
