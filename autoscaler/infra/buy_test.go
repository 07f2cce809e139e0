package infra_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
	"spillway.dev/spillway/quota"
)

func TestOneMachineIsBought(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second)
	b.wantMade(1, 1)
	b.wantReason(infra.Ready, "True Running")
	b.wantReason(infra.Purchased, "True Listed")
	sm, m := b.get(), b.cloud.Snapshot()[0]
	if !infra.Provisioned(sm) || sm.Status.InstanceID != m.ID {
		t.Errorf("provisioned %v with instance %q, want instance %q", infra.Provisioned(sm), sm.Status.InstanceID, m.ID)
	}
	if m.Installation != installation || m.Burst != "burst-uid" || m.Tenant != "t1" || m.Name != name || !m.Expires.Equal(sm.Spec.Expires.Time) {
		t.Errorf("the cloud's machine is tagged %+v", m)
	}
	if !sm.Status.CreatedAt.Time.Equal(m.Created) || !sm.Status.StartedAt.Time.Equal(m.Started) {
		t.Errorf("created %s, started %s; the cloud says %s, %s", sm.Status.CreatedAt, sm.Status.StartedAt, m.Created, m.Started)
	}
	if b.permits.calls != 1 || b.creates() != 1 {
		t.Errorf("%d permits and %d creates, want one each", b.permits.calls, b.creates())
	}
}

func TestNothingIsBoughtBeforeItsTime(t *testing.T) {
	tests := map[string]struct {
		set  func(*bench)
		want string // of condition Ready
	}{
		"no Machine owns it": {
			func(b *bench) {
				change(b, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) { sm.OwnerReferences = nil })
			}, "False WaitingForMachine",
		},
		"the owner is another Machine of that name": {
			func(b *bench) {
				change(b, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) { sm.OwnerReferences[0].UID = "older" })
			}, "False WaitingForMachine",
		},
		// cases: B-22 metal3-io/cluster-api-provider-metal3#2086
		"the Machine names no bootstrap data": {
			func(b *bench) {
				change(b, &clusterv1.Machine{}, name, func(m *clusterv1.Machine) { m.Spec.Bootstrap.DataSecretName = nil })
			}, "False WaitingForBootstrap",
		},
		"the bootstrap Secret is empty": {
			func(b *bench) {
				change(b, &corev1.Secret{}, name+"-userdata", func(s *corev1.Secret) { s.Data = nil })
			}, "False WaitingForBootstrap",
		},
		"the Cluster is paused": {
			func(b *bench) {
				yes := true
				change(b, &clusterv1.Cluster{}, "onprem", func(c *clusterv1.Cluster) { c.Spec.Paused = &yes })
			}, "",
		},
		// cases: B-26 kubernetes-sigs/cluster-api#9629
		"the Machine is being deleted": {
			func(b *bench) {
				change(b, &clusterv1.Machine{}, name, func(m *clusterv1.Machine) { m.Finalizers = []string{"test/hold"} })
				if err := b.client.Delete(b.t.Context(), &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
					b.t.Fatal(err)
				}
			}, "False Deleting",
		},
		"the Cluster is being deleted": {
			func(b *bench) {
				change(b, &clusterv1.Cluster{}, "onprem", func(c *clusterv1.Cluster) { c.Finalizers = []string{"test/hold"} })
				if err := b.client.Delete(b.t.Context(), &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "onprem"}}); err != nil {
					b.t.Fatal(err)
				}
			}, "False Deleting",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			tt.set(b)
			b.run(5 * time.Minute)
			b.wantMade(0, 0)
			b.wantReason(infra.Ready, tt.want)
			if b.permits.calls > 0 {
				t.Errorf("%d permits were taken", b.permits.calls)
			}
		})
	}
}

// cases: B-22: only the name of the Secret is asked for, never bootstrapDataSecretCreated.
func TestBootstrapDataThatClusterAPINeverReportsIsEnough(t *testing.T) {
	b := newBench(t)
	m := &clusterv1.Machine{}
	change(b, m, name, func(*clusterv1.Machine) {})
	if m.Status.Initialization.BootstrapDataSecretCreated != nil {
		t.Fatal("the bench reports bootstrap data as created")
	}
	b.run(10 * time.Second)
	b.wantMade(1, 1)
}

// cases: D-55 outscale/cluster-api-provider-outscale#917: the finalizer stands
// before the first call.
func TestFinalizerComesFirst(t *testing.T) {
	b := newBench(t)
	change(b, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) { sm.Finalizers = nil })
	b.once()
	if got := b.get().Finalizers; len(got) != 1 || got[0] != infrav1.MachineFinalizer {
		t.Errorf("finalizers %q after the first pass", got)
	}
	if b.permits.calls > 0 || len(b.cloud.Calls()) > 0 {
		t.Error("something outside happened in the pass that wrote the finalizer")
	}
	b.run(10 * time.Second)
	b.wantMade(1, 1)
}

// cases: H-2, D-16 cloudbase/garm#79, D-38 hashicorp/terraform-provider-aws#27543
func TestUnknownOutcomeIsLookedUp(t *testing.T) {
	tests := map[string]struct {
		faults  []fake.Fault
		lag     time.Duration
		creates int
	}{
		"503, but it was made":                  {faults: []fake.Fault{{Op: "create", Effect: fake.ServerErrorAfter}}, creates: 1},
		"the answer was lost":                   {faults: []fake.Fault{{Op: "create", Effect: fake.LostResponse}}, creates: 1},
		"made, and the list lags":               {faults: []fake.Fault{{Op: "create", Effect: fake.LostResponse}}, lag: 50 * time.Second, creates: 1},
		"503, and it was not made":              {faults: []fake.Fault{{Op: "create", Effect: fake.ServerError}}, creates: 2},
		"the request was lost three times":      {faults: []fake.Fault{{Op: "create", Effect: fake.LostRequest, Times: 3}}, creates: 4},
		"made, and the look behind fails":       {faults: []fake.Fault{{Op: "create", Effect: fake.LostResponse}, {Op: "list", Effect: fake.LostResponse}}, creates: 1},
		"made, and the list is cut short twice": {faults: []fake.Fault{{Op: "create", Effect: fake.LostResponse}, {Op: "list", Effect: fake.Incomplete, Times: 2}}, creates: 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: tt.lag})
			b.cloud.Script(tt.faults...)
			b.run(6 * time.Minute)
			b.wantMade(1, 1)
			b.wantReason(infra.Ready, "True Running")
			if got := b.creates(); got != tt.creates {
				t.Errorf("%d creates reached the cloud, want %d", got, tt.creates)
			}
		})
	}
}

func TestNothingIsAskedAgainBeforeTheSecondLook(t *testing.T) {
	b := newBench(t)
	b.cloud.Script(fake.Fault{Op: "create", Effect: fake.ServerError})
	b.once()
	b.wantReason(infra.Purchased, "Unknown OutcomeUnknown")
	b.clock.step(59 * time.Second)
	b.once()
	if got := b.creates(); got != 1 {
		t.Errorf("%d creates within the first minute, want 1", got)
	}
	b.clock.step(3 * time.Second)
	b.once()
	if got := b.creates(); got != 2 {
		t.Errorf("%d creates after the second look, want 2", got)
	}
}

func TestRefusals(t *testing.T) {
	tests := map[string]struct {
		faults []fake.Fault
		reason string
		words  string // the cloud's own
		billed int
	}{
		"no stock":     {[]fake.Fault{{Op: "create", Effect: fake.SoldOut}}, infra.RefusedSoldOut, "no capacity for this type here", 0},
		"our limit":    {[]fake.Fault{{Op: "create", Effect: fake.LimitReached}}, infra.RefusedLimitReached, "Quota exceeded for cores", 0},
		"never valid":  {[]fake.Fault{{Op: "create", Effect: fake.Invalid}}, infra.RefusedRejected, "image not found", 0},
		"left nothing": {[]fake.Fault{{Op: "create", Effect: fake.HalfMade}}, infra.RefusedSoldOut, "No valid host was found.", 0},
		"left parts": {
			[]fake.Fault{{Op: "create", Effect: fake.HalfMade}, {Op: "delete", Effect: fake.ServerError}},
			infra.RefusedCleanupFailed, "backend is down", 1,
		},
		// cases: D-25, B-14 kubernetes-sigs/cluster-api-provider-openstack#3375: the words end in a blank
		"no stock, found later": {[]fake.Fault{{Op: "create", Effect: fake.SoldOutLater}}, infra.RefusedSoldOut, "No valid host was found.", 1},
		"breaks later":          {[]fake.Fault{{Op: "create", Effect: fake.BreaksLater}}, infra.RefusedBroken, "disk pressure", 1},
		// cases: H-8 cloudpilot-ai/karpenter-provider-gcp#176
		"vanishes by itself": {[]fake.Fault{{Op: "create", Effect: fake.VanishesLater}}, infra.RefusedVanished, "address space exhausted", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.cloud.Script(tt.faults...)
			b.run(5 * time.Minute)
			reason, message := infra.Refusal(b.get())
			if reason != tt.reason || !strings.Contains(message, tt.words) || strings.HasSuffix(message, " ") {
				t.Errorf("refused as %q with %q, want %q with %q", reason, message, tt.reason, tt.words)
			}
			if got := len(b.cloud.Billing()); got != tt.billed {
				t.Errorf("%d machines or leftovers are billed, want %d", got, tt.billed)
			}
			if got := b.creates(); got != 1 {
				t.Errorf("%d creates, want 1: a refused attempt is over", got)
			}
			b.release()
			b.remove()
			b.run(2 * time.Minute)
			if sm := b.get(); sm == nil || sm.Status.GoneAt == nil {
				t.Error("no time of the end is recorded")
			}
			b.wantMade(b.made(), 0)
		})
	}
}

// cases: H-33 prometheus/alertmanager#2111
func TestThrottledCreateWaitsAndGoesOn(t *testing.T) {
	b := newBench(t)
	b.cloud.Script(fake.Fault{Op: "create", Effect: fake.Throttle, RetryAfter: 20 * time.Second})
	b.once()
	b.clock.step(19 * time.Second)
	b.once()
	if got := b.creates(); got != 1 {
		t.Errorf("%d creates while the cloud wanted silence, want 1", got)
	}
	b.clock.step(2 * time.Second)
	b.run(20 * time.Second)
	b.wantMade(1, 1)
	b.wantReason(infra.Ready, "True Running")
}

func TestUnauthorizedIsSaidAndTriedAgain(t *testing.T) {
	b := newBench(t)
	b.cloud.Rotate("another")
	b.run(2 * time.Minute)
	b.wantReason(infra.Ready, "False CloudTrouble")
	if reason, message := infra.Refusal(b.get()); reason != "" || !strings.Contains(message, "unauthorized") {
		t.Errorf("refused as %q, message %q", reason, message)
	}
	b.cloud.Rotate(secret)
	b.run(time.Minute)
	b.wantMade(1, 1)
}

func TestLedgersNoIsFinalOrNot(t *testing.T) {
	tests := map[string]struct {
		err    error
		reason string
		fails  bool
	}{
		"no reservation":       {fmt.Errorf("burst-uid: %w", quota.ErrUnknownBurst), infra.RefusedNoReservation, false},
		"settled":              {quota.ErrSettled, infra.RefusedNoReservation, false},
		"a newer leader is on": {quota.ErrStaleEpoch, "", true},
		"the file is locked":   {errKilled, "", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.permits.err = tt.err
			_, err := b.reconcile(t.Context())
			if (err != nil) != tt.fails {
				t.Errorf("Reconcile = %v, want an error: %v", err, tt.fails)
			}
			if reason, _ := infra.Refusal(b.get()); reason != tt.reason {
				t.Errorf("refused as %q, want %q", reason, tt.reason)
			}
			b.wantMade(0, 0)
			if tt.reason == "" { // an open case goes on when the ledger answers
				b.permits.err = nil
				b.run(30 * time.Second)
				b.wantMade(1, 1)
			}
		})
	}
}

func TestPermitUsedByAnUnknownHandIsLookedIntoFirst(t *testing.T) {
	b := newBench(t)
	if err := b.rec.Permits.Permit(t.Context(), "burst-uid", 0); err != nil {
		t.Fatal(err)
	}
	b.once()
	if got := b.creates(); got != 0 {
		t.Fatalf("%d creates on a permit that was used, want 0", got)
	}
	b.run(90 * time.Second)
	b.wantMade(1, 1)
}

// cases: H-1 kubernetes-sigs/karpenter#1448, H-4
// kubernetes-sigs/cluster-api-provider-openstack#2181
func TestMachineOfTheTokenIsAdopted(t *testing.T) {
	b := newBench(t)
	planted := b.cloud.Plant(providers.Machine{Token: token, Installation: installation, Expires: b.clock.Now().Add(time.Hour)})
	b.run(30 * time.Second)
	b.wantMade(1, 1)
	if got := b.get().Status.InstanceID; got != planted.ID || b.creates() != 0 || b.permits.calls != 0 {
		t.Errorf("instance %q after %d creates, want %q without any", got, b.creates(), planted.ID)
	}
}

// cases: B-11 kubernetes-sigs/cluster-api-provider-aws#6131, D-4
// kubernetes-sigs/cluster-api-provider-openstack#2088, D-17 kubernetes/kops#6650
func TestDuplicatesGoAndOthersStay(t *testing.T) {
	b := newBench(t)
	now := b.clock.Now()
	plant := func(tok, inst string, age time.Duration, state providers.State) string {
		return b.cloud.Plant(providers.Machine{Token: tok, Installation: inst, Created: now.Add(-age), State: state, Expires: now.Add(time.Hour)}).ID
	}
	broken := plant(token, installation, 3*time.Minute, providers.StateFailed)
	younger := plant(token, installation, time.Minute, providers.StateRunning)
	winner := plant(token, installation, 2*time.Minute, providers.StateRunning)
	foreign := plant(token, "other", 2*time.Minute, providers.StateRunning)
	longer := plant(token+"0", installation, 2*time.Minute, providers.StateRunning)
	b.run(2 * time.Minute)
	if got := b.get().Status.InstanceID; got != winner {
		t.Errorf("kept %q, want the oldest healthy one %q", got, winner)
	}
	alive := map[string]bool{}
	for _, m := range b.cloud.Billing() {
		alive[m.ID] = true
	}
	if !alive[winner] || !alive[foreign] || !alive[longer] || alive[younger] || alive[broken] {
		t.Errorf("alive: %v; want %q, foreign %q and other token %q; not %q, %q", alive, winner, foreign, longer, younger, broken)
	}
}

// cases: B-17 kubernetes-sigs/cluster-api-provider-openstack#1741, D-39
// karpenter#371, #4165
func TestRecordedMachineIsNeverBoughtAgain(t *testing.T) {
	t.Run("the list lags behind the create", func(t *testing.T) {
		b := newBench(t)
		b.cloud.Tune(fake.Timing{ListLag: 50 * time.Second})
		b.run(3 * time.Minute)
		b.wantMade(1, 1)
		b.wantReason(infra.Ready, "True Running")
	})
	t.Run("it was removed by another hand", func(t *testing.T) {
		b := newBench(t)
		b.run(20 * time.Second)
		gone := b.clock.Now()
		b.cloud.Vanish(b.get().Status.InstanceID)
		b.run(10 * time.Minute)
		b.wantMade(1, 0)
		if got := b.creates(); got != 1 {
			t.Errorf("%d creates, want 1", got)
		}
		sm := b.get()
		if reason, _ := infra.Refusal(sm); reason != infra.RefusedVanished {
			t.Errorf("refused as %q", reason)
		}
		if sm.Status.GoneAt == nil || !sm.Status.GoneAt.Time.Equal(gone) {
			t.Errorf("gone at %v, the cloud's record says %s", sm.Status.GoneAt, gone)
		}
	})
	t.Run("one list without it proves nothing", func(t *testing.T) {
		b := newBench(t)
		b.run(20 * time.Second)
		b.driver = &forgetful{Driver: b.driver, times: 1}
		b.once()
		b.wantReason(infra.Ready, "False Missing")
		b.run(3 * time.Minute)
		b.wantReason(infra.Ready, "True Running")
		b.wantReason(infra.Purchased, "True Listed")
	})
	t.Run("a list that fails proves nothing", func(t *testing.T) {
		b := newBench(t)
		b.run(20 * time.Second)
		b.cloud.Script(fake.Fault{Op: "list", Effect: fake.Incomplete, Times: 20})
		b.run(10 * time.Minute)
		b.wantReason(infra.Ready, "True Running")
	})
}

func TestStampFollowsTheSpec(t *testing.T) {
	b := newBench(t)
	b.run(20 * time.Second)
	later := b.get().Spec.Expires.Add(30 * time.Minute)
	change(b, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) { sm.Spec.Expires = metav1.NewTime(later) })
	b.cloud.Script(fake.Fault{Op: "extend", Effect: fake.ServerError})
	b.once()
	if got := b.get().Status.ExpiresAt.Time; !got.Before(later) {
		t.Errorf("the stamp is said to be at the cloud after a failed call: %s", got)
	}
	b.run(time.Minute)
	if got := b.cloud.Snapshot()[0].Expires; !got.Equal(later) {
		t.Errorf("stamp at the cloud %s, want %s", got, later)
	}
	if got := b.get().Status.ExpiresAt.Time; !got.Equal(later) {
		t.Errorf("recorded stamp %s, want %s", got, later)
	}
}

// forgetful is a driver whose first lists are empty.
type forgetful struct {
	providers.Driver
	times int
}

func (f *forgetful) List(ctx context.Context) ([]providers.Machine, error) {
	if f.times--; f.times >= 0 {
		return nil, nil
	}
	return f.Driver.List(ctx)
}

// careless is a driver that lists every machine of the account.
type careless struct {
	providers.Driver
	foreign []providers.Machine
}

func (c careless) List(ctx context.Context) ([]providers.Machine, error) {
	mine, err := c.Driver.List(ctx)
	return append(mine, c.foreign...), err
}

// A machine of another installation is neither adopted nor deleted, even when
// a driver shows it and its token is ours.
func TestForeignMachineIsNobodysDuplicate(t *testing.T) {
	b := newBench(t)
	foreign := b.cloud.Plant(providers.Machine{Token: token, Installation: "other", Created: b.clock.Now().Add(-time.Hour)})
	b.driver = careless{b.driver, []providers.Machine{foreign}}
	b.run(30 * time.Second)
	b.wantMade(2, 2)
	if got := b.get().Status.InstanceID; got == foreign.ID || got == "" {
		t.Errorf("instance %q, the foreign one is %q", got, foreign.ID)
	}
}
