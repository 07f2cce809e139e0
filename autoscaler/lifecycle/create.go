package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/providers"
)

// create asks for the machines and waits for the cloud to confirm them. The
// infrastructure controller buys them, on a permit of the ledger each.
func (r *Reconciler) create() []act {
	return []act{
		{fact: v1alpha1.MachineRequested, do: r.requestMachines},
		{fact: v1alpha1.MachineBought, do: r.machinesBought},
	}
}

func (r *Reconciler) requestMachines(ctx context.Context, b record) (outcome, error) {
	p, err := r.provider(ctx, b)
	if err != nil {
		return outcome{}, err
	}
	if b.Status.Lease == nil {
		// Written down first: a repetition after a crash must not tell one
		// machine of another lease than the next.
		want := r.Settings.readyBy(p, b.now.Add(r.Settings.BuyDeadline)).Truncate(time.Second)
		hard, no, err := r.paid(ctx, b, want)
		if err != nil {
			return outcome{}, err
		}
		if hard.Before(want) {
			return outcome{end: v1alpha1.EndBudgetExceeded, message: cmp.Or(no, "its ceiling does not pay for the first lease any more")}, nil
		}
		err = r.save(ctx, b, func() {
			b.Status.Lease = &v1alpha1.BurstLease{Serial: 1, Issued: metav1.NewTime(b.now), Soft: metav1.NewTime(hard), Hard: metav1.NewTime(hard)}
		})
		if err != nil {
			return outcome{}, err
		}
	}
	hard, joinBy := b.Status.Lease.Hard.Time, r.Settings.JoinBy(p, b.Status.Lease.Issued.Time)
	for ordinal := range b.Spec.Machines {
		lease, err := r.sign(b, capi.NodeName(b.UID, ordinal))
		if err != nil {
			return outcome{}, err
		}
		userData, err := r.Joins.UserData(ctx, b.Burst, ordinal, lease, joinBy)
		if err != nil {
			return outcome{}, err
		}
		err = r.Machines.Ensure(ctx, capi.Order{
			Burst: b.Burst, Ordinal: ordinal, Tenant: b.Spec.TenantID, Installation: r.Settings.Installation,
			UserData: userData, Expires: hard.Add(r.Settings.DeadMan),
		})
		if err != nil {
			return outcome{}, err
		}
		b.machine(ordinal)
	}
	return outcome{message: fmt.Sprintf("%d x %s asked of %s", b.Spec.Machines, b.Spec.Offer.InstanceType, b.Spec.Offer.Provider)}, nil
}

func (r *Reconciler) machinesBought(ctx context.Context, b record) (outcome, error) {
	views, err := r.Machines.Read(ctx, b.UID)
	if err != nil {
		return outcome{}, err
	}
	bought := int32(0)
	for _, v := range views {
		if v.Refusal != "" {
			message := fmt.Sprintf("%s: %s: %s", b.Spec.Offer.Provider, v.Refusal, v.Message)
			return outcome{end: v.Refusal, message: message}, r.bench(ctx, b, v.Refusal)
		}
		if v.Bought {
			b.keepTimes(v)
			bought++
		}
	}
	if bought < b.Spec.Machines {
		if b.now.After(b.at(v1alpha1.MachineRequested).Add(r.Settings.BuyDeadline)) {
			return outcome{end: v1alpha1.EndBuyDeadline, message: fmt.Sprintf("%d of %d machines confirmed by %s within %s", bought, b.Spec.Machines, b.Spec.Offer.Provider, r.Settings.BuyDeadline)}, r.bench(ctx, b, v1alpha1.EndBuyDeadline)
		}
		return outcome{wait: r.Settings.Poll}, nil
	}
	return outcome{message: fmt.Sprintf("%s in %s, instance %s", b.Spec.Offer.Provider, b.Spec.Offer.Region, b.instances())}, nil
}

// keepTimes copies what the meter needs before the machine's own record goes.
func (b record) keepTimes(v capi.View) {
	m := b.machine(v.Ordinal)
	m.ProviderID, m.InstanceID = v.ProviderID, v.InstanceID
	m.Created, m.Started, m.Gone = timeOrNil(v.Created, m.Created), timeOrNil(v.Started, m.Started), timeOrNil(v.Gone, m.Gone)
}

func timeOrNil(t time.Time, old *metav1.Time) *metav1.Time {
	if t.IsZero() {
		return old
	}
	stamp := metav1.NewTime(t)
	return &stamp
}

func (b record) instances() string {
	list := ""
	for i, m := range b.Status.Machines {
		if i > 0 {
			list += ", "
		}
		list += m.InstanceID
	}
	return list
}

// bench keeps an offer that has failed out of plans for a while, so that the
// next cycle moves on (cases: H-10 LeanerCloud/AutoSpotting#147).
func (r *Reconciler) bench(ctx context.Context, b record, reason string) error {
	p, err := r.provider(ctx, b)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	key := offerKey(b.Spec.Offer)
	old := p.DeepCopy()
	entry := v1alpha1.UnavailableOffer{Offer: key, Until: metav1.NewTime(b.now.Add(r.Settings.Bench)), Reason: reason}
	kept := p.Status.Unavailable[:0]
	for _, u := range p.Status.Unavailable {
		if u.Offer != key && u.Until.After(b.now) {
			kept = append(kept, u)
		}
	}
	p.Status.Unavailable = append(kept, entry)
	if err := r.Client.Status().Patch(ctx, p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("keep offer %s out of plans: %w", key, err)
	}
	return nil
}

func offerKey(o v1alpha1.OfferReference) string {
	return providers.Offer{
		Provider: o.Provider, Region: o.Region, Zone: o.Zone, InstanceType: o.InstanceType, CapacityType: o.CapacityType,
	}.Key()
}

func (r *Reconciler) provider(ctx context.Context, b record) (*v1alpha1.BurstProvider, error) {
	p := &v1alpha1.BurstProvider{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: b.Spec.Offer.Provider}, p); err != nil {
		return nil, fmt.Errorf("read provider %s: %w", b.Spec.Offer.Provider, err)
	}
	return p, nil
}

// sign makes the burst's newest lease for one node.
func (r *Reconciler) sign(b record, node string) (link.SignedLease, error) {
	l := b.Status.Lease
	return link.SignLease(r.LeaseKey, link.Lease{
		Burst: b.uid(), Node: node, Serial: l.Serial, Issued: l.Issued.Time, Soft: l.Soft.Time, Hard: l.Hard.Time,
	})
}
