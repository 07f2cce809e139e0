package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// TestWhatRanIsCollected: one pod was let in and runs, the next could not be,
// and the Burst is deleted. That the fact of admission is missing must not let
// the node be wiped under the running pod's results.
func TestWhatRanIsCollected(t *testing.T) {
	b := newBench(t, 1, 2)
	b.work.admit = map[string]error{"pod-1": errDown()}
	b.work.onAdmit = func(name string) { b.place(name, 0, corev1.PodRunning) }
	b.live(v1alpha1.KeyReleased)
	b.step()
	if len(b.work.admitted) != 1 || b.has(v1alpha1.PodsAdmitted) {
		t.Fatalf("admitted %v, facts %v", b.work.admitted, b.facts())
	}
	b.now = b.now.Add(time.Second)
	b.delete()
	b.agents.silent = true // until the results were looked at, nothing may be wiped
	for range 5 {
		b.step()
	}
	for name, o := range b.agents.told {
		if o.Wipe != nil {
			t.Errorf("node %s is told to wipe before its results are home", name)
		}
	}
	b.agents.silent = false
	b.liveOn(time.Hour)
	if b.vault.collected == 0 || !strings.Contains(b.fact(v1alpha1.Failed), "Deleted") {
		t.Errorf("collected %d times, %v", b.vault.collected, b.facts())
	}
	if p := b.placed(); len(p) != 1 || p[0].Logs == "" {
		t.Errorf("the logs of what ran are not kept: %+v", p)
	}
}

// placed reads the pods that the burst remembers, also when it is deleted.
func (b *bench) placed() []v1alpha1.PlacedPod { return b.burst().Status.Placed }

// TestAGangIsBoundOnceEach: the controller died between two bindings. What was
// bound before takes its room.
func TestAGangIsBoundOnceEach(t *testing.T) {
	b := newBench(t, 2, 2, func(burst *v1alpha1.Burst) { burst.Spec.Gang.Together = true })
	b.work.bind = map[string]error{"pod-1": errDown()}
	b.live(v1alpha1.KeyReleased)
	b.step()
	b.work.bind = nil
	b.restart()
	b.live(v1alpha1.PodsAdmitted)
	want := map[string]string{"pod-0": capi.NodeName(burstUID, 0), "pod-1": capi.NodeName(burstUID, 1)}
	if diff := cmp.Diff(want, b.work.bound); diff != "" {
		t.Errorf("bindings (-want +got):\n%s", diff)
	}
}

// TestTheFirstLeaseIsSignedOnce: the controller dies between two machines and
// comes back later. The stamp of the first one and the lease in its user-data
// are the burst's, not older ones.
func TestTheFirstLeaseIsSignedOnce(t *testing.T) {
	b := newBench(t, 2, 2)
	b.yard.ensure = map[int32]error{1: errDown()}
	b.step()
	b.now = b.now.Add(4 * time.Minute)
	b.yard.ensure = nil
	b.restart()
	b.live(v1alpha1.MachineRequested)
	lease := b.burst().Status.Lease
	for _, v := range b.yard.views {
		if want := lease.Hard.Add(b.r.Settings.DeadMan); !v.Stamped.Equal(want) {
			t.Errorf("machine %s is stamped %s, the burst's lease asks for %s", v.Name, v.Stamped, want)
		}
	}
}

// TestKeysOfAnUnprovenNodeAreNamed: what the pods held in use may have stayed
// on a node that never proved its wipe.
func TestKeysOfAnUnprovenNodeAreNamed(t *testing.T) {
	b := newBench(t, 1, 1)
	b.pod("pod-0", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s3-keys"}}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "certificate"}}}}
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	})
	b.serve()
	b.live(v1alpha1.PodsAdmitted)
	b.agents.silent = true
	if err := b.client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: "pod-0"}}); err != nil {
		t.Fatal(err)
	}
	b.timers = nil
	b.live(v1alpha1.WipeUnproven)
	if got, want := b.fact(v1alpha1.WipeUnproven), "rotate what its pods held: Secrets certificate, registry, s3-keys"; !strings.Contains(got, want) {
		t.Errorf("WipeUnproven = %s, want %q in it", got, want)
	}
}

// TestANodeOfAnotherNameIsNotOurs: a rented machine that registers with the
// provider id of another gets neither its pods nor its key.
func TestANodeOfAnotherNameIsNotOurs(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.MachineBought)
	b.yard.tick()
	node := &corev1.Node{}
	if err := b.client.Get(t.Context(), types.NamespacedName{Name: b.yard.views[0].Node}, node); err != nil {
		t.Fatal(err)
	}
	node.Name, node.ResourceVersion = "spw-stranger-0", ""
	if err := b.client.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	b.yard.views[0].Node = node.Name
	for range 5 {
		b.step()
	}
	if b.has(v1alpha1.NodeJoined) {
		t.Error("the burst took a node of another name for its own")
	}
}

// TestAllMachinesGoBack: of three machines two are bought and the third is
// sold out; every one is given back, and what was used is paid.
func TestAllMachinesGoBack(t *testing.T) {
	b := newBench(t, 3, 3)
	b.live(v1alpha1.MachineRequested)
	b.yard.slow = true
	for i := range 2 {
		v := &b.yard.views[i]
		v.Bought, v.InstanceID, v.Created, v.Started = true, fmt.Sprint("i-", i), b.now, b.now
	}
	b.yard.views[2].Refusal = "SoldOut"
	b.liveOn(time.Hour)
	if got := b.fact(v1alpha1.Failed); !strings.Contains(got, "SoldOut") {
		t.Errorf("Failed = %s", got)
	}
	for _, v := range b.yard.views {
		if v.Gone.IsZero() {
			t.Errorf("machine %s stayed", v.Name)
		}
	}
	if !b.books.settled || b.books.settlement.Seconds == 0 || b.books.settlement.Cause != quota.CauseProviderFault {
		t.Errorf("settlement %+v", b.books.settlement)
	}
}

// TestTheGateStaysOpenForResults: the Burst is deleted while its pod runs, and
// the controller restarts. The gate has forgotten its grants: without new ones
// nothing that the pod gives back could come home.
func TestTheGateStaysOpenForResults(t *testing.T) {
	b := newBench(t, 1, 1)
	b.work.onAdmit = func(name string) { b.place(name, 0, corev1.PodRunning) }
	b.live(v1alpha1.PodsAdmitted)
	b.vault.hand = errDown() // the results are not home yet
	b.delete()
	b.step()
	b.restart()
	b.vault.prepared = 0
	b.step()
	if b.has(v1alpha1.ResultsHome) || b.vault.prepared == 0 {
		t.Errorf("the gate was opened %d times after the restart; %v", b.vault.prepared, b.facts())
	}
	b.vault.hand = nil
	b.untilOver()
}

// TestANodeCantDenyTheKey: a proof that leaves out the key that the node was
// given is no proof of its end, and no certificate says so.
func TestANodeCantDenyTheKey(t *testing.T) {
	b := newBench(t, 1, 1)
	b.serve()
	b.agents.denies = true
	b.liveOn(6 * time.Hour)
	if !strings.Contains(b.fact(v1alpha1.WipeUnproven), "never had the data key") || b.has(v1alpha1.Wiped) {
		t.Errorf("Wiped = %s, WipeUnproven = %s", b.fact(v1alpha1.Wiped), b.fact(v1alpha1.WipeUnproven))
	}
	if c := b.burst().Status.Certificate; c == nil || c.Level != string(wipe.Unproven) {
		t.Errorf("certificate %+v", c)
	}
}

// TestTheWipeIsCertifiedUnprovenInTime: a node that never answers is deleted at
// the deadline all the same, and the certificate says what is not known.
func TestTheWipeIsCertifiedUnprovenInTime(t *testing.T) {
	b := newBench(t, 1, 1)
	b.serve()
	b.live(v1alpha1.WorkDone)
	done := b.now
	b.agents.silent = true
	b.liveOn(2 * time.Hour)
	if gone, most := b.yard.views[0].Gone, done.Add(b.r.Settings.WipeDeadline+time.Minute); gone.IsZero() || gone.After(most) {
		t.Errorf("the machine was gone at %s, want it by %s", gone, most)
	}
	if c := b.burst().Status.Certificate; c == nil || c.Level != string(wipe.Unproven) {
		t.Errorf("certificate %+v", c)
	}
}
