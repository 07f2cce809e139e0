package lifecycle

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
)

// What machines turned out to be is kept with their provider, written when it
// is new, and the last types of many.
func TestLearn(t *testing.T) {
	b := newBench(t, 1, 1)
	join := func(name, kind, cpu string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"nvidia.com/gpu.product": kind}}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		if err := b.client.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		burst := b.burst()
		burst.Spec.Offer.InstanceType = kind
		if err := b.r.learn(t.Context(), record{burst, b.now}, []capi.View{{Node: name}}); err != nil {
			t.Fatal(err)
		}
	}
	west := func() *v1alpha1.BurstProvider {
		t.Helper()
		p := &v1alpha1.BurstProvider{}
		if err := b.client.Get(t.Context(), types.NamespacedName{Name: "west"}, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	join("n1", "a", "15")
	join("n2", "b", "15")
	first := west()
	join("n3", "a", "15")
	if again := west(); again.ResourceVersion != first.ResourceVersion || len(again.Status.Learned) != 2 {
		t.Errorf("the same is written again: %+v", again.Status.Learned)
	}
	join("n4", "a", "14")
	if got := west().Status.Learned; len(got) != 2 || got[0].InstanceType != "b" || got[1].MilliCPU != 14_000 || got[1].Labels["nvidia.com/gpu.product"] != "a" {
		t.Errorf("after another answer it is %+v", got)
	}
	for i := range v1alpha1.LearnedMax {
		join(fmt.Sprintf("m%d", i), fmt.Sprintf("type-%d", i), "15")
	}
	if got := west().Status.Learned; len(got) != v1alpha1.LearnedMax || got[0].InstanceType != "type-0" {
		t.Errorf("%d types are kept, the first %s", len(got), got[0].InstanceType)
	}
	if err := b.client.Delete(t.Context(), west()); err != nil {
		t.Fatal(err)
	}
	if err := b.r.learn(t.Context(), record{b.burst(), b.now}, []capi.View{{Node: "n1"}}); err != nil {
		t.Errorf("without the provider: %v", err)
	}
	if err := b.r.learn(t.Context(), record{b.burst(), b.now}, []capi.View{{Node: "gone"}}); client.IgnoreNotFound(err) != nil {
		t.Errorf("without the node: %v", err)
	}
}

// A burst whose machine has joined leaves behind what it is.
func TestJoinLearns(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.NodeJoined)
	p := &v1alpha1.BurstProvider{}
	if err := b.client.Get(t.Context(), types.NamespacedName{Name: "west"}, p); err != nil {
		t.Fatal(err)
	}
	if got := p.Status.Learned; len(got) != 1 || got[0].InstanceType != "gpu" || !got[0].At.Time.Before(b.now.Add(1)) {
		t.Errorf("learned: %+v, want one machine of type gpu", got)
	}
}
