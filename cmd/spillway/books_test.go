package main

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// books is a ledger in the making whose clock a test sets.
type books struct {
	*ledger.Ledger
	t     *testing.T
	file  string
	epoch int64
	now   time.Time
}

func newBooks(t *testing.T) *books {
	t.Helper()
	b := &books{t: t, file: filepath.Join(t.TempDir(), "ledger.db"), now: time.Date(2026, 10, 1, 6, 0, 0, 0, time.UTC)}
	l, err := ledger.Open(t.Context(), b.file, ledger.Options{Now: func() time.Time { return b.now }})
	b.must(err)
	t.Cleanup(func() { _ = l.Close() })
	b.Ledger = l
	b.epoch, err = l.BeginEpoch(t.Context(), "controller-0")
	b.must(err)
	return b
}

func (b *books) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// uid is the same for the same words, and looks like one.
func uid(words string) string {
	s := fmt.Sprintf("%x", sha256.Sum256([]byte(words)))
	return s[:8] + "-" + s[8:12] + "-4" + s[13:16] + "-8" + s[17:20] + "-" + s[20:32]
}

// rented is one burst of the autumn.
type rented struct {
	name, tenant, project, namespace string
	provider, offer, model           string
	gpus                             int
	price                            string // per hour
	start, end                       string // of the machine, local time in Berlin
	granularity                      int64  // seconds
	cause                            string
	cost                             string // of what was billed; empty is price times time
	reserved                         string // empty is 1.5 times the cost
	open                             bool
}

func (b *books) berlin(text string) time.Time {
	b.t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	b.must(err)
	at, err := time.ParseInLocation("2006-01-02 15:04:05", text, zone)
	b.must(err)
	return at.UTC()
}

// burst plays the life of r in the ledger.
func (b *books) burst(r rented) {
	b.t.Helper()
	start, end := b.berlin(r.start), b.berlin(r.end)
	price, err := money.ParseRate(r.price)
	b.must(err)
	seconds := int64(end.Sub(start) / time.Second)
	seconds = (seconds + r.granularity - 1) / r.granularity * r.granularity
	cost, err := price.For(seconds, money.Whole)
	b.must(err)
	if r.cost != "" {
		cost = amount(b.t, r.cost)
	}
	reserved := money.Amount{Nano: cost.Nano / 2 * 3, Currency: cost.Currency}
	if r.reserved != "" {
		reserved = amount(b.t, r.reserved)
	}
	b.now = start.Add(-2 * time.Minute)
	id := uid(r.name)
	_, err = b.Reserve(b.t.Context(), b.epoch, quota.Reservation{
		Burst: id, Tenant: r.tenant, Project: r.project, Namespace: r.namespace, Provider: r.provider, Owner: uid("job " + r.name),
		Amount: reserved, Ceiling: reserved, From: b.now, Until: end.Add(2 * time.Hour), Offer: r.offer, Price: price,
	})
	b.must(err)
	b.must(b.Permit(b.t.Context(), b.epoch, id, 0))
	if r.open {
		return
	}
	ready, done := start.Add(6*time.Minute), end.Add(-3*time.Minute)
	phases := []quota.Usage{{Start: start, End: ready, Phase: "boot"}, {Start: ready, End: done, Phase: "run"}, {Start: done, End: end, Phase: "wipe"}}
	if r.cause == quota.CauseProviderFault {
		phases = phases[:1]
	}
	var records []quota.Usage
	for gpu := range r.gpus {
		for _, u := range phases {
			u.Node, u.Boot, u.Journal, u.Seq = "spw-"+id[:8], "boot-"+id, "j", int64(len(records)+1)
			u.Tenant, u.Namespace, u.PodUID, u.Owner, u.Burst = r.tenant, r.namespace, uid("pod "+r.name), uid("job "+r.name), id
			u.GPUModel, u.Device, u.Share, u.Source = r.model, fmt.Sprint("GPU-", gpu), money.Whole, "agent"
			records = append(records, u)
		}
	}
	b.now = end.Add(time.Minute)
	b.must(b.RecordUsage(b.t.Context(), b.epoch, records))
	_, err = b.Settle(b.t.Context(), b.epoch, quota.Settlement{Burst: id, Actual: cost, MachineStart: start, MachineEnd: end, Seconds: seconds, Cause: r.cause})
	b.must(err)
}

// home books one day of on-prem work on a GPU.
func (b *books) home(tenant, namespace, model, device string, share int64, day time.Time, from, hours int) {
	start := day.Add(time.Duration(from) * time.Hour)
	b.must(b.RecordUsage(b.t.Context(), b.epoch, []quota.Usage{{
		Node: "rack1", Boot: "boot-1", Journal: device, Seq: day.Unix(), Tenant: tenant, Namespace: namespace, PodUID: uid(device + day.String()), Owner: uid(namespace),
		GPUModel: model, Device: device, Share: share, Start: start, End: start.Add(time.Duration(hours)*time.Hour - 7*time.Minute), Phase: "run", Source: "agent",
	}}))
}

// autumn is a ledger of two tenants with what a November brings: work at home,
// bursts at three providers, one over each end of the month, a provider's fault,
// cost beyond a reservation, and one that is not settled.
func autumn(t *testing.T) *books {
	t.Helper()
	b := newBooks(t)
	month := func(id string, scope quota.Scope, subject, limit string) quota.Budget {
		return quota.Budget{ID: id, Scope: scope, Subject: subject, Window: quota.WindowMonth, Limit: amount(t, limit), Hard: true}
	}
	b.must(b.SetBudgets(t.Context(), b.epoch, []quota.Budget{
		month("t-7f31/month", quota.ScopeTenant, "t-7f31", "1500.00 EUR"), month("t-9c02/month", quota.ScopeTenant, "t-9c02", "300.00 EUR"),
		month("all/month", quota.ScopeGlobal, "", "2500.00 EUR"),
	}))
	for d := range 30 {
		day := b.berlin(fmt.Sprintf("2026-11-%02d 00:00:00", d+1))
		if weekday := day.Add(12 * time.Hour).Weekday(); weekday == time.Saturday || weekday == time.Sunday {
			b.home("t-7f31", "team-vision", "NVIDIA H100", "GPU-h0", 840, day, 2, 6)
			continue
		}
		for gpu := range 4 {
			b.home("t-7f31", "team-vision", "NVIDIA H100", fmt.Sprint("GPU-h", gpu), 840, day, 7, 8+(d*5+gpu*3)%9)
		}
		for slice := range 3 {
			b.home("t-7f31", "team-speech", "NVIDIA A100", fmt.Sprint("GPU-a", slice), 360, day, 8, 5+(d*3+slice)%7)
		}
		b.home("t-9c02", "genomics", "NVIDIA A100", "GPU-g0", 840, day, 0, 20)
	}
	vision := rented{tenant: "t-7f31", project: "p-maps", namespace: "team-vision", provider: "ovh-gra", offer: "h100-380", model: "NVIDIA H100", gpus: 1, price: "2.99 EUR/h", granularity: 3600, cause: "Succeeded"}
	speech := rented{tenant: "t-7f31", project: "p-voice", namespace: "team-speech", provider: "otc-eu-de", offer: "p5s.6xlarge", model: "NVIDIA L40S", gpus: 2, price: "4.1075 EUR/h", granularity: 1, cause: "Succeeded"}
	paris := rented{tenant: "t-7f31", project: "p-maps", namespace: "team-vision", provider: "scw-par2", offer: "H100-SXM-8-80G", model: "NVIDIA H100", gpus: 8, price: "23.028 EUR/h", granularity: 60, cause: "Succeeded"}
	of := func(r rented, name, start, end string, change ...func(*rented)) {
		r.name, r.start, r.end = name, start, end
		for _, c := range change {
			c(&r)
		}
		b.burst(r)
	}
	of(vision, "october", "2026-10-31 20:10:00", "2026-11-01 06:40:00")
	of(vision, "a", "2026-11-03 09:12:10", "2026-11-03 18:45:00")
	of(speech, "b", "2026-11-04 13:00:05", "2026-11-04 21:31:42")
	of(paris, "c", "2026-11-06 16:20:00", "2026-11-07 03:05:30")
	of(vision, "d", "2026-11-10 08:00:00", "2026-11-10 08:25:00", func(r *rented) { r.cause = quota.CauseProviderFault })
	of(vision, "e", "2026-11-10 08:40:00", "2026-11-11 02:10:00")
	of(speech, "f", "2026-11-12 10:00:00", "2026-11-12 10:41:19", func(r *rented) { r.cause = "WorkFailed" })
	of(rented{tenant: "t-9c02", namespace: "genomics", provider: "ovh-gra", offer: "l40s-90", model: "NVIDIA L40S", gpus: 1, price: "1.40 EUR/h", granularity: 3600, cause: "Succeeded"}, "g", "2026-11-13 10:00:00", "2026-11-14 09:30:00")
	of(paris, "h", "2026-11-17 11:00:00", "2026-11-17 19:59:59")
	of(speech, "i", "2026-11-19 06:30:00", "2026-11-20 04:00:33")
	of(vision, "j", "2026-11-24 12:00:00", "2026-11-24 23:59:59", func(r *rented) { r.cause = "OutOfTime" })
	of(paris, "k", "2026-11-26 09:00:00", "2026-11-26 14:30:00", func(r *rented) { r.reserved = "120.00 EUR" })
	b.must(b.AcceptOverrun(t.Context(), b.epoch, "EUR", "p-17", "OPS-4711: deleted an hour late"))
	of(vision, "l", "2026-11-30 19:00:00", "2026-12-01 03:10:00")
	of(speech, "m", "2026-11-30 22:30:00", "2026-12-01 08:00:00", func(r *rented) { r.open = true })
	b.now = b.berlin("2026-12-01 09:00:00")
	var err error
	b.epoch, err = b.BeginEpoch(t.Context(), "controller-1")
	b.must(err)
	return b
}
