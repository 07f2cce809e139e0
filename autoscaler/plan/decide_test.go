package plan_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

func TestDecide(t *testing.T) {
	full := site().node("rack1", 2).running("old", "rack1", 2, 0)
	tests := map[string]struct {
		given given
		want  string
	}{
		// Local first.
		"fits at home": {
			given: site().node("rack1", 2).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: wait FITS_LOCALLY\n",
		},
		"does not fit at home": {
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},
		"the scheduler has only just refused it": {
			given: full.gang("train", 2).waiting(20*time.Second).offer("cleura", 2, "2 EUR"),
			want:  "train: wait NOT_UNSCHEDULABLE_YET\n",
		},
		"the local chance is not over": {
			given: full.gang("train", 2).waiting(4*time.Minute).offer("cleura", 2, "2 EUR"),
			want:  "train: wait LOCAL_CHANCE\n",
		},
		"running work ends before a burst would be ready": {
			given: site().node("rack1", 2).running("old", "rack1", 2, 8*time.Minute).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: wait WAITING_LOCAL_ETA\n",
		},
		"running work ends long after a burst would be ready": {
			given: site().node("rack1", 2).running("old", "rack1", 2, 3*time.Hour).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},
		"a slow boot makes the local horizon longer": {
			given: site().node("rack1", 2).running("old", "rack1", 2, 25*time.Minute).gang("train", 2).offer("metal", 2, "2 EUR").
				seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Join.BootTime.Duration = 2 * time.Hour }),
			want: "train: wait WAITING_LOCAL_ETA\n", // cases: C8 kubernetes-sigs/karpenter#357
		},
		"the seats that one gang waits for are not promised to the next": {
			given: site().node("rack1", 2).running("old", "rack1", 2, 8*time.Minute).
				gang("first", 2).priority(10).gang("second", 2).offer("cleura", 2, "2 EUR"),
			want: "first: wait WAITING_LOCAL_ETA\nsecond: burst 1xgpu2 at cleura for 1\n",
		},
		"the high priority takes the local seat, the low one bursts": {
			given: site().node("rack1", 2).gang("low", 2).gang("high", 2).priority(10).offer("cleura", 2, "2 EUR"),
			want:  "high: wait FITS_LOCALLY\nlow: burst 1xgpu2 at cleura for 1\n",
		},
		"of equal priorities the older one goes first": {
			given: site().node("rack1", 2).gang("young", 2).
				gang("zold", 2).work(func(g *plan.Gang) { g.Created = now().Add(-time.Hour) }).offer("cleura", 2, "2 EUR"),
			want: "zold: wait FITS_LOCALLY\nyoung: burst 1xgpu2 at cleura for 1\n",
		},
		"of independent pods only those burst that will not fit at home soon": {
			given: site().node("rack1", 2).running("old", "rack1", 2, 4*time.Minute).gang("sweep", 1).times(3).offer("cleura", 1, "2 EUR"),
			want:  "sweep: burst 1xgpu1 at cleura for 1\n",
		},
		"of independent pods the one that a preemption makes room for stays": { // cases: F7 kubernetes/kubernetes#134428
			given: full.running("victim", "rack1", 0, 0).gang("sweep", 1).times(3).offer("cleura", 1, "2 EUR").
				work(func(g *plan.Gang) { g.Pods[1].Status.NominatedNodeName = "rack1" }).leaving("victim", time.Minute),
			want: "sweep: burst 2xgpu1 at cleura for 2\n",
		},
		"a gang waits for the preemption that makes room for a member": { // cases: F7 kubernetes/kubernetes#134428
			given: full.running("victim", "rack1", 0, 0).gang("ring", 1).times(3).together().offer("cleura", 1, "2 EUR").
				work(func(g *plan.Gang) { g.Pods[1].Status.NominatedNodeName = "rack1" }).leaving("victim", time.Minute),
			want: "ring: wait PREEMPTION_POSSIBLE\n",
		},
		"a preemption under way is waited for": { // cases: F7 kubernetes/kubernetes#134428
			given: full.running("victim", "rack1", 0, 0).gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Status.NominatedNodeName = "rack1" }).leaving("victim", time.Minute),
			want:  "train: wait PREEMPTION_POSSIBLE\n",
		},
		"a nomination to a node that is gone counts for nothing": { // cases: F12 kubernetes/kubernetes#85677
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Status.NominatedNodeName = "rack9" }),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},
		"nor does it while pods of that node are still listed": {
			given: full.running("victim", "rack9", 2, 0).gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Status.NominatedNodeName = "rack9" }).leaving("victim", time.Minute),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},
		"a victim that never leaves is not waited for for ever": {
			given: full.running("victim", "rack1", 0, 0).gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Status.NominatedNodeName = "rack1" }).leaving("victim", -time.Hour),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},

		// What is no want of capacity never buys.
		"work that its queue holds": { // cases: F2 kubernetes-sigs/karpenter#742, F11 volcano-sh/volcano#4710
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").work(func(g *plan.Gang) { g.Hold = &plan.Reason{Code: "KUEUE_NOT_ADMITTED"} }),
			want:  "train: wait KUEUE_NOT_ADMITTED\n",
		},
		"a gated pod": {
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "queue"}} }),
			want:  "train: wait SCHEDULING_GATED\n",
		},
		"a pod that another scheduler places": { // cases: F2 kubernetes-sigs/karpenter#742, F11 volcano-sh/volcano#4710
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }),
			want:  "train: wait OTHER_SCHEDULER\n",
		},
		"a pod of the cluster's own namespaces": {
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").namespace("vision", v1alpha1.SystemLabel, "true"),
			want:  "train: wait OWNER_UNSUPPORTED\n",
		},
		"a pod that is being deleted": {
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { when := at(0); p.DeletionTimestamp = &when }),
			want:  "train: wait POD_TERMINATING\n",
		},
		"a scheduler error": { // cases: F14 kubernetes/autoscaler#7343
			given: full.gang("train", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) { p.Status.Conditions[0].Reason = "SchedulerError" }),
			want:  "train: wait NOT_UNSCHEDULABLE_YET\n",
		},
		"a pod without GPUs": {
			given: full.gang("web", 0).pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"no": "where"} }).offer("cleura", 2, "2 EUR"),
			want:  "web: wait NO_GPU\n",
		},
		"a DaemonSet never starts a burst": {
			given: full.gang("agent", 2).offer("cleura", 2, "2 EUR").pods(func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent"}}
			}),
			want: "agent: wait OWNER_UNSUPPORTED\n",
		},

		"an owner without a pending pod": { // cases: C-13 kubernetes-sigs/kueue#13975, #14210
			given: full.gang("train", 2).times(0).offer("cleura", 2, "2 EUR"),
			want:  "train: wait NOT_UNSCHEDULABLE_YET\n",
		},

		"those of its pods that the quota of the namespace lets be created": {
			given: full.gang("sweep", 2).work(func(g *plan.Gang) { g.Short = &plan.Reason{Code: plan.NamespaceQuota} }).offer("cleura", 2, "2 EUR"),
			want:  "sweep: burst 1xgpu2 at cleura for 1\n",
		},

		// Gangs.
		"a gang that is not complete waits": { // cases: F4 kubernetes/autoscaler#8783
			given: full.gang("train", 2).times(3).together().work(func(g *plan.Gang) { g.Size = 4 }).offer("cleura", 8, "2 EUR"),
			want:  "train: wait GANG_INCOMPLETE\n",
		},
		"a gang with a member on-prem is never burst": {
			given: full.gang("train", 2).together().work(func(g *plan.Gang) { g.Bound = 1 }).offer("cleura", 2, "2 EUR"),
			want:  "train: wait GANG_SPLIT\n",
		},
		"a gang bursts whole, though a part of it would fit at home": {
			given: site().node("rack1", 2).gang("train", 2).times(2).together().offer("cleura", 2, "2 EUR"),
			want:  "train: burst 2xgpu2 at cleura for 2\n",
		},
		"of independent pods only those burst that do not fit at home": {
			given: site().node("rack1", 2).gang("sweep", 2).times(3).offer("cleura", 2, "2 EUR"),
			want:  "sweep: burst 2xgpu2 at cleura for 2\n",
		},
		"several pods share a machine": {
			given: full.gang("sweep", 1).times(5).offer("cleura", 4, "2 EUR"),
			want:  "sweep: burst 2xgpu4 at cleura for 5\n",
		},
		"a gang that needs more machines than one burst may have": {
			given: full.gang("huge", 1).times(17).together().offer("cleura", 1, "2 EUR"),
			want:  "huge: refuse GANG_TOO_LARGE\n",
		},

		// Who pays.
		"a namespace without a tenant": {
			given: full.gangOf("nobody", "train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: refuse TENANT_UNKNOWN\n",
		},
		"a namespace with two tenants": {
			given: full.tenant("speech").rules(func(t *v1alpha1.BurstTenantSpec) { t.Namespaces = []string{"vision"} }).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: refuse TENANT_UNKNOWN\n",
		},
		"two tenants with one id": {
			given: full.tenant("speech").rules(func(t *v1alpha1.BurstTenantSpec) { t.ID = "vision" }).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: refuse TENANT_UNKNOWN\n",
		},
		"a service of a tenant that has not allowed them": {
			given: full.gang("web", 2).work(func(g *plan.Gang) { g.Service = true }).offer("cleura", 2, "2 EUR"),
			want:  "web: refuse SERVICES_NOT_ENABLED\n",
		},
		"a service of a tenant that has": {
			given: full.rules(func(t *v1alpha1.BurstTenantSpec) { t.Burst.Services = true }).gang("web", 2).work(func(g *plan.Gang) { g.Service = true }).offer("cleura", 2, "2 EUR"),
			want:  "web: burst 1xgpu2 at cleura for 1\n",
		},
		"a service finds its place at home whoever pays": {
			given: site().node("rack1", 2).gang("web", 2).work(func(g *plan.Gang) { g.Service = true }).offer("cleura", 2, "2 EUR"),
			want:  "web: wait FITS_LOCALLY\n",
		},
		"mode Off": {
			given: full.mode(v1alpha1.ModeOff).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: refuse NAMESPACE_NOT_ENABLED\n",
		},
		"mode Observe says what it would buy": {
			given: full.mode(v1alpha1.ModeObserve).gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: would burst 1xgpu2 at cleura for 1\n",
		},
		"no mode is Observe": {
			given: full.mode("").gang("train", 2).offer("cleura", 2, "2 EUR"),
			want:  "train: would burst 1xgpu2 at cleura for 1\n",
		},

		// A bound on the time.
		"nothing bounds the run": {
			given: full.rules(func(t *v1alpha1.BurstTenantSpec) { t.Burst.MaxRunTime = nil }).gang("train", 2).endless().offer("cleura", 2, "2 EUR"),
			want:  "train: refuse NO_MAX_RUNTIME\n",
		},
		"the pod's own deadline bounds the run": {
			given: full.rules(func(t *v1alpha1.BurstTenantSpec) { t.Burst.MaxRunTime = nil }).gang("train", 2).endless().offer("cleura", 2, "2 EUR").
				pods(func(p *corev1.Pod) { s := int64(600); p.Spec.ActiveDeadlineSeconds = &s }),
			want: "train: burst 1xgpu2 at cleura for 1\n",
		},
		"the owner's deadline comes before a burst would be ready": {
			given: full.gang("train", 2).work(func(g *plan.Gang) { g.EndsBy = now().Add(9 * time.Minute) }).offer("cleura", 2, "2 EUR"),
			want:  "train: refuse DEADLINE_TOO_SHORT\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := outcomes(plan.Decide(tt.given.s)); got != tt.want {
				t.Errorf("Decide():\n%swant:\n%sfull text:\n%s", got, tt.want, plan.Decide(tt.given.s).Explain())
			}
		})
	}
}

// leaving marks a bound pod as being deleted, gone by then.
func (g given) leaving(name string, d time.Duration) given {
	pods := slices.Clone(g.s.Cluster.Pods)
	for i := range pods {
		if when := at(d); pods[i].Name == name {
			pods[i] = pods[i].DeepCopy()
			pods[i].DeletionTimestamp = &when
		}
	}
	g.s.Cluster.Pods = pods
	return g
}

// namespace adds a namespace with one label.
func (g given) namespace(name, label, value string) given {
	g.s.Cluster.Namespaces = append(slices.Clone(g.s.Cluster.Namespaces), corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: value}},
	})
	return g
}
