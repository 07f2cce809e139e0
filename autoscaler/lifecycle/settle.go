package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// settle posts the metered cost, releases the rest, and says how it ended. It
// runs after every end, refusals included (cases: H-21
// kubernetes-sigs/kueue#14811: quota held for hours with no pod).
func (r *Reconciler) settle() []act {
	return []act{
		{fact: v1alpha1.Settled, do: r.settleCost, owed: true},
		{fact: v1alpha1.Complete, do: r.conclude, owed: true},
	}
}

func (r *Reconciler) settleCost(ctx context.Context, b record) (outcome, error) {
	if !b.has(v1alpha1.Reserved) {
		// Reserve may have been booked right before a crash, or before the
		// Burst was deleted: ask the ledger, not the record.
		if _, err := r.Ledger.Account(ctx, b.uid()); errors.Is(err, quota.ErrUnknownBurst) {
			return settled(), nil
		} else if err != nil {
			return outcome{}, err
		}
	}
	s, err := settlement(b)
	if err != nil {
		return outcome{}, err
	}
	_, err = r.Ledger.Settle(ctx, s)
	if err != nil && !errors.Is(err, quota.ErrConflict) {
		return outcome{}, err
	}
	account, accountErr := r.Ledger.Account(ctx, b.uid())
	if accountErr != nil {
		return outcome{}, accountErr
	}
	if err != nil && account.State != quota.Settled { // a settlement that was booked stands, also one in other words
		return outcome{}, err
	}
	if b.sliced() { // a crash may have kept the last slice from the record
		b.Status.Cost.Reserved, b.Status.Cost.Slices = moneyOf(account.Reserved), int32(account.Extensions)
	}
	b.Status.Cost.Spent = v1alpha1.Money(account.Spent.String())
	b.Status.Cost.Released = v1alpha1.Money(account.Released.String())
	seconds := account.Settlement.Seconds
	b.Status.Cost.MachineSeconds = seconds
	return outcome{message: fmt.Sprintf("%s spent for %d billed seconds, %s released", account.Spent, seconds, account.Released)}, nil
}

// settlement prices what the provider bills for every machine, by the meter
// rule and price that were frozen into the burst.
func settlement(b record) (quota.Settlement, error) {
	rate, err := money.ParseRate(string(b.Spec.Offer.PricePerHour))
	if err != nil {
		return quota.Settlement{}, fmt.Errorf("price per hour: %w", err)
	}
	s := quota.Settlement{Burst: b.uid(), Actual: money.Amount{Currency: rate.Currency}, Cause: b.cause()}
	meter := Meter(b.Spec.Offer.Meter)
	for _, m := range b.Status.Machines {
		start, end, billed := metered(meter, b, m)
		if billed == 0 {
			continue
		}
		seconds := int64((billed + time.Second - 1) / time.Second)
		cost, err := rate.For(seconds, wholeMachine)
		if err != nil {
			return s, fmt.Errorf("cost of machine %s: %w", m.Name, err)
		}
		if s.Actual, err = s.Actual.Add(cost); err != nil {
			return s, fmt.Errorf("cost of machine %s: %w", m.Name, err)
		}
		s.Seconds += seconds
		s.Machines = append(s.Machines, quota.MachineBill{ID: m.InstanceID, Start: start, End: end, Seconds: seconds, Cost: cost})
		if s.MachineStart.IsZero() || start.Before(s.MachineStart) {
			s.MachineStart = start
		}
		if end.After(s.MachineEnd) {
			s.MachineEnd = end
		}
	}
	return s, nil
}

// wholeMachine is the share of a whole thing, in 1/840.
const wholeMachine = 840

// metered is when the meter of a machine ran. What the cloud did not say is
// taken at its most expensive: from the request to the moment it was gone.
func metered(meter providers.MeterRule, b record, m v1alpha1.BurstMachine) (start, end time.Time, billed time.Duration) {
	if m.InstanceID == "" {
		return start, end, 0 // the cloud never had it
	}
	seen := providers.Machine{Created: b.at(v1alpha1.MachineRequested), Deleted: b.at(v1alpha1.MachineGone)}
	if m.Created != nil {
		seen.Created = m.Created.Time
	}
	seen.Started = seen.Created
	if m.Started != nil {
		seen.Started = m.Started.Time
	}
	if m.Gone != nil {
		seen.Deleted = m.Gone.Time
	}
	start, end = meter.Window(seen, b.now)
	return start, end, meter.Billed(start, end)
}

// Meter turns the API's meter rule into the arithmetic's.
func Meter(m v1alpha1.MeterRule) providers.MeterRule {
	return providers.MeterRule{
		Start: providers.MeterEvent(m.Start), Granularity: m.Granularity.Duration, Minimum: m.Minimum.Duration,
		ClockAligned: m.ClockAligned, BilledWhenStopped: m.BilledWhenStopped,
	}
}

// cause is why the burst ended, for the ledger: what failed at the provider
// before the work could run is not charged to the tenant.
func (b record) cause() string {
	reason, _ := b.why(v1alpha1.Ending)
	if reason == "" {
		reason, _ = b.why(v1alpha1.WorkDone)
	}
	switch reason {
	case v1alpha1.EndBuyDeadline, v1alpha1.EndJoinDeadline, v1alpha1.EndReadyDeadline, v1alpha1.EndMachineLost, v1alpha1.EndStagingStalled,
		infra.RefusedSoldOut, infra.RefusedLimitReached, infra.RefusedRejected, infra.RefusedBroken, infra.RefusedVanished, infra.RefusedCleanupFailed:
		return quota.CauseProviderFault
	}
	return reason
}

// conclude says how the burst ended, so that kubectl wait works.
func (r *Reconciler) conclude(_ context.Context, b record) (outcome, error) {
	if b.has(v1alpha1.Reserved) && !b.has(v1alpha1.Certified) {
		return outcome{wait: r.Settings.patiently()}, nil
	}
	reason, message := b.why(v1alpha1.Ending)
	if reason == "" && !b.is(v1alpha1.WorkDone) {
		reason, message = b.why(v1alpha1.WorkDone)
	}
	if reason == "" && b.has(v1alpha1.ResultsHome) && !b.is(v1alpha1.ResultsHome) {
		reason, message = b.why(v1alpha1.ResultsHome)
	}
	if reason != "" {
		return outcome{instead: v1alpha1.Failed, status: metav1.ConditionTrue, reason: reason, message: message}, nil
	}
	return outcome{message: "the work succeeded, its results are home, its money is settled"}, nil
}
