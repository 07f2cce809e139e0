package observe

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// ofJobSet makes a pod a member of a JobSet.
func ofJobSet(p *corev1.Pod) {
	ref := &p.OwnerReferences[0]
	ref.APIVersion, ref.Kind, ref.UID = "jobset.x-k8s.io/v1alpha2", "JobSet", "above"
}

func says(annotation, text string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[annotation] = text
	}
}

func unlooked(p *corev1.Pod) { p.Status.Conditions = nil }

// only returns the one gang of the pods, and fails unless it is the same one
// in whatever order a cache lists them.
func only(t *testing.T, jobs []batchv1.Job, pods ...corev1.Pod) plan.Gang {
	t.Helper()
	_, forward := split(those(pods...), nil, known(jobs...))
	backward := slices.Clone(pods)
	slices.Reverse(backward)
	_, back := split(those(backward...), nil, known(jobs...))
	if len(forward) != 1 || len(back) != 1 {
		t.Fatalf("split() made %d and %d gangs, want 1", len(forward), len(back))
	}
	f, b := forward[0], back[0]
	f.Pods, b.Pods = nil, nil
	if diff := cmp.Diff(f, b); diff != "" {
		t.Errorf("the gang depends on the order of its pods:\n%s", diff)
	}
	return forward[0]
}

// What one member states counts for the gang, whichever member is listed first:
// the highest data class of any of them, everything that any reads and writes.
func TestEveryMemberHasItsSay(t *testing.T) {
	two := int64(7200)
	g := only(t, nil,
		pod("driver", ofJobSet, says(v1alpha1.InputsAnnotation, "s3://a/x/")),
		pod("worker", ofJobSet, says(v1alpha1.DataClassAnnotation, "secret"), says(v1alpha1.InputsAnnotation, "s3://b/y/, s3://a/x/"),
			func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &two }),
		pod("writer", ofJobSet, says(v1alpha1.DataClassAnnotation, "internal"), says(v1alpha1.OutputsAnnotation, "s3://out/")))
	if g.DataClass != "secret" {
		t.Errorf("the data class is %q, want secret, the highest of any member", g.DataClass)
	}
	if g.MaxRun != 2*time.Hour {
		t.Errorf("the run time is %s, want the longest of any member, 2h", g.MaxRun)
	}
	if diff := cmp.Diff([][]string{{"s3://a/x/", "s3://b/y/"}, {"s3://out/"}}, [][]string{g.Inputs, g.Outputs}); diff != "" {
		t.Errorf("inputs and outputs:\n%s", diff)
	}
}

// A class that is none can't be outvoted: policy refuses it by its name.
func TestAClassThatIsNoneIsKept(t *testing.T) {
	g := only(t, nil, pod("a", says(v1alpha1.DataClassAnnotation, "secret")), pod("b", says(v1alpha1.DataClassAnnotation, "top-secret")))
	if g.DataClass != "top-secret" {
		t.Errorf("the data class is %q, want the one that nobody knows", g.DataClass)
	}
}

func TestTheLeastImportantMemberRanksTheGang(t *testing.T) {
	ranked := func(class string, priority int32) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.Priority = class, &priority }
	}
	g := only(t, nil, pod("a", ranked("gold", 1000)), pod("b", ranked("free", 0)), pod("c", ranked("gold", 1000)))
	if g.PriorityClass != "free" || g.Priority != 0 {
		t.Errorf("the gang has class %q and priority %d, want free and 0", g.PriorityClass, g.Priority)
	}
}

// A gang is bought for whole: a member that exists and that the scheduler has
// not refused yet makes it incomplete, and one without GPUs belongs to it.
// cases: F4 kubernetes/autoscaler#8783
func TestAGangIsAllItsLivingMembers(t *testing.T) {
	gated := func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }
	leaving := func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	noGPU := func(p *corev1.Pod) { limit(p, "cpu") }
	tests := map[string]struct {
		pods     []corev1.Pod
		place    int
		complete bool
	}{
		"all refused":               {[]corev1.Pod{pod("a", ofJobSet), pod("b", ofJobSet)}, 2, true},
		"one not looked at yet":     {[]corev1.Pod{pod("a", ofJobSet), pod("b", ofJobSet, unlooked)}, 1, false},
		"one behind a gate":         {[]corev1.Pod{pod("a", ofJobSet), pod("b", ofJobSet, gated)}, 1, false},
		"one leaves, one has ended": {[]corev1.Pod{pod("a", ofJobSet), pod("b", ofJobSet, leaving), pod("c", ofJobSet, ended)}, 1, true},
		"a driver without GPUs":     {[]corev1.Pod{pod("a", ofJobSet), pod("b", ofJobSet, noGPU)}, 2, true},
		"independent pods":          {[]corev1.Pod{pod("a"), pod("b", unlooked), pod("c", noGPU)}, 1, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := only(t, nil, tt.pods...)
			if len(g.Pods) != tt.place {
				t.Errorf("it has %d pods to place, want %d", len(g.Pods), tt.place)
			}
			if complete := g.Size <= len(g.Pods)+g.Bound; complete != tt.complete {
				t.Errorf("it is complete: %v, want %v (size %d, %d pods, %d bound)", complete, tt.complete, g.Size, len(g.Pods), g.Bound)
			}
		})
	}
}

// An indexed Job wants no more members than it has completions left.
func TestAGangNearItsEndIsComplete(t *testing.T) {
	four := int32(4)
	j := batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job", Annotations: map[string]string{v1alpha1.GangAnnotation: "true"}},
		Spec:       batchv1.JobSpec{Parallelism: &four, Completions: &four},
		Status:     batchv1.JobStatus{Succeeded: 3},
	}
	if g := only(t, []batchv1.Job{j}, pod("last")); g.Size != 1 {
		t.Errorf("the gang wants %d members, want 1: three of four have succeeded", g.Size)
	}
}

// A pod that names a Job of another namespace as its owner gets nothing from
// it: not its gang, not its annotations, not its deadline.
// cases: C-7 kubernetes-sigs/kueue#14630
func TestAnOwnerIsOfTheSameNamespace(t *testing.T) {
	start, seconds := metav1.NewTime(time.Unix(1_800_000_000, 0)), int64(60)
	j := batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job", Annotations: map[string]string{v1alpha1.GangAnnotation: "true"}},
		Spec:       batchv1.JobSpec{ActiveDeadlineSeconds: &seconds},
		Status:     batchv1.JobStatus{StartTime: &start},
	}
	foreign := func(p *corev1.Pod) { p.Namespace = "mallory" }
	owned := known(j)
	bound, gangs := split(those(pod("stray", foreign), pod("own"), pod("squatter", foreign, on("rack1"))), nil, owned)
	if len(gangs) != 2 {
		t.Fatalf("split() made %d gangs, want one in each namespace: %+v", len(gangs), gangs)
	}
	for _, g := range gangs {
		mine := g.Owner.Namespace == "team"
		if len(g.Pods) != 1 || g.Pods[0].Namespace != g.Owner.Namespace || g.Together != mine || g.EndsBy.IsZero() == mine {
			t.Errorf("the gang in %s: %+v", g.Owner.Namespace, g)
		}
		if mine && g.Bound != 0 {
			t.Error("a pod of another namespace counts as a bound member")
		}
	}
	if ends := owned.ends(bound); len(ends) != 0 {
		t.Errorf("a foreign pod ends with the Job of another namespace: %v", ends)
	}
}

// A reference that names a UID as another kind than it is names nobody.
func TestAnOwnerIsOfTheKindThatIsNamed(t *testing.T) {
	g := only(t, nil, pod("stray", ofJobSet, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "job" }))
	if g.Hold == nil || g.Hold.Code != plan.OwnerUnknown {
		t.Errorf("a JobSet with the UID of a Job: %+v, want it held", g)
	}
}

// Owners that own each other are an end of the climb, not a climb without end.
func TestOwnersInACircle(t *testing.T) {
	owned, yes := known(), true
	set := plan.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "team", Name: "a", UID: "a"}
	other := set
	other.Name, other.UID = "b", "b"
	for _, pair := range [][2]plan.Owner{{set, other}, {other, set}} {
		owned.add(&object{Owner: pair[0], Object: &metav1.ObjectMeta{Namespace: "team", Name: pair[0].Name, UID: pair[0].UID, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "StatefulSet", Name: pair[1].Name, UID: pair[1].UID, Controller: &yes},
		}}})
	}
	p := pod("x", func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "a", UID: "a", Controller: &yes}}
	})
	if _, gangs := split(those(p), nil, owned); len(gangs) != 1 || gangs[0].Owner.Kind != "StatefulSet" {
		t.Errorf("split() = %+v, want one gang of a StatefulSet", gangs)
	}
}
