package infra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"spillway.dev/spillway/providers"
)

// SweepRules bound what a sweeper does.
type SweepRules struct {
	// Grace is how old an unknown machine is before it is deleted.
	Grace time.Duration
	// MaxUnknown and MaxShare (percent of all machines listed) are the most
	// unknown machines at once that are taken for orphans. More look like a
	// record that was lost, and a lost record must not delete a fleet: then
	// nothing but what is past its stamp goes. The share counts from two
	// unknown machines on; one is always within it.
	MaxUnknown, MaxShare int
	// StampsOnly deletes only what is past its stamp: outside the cluster, and
	// after a restore of the API server or the ledger until they are
	// reconciled.
	StampsOnly bool
}

// DefaultSweepRules are the rules inside the cluster.
func DefaultSweepRules() SweepRules {
	return SweepRules{Grace: 10 * time.Minute, MaxUnknown: 3, MaxShare: 20}
}

// Records are what an installation knows about its purchases.
type Records struct {
	Tokens       map[string]bool // of every SpillwayMachine in the API server
	Reservations map[string]bool // UIDs of the bursts with an open reservation in the ledger
}

// Reasons why a machine is doomed.
const (
	DoomedExpired = "expired" // past its stamp
	DoomedUnknown = "unknown" // neither API server nor ledger knows it
)

// Doomed is a machine that is to be deleted, and why.
type Doomed struct {
	Machine providers.Machine
	Reason  string
}

// SweepPlan is what a sweeper decided.
type SweepPlan struct {
	Delete []Doomed // by id
	// Alert is for a person, when too many machines are unknown at once to be
	// orphans. Empty: all is well.
	Alert string
}

// PlanSweep decides what has to go. It is a pure function. A machine past its
// stamp always goes. One that neither the API server nor an open reservation
// knows goes when it is older than the grace; one without a readable stamp is
// never past it.
func PlanSweep(now time.Time, machines []providers.Machine, known Records, rules SweepRules) SweepPlan {
	var plan SweepPlan
	var unknown []Doomed
	for _, m := range machines {
		switch {
		case !m.Expires.IsZero() && now.After(m.Expires):
			plan.Delete = append(plan.Delete, Doomed{Machine: m, Reason: DoomedExpired})
		case rules.StampsOnly || known.Tokens[m.Token] || known.Reservations[m.Burst]:
		case now.Sub(m.Created) > rules.Grace:
			unknown = append(unknown, Doomed{Machine: m, Reason: DoomedUnknown})
		}
	}
	share := len(unknown) * 100
	if len(unknown) > rules.MaxUnknown || (len(unknown) > 1 && share > rules.MaxShare*len(machines)) {
		plan.Alert = fmt.Sprintf(
			"%d of %d machines are unknown to API server and ledger: that looks like a lost record, not like orphans; none of them is deleted before its stamp. Check for a restored etcd or ledger, then delete them by hand or reconcile",
			len(unknown), len(machines))
	} else {
		plan.Delete = append(plan.Delete, unknown...)
	}
	slices.SortFunc(plan.Delete, func(a, b Doomed) int { return cmp.Compare(a.Machine.ID, b.Machine.ID) })
	return plan
}

// SweepReport is what one sweep of one account came to.
type SweepReport struct {
	Listed int      // machines and leftovers of this installation
	Asked  []Doomed // deletes that the cloud accepted; it still may list them
	Failed []Doomed // deletes that failed; the error of Sweep has the words
	Blind  bool     // our records could not be read: only stamps counted
	Alert  string   // see [SweepPlan.Alert]
}

// sweepCall bounds one call of a sweeper.
const sweepCall = time.Minute

// Sweep lists the account, decides, and asks for every delete that is due. It
// needs the driver alone when the rules are StampsOnly; known may then be nil.
//
// The cloud is listed before the records are read: a machine bought in between
// is in the records and not in the list, never the other way round. When the
// records can't be read, only what is past its stamp goes.
func Sweep(ctx context.Context, d providers.Driver, known func(context.Context) (Records, error), rules SweepRules, now func() time.Time) (SweepReport, error) {
	d = providers.Wrap(d, Bound(sweepCall))
	machines, err := d.List(ctx)
	if err != nil {
		return SweepReport{}, fmt.Errorf("sweep: %w", err)
	}
	report := SweepReport{Listed: len(machines)}
	var records Records
	var problems []error
	if known == nil {
		rules.StampsOnly = true
	}
	if !rules.StampsOnly {
		if records, err = known(ctx); err != nil {
			problems = append(problems, fmt.Errorf("sweep: records of our own can't be read, only expired machines are deleted: %w", err))
			rules.StampsOnly, report.Blind = true, true
		}
	}
	plan := PlanSweep(now(), machines, records, rules)
	report.Alert = plan.Alert
	for i, err := range deleteAll(ctx, d, plan.Delete) {
		doomed := plan.Delete[i]
		if err != nil && providers.KindOf(err) != providers.NotFound {
			report.Failed = append(report.Failed, doomed)
			problems = append(problems, fmt.Errorf("sweep: delete %s (%s): %w", doomed.Machine.ID, doomed.Reason, err))
			continue
		}
		report.Asked = append(report.Asked, doomed)
	}
	return report, errors.Join(problems...)
}

// sweepAtOnce bounds the deletes in flight: a fleet that has to go must not wait
// for one call after the other, nor run into the cloud's limits.
const sweepAtOnce = 8

// deleteAll asks for every delete and returns the answers in the same order.
func deleteAll(ctx context.Context, d providers.Driver, doomed []Doomed) []error {
	answers := make([]error, len(doomed))
	slots := make(chan struct{}, sweepAtOnce)
	var deletes sync.WaitGroup
	for i := range doomed {
		slots <- struct{}{}
		deletes.Go(func() {
			defer func() { <-slots }()
			answers[i] = d.Delete(ctx, doomed[i].Machine.ID)
		})
	}
	deletes.Wait()
	return answers
}
