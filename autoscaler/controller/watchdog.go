package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
)

// unownedAfter is how old the newest word on a reservation is before it can
// count as unowned.
const unownedAfter = 10 * time.Minute

// unowned names the open reservations whose Burst does not exist, sorted: they
// hold money of a budget, and nobody is left to settle them.
//
// cases: H-21 kubernetes-sigs/kueue#14811
func unowned(accounts []quota.Account, bursts []v1alpha1.Burst, now time.Time) []string {
	live := map[string]bool{}
	for _, b := range bursts {
		live[string(b.UID)] = true
	}
	var lost []string
	for _, a := range accounts {
		if a.State != quota.Settled && !live[a.Reservation.Burst] && now.Sub(a.ChangedAt) > unownedAfter {
			lost = append(lost, a.Reservation.Burst)
		}
	}
	slices.Sort(lost)
	return lost
}

// outlived names the Bursts that are over for longer than they are kept. What
// outlives them is in the ledger and in the records.
func outlived(bursts []v1alpha1.Burst, now time.Time, keep time.Duration) []v1alpha1.Burst {
	return slices.DeleteFunc(slices.Clone(bursts), func(b v1alpha1.Burst) bool {
		for _, fact := range []string{v1alpha1.Complete, v1alpha1.Failed} {
			c := meta.FindStatusCondition(b.Status.Conditions, fact)
			if c != nil && len(b.Finalizers) == 0 && now.Sub(c.LastTransitionTime.Time) > keep {
				return false
			}
		}
		return true
	})
}

// prune deletes what [outlived] names: every Burst is read in every cycle.
func (p *process) prune(ctx context.Context) error {
	if p.KeepBursts <= 0 {
		return nil // kept for ever
	}
	bursts := &v1alpha1.BurstList{}
	if err := p.mgr.GetClient().List(ctx, bursts); err != nil {
		return fmt.Errorf("list bursts: %w", err)
	}
	for _, b := range outlived(bursts.Items, time.Now(), p.KeepBursts) {
		err := p.mgr.GetClient().Delete(ctx, &b, client.Preconditions{UID: &b.UID, ResourceVersion: &b.ResourceVersion})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("prune burst %s/%s: %w", b.Namespace, b.Name, err)
		}
	}
	return nil
}

// lookForUnowned says which reservations nobody will settle.
func (p *process) lookForUnowned(ctx context.Context) error {
	book, err := p.treasury.ledger.Book(ctx)
	if err != nil {
		return fmt.Errorf("list reservations: %w", err)
	}
	bursts := &v1alpha1.BurstList{}
	if err := p.mgr.GetClient().List(ctx, bursts); err != nil {
		return fmt.Errorf("list bursts: %w", err)
	}
	lost := unowned(slices.Collect(maps.Values(book.Open)), bursts.Items, time.Now())
	p.meters.unowned.Set(float64(len(lost)))
	for _, burst := range lost {
		p.Log.Error("a reservation has no Burst any more and holds its budget: its finalizer was removed by hand, or the API server was restored", "burst", burst)
	}
	return nil
}
