package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/quota"
)

func usage(seq int64, from, until string) quota.Usage {
	var f fixture
	return quota.Usage{
		Node: "rack1", Boot: "boot-1", Journal: "j-1", Seq: seq, Tenant: "vision", Namespace: "ns", PodUID: "pod-1", Owner: "job-1",
		GPUModel: "h100", Device: "GPU-0", Share: 840, Start: f.at(from), End: f.at(until), Phase: "run", Source: "agent",
	}
}

func (f *fixture) totals(filter quota.UsageFilter) []quota.UsageTotal {
	f.t.Helper()
	all, err := f.UsageSeconds(f.ctx(), filter)
	f.must(err)
	return all
}

// cases: C-41 langfuse/langfuse#16292
func TestUsageIsBookedOnceWhateverIsSentAgain(t *testing.T) {
	f := newFixture(t)
	a, b := usage(1, "2026-10-05 08:30", "2026-10-05 09:30"), usage(2, "2026-10-05 09:30", "2026-10-05 10:00")
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{b, b}))
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{a, b}))
	rows := f.verified().Rows
	f.reopen()
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{a, b}))
	if r := f.verified(); r.Rows != rows || r.Usage != 2 {
		t.Errorf("%d rows with %d records, want %d with 2", r.Rows, r.Usage, rows)
	}
	line := quota.UsageTotal{
		Tenant: "vision", Namespace: "ns", Owner: "job-1", PodUID: "pod-1", Node: "rack1", GPUModel: "h100", Phase: "run", Source: "agent",
		ShareSeconds: 5400 * 840,
	}
	if diff := cmp.Diff([]quota.UsageTotal{line}, f.totals(quota.UsageFilter{})); diff != "" {
		t.Error(diff)
	}
	line.ShareSeconds = 3600 * 840
	hour := quota.UsageFilter{Tenant: "vision", From: f.at("2026-10-05 09:00"), Until: f.at("2026-10-05 10:00")}
	if diff := cmp.Diff([]quota.UsageTotal{line}, f.totals(hour)); diff != "" || line.GPUSeconds() != 3600 {
		t.Error(diff)
	}
	if got := f.totals(quota.UsageFilter{Tenant: "speech"}); len(got) != 0 {
		t.Errorf("another tenant has %v", got)
	}
	_, err := f.UsageSeconds(f.ctx(), quota.UsageFilter{From: f.at("2026-10-05 09:01")})
	want(t, err, quota.ErrInvalid)
}

// One bad record stops neither the others nor the metering.
func TestABadRecordDoesNotHoldUpTheOthers(t *testing.T) {
	f := newFixture(t)
	f.must(f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{usage(1, "2026-10-05 08:00", "2026-10-05 09:00")}))
	err := f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{
		usage(1, "2026-10-05 08:00", "2026-10-05 08:30"), // says something else now
		usage(2, "2026-10-05 10:00", "2026-10-05 09:00"), // ends before it starts; cases: C-70
		usage(3, "2026-10-05 09:00", "2026-10-05 10:00"),
	})
	want(t, err, quota.ErrConflict)
	want(t, err, quota.ErrInvalid)
	if got := f.totals(quota.UsageFilter{}); len(got) != 1 || got[0].GPUSeconds() != 7200 {
		t.Errorf("totals are %v, want two hours", got)
	}
	f.verified()
}

// cases: C-44 gpustack/gpustack#6279, C-5 kubernetes-sigs/kueue#12838
func TestUsageThatCantBe(t *testing.T) {
	f := newFixture(t)
	for name, change := range map[string]func(*quota.Usage){
		"more than a whole GPU": func(u *quota.Usage) { u.Share = 841 },
		"no share":              func(u *quota.Usage) { u.Share = 0 },
		"no end":                func(u *quota.Usage) { u.End = time.Time{} },
		"an end in a year":      func(u *quota.Usage) { u.End = u.End.AddDate(1, 0, 0) },
		"no number":             func(u *quota.Usage) { u.Seq = 0 },
		"nobody's":              func(u *quota.Usage) { u.Tenant = "" },
		"a control character":   func(u *quota.Usage) { u.PodUID = "a\tb" },
	} {
		t.Run(name, func(t *testing.T) {
			u := usage(1, "2026-10-05 08:00", "2026-10-05 09:00")
			change(&u)
			want(t, f.RecordUsage(f.ctx(), f.epoch, []quota.Usage{u}), quota.ErrInvalid)
		})
	}
	if r := f.verified(); r.Usage != 0 {
		t.Errorf("%d records were booked", r.Usage)
	}
}

// However a run is cut, whatever is late or doubled, and however its records
// are batched, it adds up to the same.
func TestSlicingAndOrderDoNotChangeUsage(t *testing.T) {
	const seconds = 2 * 3600
	start := time.Date(2026, 10, 5, 8, 17, 0, 250_000_000, time.UTC)
	for _, pieces := range []int{1, 7, 60, 2400} {
		t.Run(fmt.Sprintf("%d pieces", pieces), func(t *testing.T) {
			f := newFixture(t)
			cut := func(i int) time.Time {
				return start.Add(seconds * time.Second * time.Duration(i) / time.Duration(pieces))
			}
			var all []quota.Usage
			for i := range pieces {
				u := usage(int64(i+1), "2026-10-05 08:00", "2026-10-05 09:00")
				u.Start, u.End = cut(i), cut(i+1)
				all = append(all, u)
				if i%5 == 0 {
					all = append(all, u)
				}
			}
			rng := rand.New(rand.NewPCG(1, uint64(pieces)))
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			for len(all) > 0 {
				n := min(len(all), 1+rng.IntN(1500))
				f.must(f.RecordUsage(f.ctx(), f.epoch, all[:n]))
				all = all[n:]
			}
			if got := f.totals(quota.UsageFilter{}); len(got) != 1 || got[0].ShareSeconds != seconds*840 {
				t.Errorf("totals are %+v, want %d share-seconds", got, seconds*840)
			}
			if r := f.verified(); r.Usage != int64(pieces) {
				t.Errorf("%d records are booked", r.Usage)
			}
		})
	}
}
