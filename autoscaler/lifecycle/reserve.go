package lifecycle

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// ReasonNothingReserved settles a burst that never had a reservation.
const ReasonNothingReserved = "NothingReserved"

// reserve books the whole worst case against every budget on the path, before
// a byte moves or a machine is asked for.
func (r *Reconciler) reserve() []act {
	return []act{{fact: v1alpha1.Reserved, do: r.reserveCeiling}}
}

func (r *Reconciler) reserveCeiling(ctx context.Context, b record) (outcome, error) {
	res, err := reservation(b.Burst)
	if err != nil {
		return outcome{}, err
	}
	_, err = r.Ledger.Reserve(ctx, res)
	if short, ok := errors.AsType[*quota.ShortError](err); ok {
		return outcome{end: v1alpha1.EndBudgetExceeded, message: short.Error()}, nil
	}
	if errors.Is(err, quota.ErrOverrun) || errors.Is(err, quota.ErrNoBudget) || errors.Is(err, quota.ErrInvalid) {
		return outcome{end: v1alpha1.EndBudgetExceeded, message: err.Error()}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	b.Status.Cost.Reserved = b.Spec.Ceiling
	return outcome{message: fmt.Sprintf("%s reserved in the ledger until the proven end", b.Spec.Ceiling)}, nil
}

// reservation is the same for every repetition: the ledger compares bodies.
func reservation(b *v1alpha1.Burst) (quota.Reservation, error) {
	ceiling, err := money.Parse(string(b.Spec.Ceiling))
	if err != nil {
		return quota.Reservation{}, fmt.Errorf("ceiling: %w", err)
	}
	price, err := money.ParseRate(string(b.Spec.Offer.PricePerHour))
	if err != nil {
		return quota.Reservation{}, fmt.Errorf("price per hour: %w", err)
	}
	return quota.Reservation{
		Burst: string(b.UID), Tenant: b.Spec.TenantID, Project: b.Spec.Project,
		Provider: b.Spec.Offer.Provider, Namespace: b.Namespace, Owner: string(b.Spec.Gang.UID),
		Budgets: b.Spec.Budgets, Amount: ceiling,
		From: b.CreationTimestamp.UTC(), Until: b.Spec.Until.UTC(),
		Offer: b.Spec.Offer.InstanceType, Price: price, Mode: b.Spec.Mode,
	}, nil
}

// settled is the zero end of a burst that never reserved anything.
func settled() outcome {
	return outcome{status: metav1.ConditionTrue, reason: ReasonNothingReserved, message: "nothing was reserved, nothing is owed"}
}
