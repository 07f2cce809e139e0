package placement

import (
	"cmp"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Ware is a stock with the price of one of its machines, in any one unit.
type Ware struct {
	Stock *Stock
	Price int64
}

// Mixture is machines of several stocks with their pods.
type Mixture struct {
	Machines []Mixed
	// Misfit is a pod that no machine of any ware takes; then there is none.
	Misfit *Misfit
}

// Mixed is one machine: of which ware, by its place among them, and for whom.
type Mixed struct {
	Ware int
	Pods []*corev1.Pod
}

// Mix seeks machines of several wares that take all pods of a batch for little
// money together. Every pod passes all filters on its machine, with the pods that
// were there before it. Nothing of it stays in the snapshot.
//
// For pods of one class of which a machine's own state decides it finds the least
// money that there is, and of equal ones the fewest machines. For all others it
// puts one pod after the other where it costs least more, and there may be less.
func (s *Snapshot) Mix(b Batch, wares []Ware) (Mixture, error) {
	if len(b.pods) == 0 || len(wares) == 0 {
		return Mixture{}, nil
	}
	for _, w := range wares {
		w.Stock.look(s)
	}
	b, alone, err := s.current(b)
	switch {
	case err != nil:
		return Mixture{}, err
	case alone:
		return s.change(b, wares)
	}
	return s.grow(b, wares)
}

// change is the problem of giving change in the fewest coins: machines of which
// each takes a number of pods at a price.
func (s *Snapshot) change(b Batch, wares []Ware) (Mixture, error) {
	all := make([]coin, 0, len(wares))
	why := &Reason{Message: "its price is out of range"}
	for i, w := range wares {
		h, err := s.held(b, w.Stock)
		if err != nil {
			return Mixture{}, err
		}
		if h.why == nil {
			all = append(all, coin{i, h.pods, w.Price})
		} else if len(all) == 0 {
			why = h.why
		}
	}
	all = useful(all)
	best := make([]coins, len(b.pods)+1) // for so many pods
	for n := 1; n < len(best); n++ {
		best[n].machines = math.MaxInt
		for _, c := range all {
			rest := best[max(n-c.holds, 0)]
			if rest.machines == math.MaxInt || rest.price > math.MaxInt64-c.price {
				continue
			}
			if with := (coins{c, rest.price + c.price, rest.machines + 1}); with.less(best[n]) {
				best[n] = with
			}
		}
	}
	if best[len(b.pods)].machines == math.MaxInt {
		return Mixture{Misfit: &Misfit{Pod: b.pods[0], Reasons: []Reason{*why}}}, nil
	}
	var m Mixture
	for left := b.pods; len(left) > 0; {
		last := best[len(left)].last
		n := min(last.holds, len(left))
		m.Machines = append(m.Machines, Mixed{last.ware, left[:n:n]})
		left = left[n:]
	}
	return m, nil
}

// coin is a machine of a ware, that takes so many pods.
type coin struct {
	ware, holds int
	price       int64
}

// useful leaves out machines that take no more than one that is no dearer.
func useful(all []coin) []coin {
	slices.SortStableFunc(all, func(a, b coin) int { return cmp.Or(cmp.Compare(a.price, b.price), cmp.Compare(b.holds, a.holds)) })
	most := 0
	return slices.DeleteFunc(all, func(c coin) bool {
		if c.holds <= most {
			return true
		}
		most = c.holds
		return false
	})
}

// coins are machines by the last of them, with what all cost and how many they are.
type coins struct {
	last     coin
	price    int64
	machines int
}

func (c coins) less(d coins) bool {
	return d.machines == math.MaxInt || c.price < d.price || c.price == d.price && c.machines < d.machines
}
