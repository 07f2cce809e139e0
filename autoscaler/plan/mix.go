package plan

import (
	"cmp"
	"slices"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// searched bounds how many pods are tried on how many offers, one offer after the
// other, where each pod has to be put by itself. Beyond it only families of
// offers are tried, each as one.
const searched = 20_000

// families are offers of which machines may serve independent pods together: of
// one provider, in one region and one zone, that bills them alike. Offers go by
// their places in the run.
type families struct {
	list [][]int
	big  bool         // too many pods to try each offer of a family by itself
	in   map[int]bool // set when they are big
}

// instead reports whether an offer is tried with its family only.
func (f families) instead(offer int) bool { return f.in[offer] }

// kinship is what the offers of one family have in common.
type kinship struct {
	provider, region, zone, capacityType, country, gpuModel, gpuResource string

	currency money.Currency
	meter    providers.MeterRule
}

// related numbers the families of offers.
func related(all []*sale) {
	known := map[kinship]int{}
	for _, s := range all {
		o := s.offer
		kin := kinship{o.Provider, o.Region, o.Zone, o.CapacityType, o.Country, o.GPUModel, o.GPUResource, o.Price.Currency, o.Meter}
		if _, met := known[kin]; !met {
			known[kin] = len(known)
		}
		s.family = known[kin]
	}
}

// families sorts the offers that are open to work into families. Pods that start
// together get machines of one type, and so do pods with inputs: each burst stages
// its own, and nobody knows yet how many bytes that would move twice.
func (r *run) families(w *work, open []int) (families, error) {
	var out families
	if w.Together || len(w.pods) < 2 || len(w.Inputs) > 0 {
		return out, nil
	}
	all := r.desk.kin
	for i := range all {
		all[i] = all[i][:0]
	}
	for _, i := range open {
		f := &all[r.offers[i].family]
		*f = append(*f, i)
	}
	for _, f := range all {
		if len(f) > 1 {
			out.list = append(out.list, f)
		}
	}
	if len(out.list) == 0 || len(w.pods)*len(open) <= searched {
		return out, nil
	}
	scope, err := r.cluster.Scope(w.batch)
	if err != nil {
		return out, err
	}
	if out.big = scope != placement.EqualAndAlone; out.big {
		out.in = map[int]bool{}
		for _, i := range slices.Concat(out.list...) {
			out.in[i] = true
		}
	}
	return out, nil
}

// mix considers machines of several offers of a family for one work. beside says
// that each offer was considered by itself, too: then of equal pods what takes
// none of them is left out, and nothing new is said against an offer.
func (r *run) mix(w *work, f []int, beside bool) {
	if beside && r.pointless(w, f) {
		return
	}
	refuse := func(s *sale, why Reason) {
		if !beside {
			w.refusals = append(w.refusals, s.refuse(why))
		}
	}
	sales, wares := make([]*sale, 0, len(f)), make([]placement.Ware, 0, len(f))
	for _, i := range f {
		s := r.offers[i]
		price, why := r.priceOfOne(w, i, beside)
		switch {
		case why != nil:
			refuse(s, *why)
		case price > 0:
			sales = append(sales, s)
			wares = append(wares, placement.Ware{Stock: s.stock, Price: price})
		}
	}
	mixture, err := r.cluster.Mix(w.batch, wares)
	switch {
	case err != nil:
		for _, s := range sales {
			refuse(s, undecidable(err))
		}
	case mixture.Misfit != nil:
		for _, s := range sales {
			refuse(s, misfit(placement.Packing{Misfit: mixture.Misfit}))
		}
	case !beside && len(mixture.Machines) > 0 || several(mixture.Machines):
		c := mixed(sales, mixture.Machines, r.Settings.Machines)
		c.beside = beside
		r.consider(w, c, nil)
	}
}

// pointless reports that machines of several offers are no cheaper than those of
// one: where pods that no filter can tell apart need equally many machines of
// whichever offer, they need as many of them mixed, and the cheapest are of one.
func (r *run) pointless(w *work, f []int) bool {
	if scope, err := r.cluster.Scope(w.batch); err != nil || scope != placement.EqualAndAlone {
		return false
	}
	machines := 0
	for _, i := range f {
		switch c := &r.desk.tried[i]; {
		case !c.sized:
		case c.packing.Turns > 1, machines != 0 && machines != c.packing.Machines:
			return false
		default:
			machines = c.packing.Machines
		}
	}
	return true
}

// several reports whether machines are of more than one ware.
func several(machines []placement.Mixed) bool {
	return slices.ContainsFunc(machines, func(m placement.Mixed) bool { return m.Ware != machines[0].Ware })
}

// priceOfOne is the expected bill of one machine of an offer. It is nothing for
// one that no mixture needs.
func (r *run) priceOfOne(w *work, offer int, beside bool) (int64, *Reason) {
	if beside && !r.desk.tried[offer].sized && w.batch.Equal() {
		return 0, nil
	}
	one := r.legOf(w, r.offers[offer], 1)
	return one.expected.Nano, one.why
}

// mixed are the bursts, of so many machines at most, for machines of several sales.
func mixed(sales []*sale, machines []placement.Mixed, most int) *candidate {
	seats, count := make([][]placement.Seat, len(sales)), make([]int, len(sales))
	for _, m := range machines {
		for _, p := range m.Pods {
			seats[m.Ware] = append(seats[m.Ware], placement.Seat{Pod: p, Machine: count[m.Ware]})
		}
		count[m.Ware]++
	}
	var parts []*candidate
	for i, s := range sales {
		parts = append(parts, parted(s, 1, seats[i], most)...)
	}
	c := new(candidate)
	c.into(parts)
	return c
}

// parted are the bursts, of so many machines at most, that serve the pods on
// their seats.
func parted(s *sale, turns int, seats []placement.Seat, most int) []*candidate {
	slices.SortStableFunc(seats, func(a, b placement.Seat) int { return cmp.Compare(a.Machine, b.Machine) })
	var parts []*candidate
	for _, seat := range seats {
		n := seat.Machine / most
		if n == len(parts) {
			parts = append(parts, &candidate{sale: s, turns: turns})
		}
		seat.Machine %= most
		parts[n].placed = append(parts[n].placed, seat)
		parts[n].machines = int32(seat.Machine + 1)
	}
	return parts
}

// into makes a candidate the first of several bursts.
func (c *candidate) into(parts []*candidate) {
	*c = *parts[0]
	c.more = parts[1:]
}
