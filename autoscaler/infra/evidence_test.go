package infra_test

import (
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// A machine whose create was answered by nobody, and which the sweeper outside
// has ended before the controller came back, has cost money: the cloud's record
// of it is what is charged.
func TestMachineThatNobodySawIsRecorded(t *testing.T) {
	b := newBench(t)
	b.cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: 50 * time.Second})
	b.cloud.Script(fake.Fault{Op: "create", Effect: fake.LostResponse})
	for b.creates() == 0 {
		b.once()
	}
	b.clock.step(b.get().Spec.Expires.Sub(b.clock.Now()) + time.Second) // away past the stamp
	if _, err := infra.Sweep(t.Context(), b.driver, nil, infra.SweepRules{StampsOnly: true}, b.clock.Now); err != nil {
		t.Fatal(err)
	}
	b.clock.step(time.Hour)
	b.run(5 * time.Minute)
	b.release()
	b.remove()
	b.run(5 * time.Minute)
	b.wantMade(1, 0)
	m, s := b.cloud.Snapshot()[0], b.get().Status
	if s.InstanceID != m.ID || s.CreatedAt == nil || !s.CreatedAt.Time.Equal(m.Created) || s.GoneAt == nil || !s.GoneAt.Time.Equal(m.Deleted) {
		t.Errorf("recorded %q from %v to %v; the cloud had %s from %s to %s", s.InstanceID, s.CreatedAt, s.GoneAt, m.ID, m.Created, m.Deleted)
	}
}

// A usage record that can't be had at once is awaited, as the bill goes by it;
// one that never comes holds nothing up for ever, and our own first sight of the
// end stands.
func TestUsageRecordIsAwaited(t *testing.T) {
	for name, tt := range map[string]struct {
		failures int
		clouds   bool // the cloud's time is recorded
	}{
		"it comes after some failures": {failures: 5, clouds: true},
		"it never comes":               {failures: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.rec.Timing.Poll = 20 * time.Second // we see the end long after it came
			b.run(30 * time.Second)
			b.release()
			b.cloud.Script(fake.Fault{Op: "usage", Effect: fake.ServerError, Times: tt.failures})
			b.remove()
			b.run(time.Minute)
			b.wantReason(infra.Ready, "False Gone")
			if at := b.get().Status.GoneAt; at != nil {
				t.Fatalf("the end is recorded as %s before the cloud's record of it could be read", at)
			}
			b.run(15 * time.Minute)
			end, at := b.cloud.Snapshot()[0].Deleted, b.get().Status.GoneAt
			switch {
			case at == nil:
				t.Error("the end was never recorded")
			case tt.clouds && !at.Time.Equal(end):
				t.Errorf("recorded end %s, the cloud's is %s", at, end)
			case !tt.clouds && (!at.After(end) || at.Sub(end) > 25*time.Second):
				t.Errorf("recorded end %s: want our first sight of it, shortly after %s", at, end)
			}
		})
	}
}

// Parts that an earlier call of the token has left behind are no instance and
// have no meter.
func TestLeftoverIsNoInstance(t *testing.T) {
	b := newBench(t)
	b.cloud.Plant(providers.Machine{Token: token, Installation: installation, State: providers.StateLeftover})
	b.run(20 * time.Second)
	b.wantReason(infra.Purchased, "False Broken")
	b.release()
	b.remove()
	b.run(5 * time.Minute)
	b.wantMade(1, 0)
	if s := b.get().Status; s.InstanceID != "" || s.GoneAt == nil {
		t.Errorf("recorded as an instance, or not gone: %+v", s)
	}
	if n := b.creates(); n != 0 {
		t.Errorf("%d creates were asked for", n)
	}
}

// A machine that came and went without ever being listed was bought: where the
// cloud's own record knows it, nothing is bought again under its token.
func TestMachineThatWasNeverListedIsNotBoughtAgain(t *testing.T) {
	b := newBench(t)
	b.cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: 50 * time.Second})
	b.cloud.Script(fake.Fault{Op: "create", Effect: fake.LostResponse}, fake.Fault{Op: "usage", Effect: fake.ServerError})
	for b.creates() == 0 {
		b.once()
	}
	b.cloud.Vanish(b.cloud.Snapshot()[0].ID)
	b.run(10 * time.Minute)
	b.wantMade(1, 0)
	b.wantReason(infra.Purchased, "False Vanished")
	if n := b.creates(); n != 1 {
		t.Errorf("%d creates were asked for, want one", n)
	}
	m, s := b.cloud.Snapshot()[0], b.get().Status
	if s.InstanceID != m.ID || s.GoneAt == nil || !s.GoneAt.Time.Equal(m.Deleted) {
		t.Errorf("recorded %q until %v; the cloud had %s until %s", s.InstanceID, s.GoneAt, m.ID, m.Deleted)
	}
}
