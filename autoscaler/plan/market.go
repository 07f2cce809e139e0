package plan

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// candidate is an offer that passed everything but the budgets, and how it
// would be bought. What independent pods need may be more than one burst: then
// it is the first of them.
type candidate struct {
	*sale
	packing  placement.Packing
	placed   []placement.Seat // where they are not those of the packing
	sized    bool             // it takes all pods, as follows
	machines int32
	turns    int // of pods that run one after the other
	leg      *leg
	ceiling  money.Amount
	first    money.Amount // of the ceiling, in mode lease
	expected money.Amount

	more []*candidate // the other bursts
	// whole is what all of them cost.
	whole struct{ ceiling, expected money.Amount }
	// beside says that each of its offers is considered by itself, too: what
	// stands against all of them together need not be told.
	beside bool
	unpaid *Reason // what the budgets said
}

// bursts are all that is bought with the candidate.
func (c *candidate) bursts() iter.Seq2[int, *candidate] {
	return func(yield func(int, *candidate) bool) {
		if !yield(0, c) {
			return
		}
		for i, more := range c.more {
			if !yield(i+1, more) {
				return
			}
		}
	}
}

// seats are the pods by name, each with its machine.
func (c *candidate) seats() []Seat {
	placed := c.placed
	if placed == nil {
		placed = c.packing.Seats()
	}
	seats := make([]Seat, len(placed))
	for i, p := range placed {
		seats[i] = Seat{Name: p.Pod.Name, UID: p.Pod.UID, Machine: int32(p.Machine)}
	}
	byName := func(a, b Seat) int { return cmp.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(seats, byName) {
		slices.SortFunc(seats, byName)
	}
	return seats
}

// bounded finds the bound on the run time: what the owner states, else the
// tenant, else what is left until the owner's deadline. Without one the cost
// has no bound. A stated time counts in full, also when the owner's deadline
// will cut it short, so that the ceiling is the same in every cycle.
func (r *run) bounded(w *work) (Decision, bool) {
	w.maxRun = w.MaxRun
	for _, p := range w.pods {
		if s := p.Spec.ActiveDeadlineSeconds; w.MaxRun == 0 && s != nil {
			w.maxRun = max(w.maxRun, Seconds(*s))
		}
	}
	w.sliced = w.tenant.Spec.Burst.Reserve == quota.ModeLease
	if own := w.tenant.Spec.Burst.MaxRunTime; w.maxRun == 0 && own != nil {
		w.maxRun = own.Duration
		w.sliced = w.sliced || w.EndsBy.IsZero() // nobody says how long it will run
	}
	left := w.EndsBy.Sub(r.Now)
	if !w.EndsBy.IsZero() && w.maxRun == 0 {
		w.maxRun = left
	}
	switch {
	case !w.EndsBy.IsZero() && left <= r.Settings.Boot:
		return w.decision(Refuse, Reason{
			Code: DeadlineTooShort, Message: fmt.Sprintf("its deadline ends it at %s, and a burst needs about %s to be ready", clock(w.EndsBy), short(r.Settings.Boot)),
			Remedy: "raise its activeDeadlineSeconds",
		}), true
	case w.maxRun <= 0:
		return w.decision(Refuse, Reason{
			Code: NoMaxRuntime, Message: "nothing bounds its run time, so nothing bounds its cost",
			Remedy: "set activeDeadlineSeconds on it, or maxRunTime on the tenant",
		}), true
	case w.maxRun > longestRun:
		return w.decision(Refuse, Reason{
			Code: CeilingOutOfRange, Message: fmt.Sprintf("it may run for %s, and a burst is planned for %s at most", short(w.maxRun), short(longestRun)),
			Remedy: "lower its activeDeadlineSeconds, or maxRunTime of the tenant",
		}), true
	}
	return Decision{}, false
}

// leaving asks the policy on the work itself.
func (r *run) leaving(w *work) (Decision, bool) {
	facts := policy.Work{
		Tenant: *w.tenant, PriorityClass: w.PriorityClass, Pods: w.pods,
		Inputs: w.Inputs, Outputs: w.Outputs, DataClass: w.DataClass, Claims: r.claims, Volumes: r.volumes,
	}
	refused := policy.Leaving().Evaluate(facts)
	w.class = policy.ClassOf(facts)
	if len(refused) == 0 {
		return Decision{}, false
	}
	for _, p := range refused {
		w.refusals = append(w.refusals, Refusal{Reason: reasonOf(p), Until: p.Until})
	}
	return w.decision(Refuse, reasonOf(refused[0])), true
}

func reasonOf(p policy.Refusal) Reason {
	return Reason{Code: Code(p.Code), Message: p.Message, Remedy: p.Remedy}
}

// shopping takes every offer through policy, market, limits and fit, and ranks
// what is left. Policy is asked first and of all offers, so that no price can
// hide a rule.
func (r *run) shopping(w *work) (Decision, bool) {
	w.speaks = w.speaking(r.variety)
	w.journey = r.travelling(w)
	w.wired = w.wiring()
	past := r.history.of(w.Owner)
	w.refusals, w.candidates = r.desk.refusals[:0], r.desk.candidates[:0]
	open := r.desk.open[:0] // by their places in offers
	for i, s := range r.offers {
		before := len(w.refusals)
		w.refusals = append(append(w.refusals, w.journey.refusals[i]...), s.closed...)
		if past != nil {
			w.refusals = append(w.refusals, r.tried(past, s)...)
		}
		if len(w.refusals) == before {
			open = append(open, i)
		}
	}
	families, err := r.families(w, open)
	if err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	for _, i := range open {
		if families.instead(i) {
			continue
		}
		c := &r.desk.tried[i]
		if why := w.speaks[r.offers[i].has]; why != nil {
			c.sized = false
			w.refusals = append(w.refusals, r.offers[i].refuse(*why))
			continue
		}
		*c = candidate{sale: r.offers[i]}
		why := r.size(w, c)
		c.sized = why == nil
		r.consider(w, c, why)
	}
	for _, f := range families.list {
		r.mix(w, f, !families.big)
	}
	r.desk.refusals, r.desk.candidates, r.desk.open = w.refusals, w.candidates, open
	w.bestFirst()
	return Decision{}, false
}

// desk is where one gang after the other is shopped for.
type desk struct {
	tried      []candidate // by offer
	refusals   []Refusal
	candidates []*candidate
	open       []int
	kin        [][]int // see families
}

func newDesk(offers int) desk {
	return desk{
		make([]candidate, offers), make([]Refusal, 0, offers), make([]*candidate, 0, offers),
		make([]int, 0, offers), make([][]int, offers),
	}
}

// bestFirst moves the best candidate to the front: mostly it is taken. The others
// are put in order when they are asked about.
func (w *work) bestFirst() {
	best := 0
	for i, c := range w.candidates {
		if ranking(c, w.candidates[best]) < 0 {
			best = i
		}
	}
	if best > 0 {
		first := w.candidates[best]
		copy(w.candidates[1:], w.candidates[:best])
		w.candidates[0] = first
	}
}

// ranking orders candidates by the expected bill of all that is bought.
func ranking(a, b *candidate) int {
	x, y := &a.whole.expected, &b.whole.expected
	if x.Currency == y.Currency && x.Nano != y.Nano {
		return cmp.Compare(x.Nano, y.Nano)
	}
	return cmp.Or(cmp.Compare(x.Currency, y.Currency), cmp.Compare(a.whole.ceiling.Nano, b.whole.ceiling.Nano),
		cmp.Compare(len(a.more), len(b.more)), cmp.Compare(a.key, b.key))
}

// consider makes a sized candidate one of those to choose from, or refuses its
// offer.
func (r *run) consider(w *work, c *candidate, why *Reason) {
	if why == nil {
		why = r.price(w, c)
	}
	if why == nil {
		why = r.limits(w, c)
	}
	switch {
	case why == nil:
		w.candidates = append(w.candidates, c)
	case !c.beside:
		w.refusals = append(w.refusals, c.refuse(*why))
	}
}

func (s *sale) refuse(why Reason) Refusal {
	return Refusal{Provider: s.offer.Provider, Offer: s.key, Reason: why}
}

// trip is all of a work that the policy on offers looks at.
type trip struct {
	tenant string
	class  policy.Class
	maxRun time.Duration
	queue  int
	inputs int64     // in bytes; -1 where that is not known, -2 without any
	endsBy time.Time // where it bounds the queue
}

// journey is what holds for each offer and all work that makes one trip.
type journey struct {
	refusals [][]Refusal // by policy
	legs     []leg
}

// leg is one machine of an offer on a trip: how long it is needed and what it
// costs, or why that can't be worked out.
type leg struct {
	turns                    int
	times                    times
	moving                   *Moving // once for all machines of a burst
	ceiling, first, expected money.Amount
	why                      *Reason
}

// travelling returns what the policy says against each offer, and what one of its
// machines costs. That is worked out once a cycle for work that makes one trip.
func (r *run) travelling(w *work) *journey {
	key := trip{tenant: w.tenant.Name, class: w.class, maxRun: w.maxRun, queue: w.queue(), inputs: w.weight()}
	if key.queue > 1 {
		key.endsBy = w.EndsBy
	}
	if known, asked := r.trips[key]; asked {
		return known
	}
	going := policy.Going()
	j := &journey{make([][]Refusal, len(r.offers)), make([]leg, len(r.offers))}
	for i, s := range r.offers {
		j.legs[i] = r.newLeg(w, s, r.turns(w, s))
		for _, p := range going.Evaluate(policy.Trip{
			Tenant: *w.tenant, Class: w.class, Offer: s.offer, Provider: s.provider, Now: r.Now, Until: j.legs[i].times.until,
		}) {
			refusal := s.refuse(reasonOf(p))
			refusal.Until = p.Until
			j.refusals[i] = append(j.refusals[i], refusal)
		}
	}
	r.trips[key] = j
	return j
}

// tried refuses an offer at which work with this past has ended before.
func (r *run) tried(p *past, s *sale) []Refusal {
	e, excluded := p.excluded[s.key]
	if !excluded || !e.until.IsZero() && !e.until.After(r.Now) {
		return nil
	}
	refusal := s.refuse(Reason{
		Code: EarlierAttempt, Message: fmt.Sprintf("an earlier burst for this work ended here with %s", e.why), Remedy: "the next offer is taken",
	})
	refusal.Until = e.until
	return []Refusal{refusal}
}

// limits refuses what would exceed the provider's limits or the tenant's hard
// cap on the GPU model, counting all that is in flight.
func (r *run) limits(w *work, c *candidate) *Reason {
	limit, inFlight := c.provider.Spec.Limits, r.history.bought[c.offer.Provider]
	machines, gpus := int32(0), int32(0)
	for _, b := range c.bursts() {
		machines += b.machines
		gpus += b.machines * int32(b.offer.GPUs)
	}
	if limit.Machines != nil && inFlight.machines+machines > *limit.Machines {
		return &Reason{
			Code: ProviderQuota, Message: fmt.Sprintf("%d machines in flight and %d more exceed the limit of %d", inFlight.machines, machines, *limit.Machines),
			Remedy: "wait for a burst to end, or raise the provider's limit",
		}
	}
	if limit.GPUs != nil && inFlight.gpus+gpus > *limit.GPUs {
		return &Reason{
			Code: ProviderQuota, Message: fmt.Sprintf("%d GPUs in flight and %d more exceed the limit of %d", inFlight.gpus, gpus, *limit.GPUs),
			Remedy: "wait for a burst to end, or raise the provider's limit",
		}
	}
	for _, q := range w.tenant.Spec.Quota {
		used := r.history.gpus[w.tenant.Spec.ID][c.offer.GPUModel]
		if q.GPUModel == c.offer.GPUModel && q.HardCap != nil && used+gpus > *q.HardCap {
			return &Reason{
				Code: QuotaCloudGPU, Message: fmt.Sprintf("%d %s in the cloud and %d more exceed the hard cap of %d of tenant %s", used, q.GPUModel, gpus, *q.HardCap, w.tenant.Name),
				Remedy: "wait for a burst to end, or raise the hard cap",
			}
		}
	}
	return nil
}

// noOffer sums up why no offer is left.
func noOffer(w *work) Reason {
	codes := map[Code]bool{}
	for _, f := range w.refusals {
		if !policy.Jurisdictional(string(f.Code)) {
			codes[f.Code] = true
		}
	}
	why := Reason{
		Code: NoOffer, Message: fmt.Sprintf("%s; on-prem: %s", noneOf(offersIn(w.refusals)), w.misfit),
		Remedy: "read the reason for each offer",
	}
	switch {
	case len(w.refusals) == 0:
		why.Message, why.Remedy = "no provider has an offer", "connect a provider"
	case len(codes) == 0:
		why.Code, why.Remedy = policy.JurisdictionNobody, "connect a provider that the tenant's data rules allow, or change the rules"
	case len(codes) == 1:
		for only := range codes {
			why.Code = only
		}
	}
	return why
}

func noneOf(offers int) string {
	if offers == 1 {
		return "the only offer on sale can't be taken"
	}
	return fmt.Sprintf("none of the %d offers on sale can be taken", offers)
}

func offersIn(refusals []Refusal) int {
	keys := map[string]bool{}
	for _, f := range refusals {
		keys[f.Offer] = true
	}
	return len(keys)
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
