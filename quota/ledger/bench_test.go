//go:build !postgres

package ledger_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/e2e/postgres"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// Goals, on two cores and a local disk, are in e2e/benchgoals/goals.json. The
// files of all of them have synchronous=FULL, read back; the server has what it
// refuses to do without. All report the syncs that a call has cost.

// benchCallers ask at the same time, each for the next thing when it has got its answer.
const benchCallers = 64

// BenchmarkReserve books durable reservations for many callers, each against
// four budgets in one window.
func BenchmarkReserve(b *testing.B) { benchLedger(b).saturate(b) }

// BenchmarkReserveSlowDisk is the same on a disk that takes 5 ms longer to sync.
func BenchmarkReserveSlowDisk(b *testing.B) {
	l := benchLedger(b)
	l.disk.slow = 5 * time.Millisecond
	l.saturate(b)
}

// BenchmarkReserveOffered asks for 1,000 reservations a second.
func BenchmarkReserveOffered(b *testing.B) { benchLedger(b).offered(b, 1000) }

// BenchmarkPostgresReserve is BenchmarkReserve on a server on the loopback.
func BenchmarkPostgresReserve(b *testing.B) { benchPostgres(b).saturate(b) }

// BenchmarkPostgresReserveOffered asks for 500 reservations a second.
func BenchmarkPostgresReserveOffered(b *testing.B) { benchPostgres(b).offered(b, 500) }

func (l *benchBook) saturate(b *testing.B) {
	b.Helper()
	var n atomic.Int64
	before := l.syncs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range benchCallers {
		wg.Go(func() {
			for i := n.Add(1); i <= int64(b.N); i = n.Add(1) {
				if _, err := l.Reserve(b.Context(), l.epoch, benchReservation(int(i))); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reservations/s")
	b.ReportMetric(float64(l.syncs()-before)/float64(b.N), "syncs/reservation")
}

// offered asks so many times a second, evenly, whether or not the calls before are
// answered, and reports how long an answer takes.
func (l *benchBook) offered(b *testing.B, perSecond int) {
	b.Helper()
	waits := make([]time.Duration, b.N)
	every := time.Second / time.Duration(perSecond)
	var wg sync.WaitGroup
	next := time.NewTicker(time.Millisecond)
	defer next.Stop()
	b.ResetTimer()
	start := time.Now()
	for i := range b.N {
		due := start.Add(time.Duration(i+1) * every)
		for time.Now().Before(due) {
			<-next.C
		}
		wg.Go(func() {
			if _, err := l.Reserve(b.Context(), l.epoch, benchReservation(i)); err != nil {
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
	l := benchLedger(b)
	epoch := l.epoch
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
	l := benchLedger(b)
	epoch := l.epoch
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
	l := benchLedger(b)
	epoch := l.epoch
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

// benchBook is a ledger that is as durable as it says, and counts its syncs.
type benchBook struct {
	*ledger.Ledger
	epoch int64
	disk  *disk // nil on a server
	syncs func() int
}

// benchLedger is a file on a disk that counts.
func benchLedger(b *testing.B) *benchBook {
	b.Helper()
	d := newDisk(b)
	l := newBenchBook(b, filepath.Join(b.TempDir(), "ledger.db"), ledger.Options{}.OnDisk(d.name))
	l.disk, l.syncs = d, d.count
	journal, synchronous, err := l.Pragmas(b.Context())
	if mustBench(b, err); journal != "wal" || synchronous != 2 {
		b.Fatalf("journal mode %s, synchronous %d: not what is to be measured", journal, synchronous)
	}
	return l
}

// benchPostgres is a schema on a server of its own.
func benchPostgres(b *testing.B) *benchBook {
	b.Helper()
	server, err := postgres.Start(b.Context())
	mustBench(b, err)
	b.Cleanup(func() { mustBench(b, server.Stop()) })
	name := server.URL("postgres", postgres.Superuser)
	db, err := sql.Open("pgx", name)
	mustBench(b, err)
	b.Cleanup(func() { mustBench(b, db.Close()) })
	l := newBenchBook(b, name, ledger.Options{})
	l.syncs = func() (n int) {
		mustBench(b, db.QueryRow("SELECT wal_sync FROM pg_stat_wal").Scan(&n))
		return n
	}
	return l
}

func newBenchBook(b *testing.B, name string, o ledger.Options) *benchBook {
	b.Helper()
	ctx := context.Background()
	opened, err := ledger.Open(ctx, name, o)
	mustBench(b, err)
	b.Cleanup(func() { mustBench(b, opened.Close()) })
	l := &benchBook{Ledger: opened}
	l.epoch, err = l.BeginEpoch(ctx, "bench")
	mustBench(b, err)
	limit := money.Amount{Nano: 1e18, Currency: "EUR"}
	mustBench(b, l.SetBudgets(ctx, l.epoch, []quota.Budget{
		{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: limit, Hard: true},
		{ID: "cloud", Scope: quota.ScopeProvider, Subject: "ovh", Window: quota.WindowDay, Limit: limit, Hard: true},
		{ID: "vision", Scope: quota.ScopeTenant, Subject: "vision", Window: quota.WindowMonth, Limit: limit, Hard: true},
		{ID: "train", Scope: quota.ScopeProject, Subject: "train", Window: quota.WindowMonth, Limit: limit},
	}))
	return l
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
