package infra_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// cases: F17 karpenter-provider-gcp#242: accepted is not gone.
func TestMachineEndsWithAllItsParts(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second)
	b.release()
	b.remove()
	b.once()
	b.wantReason(infra.Ready, "False Deleting")
	b.wantMade(1, 1)
	b.run(30 * time.Second)
	b.wantMade(1, 0)
	sm, m := b.get(), b.cloud.Snapshot()[0]
	if sm.Status.GoneAt == nil || !sm.Status.GoneAt.Time.Equal(m.Deleted) {
		t.Errorf("gone at %v, the cloud says %s", sm.Status.GoneAt, m.Deleted)
	}
	if len(sm.Finalizers) != 1 || sm.Finalizers[0] != "test/record" {
		t.Errorf("finalizers %q, want the record's alone", sm.Finalizers)
	}
}

func TestEndOfTheMeterIsNeverCutOff(t *testing.T) {
	b := newBench(t)
	b.clock.step(300 * time.Millisecond) // an API server keeps whole seconds
	b.run(20 * time.Second)
	b.release()
	b.remove()
	b.run(30 * time.Second)
	m, gone := b.cloud.Snapshot()[0], b.get().Status.GoneAt
	if gone == nil || gone.Time.Before(m.Deleted) || gone.Time.Sub(m.Deleted) > time.Second {
		t.Errorf("gone at %v, the cloud says %s: the bill would be too small", gone, m.Deleted)
	}
}

// cases: B-38 Cluster API core v1.14.2 isNodeDrainAllowed
func TestDirectDeletionIsHeldByTheGate(t *testing.T) {
	stamp := func(b *bench) time.Time { return b.get().Spec.Expires.Time }
	tests := map[string]struct {
		open func(*bench)
	}{
		"until the hook is released": {func(b *bench) { b.release() }},
		"until the Machine is gone": {func(b *bench) {
			if err := b.client.Delete(b.t.Context(), machineOf(b)); err != nil {
				b.t.Fatal(err)
			}
		}},
		"until the stamp": {func(b *bench) { b.clock.step(stamp(b).Sub(b.clock.Now())) }},
		"until the forced time": {func(b *bench) {
			forced := b.clock.Now().Add(5 * time.Minute)
			change(b, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) {
				sm.Annotations = map[string]string{infrav1.ForceDestroyAnnotation: forced.Format(time.RFC3339)}
			})
			b.run(4 * time.Minute)
			b.wantReason(infra.Ready, "False HeldByGate")
			b.clock.step(2 * time.Minute)
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.run(20 * time.Second)
			b.remove()
			b.run(3 * time.Minute)
			b.wantReason(infra.Ready, "False HeldByGate")
			b.wantMade(1, 1)
			if _, message := infra.Refusal(b.get()); !strings.Contains(message, "Delete the Burst instead") {
				t.Errorf("message %q does not say what to do", message)
			}
			tt.open(b)
			b.run(time.Minute)
			b.wantMade(1, 0)
		})
	}
}

func machineOf(b *bench) *clusterv1.Machine {
	m := &clusterv1.Machine{}
	change(b, m, name, func(*clusterv1.Machine) {})
	return m
}

// cases: D-13 openshift/installer#4083: "not found" is believed after a list.
func TestNotFoundIsNoProof(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second)
	b.release()
	b.remove()
	b.cloud.Script(fake.Fault{Op: "get", Effect: fake.FalseNotFound, Times: 3})
	b.once()
	if b.get().Status.GoneAt != nil {
		t.Fatal("gone was recorded on the word of one 404")
	}
	b.run(2 * time.Minute)
	b.wantMade(1, 0)
}

// cases: B-25 kubernetes-sigs/cluster-api-provider-aws#2606, D-10
// kubernetes-sigs/cluster-api-provider-openstack#906
func TestBlockedCleanupIsSaidAndNeverGivenUp(t *testing.T) {
	tests := map[string]struct{ block, heal func(*bench) }{
		"the credential is refused": {
			func(b *bench) { b.cloud.Rotate("another") }, func(b *bench) { b.cloud.Rotate(secret) },
		},
		"the credentials Secret is gone": {
			func(b *bench) {
				b.rec.Drivers = func(context.Context, string) (providers.Driver, error) {
					return nil, errors.New("secret west-credentials not found")
				}
			}, func(b *bench) { b.restart() },
		},
		"deletes fail": {
			func(b *bench) { b.cloud.Script(fake.Fault{Op: "delete", Effect: fake.ServerError, Times: 1000}) },
			func(b *bench) { b.cloud.Heal() },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.run(20 * time.Second)
			b.release()
			tt.block(b)
			b.remove()
			b.run(30 * time.Minute)
			b.wantReason(infra.Ready, "False CleanupBlocked")
			if _, message := infra.Refusal(b.get()); !strings.Contains(message, "may still be billed") {
				t.Errorf("message %q does not say that it costs", message)
			}
			tt.heal(b)
			b.run(time.Minute)
			b.wantMade(1, 0)
		})
	}
}

// cases: B-32 kubernetes-sigs/cluster-api-provider-ionoscloud#363
func TestForgottenDeleteIsAskedAgain(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second)
	b.release()
	b.cloud.Script(fake.Fault{Op: "delete", Effect: fake.StuckDelete, Times: 2})
	b.remove()
	b.run(30 * time.Second)
	b.wantMade(1, 1)
	b.run(3 * time.Minute)
	b.wantMade(1, 0)
}

// cases: B-4 kubernetes-sigs/cluster-api#7237: deleted before it was ever seen.
func TestDeletionBeforeTheMachineIsSeen(t *testing.T) {
	t.Run("the create's outcome is unknown and the list lags", func(t *testing.T) {
		b := newBench(t)
		b.cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: 50 * time.Second})
		b.cloud.Script(fake.Fault{Op: "create", Effect: fake.LostResponse})
		b.once()
		b.release()
		b.remove()
		b.once()
		if b.get().Status.GoneAt != nil {
			t.Fatal("gone was recorded while a machine may still turn up")
		}
		b.run(3 * time.Minute)
		b.wantMade(1, 0)
		sm := b.get()
		if sm.Status.GoneAt == nil {
			t.Error("gone was never recorded")
		}
		if sm.Status.InstanceID == "" || sm.Status.CreatedAt == nil {
			t.Errorf("the machine cost money, and what the meter needs is not recorded: %+v", sm.Status)
		}
	})
	t.Run("bought, and the list lags", func(t *testing.T) {
		b := newBench(t)
		b.cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: 50 * time.Second})
		b.once()
		b.release()
		b.remove()
		b.once()
		if left := b.cloud.Billing(); len(left) != 0 {
			t.Errorf("still billed: %+v", left)
		}
		b.run(3 * time.Minute)
		b.wantMade(1, 0)
	})
	t.Run("nothing was ever asked", func(t *testing.T) {
		b := newBench(t)
		b.release()
		b.remove()
		b.once()
		if sm := b.get(); sm.Status.GoneAt == nil || sm.Status.CreatedAt != nil {
			t.Errorf("gone %v, created %v", sm.Status.GoneAt, sm.Status.CreatedAt)
		}
		b.wantMade(0, 0)
	})
}

// cases: B-13 kubernetes-sigs/cluster-api-provider-openstack#1404, D-68
// skypilot-org/skypilot PR#2990: what half creates left behind is said, and
// goes with the object.
func TestLeftoversGoWithTheObject(t *testing.T) {
	b := newBench(t)
	b.cloud.Script(fake.Fault{Op: "create", Effect: fake.HalfMade}, fake.Fault{Op: "delete", Effect: fake.ServerError})
	b.run(10 * time.Second)
	if left := b.cloud.Billing(); len(left) != 1 || left[0].State != providers.StateLeftover {
		t.Fatalf("billed: %+v, want one leftover", left)
	}
	b.release()
	b.remove()
	b.run(time.Minute)
	b.wantMade(1, 0)
}
