package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// paying tries the ceilings of the candidates on the working book, cheapest
// first, and takes the first that every budget on its path can carry.
func (r *run) paying(w *work) (Decision, bool) {
	book := &r.book
	observed := w.tenant.Spec.Burst.Mode != v1alpha1.ModeOn
	if observed {
		own := r.book.Clone() // what is only observed takes no money from others
		book = &own
	}
	for i, c := range w.candidates {
		if i == 1 {
			slices.SortStableFunc(w.candidates[1:], ranking)
			c = w.candidates[1]
		}
		bursts, why := r.pay(w, c, book)
		if c.unpaid = why; why != nil {
			if !c.beside {
				w.refusals = append(w.refusals, c.refuse(*why))
			}
			continue
		}
		w.refusals = sortRefusals(w.refusals)
		if observed {
			return r.bought(w, bursts, WouldBuy, WouldBurst), true
		}
		for _, b := range bursts {
			r.history.add(b.Offer.Provider, b.TenantID, b.Offer.GPUModel, b.Machines, int32(b.Offer.GPUs))
		}
		return r.bought(w, bursts, Buy, Bursts), true
	}
	w.refusals = sortRefusals(w.refusals)
	return r.unpaid(w)
}

// pay books all bursts of a candidate, or none.
func (r *run) pay(w *work, c *candidate, book *quota.Book) ([]Burst, *Reason) {
	trial := book
	if len(c.more) > 0 {
		own := book.Clone()
		trial = &own
	}
	var bursts []Burst
	for i, part := range c.bursts() {
		b := r.burst(w, part, w.attempt+int32(i))
		res := b.reservation()
		path, err := trial.Path(res)
		if err == nil {
			err = trial.Try(res)
		}
		if err != nil {
			return nil, refusal(shortOf(err, res.Amount, b.Mode))
		}
		b.Budgets = path
		bursts = append(bursts, b)
	}
	if trial != book {
		*book = *trial
	}
	return bursts, nil
}

func (r *run) bought(w *work, bursts []Burst, v Verdict, code Code) Decision {
	d := w.decision(v, Reason{Code: code, Message: summary(bursts, w.misfit)})
	if v == WouldBuy {
		d.Remedy = fmt.Sprintf("set the burst mode of tenant %s to On to buy it", w.tenant.Name)
	}
	d.Burst, d.More = &bursts[0], bursts[1:]
	if len(d.More) == 0 {
		d.More = nil
	}
	return d
}

// unpaid ends with the refusal by money if there is one: it is the last thing
// that stood in the way. Of several the cheapest offer's counts, and one that a
// budget could have carried before one in a currency that none counts in.
// Otherwise no offer was left.
func (r *run) unpaid(w *work) (Decision, bool) {
	var last *Reason
	for _, c := range w.candidates {
		if !c.beside && (last == nil || last.Code == CurrencyMismatch && c.unpaid.Code != CurrencyMismatch) {
			last = c.unpaid
		}
	}
	if last != nil {
		return w.decision(Refuse, *last), true
	}
	why := noOffer(w)
	d := w.decision(Refuse, why)
	for _, f := range w.refusals {
		if !f.Until.IsZero() && (d.Until.IsZero() || f.Until.Before(d.Until)) {
			d.Until = f.Until
		}
	}
	return d, true
}

// shortOf turns the book's no into a reason with the missing amount.
func shortOf(err error, asked money.Amount, mode string) Reason {
	if short, ok := errors.AsType[*quota.ShortError](err); ok {
		what, shorten := "ceiling", ", or shorten its activeDeadlineSeconds"
		if mode == quota.ModeLease {
			what, shorten = "first slice", ""
		}
		return Reason{
			Code: BudgetExceeds,
			Message: fmt.Sprintf("the %s of %s is %s more than budget %q has left in %s (limit %s, spent %s, reserved %s)",
				what, asked, short.Missing, short.Budget, short.Window, short.Limit, short.Spent, short.Reserved),
			Remedy: fmt.Sprintf("raise the budget by %s%s", short.Missing, shorten),
		}
	}
	switch {
	case errors.Is(err, quota.ErrNoBudget):
		return Reason{Code: BudgetMissing, Message: "no budget allows it: " + err.Error(), Remedy: "give the tenant a budget"}
	case errors.Is(err, quota.ErrOverrun):
		return Reason{
			Code: BudgetRefused, Message: "an earlier burst has cost more than was reserved, and nobody has accepted that yet",
			Remedy: "ask the platform team to find the machines that were not deleted in time, and to accept the overrun",
		}
	case errors.Is(err, money.ErrCurrency):
		return Reason{Code: CurrencyMismatch, Message: fmt.Sprintf("the offer is priced in %s and a budget counts in another currency", asked.Currency), Remedy: "state the price in the budget's currency"}
	}
	return Reason{Code: BudgetRefused, Message: err.Error(), Remedy: "see spillway ledger verify"}
}

// burst is the purchase of a candidate.
func (r *run) burst(w *work, c *candidate, attempt int32) Burst {
	project, projectID := projectOf(w.tenant, w.Owner.Namespace)
	b := Burst{
		Name: nameOf(w.Owner.UID, attempt), Owner: w.Owner, Attempt: attempt,
		Tenant: w.tenant.Name, TenantID: w.tenant.Spec.ID, Project: project, ProjectID: projectID,
		Together: w.Together, Pods: c.seats(), Offer: c.offer, Machines: c.machines,
		Ceiling: c.ceiling, Expected: c.expected,
		Hourly: money.Rate{NanoPerHour: c.offer.Price.NanoPerHour * int64(c.machines), Currency: c.offer.Price.Currency},
		Mode:   quota.ModeSafe,
		MaxRun: time.Duration(c.turns) * w.maxRun, From: r.Now, Deadline: c.leg.times.deadline, Until: c.leg.times.until,
		Data: v1alpha1.BurstData{
			Class: string(w.class), Inputs: w.Inputs, Outputs: w.Outputs, Freshness: policy.FreshnessOf(w.tenant, w.class),
		},
		Moving:  c.leg.moving,
		ReadyAt: c.leg.times.ready, LocalAt: w.localAt,
	}
	if c.turns > 1 {
		b.Turns = int32(c.turns)
	}
	if w.sliced && c.first.Nano < c.ceiling.Nano { // else the first slice is the whole
		b.Mode, b.First, b.FirstUntil = quota.ModeLease, c.first, c.leg.times.first
	}
	return b
}

func projectOf(t *v1alpha1.BurstTenant, namespace string) (name, id string) {
	for _, p := range t.Spec.Projects {
		if slices.Contains(p.Namespaces, namespace) {
			return p.Name, p.ID
		}
	}
	return "", ""
}

// nameOf names a burst by its owner and attempt, so that the same decision made
// twice, by two controllers or after a crash, is one object.
// cases: G2 kubernetes-sigs/karpenter#1448
func nameOf(owner types.UID, attempt int32) string {
	sum := sha256.Sum256([]byte(string(owner) + "/" + strconv.Itoa(int(attempt))))
	return "burst-" + hex.EncodeToString(sum[:8])
}

func sortRefusals(all []Refusal) []Refusal {
	byOffer := func(a, b Refusal) int { return cmp.Compare(a.Offer, b.Offer) }
	if !slices.IsSortedFunc(all, byOffer) {
		slices.SortStableFunc(all, byOffer)
	}
	return all
}
