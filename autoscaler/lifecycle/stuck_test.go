package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/quota"
)

// TestNoNeighbourHoldsAMachine: whatever stays down, in whatever step, the
// burst ends, its machine goes back and its money is settled.
//
// cases: B-7 kubernetes-sigs/cluster-api#1870, #2998 (the kubelet is dead and its
// pods never end), H-32 benbjohnson/litestream#1083, #1515 (staging stands still, the
// node is not left idling on it), H-21 kubernetes-sigs/kueue#14811
func TestNoNeighbourHoldsAMachine(t *testing.T) {
	tests := map[string]struct {
		from   string // the fact after which the neighbour goes down; empty: from the start
		down   func(*bench)
		want   string        // in the end
		within time.Duration // from the fault to the machine's end; 0: the burst's deadline
	}{
		"the stager can't make a key": {
			"", func(b *bench) { b.vault.prepare = errDown() }, v1alpha1.EndStagingStalled, time.Hour,
		},
		"staging never ends": {
			"", func(b *bench) { b.vault.unstaged = true }, v1alpha1.EndStagingStalled, time.Hour,
		},
		"the staging store goes down while the machine boots": {
			"", func(b *bench) { b.vault.unstaged = true; b.later(time.Minute, func() { b.vault.stage = errDown() }) }, v1alpha1.EndStagingStalled, time.Hour,
		},
		"the machine is lost while its node waits for the key": {
			v1alpha1.NodeJoined, func(b *bench) { b.vault.release = errDown(); b.yard.lose() }, v1alpha1.EndMachineLost, time.Hour,
		},
		"the node reboots before it holds the key": {
			v1alpha1.NodeJoined, func(b *bench) { b.reboot() }, v1alpha1.EndMachineLost, time.Hour,
		},
		"the node never fills its cache": {
			v1alpha1.NodeJoined, func(b *bench) { b.agents.empty = true }, v1alpha1.EndStagingStalled, time.Hour,
		},
		"the pods can't be let in": {
			v1alpha1.NodeJoined, func(b *bench) { b.work.admit = map[string]error{"pod-0": errDown()} }, v1alpha1.EndReadyDeadline, time.Hour,
		},
		"the records can't be written any more": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.full(); b.later(2*time.Hour, b.free) }, "ResultsLost", time.Hour,
		},
		"the source store goes down while the work runs": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.vault.release = errDown() }, "Succeeded", 0,
		},
		"the node falls silent while the work runs": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.timers = nil; b.agents.silent = true }, v1alpha1.EndMachineLost, 90 * time.Minute,
		},
		"the machine powers off while the work runs": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.timers = nil; b.agents.silent = true; b.yard.off() }, v1alpha1.EndMachineLost, time.Hour,
		},
		"results can't be verified": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.vault.hand = errDown() }, "ResultsLost", time.Hour,
		},
		"the staging store can't be emptied": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.vault.erase = errDown(); b.later(3*time.Hour, func() { b.vault.erase = nil }) }, "Succeeded", time.Hour,
		},
		"the node never proves its wipe": {
			v1alpha1.PodsAdmitted, func(b *bench) { b.agents.silent = true }, "ResultsLost", time.Hour,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1, 1)
			b.serve()
			if tt.from != "" {
				b.live(tt.from)
			}
			tt.down(b)
			fault := b.now
			b.liveOn(6 * time.Hour)
			if got := b.fact(v1alpha1.Failed) + b.fact(v1alpha1.WorkDone); !strings.Contains(got, tt.want) {
				t.Errorf("the burst ended with %q, want %s; %v", got, tt.want, b.facts())
			}
			if !b.books.settled && b.books.reserved {
				t.Error("its money is not settled")
			}
			by := b.burst().Spec.Deadline.Add(time.Hour)
			if tt.within > 0 {
				by = fault.Add(tt.within)
			}
			for _, v := range b.yard.views {
				if v.Gone.IsZero() || v.Gone.After(by) {
					t.Errorf("machine %s was gone at %s, want it by %s", v.Name, v.Gone, by)
				}
			}
		})
	}
}

// TestWhatCanNeverStartEndsSoon: a burst that can never start gives its
// money back soon, not at its deadline.
func TestWhatCanNeverStartEndsSoon(t *testing.T) {
	b := newBench(t, 1, 1)
	if err := b.client.Delete(t.Context(), &v1alpha1.BurstProvider{ObjectMeta: metav1.ObjectMeta{Name: "west"}}); err != nil {
		t.Fatal(err)
	}
	begin := b.now
	b.live(v1alpha1.Failed)
	if took := b.now.Sub(begin); took > 15*time.Minute || !b.books.settled || len(b.yard.views) > 0 {
		t.Errorf("a burst without provider took %s, settled %t, machines %v", took, b.books.settled, b.yard.views)
	}
}

// TestAnOpenOverrunIsExplained: the ledger's no is an answer, not a failure to
// be repeated for ever.
func TestAnOpenOverrunIsExplained(t *testing.T) {
	b := newBench(t, 1, 1)
	b.books.err = fmt.Errorf("reserve: %w by 3.00 EUR: accept the overrun", quota.ErrOverrun)
	b.live(v1alpha1.Failed)
	if got := b.fact(v1alpha1.Failed); !strings.Contains(got, "accept the overrun") {
		t.Errorf("Failed = %s", got)
	}
}

// TestLogsThatCanNeverComeHoldNobody: the user deleted the Job, and its pods
// went with their logs.
func TestLogsThatCanNeverComeHoldNobody(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.PodsAdmitted)
	b.place("pod-0", 0, corev1.PodRunning)
	if _, err := b.turn(); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "pod-0"}}
	if err := b.client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.work.logs = apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "pod-0")
	deleted := b.now
	b.live(v1alpha1.MachineGone)
	if took := b.now.Sub(deleted); took > 5*time.Minute {
		t.Errorf("the machine stayed for %s after the Job was deleted", took)
	}
}

// TestTheJoinTokenOutlivesTheWait: the token is valid for as long as a node may
// take to join, however late its machine was bought, and the end says so.
//
// cases: B-10 kubernetes-sigs/cluster-api#1433, #2770, #3734,
// gardener/machine-controller-manager#772, aws/eks-anywhere#2372; B-19
// k0rdent/kcm#1077 (the end names the providerID that was awaited)
func TestTheJoinTokenOutlivesTheWait(t *testing.T) {
	b := newBench(t, 1, 1)
	b.yard.absent = true
	b.live(v1alpha1.MachineBought)
	s, p := b.r.Settings, &v1alpha1.BurstProvider{}
	requested, bought := b.burst().Status.Lease.Issued.Time, b.now
	if token, wait := s.JoinBy(p, requested), s.joinBy(p, bought); token.Before(wait) {
		t.Errorf("the token ends at %s, the node may join until %s", token, wait)
	}
	b.liveOn(time.Hour)
	got := b.fact(v1alpha1.Failed)
	for _, want := range []string{v1alpha1.EndJoinDeadline, "join token", "spillway://spw-0123abcd-0"} {
		if !strings.Contains(got, want) {
			t.Errorf("Failed = %s, want %q in it", got, want)
		}
	}
	if b.yard.views[0].Gone.IsZero() || !b.books.settled || b.books.settlement.Cause != quota.CauseProviderFault {
		t.Errorf("machine %+v, settlement %+v", b.yard.views[0], b.books.settlement)
	}
}

// TestTheMeterStopsWhereTheMachineWent: a machine that the cloud takes away
// while the work runs is paid to that second, and nothing is put in its place.
//
// cases: B-17 kubernetes-sigs/cluster-api-provider-openstack#1741, B-31
// aws/karpenter-provider-aws#9226, kubernetes-sigs/cluster-api-provider-aws#1899
func TestTheMeterStopsWhereTheMachineWent(t *testing.T) {
	b := newBench(t, 1, 1)
	b.work.onAdmit = func(name string) { b.place(name, 0, corev1.PodRunning) }
	b.live(v1alpha1.PodsAdmitted)
	b.now = b.now.Add(17 * time.Minute)
	b.yard.lose()
	lost := b.now
	b.agents.silent = true
	b.liveOn(2 * time.Hour)
	if got := b.books.settlement.MachineEnd; !got.Equal(lost) {
		t.Errorf("paid until %s, the machine went at %s", got, lost)
	}
	if len(b.yard.views) != 1 || !strings.Contains(b.fact(v1alpha1.WorkDone), v1alpha1.EndMachineLost) {
		t.Errorf("machines %+v, WorkDone = %s", b.yard.views, b.fact(v1alpha1.WorkDone))
	}
}

// TestPodsAreLetInWhenTheGPUsAreThere, not when the node is Ready.
//
// cases: H-20 NVIDIA/k8s-device-plugin#291, B-20 kubernetes-sigs/cluster-api#8357
func TestPodsAreLetInWhenTheGPUsAreThere(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.MachineBought)
	b.yard.tick()
	node := &corev1.Node{}
	key := types.NamespacedName{Name: capi.NodeName(burstUID, 0)}
	set := func(gpus string) {
		if err := b.client.Get(t.Context(), key, node); err != nil {
			t.Fatal(err)
		}
		node.Status.Allocatable = corev1.ResourceList{gpu: resource.MustParse(gpus)}
		if err := b.client.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	set("0")
	for range 5 {
		b.step()
	}
	if len(b.work.admitted) > 0 {
		t.Fatal("a pod was let in before the GPUs were allocatable")
	}
	set("1")
	b.live(v1alpha1.PodsAdmitted)
}
