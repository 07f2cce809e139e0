package placement_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/placement"
)

// goods is a ware with the machines that it is of.
type goods struct {
	placement.Ware
	machine func(int) placement.Machine
}

// ware is machines with so many GPUs at a price, behind the taint of rented ones.
func ware(gpus int64, price int64, change ...func(*placement.Machine)) goods {
	machine := func(i int) placement.Machine {
		m := rentedMachine(i)
		m.GPUs = gpus
		for _, f := range change {
			f(&m)
		}
		return m
	}
	return goods{placement.Ware{Stock: placement.NewStock(machine), Price: price}, machine}
}

func mixOf(t rapid.TB, s *placement.Snapshot, pods []*corev1.Pod, wares []goods) placement.Mixture {
	t.Helper()
	all := make([]placement.Ware, len(wares))
	for i := range wares {
		all[i] = wares[i].Ware
	}
	m, err := s.Mix(s.Batch(pods, guest()), all)
	if err != nil {
		t.Fatalf("Mix() = %v", err)
	}
	return m
}

func (b bill) of(m placement.Mixture, wares []goods) bill {
	for _, machine := range m.Machines {
		b.price += wares[machine.Ware].Price
		b.machines++
	}
	return b
}

type bill struct {
	price    int64
	machines int
}

func TestMix(t *testing.T) {
	small, large := ware(1, 10), ware(4, 25)
	pods := func(gpus ...int64) (all []*corev1.Pod) {
		for i, n := range gpus {
			all = append(all, pod(fmt.Sprintf("p%d", i), n))
		}
		return all
	}
	labelled := func(value string) func(*placement.Machine) {
		return func(m *placement.Machine) { m.Labels = map[string]string{"product": value} }
	}
	for name, tt := range map[string]struct {
		pods  []*corev1.Pod
		wares []goods
		want  string
	}{
		"no pod":                                 {nil, []goods{small}, "0 for 0"},
		"no ware":                                {pods(1), nil, "0 for 0"},
		"one large and one small":                {pods(1, 1, 1, 1, 1), []goods{small, large}, "2 for 35"},
		"small ones where they are cheaper":      {pods(1, 1), []goods{small, large}, "2 for 20"},
		"a large one where it is cheaper":        {pods(1, 1, 1), []goods{small, large}, "1 for 25"},
		"the fewest machines of equal price":     {pods(1, 1, 1, 1), []goods{small, ware(4, 40)}, "1 for 40"},
		"pods of several sizes":                  {pods(4, 1), []goods{small, large}, "2 for 35"},
		"a machine grows while that is cheapest": {pods(2, 1), []goods{small, ware(2, 15), large}, "1 for 25"},
		"a pod that no ware takes is named":      {pods(5, 1), []goods{small, large}, "p0: 0/1 nodes fit: 1 Insufficient nvidia.com/gpu"},
		"equal pods that no ware takes":          {pods(5, 5), []goods{small, large}, "p0: 0/1 nodes fit: 1 Insufficient nvidia.com/gpu"},
		"each goes where its selector says": {
			[]*corev1.Pod{pod("a", 1, selecting("product", "h100")), pod("b", 1, selecting("product", "l40s"))},
			[]goods{ware(1, 10, labelled("l40s")), ware(4, 99, labelled("h100"))},
			"2 for 109",
		},
		"pods that avoid each other": {
			[]*corev1.Pod{pod("a", 1, apart(corev1.LabelHostname)), pod("b", 1, apart(corev1.LabelHostname))}, []goods{large, small}, "2 for 20",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
			m := mixOf(t, s, tt.pods, tt.wares)
			got := fmt.Sprintf("%d for %d", bill{}.of(m, tt.wares).machines, bill{}.of(m, tt.wares).price)
			if m.Misfit != nil {
				got = m.Misfit.Pod.Name + ": " + m.Misfit.String()
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if nodes := s.Nodes(); len(nodes) != 1 {
				t.Errorf("machines stay in the snapshot: %v", nodes)
			}
		})
	}
}

// Of equal pods the mixture is the cheapest that there is, of the fewest machines.
func TestMixOfEqualPodsIsTheCheapest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.Int64Range(1, 3).Draw(t, "gpus")
		var pods []*corev1.Pod
		for i := range rapid.IntRange(1, 7).Draw(t, "pods") {
			pods = append(pods, pod(fmt.Sprintf("p%d", i), gpus))
		}
		var wares []goods
		var holds []int
		for range rapid.IntRange(1, 3).Draw(t, "wares") {
			has := rapid.Int64Range(1, 8).Draw(t, "has")
			wares, holds = append(wares, ware(has, rapid.Int64Range(1, 4).Draw(t, "price"))), append(holds, int(has/gpus))
		}
		m := mixOf(t, cluster(t, placement.Inventory{}), pods, wares)
		best, any := cheapest(len(pods), wares, holds)
		if any != (m.Misfit == nil) {
			t.Fatalf("a mixture: %t, but the misfit is %v", any, m.Misfit)
		}
		if got := (bill{}).of(m, wares); any && got != best {
			t.Errorf("%+v, the cheapest is %+v", got, best)
		}
		checkSeats(t, pods, m, wares)
	})
}

// cheapest tries all mixtures of machines that hold so many pods each.
func cheapest(pods int, wares []goods, holds []int) (best bill, any bool) {
	best.price = math.MaxInt64
	var buy func(i, left int, so bill)
	buy = func(i, left int, so bill) {
		if left <= 0 {
			if so.price < best.price || so.price == best.price && so.machines < best.machines {
				best, any = so, true
			}
			return
		}
		if i == len(wares) {
			return
		}
		buy(i+1, left, so)
		if holds[i] > 0 {
			buy(i, left-holds[i], bill{so.price + wares[i].Price, so.machines + 1})
		}
	}
	buy(0, pods, bill{})
	return best, any
}

// Pods of all kinds: each has one seat, which all filters let it have beside the
// others. It is never dearer than a machine for each, and only a pod that fits on
// no machine by itself is a misfit.
func TestMixHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(1, 8).Draw(t, "pods") {
			kind := rapid.SampledFrom([]func(*corev1.Pod){
				func(*corev1.Pod) {}, func(*corev1.Pod) {}, apart(corev1.LabelHostname), selecting("product", "h100"), cores("20"), hostPort(80),
			}).Draw(t, "kind")
			pods = append(pods, pod(fmt.Sprintf("p%d", i), rapid.Int64Range(1, 4).Draw(t, "gpus"), kind))
		}
		var wares []goods
		for range rapid.IntRange(1, 4).Draw(t, "wares") {
			product, cores := rapid.SampledFrom([]string{"l40s", "h100"}).Draw(t, "product"), rapid.Int64Range(8, 64).Draw(t, "cores")
			wares = append(wares, ware(rapid.Int64Range(1, 8).Draw(t, "has"), rapid.Int64Range(1, 12).Draw(t, "price"), func(m *placement.Machine) {
				m.Labels, m.MilliCPU = map[string]string{"product": product}, 1000*cores
			}))
		}
		s := cluster(t, placement.Inventory{Nodes: []*corev1.Node{node("home", 8)}})
		m := mixOf(t, s, pods, wares)
		most := int64(0)
		for _, p := range pods {
			alone := int64(math.MaxInt64)
			for _, w := range wares {
				if got, err := s.Pack(s.Batch([]*corev1.Pod{p}, guest()), w.Stock, 1); err != nil {
					t.Fatal(err)
				} else if got.Misfit == nil {
					alone = min(alone, w.Price)
				}
			}
			if alone == math.MaxInt64 {
				if m.Misfit == nil {
					t.Fatalf("%s fits on no machine, and is no misfit", p.Name)
				}
				return
			}
			most += alone
		}
		if m.Misfit != nil {
			t.Fatalf("each pod fits on a machine, but %s is a misfit: %s", m.Misfit.Pod.Name, m.Misfit)
		}
		if got := (bill{}).of(m, wares); got.price > most || got.machines > len(pods) {
			t.Errorf("%+v for %d pods, and a machine for each costs %d", got, len(pods), most)
		}
		checkSeats(t, pods, m, wares)
	})
}

// checkSeats asks about each pod again when all others sit where they were put.
func checkSeats(t rapid.TB, pods []*corev1.Pod, m placement.Mixture, wares []goods) {
	t.Helper()
	if m.Misfit != nil {
		return
	}
	var inv placement.Inventory
	seat := map[string]string{}
	for i, machine := range m.Machines {
		n := wares[machine.Ware].machine(i).Node()
		inv.Nodes = append(inv.Nodes, n)
		if len(machine.Pods) == 0 {
			t.Errorf("machine %d is for nobody", i)
		}
		for _, p := range machine.Pods {
			if seat[p.Name] != "" {
				t.Errorf("%s has two seats", p.Name)
			}
			seat[p.Name] = n.Name
		}
	}
	for _, p := range pods {
		others := inv
		for _, q := range pods {
			if q != p {
				others.Pods = append(others.Pods, pod(q.Name, 0, func(bound *corev1.Pod) { *bound = *q.DeepCopy() }, on(seat[q.Name])))
			}
		}
		s := cluster(t, others)
		if a := fit(t, s, placement.Ask{Pods: []*corev1.Pod{p}, Nodes: choose(s, seat[p.Name]), Tolerate: []corev1.Toleration{guest()}}); !a.OK() {
			t.Errorf("%s does not fit on %q: %s", p.Name, seat[p.Name], a.Misfit[0])
		}
	}
}

// Whoever comes first in the lists, the mixture costs the same.
func TestMixOfShuffledPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var pods []*corev1.Pod
		for i := range rapid.IntRange(2, 8).Draw(t, "pods") {
			pods = append(pods, pod(fmt.Sprintf("p%d", i), rapid.Int64Range(1, 4).Draw(t, "gpus")))
		}
		wares := []goods{ware(1, 10), ware(2, 17), ware(4, 30)}
		s := cluster(t, placement.Inventory{})
		want := seatsOf(mixOf(t, s, pods, wares))
		if got := seatsOf(mixOf(t, s, rapid.Permutation(pods).Draw(t, "order"), wares)); !slices.Equal(got, want) {
			t.Errorf("%v, in another order %v", want, got)
		}
	})
}

func seatsOf(m placement.Mixture) (all []string) {
	for _, machine := range m.Machines {
		text := fmt.Sprint(machine.Ware)
		for _, p := range machine.Pods {
			text += " " + p.Name
		}
		all = append(all, text)
	}
	return all
}
