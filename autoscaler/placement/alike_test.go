package placement_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// Whatever of a bound pod a filter reads is followed, also where its spec is the
// same: it stays on its node "a", and the next pod goes elsewhere than before.
func TestFollowSeesWhatFiltersRead(t *testing.T) {
	given := func(cpu string) []corev1.ContainerStatus {
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
		return []corev1.ContainerStatus{{Name: "main", AllocatedResources: list, Resources: &corev1.ResourceRequirements{Requests: list}}}
	}
	infeasible := []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible}}
	tests := map[string]struct {
		bound, next *corev1.Pod
		change      func(*corev1.Pod)
		before, now string
	}{
		"a label by which others keep away": {
			pod("old", 0), pod("next", 0, awayFrom("app", "train")),
			func(p *corev1.Pod) { p.Labels = map[string]string{"app": "serve"} }, "b", "a",
		},
		"that it is being deleted, which spread does not count": {
			pod("old", 0), pod("next", 0, spread(corev1.LabelTopologyZone)),
			func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: metav1.Unix(1, 0).Time} }, "b", "a",
		},
		"what its node has given it": {
			pod("old", 0, func(p *corev1.Pod) { p.Status.ContainerStatuses = given("1") }), pod("next", 0, cores("60")),
			func(p *corev1.Pod) { p.Status.ContainerStatuses = given("16") }, "a", "b",
		},
		"that its node will not give it more": {
			pod("old", 0, cores("16"), func(p *corev1.Pod) { p.Status.ContainerStatuses = given("1") }), pod("next", 0, cores("60")),
			func(p *corev1.Pod) { p.Status.Conditions = infeasible }, "b", "a",
		},
		"that its node may give it more after all": {
			pod("old", 0, cores("16"), func(p *corev1.Pod) {
				p.Status.ContainerStatuses, p.Status.Conditions = given("1"), infeasible
			}), pod("next", 0, cores("60")),
			func(p *corev1.Pod) { p.Status.Conditions = nil }, "a", "b",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a, b := node("a", 8, labelled(corev1.LabelTopologyZone, "east")), node("b", 8, labelled(corev1.LabelTopologyZone, "west"))
			a.UID, a.ResourceVersion, b.UID, b.ResourceVersion = "a", "1", "b", "1"
			on("a")(tt.bound)
			tt.bound.Generation, tt.bound.ResourceVersion = 3, "7"
			inv := placement.Inventory{Nodes: []*corev1.Node{a, b}, Pods: []*corev1.Pod{tt.bound}}
			warm := cluster(t, inv)
			check := func(when, want string) {
				t.Helper()
				for kind, s := range map[string]*placement.Snapshot{"following": warm, "new": cluster(t, inv)} {
					s.Fork()
					if got := tell(fit(t, s, placement.Ask{Pods: []*corev1.Pod{tt.next}})); got != "next on "+want {
						t.Errorf("%s, %s snapshot: %s, want it on %s", when, kind, got, want)
					}
					s.Revert()
				}
			}
			check("before", tt.before)
			changed := tt.bound.DeepCopy()
			changed.ResourceVersion = "8"
			tt.change(changed)
			inv.Pods = []*corev1.Pod{changed}
			if err := warm.Follow(inv); err != nil {
				t.Fatal(err)
			}
			check("then", tt.now)
		})
	}
}
