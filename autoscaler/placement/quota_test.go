package placement_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

func quota(namespace, name, hard, used string, change ...func(*corev1.ResourceQuota)) corev1.ResourceQuota {
	list := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse(n)}
	}
	q := corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	q.Spec.Hard, q.Status.Hard, q.Status.Used = list(hard), list(hard), list(used)
	for _, f := range change {
		f(&q)
	}
	return q
}

// The API server's own words, for the quotas that it would ask.
func TestCreated(t *testing.T) {
	scoped := func(q *corev1.ResourceQuota) {
		q.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}
	}
	limits := func(q *corev1.ResourceQuota) {
		q.Spec.Hard = corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("1Ti")}
		q.Status.Hard, q.Status.Used = q.Spec.Hard, corev1.ResourceList{corev1.ResourceLimitsMemory: resource.MustParse("0")}
	}
	ends := func(p *corev1.Pod) { s := int64(60); p.Spec.ActiveDeadlineSeconds = &s }
	leaves := func(p *corev1.Pod) {
		now, grace := metav1.Now(), int64(0)
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	}
	for name, tt := range map[string]struct {
		quotas []corev1.ResourceQuota
		pods   []*corev1.Pod
		n      int
		why    string
	}{
		"one that pretends to be on its way out": {[]corev1.ResourceQuota{quota("work", "gpus", "1", "0")}, []*corev1.Pod{pod("a", 2, leaves)}, 0, "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1"},
		"no quota":                               {nil, []*corev1.Pod{pod("a", 2)}, 1, ""},
		"room for all":                           {[]corev1.ResourceQuota{quota("work", "gpus", "4", "0")}, []*corev1.Pod{pod("a", 2), pod("b", 2)}, 2, ""},
		"room for one":                           {[]corev1.ResourceQuota{quota("work", "gpus", "4", "1")}, []*corev1.Pod{pod("a", 2), pod("b", 2)}, 1, "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"},
		"of another namespace":                   {[]corev1.ResourceQuota{quota("other", "gpus", "0", "0")}, []*corev1.Pod{pod("a", 2)}, 1, ""},
		"one of two":                             {[]corev1.ResourceQuota{quota("work", "a", "9", "0"), quota("work", "b", "1", "0")}, []*corev1.Pod{pod("a", 2)}, 0, "exceeded quota: b, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=1"},
		"not in its scope":                       {[]corev1.ResourceQuota{quota("work", "gpus", "0", "0", scoped)}, []*corev1.Pod{pod("a", 2)}, 1, ""},
		"in its scope":                           {[]corev1.ResourceQuota{quota("work", "gpus", "0", "0", scoped)}, []*corev1.Pod{pod("a", 2, ends)}, 0, "exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0"},
		"what has to be stated":                  {[]corev1.ResourceQuota{quota("work", "memory", "0", "0", limits)}, []*corev1.Pod{pod("a", 2)}, 0, "failed quota: memory: must specify limits.memory for: main"},
		"a quota not yet reckoned":               {[]corev1.ResourceQuota{quota("work", "gpus", "4", "0", func(q *corev1.ResourceQuota) { q.Status.Used = nil })}, []*corev1.Pod{pod("a", 2)}, 0, "status unknown for quota: gpus, resources: requests.nvidia.com/gpu"},
	} {
		t.Run(name, func(t *testing.T) {
			n, after, why := placement.Created(tt.quotas, tt.pods)
			if n != tt.n || why != tt.why {
				t.Errorf("%d pods, %q; want %d, %q", n, why, tt.n, tt.why)
			}
			again, _, _ := placement.Created(after, tt.pods[n:])
			if again > 0 {
				t.Errorf("%d more go after a refusal", again)
			}
		})
	}
}

// What is tried on is a copy.
func TestCreatedOnlyReads(t *testing.T) {
	quotas := []corev1.ResourceQuota{quota("work", "gpus", "4", "1")}
	before := *quotas[0].DeepCopy()
	_, after, _ := placement.Created(quotas, []*corev1.Pod{pod("a", 2)})
	if diff := cmp.Diff(before, quotas[0]); diff != "" {
		t.Error(diff)
	}
	if used := after[0].Status.Used["requests.nvidia.com/gpu"]; used.Value() != 3 {
		t.Errorf("used is %s afterwards, want 3", used.String())
	}
}
