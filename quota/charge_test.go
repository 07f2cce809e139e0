package quota_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/quota"
)

// What the pods on a burst's machines are said to have used changes no charge:
// the machines are the bill, and it is told once, however much is measured on
// them and by however many. cases: C-50 opencost#2901
func TestWhatPodsUsedChangesNoCharge(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		nano := rapid.Int64Range(1, 1e12).Draw(r, "nano")
		account := closed("b", "2026-11-02 10:00", "2026-11-02 14:00", nano)
		var usage []quota.UsageHour
		for i := range rapid.IntRange(0, 12).Draw(r, "records") {
			usage = append(usage, quota.UsageHour{
				Hour:      at("2026-11-02 10:00").Add(time.Duration(rapid.IntRange(0, 3).Draw(r, "hour")) * time.Hour),
				Namespace: fmt.Sprint("ns", i%3), Burst: "b", GPUModel: rapid.SampledFrom([]string{"H100", "L40S", ""}).Draw(r, "model"),
				ShareSeconds: rapid.Int64Range(0, 64*3600*840).Draw(r, "share"),
			})
		}
		s, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: "2026-11", Accounts: []quota.Account{account}, Usage: usage})
		if err != nil {
			r.Fatal(err)
		}
		var lines int64
		for _, l := range s.Lines {
			for _, c := range l.Charged {
				lines += c.Exact.Nano
			}
		}
		if len(s.Totals) != 1 || s.Totals[0].Charged.Exact.Nano != nano || lines != nano || len(s.Bursts) != 1 || s.Bursts[0].Charged.Exact.Nano != nano {
			r.Fatalf("the machines cost %d nano; the statement charges %+v, its lines %d, its bursts %+v", nano, s.Totals, lines, s.Bursts)
		}
	})
}
