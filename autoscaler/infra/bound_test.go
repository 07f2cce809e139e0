package infra_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
)

// deaf is a cloud that takes every connection and never answers.
type deaf struct{ providers.Driver }

func (deaf) List(ctx context.Context) ([]providers.Machine, error) {
	<-ctx.Done()
	return nil, &providers.Error{Op: "list", Err: ctx.Err()}
}

// TestADeafCloudHoldsUpNobody: every call of a cloud ends by itself, the
// sweeper's too.
func TestADeafCloudHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := infra.Sweep(t.Context(), deaf{}, nil, infra.SweepRules{}, time.Now)
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 2*time.Minute {
			t.Errorf("Sweep() = %v after %s", err, took)
		}
	})
	b := newBench(t)
	b.rec.Timing.Call = 20 * time.Millisecond
	b.rec.Drivers = func(context.Context, string) (providers.Driver, error) { return deaf{}, nil }
	b.once()
	b.wantReason(infra.Ready, "False CloudTrouble")
}

// TestNothingIsBoughtPastItsStamp: the controller was away for longer than the
// first lease.
func TestNothingIsBoughtPastItsStamp(t *testing.T) {
	b := newBench(t)
	b.clock.step(b.get().Spec.Expires.Sub(b.clock.Now()) + time.Second)
	b.run(3 * time.Minute)
	b.wantMade(0, 0)
	b.wantReason(infra.Purchased, "False TooLate")
}
