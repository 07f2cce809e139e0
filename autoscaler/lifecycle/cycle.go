package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// Teller brings a decision to the person concerned: an event and the status
// annotation on the owner, written when the text changes and not before.
type Teller interface {
	TellOwner(ctx context.Context, o plan.Owner, reason, message string) error
}

// Cycle observes, decides and applies, again and again. Only the leader runs it.
type Cycle struct {
	Client  client.Client
	Observe func(context.Context) (plan.State, error)
	Teller  Teller
	// Decided, when set, sees every state with its plan: metrics and capture.
	Decided func(plan.State, plan.Plan)
	// Wake asks for a cycle now; without it one runs every Every.
	Wake  <-chan struct{}
	Every time.Duration
	// Idle is how long the cluster must be quiet before a woken cycle runs,
	// so that pods that come together are decided on together; at most ten
	// times that.
	Idle time.Duration
	Log  *slog.Logger

	planner plan.Planner
}

// NeedLeaderElection keeps the cycle to the leader.
func (c *Cycle) NeedLeaderElection() bool { return true }

// Start runs cycles until the context ends.
func (c *Cycle) Start(ctx context.Context) error {
	for {
		if err := c.Once(ctx); err != nil && ctx.Err() == nil {
			c.Log.Error("planning cycle failed; it is tried again", "error", err)
		}
		if !c.rest(ctx) {
			return nil
		}
	}
}

// rest waits for a wake-up or the next turn, then for quiet.
func (c *Cycle) rest(ctx context.Context) bool {
	turn := time.NewTimer(c.Every)
	defer turn.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-turn.C:
		return true
	case <-c.Wake:
	}
	longest := time.NewTimer(10 * c.Idle)
	defer longest.Stop()
	for {
		quiet := time.NewTimer(c.Idle)
		select {
		case <-ctx.Done():
			return false
		case <-longest.C:
			return true
		case <-quiet.C:
			return true
		case <-c.Wake:
			quiet.Stop()
		}
	}
}

// Once is the cycle: observe, decide, apply.
func (c *Cycle) Once(ctx context.Context) error {
	state, err := c.Observe(ctx)
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	p := c.planner.Decide(state)
	if c.Decided != nil {
		c.Decided(state, p)
	}
	return c.apply(ctx, p)
}

// apply writes what was decided. Each decision stands alone: one that can't be
// written does not hold up the others.
func (c *Cycle) apply(ctx context.Context, p plan.Plan) error {
	first := c.observed(ctx, p)
	for _, d := range p.Decisions {
		if err := c.applyOne(ctx, d); err != nil && first == nil {
			first = fmt.Errorf("apply decision on %s: %w", d.Owner, err)
		}
	}
	return first
}

func (c *Cycle) applyOne(ctx context.Context, d plan.Decision) error {
	switch d.Verdict {
	case plan.Buy:
		if err := c.write(ctx, d); err != nil {
			return err
		}
		return c.Teller.TellOwner(ctx, d.Owner, "BurstPlanned", d.Message)
	case plan.WouldBuy:
		return c.Teller.TellOwner(ctx, d.Owner, "BurstObserved", d.Message)
	case plan.Refuse:
		return c.Teller.TellOwner(ctx, d.Owner, "BurstRefused", told(d))
	}
	return c.Teller.TellOwner(ctx, d.Owner, "BurstWaiting", told(d))
}

// write makes the Bursts of a decision, in the order of their attempts. One that
// is there already was decided in an earlier cycle, whose bursts this one's state
// did not show yet: what would follow may be for pods that have theirs. So nothing
// follows, and the next cycle looks again.
func (c *Cycle) write(ctx context.Context, d plan.Decision) error {
	for _, b := range d.Bursts() {
		burst, err := burstOf(b, d.Refusals)
		if err != nil {
			return err
		}
		err = c.Client.Create(ctx, burst)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("write burst %s: %w", burst.Name, err)
		}
	}
	return nil
}

// told is one stable sentence or two: code, evidence, remedy.
func told(d plan.Decision) string {
	text := fmt.Sprintf("%s: %s", d.Code, d.Message)
	if d.Remedy != "" {
		text += "; " + d.Remedy
	}
	return text
}

// burstOf writes a decision down as the object that the reconciler owns.
func burstOf(d plan.Burst, refusals []plan.Refusal) (*v1alpha1.Burst, error) {
	price := moneyOf(money.Amount{Nano: d.Offer.Price.NanoPerHour, Currency: d.Offer.Price.Currency})
	b := &v1alpha1.Burst{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Name, Namespace: d.Owner.Namespace,
			Labels:     map[string]string{v1alpha1.OwnerUIDLabel: string(d.Owner.UID)},
			Finalizers: []string{v1alpha1.BurstFinalizer},
		},
		Spec: v1alpha1.BurstSpec{
			Tenant: d.Tenant, TenantID: d.TenantID, Project: d.ProjectID, Attempt: d.Attempt,
			Gang: v1alpha1.GangReference{
				APIVersion: d.Owner.APIVersion, Kind: d.Owner.Kind, Name: d.Owner.Name, UID: d.Owner.UID, Together: d.Together,
			},
			Offer:    offerOf(d.Offer, price),
			Machines: d.Machines, Ceiling: moneyOf(d.Ceiling), Budgets: d.Budgets, Mode: d.Mode,
			MaxRunTime: metav1.Duration{Duration: d.MaxRun},
			Deadline:   metav1.NewTime(d.Deadline), Until: metav1.NewTime(d.Until), Data: d.Data,
		},
	}
	if d.Mode == quota.ModeLease {
		first := metav1.NewTime(d.FirstUntil)
		b.Spec.FirstUntil = &first
	}
	for _, seat := range d.Pods {
		b.Spec.Gang.Pods = append(b.Spec.Gang.Pods, v1alpha1.PodReference{Name: seat.Name, UID: seat.UID})
	}
	for _, r := range refusals {
		if r.Provider == "" {
			continue
		}
		b.Spec.Refused = append(b.Spec.Refused, v1alpha1.RefusedOffer{
			Provider: r.Provider, Offer: r.Offer, Code: string(r.Code), Message: r.Message,
		})
	}
	return b, nil
}

func offerOf(o providers.Offer, price v1alpha1.Money) v1alpha1.OfferReference {
	start := o.Meter.Start
	if start == "" {
		start = providers.MeterCreated
	}
	return v1alpha1.OfferReference{
		Provider: o.Provider, Region: o.Region, Zone: o.Zone, InstanceType: o.InstanceType, CapacityType: o.CapacityType,
		Country: o.Country, GPUModel: o.GPUModel, GPUResource: o.GPUResource, GPUs: int32(o.GPUs), PricePerHour: price,
		Meter: v1alpha1.MeterRule{
			Start: string(start), Granularity: metav1.Duration{Duration: o.Meter.Granularity}, Minimum: metav1.Duration{Duration: o.Meter.Minimum},
			ClockAligned: o.Meter.ClockAligned, BilledWhenStopped: o.Meter.BilledWhenStopped,
		},
	}
}

func moneyOf(a money.Amount) v1alpha1.Money { return v1alpha1.Money(a.String()) }
