package placement

import (
	"math"

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
	holds := make([]int, len(wares))
	var why *Reason
	for i, w := range wares {
		h, err := s.held(b, w.Stock)
		if err != nil {
			return Mixture{}, err
		}
		if holds[i] = h.pods; why == nil {
			why = h.why
		}
	}
	best := make([]coins, len(b.pods)+1) // for so many pods
	for n := 1; n < len(best); n++ {
		best[n].ware = -1
		for i, w := range wares {
			if holds[i] == 0 {
				continue
			}
			rest := best[max(n-holds[i], 0)]
			if rest.ware < 0 || rest.price > math.MaxInt64-w.Price {
				continue
			}
			with := coins{ware: i, price: rest.price + w.Price, machines: rest.machines + 1}
			if best[n].ware < 0 || with.less(best[n]) {
				best[n] = with
			}
		}
	}
	if best[len(b.pods)].ware < 0 {
		if why == nil {
			why = &Reason{Message: "its price is out of range"}
		}
		return Mixture{Misfit: &Misfit{Pod: b.pods[0], Reasons: []Reason{*why}}}, nil
	}
	var m Mixture
	for left := b.pods; len(left) > 0; {
		ware := best[len(left)].ware
		n := min(holds[ware], len(left))
		m.Machines = append(m.Machines, Mixed{ware, left[:n:n]})
		left = left[n:]
	}
	return m, nil
}

// coins is the last machine of a mixture, with what all of them cost and how many
// they are.
type coins struct {
	ware     int
	price    int64
	machines int
}

func (c coins) less(d coins) bool {
	return c.price < d.price || c.price == d.price && c.machines < d.machines
}
