package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// Goals on two cores, local disk, synchronous=FULL with a real fsync a commit:
//
//	BenchmarkReserve       reservations/s   must 1,000     aim 2,000    one caller, one commit each
//	BenchmarkRecordUsage   records/s        must 20,000    aim 50,000   in batches of 256
//	BenchmarkVerify        entries/s        must 100,000   aim 200,000  entries and usage records, all checks
//	BenchmarkStatement     records/s        must 2,000,000 aim 10,000,000  a month over 10 million usage records in 5 s, in 1 s

// BenchmarkReserve books durable reservations one after another, each against
// four budgets in one window.
func BenchmarkReserve(b *testing.B) {
	l, epoch := benchLedger(b)
	n := 0
	for b.Loop() {
		n++
		if _, err := l.Reserve(b.Context(), epoch, benchReservation(n)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reservations/s")
}

// BenchmarkRecordUsage books batches of 256 records, as 16 nodes would send them.
func BenchmarkRecordUsage(b *testing.B) {
	l, epoch := benchLedger(b)
	n := 0
	for b.Loop() {
		if err := l.RecordUsage(b.Context(), epoch, benchUsage(n)); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(b.N)*256/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkVerify verifies a ledger of 4,000 bursts, each reserved, permitted,
// extended and settled on four budgets, and 100,000 usage records.
func BenchmarkVerify(b *testing.B) {
	l, epoch := benchLedger(b)
	ctx := b.Context()
	for n := range 4000 {
		r := benchReservation(n)
		mustBench(b, second(l.Reserve(ctx, epoch, r)))
		mustBench(b, l.Permit(ctx, epoch, r.Burst, 0))
		mustBench(b, second(l.Extend(ctx, epoch, r.Burst, "1", r.Amount, r.Until.Add(time.Hour))))
		mustBench(b, second(l.Settle(ctx, epoch, quota.Settlement{
			Burst: r.Burst, Actual: r.Amount, MachineStart: r.From, MachineEnd: r.Until, Seconds: 3600, Cause: "done",
		})))
	}
	for n := range 100_000 / 256 {
		mustBench(b, l.RecordUsage(ctx, epoch, benchUsage(n)))
	}
	var report ledger.Report
	for b.Loop() {
		var err error
		if report, err = l.Verify(ctx); err != nil || !report.OK {
			b.Fatal(err, report)
		}
	}
	each := float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(float64(report.Entries+report.Usage)*each, "entries/s")
	b.ReportMetric(float64(report.Rows)*each, "rows/s")
}

// BenchmarkStatement makes the statement of a month from a ledger with 250,000
// usage records of it.
func BenchmarkStatement(b *testing.B) {
	l, epoch := benchLedger(b)
	ctx := b.Context()
	const records = 250_000 / 256 * 256
	for n := range records / 256 {
		mustBench(b, l.RecordUsage(ctx, epoch, benchUsage(n)))
	}
	month, err := quota.Month("", "2026-10")
	mustBench(b, err)
	for b.Loop() {
		mustBench(b, l.View(ctx, func(v *ledger.View) error {
			s, err := v.State(ctx)
			if err != nil {
				return err
			}
			hours, err := v.UsageHours(ctx, "vision", month.Start, month.End)
			if err != nil {
				return err
			}
			made, err := quota.NewStatement(quota.StatementInput{Tenant: "vision", Month: "2026-10", Book: s.Book, Usage: hours})
			if err == nil && made.Time.OnPrem.ShareSeconds != records*60*money.Whole {
				b.Fatalf("the month holds %d share-seconds", made.Time.OnPrem.ShareSeconds)
			}
			return err
		}))
	}
	b.ReportMetric(records*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

func benchLedger(b *testing.B) (*ledger.Ledger, int64) {
	b.Helper()
	ctx := context.Background()
	l, err := ledger.Open(ctx, filepath.Join(b.TempDir(), "ledger.db"), ledger.Options{})
	mustBench(b, err)
	b.Cleanup(func() { mustBench(b, l.Close()) })
	epoch, err := l.BeginEpoch(ctx, "bench")
	mustBench(b, err)
	limit := money.Amount{Nano: 1e18, Currency: "EUR"}
	mustBench(b, l.SetBudgets(ctx, epoch, []quota.Budget{
		{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: limit, Hard: true},
		{ID: "cloud", Scope: quota.ScopeProvider, Subject: "ovh", Window: quota.WindowDay, Limit: limit, Hard: true},
		{ID: "vision", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: limit, Hard: true},
		{ID: "train", Scope: quota.ScopeProject, Subject: "train", Window: quota.WindowMonth, Limit: limit},
	}))
	return l, epoch
}

func benchReservation(n int) quota.Reservation {
	from := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	return quota.Reservation{
		Burst: fmt.Sprintf("5b0f6c1e-0000-4000-8000-%012d", n), Tenant: "vision", Project: "train", Provider: "ovh", Namespace: "ns",
		Owner: "job-1", Amount: money.Amount{Nano: 3_141_592_653, Currency: "EUR"}, From: from, Until: from.Add(time.Hour),
		Offer: "ovh/de1/a/l40s/on-demand", Price: money.Rate{NanoPerHour: 2_100_000_000, Currency: "EUR"},
	}
}

func benchUsage(n int) []quota.Usage {
	start := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC).Add(time.Duration(n) * 16 * time.Minute)
	batch := make([]quota.Usage, 256)
	for i := range batch {
		at := start.Add(time.Duration(i/16) * time.Minute)
		batch[i] = quota.Usage{
			Node: fmt.Sprintf("node-%d", i%16), Boot: "7d6f0d3c-9a1e", Journal: "0b1c", Seq: int64(n*16 + i/16 + 1),
			Tenant: "vision", Namespace: "ns", PodUID: fmt.Sprintf("pod-%d", i%16), Owner: "job-1", GPUModel: "l40s", Device: "GPU-0",
			Share: 840, Start: at, End: at.Add(time.Minute), Phase: "run", Source: "agent",
		}
	}
	return batch
}

func second[T any](_ T, err error) error { return err }

func mustBench(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
