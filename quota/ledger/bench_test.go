package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// Goals, on two cores and a local disk, are in e2e/benchgoals/goals.json. The
// ledgers of all of them have synchronous=FULL, read back, and report the syncs
// that a call has cost.

// benchCallers ask at the same time, each for the next thing when it has got its answer.
const benchCallers = 64

// BenchmarkReserve books durable reservations for many callers, each against
// four budgets in one window.
func BenchmarkReserve(b *testing.B) { saturate(b, 0) }

// BenchmarkReserveSlowDisk is the same on a disk that takes 5 ms longer to sync.
func BenchmarkReserveSlowDisk(b *testing.B) { saturate(b, 5*time.Millisecond) }

func saturate(b *testing.B, slow time.Duration) {
	b.Helper()
	l, epoch := benchLedger(b)
	l.disk.slow = slow
	var n atomic.Int64
	before := l.disk.count()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range benchCallers {
		wg.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if _, err := l.Reserve(b.Context(), epoch, benchReservation(int(i))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reservations/s")
	b.ReportMetric(float64(l.disk.count()-before)/float64(b.N), "syncs/reservation")
}

// BenchmarkReserveOffered asks for 1,000 reservations a second, evenly, whether
// or not the ones before are answered, and reports how long an answer takes.
func BenchmarkReserveOffered(b *testing.B) {
	l, epoch := benchLedger(b)
	waits := make([]time.Duration, b.N)
	var wg sync.WaitGroup
	next := time.NewTicker(time.Millisecond)
	defer next.Stop()
	b.ResetTimer()
	start := time.Now()
	for i := range b.N {
		due := start.Add(time.Duration(i+1) * time.Millisecond)
		for time.Now().Before(due) {
			<-next.C
		}
		wg.Go(func() {
			if _, err := l.Reserve(b.Context(), epoch, benchReservation(i)); err != nil {
				b.Error(err)
			}
			waits[i] = time.Since(due) // when it was due: a stall counts for all who wait behind it
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(waits)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reservations/s")
	b.ReportMetric(waits[len(waits)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(waits[len(waits)/2].Seconds()*1000, "p50-ms")
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

// benchLedger is on a disk that counts, and as durable as it says.
type benchBook struct {
	*ledger.Ledger
	disk *disk
}

func benchLedger(b *testing.B) (benchBook, int64) {
	b.Helper()
	ctx := context.Background()
	d := newDisk(b)
	opened, err := ledger.Open(ctx, filepath.Join(b.TempDir(), "ledger.db"), ledger.Options{}.OnDisk(d.name))
	mustBench(b, err)
	l := benchBook{opened, d}
	b.Cleanup(func() { mustBench(b, l.Close()) })
	journal, synchronous, err := l.Pragmas(ctx)
	if mustBench(b, err); journal != "wal" || synchronous != 2 {
		b.Fatalf("journal mode %s, synchronous %d: not what is to be measured", journal, synchronous)
	}
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
