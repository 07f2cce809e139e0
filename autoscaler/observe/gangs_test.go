package observe

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// pod is an unschedulable pod of a Job that asks for a GPU; each change makes
// one case.
func pod(name string, change ...func(*corev1.Pod)) corev1.Pod {
	yes := true
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: name, UID: types.UID("uid-" + name),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job", Controller: &yes}},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		}}},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// known knows the kinds, the Jobs given (without any, the Job of the pods), and
// a JobSet whose manifest states no size.
func known(jobs ...batchv1.Job) *owners {
	table, err := NewTable()
	if err != nil {
		panic(err) // the built-in kinds
	}
	if len(jobs) == 0 {
		jobs = []batchv1.Job{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job"}}}
	}
	o := newOwners(table, jobs)
	o.add(&object{
		Owner:  plan.Owner{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Namespace: "team", Name: "train", UID: "above"},
		Object: &metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "above"},
	})
	return o
}

func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning }
}

func TestWhatIsPendingWork(t *testing.T) {
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"unschedulable and asks for a GPU":             {func(*corev1.Pod) {}, true},
		"asks for a slice of a GPU":                    {func(p *corev1.Pod) { limit(p, "nvidia.com/mig-1g.10gb") }, true},
		"asks for CPU only":                            {func(p *corev1.Pod) { limit(p, "cpu") }, false},
		"asks for no GPU, zero of them":                {func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"] = resource.MustParse("0") }, false},
		"has a node":                                   {on("rack1"), false},
		"is being deleted":                             {func(p *corev1.Pod) { now := metav1.Now(); p.DeletionTimestamp = &now }, false},
		"has ended":                                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"was not looked at by the scheduler yet":       {func(p *corev1.Pod) { p.Status.Conditions = nil }, false},
		"waits behind a gate":                          {func(p *corev1.Pod) { p.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }, false},
		"asks for the GPU in its init container alone": {initOnly, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, gangs := split(those(pod("x", tt.change)), nil, known())
			if got := len(gangs) == 1 && gangs[0].Hold == nil; got != tt.want {
				t.Errorf("it is pending work: %v, want %v (%+v)", got, tt.want, gangs)
			}
		})
	}
}

func limit(p *corev1.Pod, name corev1.ResourceName) {
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
}

func initOnly(p *corev1.Pod) {
	p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, []corev1.Container{{}}
}

func TestSplitKeepsOneOwnerTogether(t *testing.T) {
	nodes := []corev1.Node{
		{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "spw-1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: v1alpha1.BurstTaint, Value: "b"}}}},
	}
	pods := []corev1.Pod{
		pod("waits-1"), pod("waits-2"), pod("home", on("rack1")), pod("away", on("spw-1")),
		pod("done", on("rack1"), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
	}
	bound, gangs := split(those(pods...), those(nodes...), known())
	if len(gangs) != 1 || len(gangs[0].Pods) != 2 {
		t.Fatalf("split() made %d gangs, want one with two pods: %+v", len(gangs), gangs)
	}
	if gangs[0].Bound != 1 {
		t.Errorf("the gang has %d members bound at home, want 1: one on a burst node or at its end is none", gangs[0].Bound)
	}
	if len(bound) != 2 {
		t.Errorf("%d pods take room, want 2: one that has ended takes none", len(bound))
	}
}

func TestGangOfAJob(t *testing.T) {
	start, seconds, three, yes := metav1.NewTime(time.Unix(1_800_000_000, 0)), int64(600), int32(3), true
	job := func(change func(*batchv1.Job)) []batchv1.Job {
		j := batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job", CreationTimestamp: start},
			Spec:       batchv1.JobSpec{ActiveDeadlineSeconds: &seconds, Parallelism: &three},
			Status:     batchv1.JobStatus{StartTime: &start},
		}
		change(&j)
		return []batchv1.Job{j}
	}
	t.Run("its deadline bounds run and end", func(t *testing.T) {
		g := only(t, job(func(*batchv1.Job) {}), pod("x"))
		if g.MaxRun != 10*time.Minute || !g.EndsBy.Equal(start.Add(10*time.Minute)) || g.Together || g.Owner.Kind != "Job" || !g.Created.Equal(start.Time) {
			t.Errorf("gang = %+v", g)
		}
	})
	t.Run("a long deadline is not cut short", func(t *testing.T) {
		days := int64(90 * 24 * 3600)
		if g := only(t, job(func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = &days }), pod("x")); g.MaxRun != 90*24*time.Hour {
			t.Errorf("it may run for %s, want 90 days", g.MaxRun)
		}
	})
	t.Run("the annotation makes it a gang of all its pods", func(t *testing.T) {
		g := only(t, job(func(j *batchv1.Job) { j.Annotations = map[string]string{v1alpha1.GangAnnotation: "true"} }), pod("x"))
		if !g.Together || g.Size != 3 {
			t.Errorf("gang = %+v, want together, size 3", g)
		}
	})
	t.Run("a suspended Job is held", func(t *testing.T) {
		if g := only(t, job(func(j *batchv1.Job) { j.Spec.Suspend = &yes }), pod("x")); g.Hold == nil {
			t.Error("the gang is not held")
		}
	})
	t.Run("a JobSet above it is the owner, a CronJob is not", func(t *testing.T) {
		for above, want := range map[string]string{"jobset.x-k8s.io/v1alpha2 JobSet": "JobSet", "batch/v1 CronJob": "Job", "x.example/v1 Sweep": "Sweep"} {
			version, kind, _ := strings.Cut(above, " ")
			g := only(t, job(func(j *batchv1.Job) {
				j.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "above", UID: "above", Controller: &yes}}
			}), pod("x"))
			if g.Owner.Kind != want {
				t.Errorf("below a %s the owner is a %s, want %s", kind, g.Owner.Kind, want)
			}
		}
	})
	t.Run("what it reads and writes comes from its annotations", func(t *testing.T) {
		p := pod("x", func(p *corev1.Pod) {
			p.Annotations = map[string]string{v1alpha1.InputsAnnotation: " s3://a/x/ ,, s3://b/ ", v1alpha1.OutputsAnnotation: "s3://out/"}
		})
		g := only(t, nil, p)
		if diff := cmp.Diff([][]string{{"s3://a/x/", "s3://b/"}, {"s3://out/"}}, [][]string{g.Inputs, g.Outputs}); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a bare pod is its own owner", func(t *testing.T) {
		p := pod("x", func(p *corev1.Pod) { p.OwnerReferences = nil })
		if g := only(t, nil, p); g.Owner.Kind != "Pod" || g.Owner.UID != p.UID {
			t.Errorf("its owner is %+v", g.Owner)
		}
	})
}
