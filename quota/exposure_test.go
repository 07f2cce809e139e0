package quota_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// Exposure is what is not settled, and overruns nobody has accepted: a machine
// past its end stays in it until it is proven gone. cases: C-56
// sourcelibrary-v2#4909, C-26 BerriAI/litellm#27639
func TestExposure(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	eur := func(n int64) money.Amount { return money.Amount{Nano: n * 1e9, Currency: "EUR"} }
	account := func(uid string, state quota.State, pending int64, hours time.Duration) quota.Account {
		return quota.Account{
			Reservation: quota.Reservation{Burst: uid, Tenant: "vision", Provider: "ovh", Amount: eur(10), Ceiling: eur(30)},
			State:       state, Reserved: eur(10), Pending: eur(pending), Spent: eur(0), Overrun: eur(0), Until: now.Add(hours * time.Hour),
		}
	}
	settled := func(uid string, overrun int64, hours time.Duration) quota.Account {
		a := account(uid, quota.Settled, 0, hours)
		a.Overrun, a.SettledAt = eur(overrun), now.Add(hours*time.Hour)
		return a
	}
	got, err := quota.Expose(now, []quota.Account{
		account("running", quota.Reserved, 10, 2), account("draining", quota.Draining, 3, 1), account("lost", quota.Reserved, 10, -1),
		settled("done", 0, -5), settled("answered for", 4, -9), settled("open", 2, -7),
	}, map[money.Currency]time.Time{"EUR": now.Add(-8 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	want := quota.Exposure{
		At: now,
		Totals: []quota.ExposureTotal{{
			Tenant: "vision", Provider: "ovh", Bursts: 3, Late: 1, Pending: eur(23), MayGrow: eur(40), Overrun: eur(2), Until: now.Add(2 * time.Hour),
		}},
		Bursts: []quota.ExposedBurst{
			{Burst: "lost", Tenant: "vision", Provider: "ovh", State: quota.Reserved, Pending: eur(10), MayGrow: eur(20), Until: now.Add(-time.Hour), Late: true},
			{Burst: "draining", Tenant: "vision", Provider: "ovh", State: quota.Draining, Pending: eur(3), MayGrow: eur(0), Until: now.Add(time.Hour)},
			{Burst: "running", Tenant: "vision", Provider: "ovh", State: quota.Reserved, Pending: eur(10), MayGrow: eur(20), Until: now.Add(2 * time.Hour)},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	empty, err := quota.Expose(now, nil, nil)
	if err != nil || len(empty.Totals)+len(empty.Bursts) > 0 {
		t.Errorf("an empty ledger exposes %v, %v", empty, err)
	}
}
