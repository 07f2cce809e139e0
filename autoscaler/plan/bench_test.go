package plan_test

import (
	"fmt"
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/plan"
)

// BenchmarkDecide is one cycle from nothing: a cluster whose nodes have 8 GPUs
// and one free, 20 gangs of 1 to 4 pods that need whole nodes, 6 providers with
// 5 offers each. Nothing is kept between two rounds.
func BenchmarkDecide(b *testing.B) {
	for _, nodes := range []int{100, 1000} {
		s := crowded(nodes).s
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			bought := 0
			for b.Loop() {
				bought = len(plan.Decide(s).Bursts())
			}
			if bought != 20 {
				b.Fatalf("%d bursts, want 20", bought)
			}
			b.ReportMetric(float64(20*b.N)/b.Elapsed().Seconds(), "gangs/s")
		})
	}
}

func crowded(nodes int) given {
	g := site().budget("vision-month", "1000000 EUR")
	for i := range nodes {
		name := fmt.Sprintf("rack%05d", i)
		g = g.node(name, 8).running("old-"+name, name, 7, 0)
	}
	for i := range 6 {
		provider := fmt.Sprintf("p%d", i)
		g = g.offer(provider, 8, fmt.Sprintf("%d.50 EUR", 20+i))
		for j := range 4 {
			o := g.s.Offers[len(g.s.Offers)-1]
			o.InstanceType = fmt.Sprintf("gpu8-%d", j)
			o.Price.NanoPerHour += int64(j+1) * 1e9
			g.s.Offers = append(g.s.Offers, o)
		}
	}
	for i := range 20 {
		g = g.gang(fmt.Sprintf("train%02d", i), 8).times(1 + i%4).waiting(time.Hour)
		if i%2 == 0 {
			g = g.together()
		}
	}
	return g
}
