package plan_test

import (
	"sync"
	"testing"

	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/plan"
)

// The objects of a state are shared with the cache that it was read from: nothing
// is written to them, not even what they hold already: with -race the two that read
// one state at a time tell.
func TestDecideOnlyReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := draw(t)
		if rapid.Bool().Draw(t, "horizon") {
			g = drawHorizon(t)
		}
		s := stamped(t, g.daemonSet("1").s)
		confide(&s)
		before := text(t, s)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				plan.Decide(s)
				plan.Captured(s)
			})
		}
		wg.Wait()
		if text(t, s) != before {
			t.Fatal("the state was changed")
		}
	})
}
