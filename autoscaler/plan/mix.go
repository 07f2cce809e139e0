package plan

import (
	"cmp"
	"fmt"
	"slices"

	"spillway.dev/spillway/autoscaler/placement"
)

// searched bounds how many pods are tried on how many offers, one offer after the
// other, where each pod has to be put by itself. Beyond it only families of
// offers are tried, each as one.
const searched = 20_000

// families are offers of which machines may serve independent pods together: of
// one provider, in one region and one zone, that bills them alike.
type families struct {
	list []family
	big  bool // too many pods to try each offer of a family by itself
	in   map[int]bool
}

type family []*sale

// instead reports whether an offer is tried with its family only.
func (f families) instead(offer int) bool { return f.big && f.in[offer] }

// families sorts the offers that are open to work into families. Pods that start
// together get machines of one type, and so do pods with inputs: each burst stages
// its own, and nobody knows yet how many bytes that would move twice.
func (r *run) families(w *work, open []int) (families, error) {
	out := families{in: map[int]bool{}}
	if w.Together || len(w.pods) < 2 || len(w.Inputs) > 0 {
		return out, nil
	}
	byKey := map[string][]int{}
	var keys []string
	for _, i := range open {
		key := r.offers[i].family()
		if byKey[key] == nil {
			keys = append(keys, key)
		}
		byKey[key] = append(byKey[key], i)
	}
	for _, key := range keys {
		if len(byKey[key]) < 2 {
			continue
		}
		var f family
		for _, i := range byKey[key] {
			f, out.in[i] = append(f, r.offers[i]), true
		}
		out.list = append(out.list, f)
	}
	if len(out.list) > 0 && len(w.pods)*len(open) > searched {
		scope, err := r.cluster.Scope(w.pods)
		if err != nil {
			return out, err
		}
		out.big = scope != placement.EqualAndAlone
	}
	return out, nil
}

func (s *sale) family() string {
	o := s.offer
	return fmt.Sprintf("%s/%s/%s/%s/%s/%s/%s/%s/%+v", o.Provider, o.Region, o.Zone, o.CapacityType, o.Country, o.GPUModel, o.GPUResource, o.Price.Currency, o.Meter)
}

// mix considers machines of several offers of a family for one work. beside says
// that each offer is considered by itself, too.
func (r *run) mix(w *work, f family, beside bool) {
	refuse := func(s *sale, why Reason) {
		if !beside {
			w.refusals = append(w.refusals, s.refuse(why))
		}
	}
	sales, wares := make(family, 0, len(f)), make([]placement.Ware, 0, len(f))
	for _, s := range f {
		one := candidate{sale: s, machines: 1, turns: 1}
		if why := r.priceOne(w, &one); why != nil {
			refuse(s, *why)
			continue
		}
		sales = append(sales, s)
		wares = append(wares, placement.Ware{Stock: s.stock, Price: one.expected.Nano})
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
	case len(mixture.Machines) > 0:
		c := mixed(sales, mixture.Machines, r.Settings.Machines)
		c.beside = beside
		if !beside || slices.ContainsFunc(c.more, func(b *candidate) bool { return b.sale != c.sale }) {
			r.consider(w, c, nil)
		}
	}
}

// mixed are the bursts, of so many machines at most, for machines of several sales.
func mixed(sales family, machines []placement.Mixed, most int) *candidate {
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
