package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota"
)

// ReasonNothingReserved settles a burst that never had a reservation.
const ReasonNothingReserved = "NothingReserved"

// reserve books the worst case against every budget on the path, before a byte
// moves or a machine is asked for: the whole of it, or in mode lease the first
// slice, which covers the first lease and the way to stop behind it.
func (r *Reconciler) reserve() []act {
	return []act{{fact: v1alpha1.Reserved, do: r.reserveFirst}}
}

func (r *Reconciler) reserveFirst(ctx context.Context, b record) (outcome, error) {
	res, err := plan.ReservationOf(b.Burst)
	if err != nil {
		return outcome{}, err
	}
	_, err = r.Ledger.Reserve(ctx, res)
	if why := refused(err); why != "" {
		return outcome{end: v1alpha1.EndBudgetExceeded, message: why}, nil
	}
	if err != nil {
		return outcome{}, err
	}
	b.Status.Cost.Reserved = moneyOf(res.Amount)
	if b.sliced() {
		return outcome{message: fmt.Sprintf("%s reserved in the ledger, which covers every end until %s; more is asked for while it runs, at most %s in all",
			res.Amount, res.Until.Format(time.RFC3339), b.Spec.Ceiling)}, nil
	}
	return outcome{message: fmt.Sprintf("%s reserved in the ledger until the proven end", b.Spec.Ceiling)}, nil
}

// refused is the ledger's no in its own words: which budget, what is missing,
// what may be done. It is empty for a yes, and for errors that may pass.
func refused(err error) string {
	if short, ok := errors.AsType[*quota.ShortError](err); ok {
		return short.Error()
	}
	for _, no := range []error{quota.ErrOverrun, quota.ErrNoBudget, quota.ErrInvalid} {
		if errors.Is(err, no) {
			return err.Error()
		}
	}
	return ""
}

// sliced reports whether the burst's money is booked slice by slice.
func (b record) sliced() bool { return b.Spec.FirstUntil != nil }

// paid returns how far a lease may reach: to hard, or less when the money does
// not reach so far. In mode lease it uses up what the ledger has booked, and
// then asks for the next slice. The ledger's no is returned in its own words;
// everything else that goes wrong is an error, and no answer means no.
func (r *Reconciler) paid(ctx context.Context, b record, hard time.Time) (until time.Time, no string, err error) {
	if !b.sliced() {
		return hard, "", nil
	}
	a, err := r.Ledger.Account(ctx, b.uid())
	if err != nil {
		return hard, "", err
	}
	unused := b.Status.Lease != nil && a.LeaseBy().After(b.Status.Lease.Hard.Time)
	x, more, err := a.Next(hard)
	if err != nil {
		return hard, "", err
	}
	if more && !unused {
		receipt, err := r.Ledger.Extend(ctx, x)
		if no := refused(err); no != "" {
			return a.LeaseBy(), no, nil
		}
		if err != nil {
			return hard, "", fmt.Errorf("slice %s: %w", x.Key, err)
		}
		a = receipt.Account
		err = r.save(ctx, b, func() { b.Status.Cost.Reserved, b.Status.Cost.Slices = moneyOf(a.Reserved), int32(a.Extensions) })
		if err != nil {
			return hard, "", err
		}
	}
	return earlier(hard, a.LeaseBy()), "", nil
}

// settled is the zero end of a burst that never reserved anything.
func settled() outcome {
	return outcome{status: metav1.ConditionTrue, reason: ReasonNothingReserved, message: "nothing was reserved, nothing is owed"}
}
