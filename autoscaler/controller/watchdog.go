package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

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

// lookForUnowned says which reservations nobody will settle.
func (p *process) lookForUnowned(ctx context.Context) error {
	accounts, err := p.treasury.ledger.Accounts(ctx)
	if err != nil {
		return fmt.Errorf("list reservations: %w", err)
	}
	bursts := &v1alpha1.BurstList{}
	if err := p.mgr.GetClient().List(ctx, bursts); err != nil {
		return fmt.Errorf("list bursts: %w", err)
	}
	lost := unowned(accounts, bursts.Items, time.Now())
	p.meters.unowned.Set(float64(len(lost)))
	for _, burst := range lost {
		p.Log.Error("a reservation has no Burst any more and holds its budget: its finalizer was removed by hand, or the API server was restored", "burst", burst)
	}
	return nil
}
