package lifecycle

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota/money"
)

// observed keeps what would have been bought in the status of the tenants: one
// write a tenant, as the cache that it is read from is behind one's own writes.
func (c *Cycle) observed(ctx context.Context, p plan.Plan) error {
	seen := map[string][]v1alpha1.ObservedBurst{}
	for _, d := range p.Decisions {
		if d.Verdict == plan.WouldBuy {
			seen[d.Tenant] = append(seen[d.Tenant], observedBurst(p.At, d))
		}
	}
	var first error
	for _, tenant := range slices.Sorted(maps.Keys(seen)) {
		if err := c.record(ctx, tenant, seen[tenant]); err != nil && first == nil {
			first = fmt.Errorf("record observations for tenant %s: %w", tenant, err)
		}
	}
	return first
}

func observedBurst(at time.Time, d plan.Decision) v1alpha1.ObservedBurst {
	price, ceiling, expected := money.Zero(d.Burst.Ceiling.Currency), money.Zero(d.Burst.Ceiling.Currency), money.Zero(d.Burst.Ceiling.Currency)
	for _, b := range d.Bursts() { // of one currency, and their sums were in range
		price.Nano += b.Hourly.NanoPerHour
		ceiling.Nano += b.Ceiling.Nano
		expected.Nano += b.Expected.Nano
	}
	entry := v1alpha1.ObservedBurst{
		Owner: d.Owner.String(), Offer: d.Burst.Offer.Key(), PricePerHour: moneyOf(price),
		Ceiling: moneyOf(ceiling), Expected: moneyOf(expected), Message: atMost(longestNote, d.Message), At: metav1.NewTime(at),
	}
	if saved := d.Burst.LocalAt.Sub(d.Burst.ReadyAt); !d.Burst.LocalAt.IsZero() && saved > 0 {
		entry.SavedWaiting = &metav1.Duration{Duration: saved}
	}
	return entry
}

// longestNote bounds a message in bytes, so that a full record stays far below
// the 1.5 MiB that etcd takes: the scheduler's words name every taint of a
// cluster.
const longestNote = 1024

// atMost cuts a text that is longer than so many bytes.
func atMost(bytes int, text string) string {
	if len(text) <= bytes {
		return text
	}
	const more = " ..."
	return strings.ToValidUTF8(text[:bytes-len(more)], "") + more
}

// record writes down what of it is new. Someone else's write in between is no
// fault: the next cycle sees it, and decides the same.
func (c *Cycle) record(ctx context.Context, tenant string, seen []v1alpha1.ObservedBurst) error {
	t := &v1alpha1.BurstTenant{}
	if err := c.Client.Get(ctx, types.NamespacedName{Name: tenant}, t); err != nil {
		return err
	}
	old := t.DeepCopy()
	if !remember(&t.Status, seen) {
		return nil
	}
	err := c.Client.Status().Patch(ctx, t, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// remember adds to a tenant's record what is not in it in the same words, and
// reports whether there was any. The oldest make room for it, but for those that
// are seen now: more work than there is room for would change the record in
// every cycle.
func remember(s *v1alpha1.BurstTenantStatus, seen []v1alpha1.ObservedBurst) (changed bool) {
	now := map[string]bool{}
	for _, entry := range seen {
		now[entry.Owner] = true
	}
	for _, entry := range seen {
		at := slices.IndexFunc(s.Observed, func(was v1alpha1.ObservedBurst) bool { return was.Owner == entry.Owner })
		if at >= 0 {
			if was := s.Observed[at]; was.Offer == entry.Offer && was.Ceiling == entry.Ceiling && was.Message == entry.Message {
				continue // only time has gone on
			}
		} else if len(s.Observed) >= v1alpha1.ObservedKept {
			at = slices.IndexFunc(s.Observed, func(was v1alpha1.ObservedBurst) bool { return !now[was.Owner] })
			if at < 0 {
				continue
			}
		}
		if at >= 0 {
			s.Observed = slices.Delete(s.Observed, at, at+1)
		}
		s.Observed = append(s.Observed, entry)
		changed = true
	}
	return changed
}
