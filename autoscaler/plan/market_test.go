package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

func TestChoice(t *testing.T) {
	train := site().gang("train", 2)
	tests := map[string]struct {
		given given
		want  string
	}{
		"the cheapest offer wins": {
			given: train.offer("open", 2, "2.40 EUR").offer("ovh", 2, "1.95 EUR"),
			want:  "train: burst 1xgpu2 at ovh for 1\n",
		},
		"equal prices: the name decides": {
			given: train.offer("ovh", 2, "1.95 EUR").offer("cleura", 2, "1.95 EUR"),
			want:  "train: burst 1xgpu2 at cleura for 1\n",
		},
		"two small machines are cheaper than a large one": {
			given: train.times(2).offer("big", 4, "9 EUR").offer("small", 2, "4 EUR"),
			want:  "train: burst 2xgpu2 at small for 2\n",
		},
		"a dearer hour is cheaper when the other bills a whole day": { // cases: H1 kubernetes-sigs/karpenter PR#3217
			given: train.offer("daily", 2, "1 EUR").seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) { o.Meter.Minimum = 24 * time.Hour }).offer("exact", 2, "3 EUR"),
			want:  "train: burst 1xgpu2 at exact for 1\n",
		},
		"the expected bill ranks, not the worst case": {
			given: train.offer("quick", 2, "3 EUR").offer("slow", 2, "2 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				p.Spec.Join.ReadyDeadline.Duration = 10 * time.Hour
			}),
			want: "train: burst 1xgpu2 at slow for 1\n",
		},
		"price zero is unknown and never the cheapest": { // cases: D-77 SkyPilot OpenStack catalogue
			given: train.offer("free", 2, "").offer("ovh", 2, "1.95 EUR"),
			want:  "train: burst 1xgpu2 at ovh for 1\n",
		},
		"a negotiated price wins over the list price": { // cases: H2 kubernetes-sigs/karpenter#693
			given: train.offer("list", 2, "2 EUR").offer("deal", 2, "4 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				p.Spec.Prices = map[string]v1alpha1.Money{"gpu2": "1.50 EUR"}
			}),
			want: "train: burst 1xgpu2 at deal for 1\n",
		},
		"a negotiated price that can't be read is unknown, not the list price": {
			given: train.offer("deal", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				p.Spec.Prices = map[string]v1alpha1.Money{"gpu2": "cheap"}
			}),
			want: "train: refuse PRICE_UNKNOWN\n",
		},
		"a forbidden provider loses at any price": {
			given: train.offer("cheap", 2, "0.01 EUR").american().offer("ovh", 2, "1.95 EUR"),
			want:  "train: burst 1xgpu2 at ovh for 1\n",
		},
		"sold out: the next one": { // cases: F41 ray-project/ray#25525
			given: train.offer("first", 2, "1 EUR").soldOut().offer("second", 2, "2 EUR"),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"everything sold out": {
			given: train.offer("first", 2, "1 EUR").soldOut().offer("second", 2, "2 EUR").soldOut(),
			want:  "train: refuse CAPACITY\n",
		},
		"only forbidden providers": {
			given: train.offer("first", 2, "1 EUR").american(),
			want:  "train: refuse JURISDICTION_NO_PROVIDER\n",
		},
		"nothing on sale": {given: train, want: "train: refuse NO_OFFER\n"},
		"a provider that is out of service": {
			given: train.offer("down", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
				until := at(time.Hour)
				p.Status.UnavailableUntil = &until
			}).offer("up", 2, "2 EUR"),
			want: "train: burst 1xgpu2 at up for 1\n",
		},
		"an offer of a provider that nobody has described": { // cases: G13 devantler-tech/platform#3178
			given: train.offer("ghost", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Name = "other" }),
			want:  "train: refuse JURISDICTION_NO_PROVIDER\n",
		},
		"too few GPUs in one machine": {
			given: site().gang("train", 8).offer("small", 2, "1 EUR"),
			want:  "train: refuse GPU_COUNT_PER_NODE\n",
		},
		"a MIG slice that the machine does not have": { // cases: A12b Azure/AKS#5161
			given: train.offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) {
				r := p.Spec.Containers[0].Resources.Requests
				r["nvidia.com/mig-1g.5gb"] = r["nvidia.com/gpu"]
				delete(r, "nvidia.com/gpu")
			}),
			want: "train: refuse EXTENDED_RESOURCE_UNKNOWN\n",
		},
		"another GPU model": {
			given: train.offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-H200"} }),
			want:  "train: refuse GPU_MODEL_NOT_OFFERED\n",
		},
		"the GPU model that the offer predicts": { // cases: B1 kubernetes/autoscaler#5278: no sample node is needed
			given: train.offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40S"} }),
			want:  "train: burst 1xgpu2 at ovh for 1\n",
		},
		"a label that only on-prem nodes carry": {
			given: train.offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"rack": "7"} }),
			want:  "train: refuse NODE_SELECTOR_UNSATISFIABLE\n",
		},
		"more memory than the machine leaves to pods": { // cases: H5 aws/karpenter-provider-aws#1905
			given: train.offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = *newQuantity(64 << 30)
			}),
			want: "train: refuse MACHINE_TOO_SMALL\n",
		},
		"what DaemonSets leave of the machine": { // cases: F6b kubernetes-sigs/karpenter#1749
			given: train.daemonSet("1").offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("14.8")
			}),
			want: "train: burst 1xgpu2 at ovh for 1\n",
		},
		"DaemonSets of others, which the guards keep at home": {
			given: train.daemonSetOf("monitoring", "8").offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("14.9")
			}),
			want: "train: burst 1xgpu2 at ovh for 1\n",
		},
		"more than DaemonSets leave of the machine": {
			given: train.daemonSet("1").offer("ovh", 2, "1 EUR").pods(func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("14.9")
			}),
			want: "train: refuse MACHINE_TOO_SMALL\n",
		},
		"a volume that is on-prem": { // cases: H10, F35 kubernetes/autoscaler#3131, F36 kubernetes/autoscaler#4339
			given: train.onPremVolume("data").offer("ovh", 2, "1 EUR"),
			want:  "train: refuse LOCAL_PV\n",
		},
		"the provider's limit counts what is in flight": {
			given: train.offer("ovh", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Limits.Machines = number(1) }).burst("other", "ovh"),
			want:  "train: refuse PROVIDER_QUOTA\n",
		},
		"a machine that is gone is not in flight": {
			given: train.offer("ovh", 2, "1 EUR").seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) { p.Spec.Limits.GPUs = number(2) }).burst("other", "ovh", v1alpha1.MachineGone),
			want:  "train: burst 1xgpu2 at ovh for 1\n",
		},
		"the hard cap on a model counts what is in flight": {
			given: train.offer("ovh", 2, "1 EUR").burst("other", "ovh").rules(func(s *v1alpha1.BurstTenantSpec) {
				s.Quota = []v1alpha1.GPUQuota{{GPUModel: "L40S-48", HardCap: number(3)}}
			}),
			want: "train: refuse QUOTA_CLOUD_GPU\n",
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

func TestMemory(t *testing.T) {
	train := site().gang("train", 2).offer("first", 2, "1 EUR").offer("second", 2, "2 EUR")
	tests := map[string]struct {
		given given
		want  string
	}{
		// A gang is never bought for twice.
		"its burst is on its way": { // cases: A4 kubernetes/autoscaler#7095, H-11 kubernetes/kubernetes#54959
			given: train.burst("train", "first", v1alpha1.Reserved, v1alpha1.MachineBought),
			want:  "train: wait ALREADY_PLANNED\n",
		},
		"its node flaps": { // cases: H-12 kubernetes/autoscaler#1659, F33 kubernetes/kubernetes#43709
			given: train.burst("train", "first", v1alpha1.MachineBought, v1alpha1.NodeJoined).burstNode("train-0", false),
			want:  "train: wait ALREADY_PLANNED\n",
		},
		"its node has free GPUs and another gang wants them": {
			given: site().burst("done", "first", v1alpha1.PodsAdmitted).burstNode("done-0", true).gang("train", 2).offer("first", 2, "1 EUR"),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"its burst is ending while its pods may be running there": {
			given: train.burst("train", "first", v1alpha1.PodsAdmitted, "Ending=OutOfTime"),
			want:  "train: wait ALREADY_PLANNED\n",
		},
		"a half-admitted gang still has a pod on the ending burst's node": {
			given: train.burst("train", "first", "Ending=MachineLost").burstNode("train-0", true).running("train-1", "spw-train-0", 2, 0),
			want:  "train: wait ALREADY_PLANNED\n",
		},

		"what is left of an ended burst is not on-prem, though the pod still tolerates it": {
			given: train.pods(func(p *corev1.Pod) {
				p.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.BurstTaint, Operator: corev1.TolerationOpEqual, Value: "burst-train-0"}}
			}).burst("train", "first", "Ending=MachineLost", v1alpha1.Failed).burstNode("train-0", true),
			want: "train: burst 1xgpu2 at second for 1\n",
		},

		"a burst of another namespace is not this gang's, whatever owner it names": { // cases: C-7 kubernetes-sigs/kueue#14630
			given: train.burst("train", "first", v1alpha1.Reserved).abroad("mallory"),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"nor are its failures": {
			given: train.burst("train", "first", "Ending=JoinDeadline", v1alpha1.Failed).abroad("mallory"),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"a Job made anew under its old name is another": { // cases: C-2 kubernetes-sigs/kueue#6221
			given: train.burst("train", "first", v1alpha1.PodsAdmitted).work(func(g *plan.Gang) { g.Owner.UID = "uid-train-anew" }),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},

		"a pod that was seen on a burst's node is pending in an old cache only": { // cases: H-14 kubernetes/autoscaler#7419
			given: train.burst("train", "first", v1alpha1.Complete).placed("train-0"),
			want:  "train: wait NODE_NAME_SET\n",
		},
		"a burst that came and went leaves nothing behind": { // cases: H-27 kubernetes-sigs/karpenter#3176
			given: train.burst("train", "first", "Ending=Deleted", v1alpha1.Failed).justNow(),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},

		// Failover is the ordinary path.
		"sold out at the counter: the next offer at once": { // cases: C1 kubernetes/autoscaler PR#9360, H-10 LeanerCloud/AutoSpotting#147
			given: train.burst("train", "first", "Ending=SoldOut").justNow(),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"the bench of an offer keeps every gang away until its time": {
			given: train.bench("first", 10*time.Minute),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"and not longer": {
			given: train.bench("first", -time.Second),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"a benched offer does not bench the provider's others": { // cases: D-42 kubernetes-sigs/karpenter#2275
			given: train.bench("first", 10*time.Minute).seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {}).alsoSells("first", "gpu2b"),
			want:  "train: burst 1xgpu2b at first for 1\n",
		},
		"a market refusal ends by itself": {
			given: train.burst("train", "first", "Ending=SoldOut", v1alpha1.Failed),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"a machine that never joined is not bought again": { // cases: H-18 hashicorp/nomad#25808, A7 Azure/karpenter-provider-azure#1790
			given: train.burst("train", "first", "Ending=JoinDeadline", v1alpha1.Failed),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"a failure that is not the market's pauses": {
			given: train.burst("train", "first", "Ending=JoinDeadline", v1alpha1.Failed).justNow(),
			want:  "train: wait BACKOFF_AFTER_FAILURE\n",
		},
		"the work's own failure leaves the offer alone": {
			given: train.burst("train", "first", "Ending=WorkFailed", v1alpha1.Failed),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"inputs that can't be staged leave the offer alone": {
			given: train.burst("train", "first", "Ending=StagingRefused", v1alpha1.Failed),
			want:  "train: burst 1xgpu2 at first for 1\n",
		},
		"an offer that is good for nothing stays away, whatever the market says later": {
			given: train.burst("train", "first", "Ending=JoinDeadline", v1alpha1.Failed).burst("train", "first", "Ending=SoldOut", v1alpha1.Failed),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"what a cloud rejects as written is not asked of it again": { // cases: H-18 hashicorp/nomad#25808
			given: train.burst("train", "first", "Ending=Rejected", v1alpha1.Failed).later(24 * time.Hour),
			want:  "train: burst 1xgpu2 at second for 1\n",
		},
		"it stops after five failures": { // cases: F8 SkyPilot placer, H5 aws/karpenter-provider-aws#1905
			given: train.burst("train", "first", v1alpha1.Failed).burst("train", "first", v1alpha1.Failed).burst("train", "first", v1alpha1.Failed).
				burst("train", "first", v1alpha1.Failed).burst("train", "first", v1alpha1.Failed).later(24 * time.Hour),
			want: "train: refuse ATTEMPTS_EXHAUSTED\n",
		},
		"a finished burst is no failure": {
			given: train.burst("train", "first", v1alpha1.Complete).justNow(),
			want:  "train: burst 1xgpu2 at first for 1\n",
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

func TestAttemptsHaveNamesOfTheirOwn(t *testing.T) {
	train := site().gang("train", 2).offer("first", 2, "1 EUR").offer("second", 2, "2 EUR")
	once, again := plan.Decide(train.s).Bursts(), plan.Decide(train.later(time.Minute).s).Bursts()
	if once[0].Name != again[0].Name {
		t.Errorf("one decision has two names: %s and %s", once[0].Name, again[0].Name)
	}
	next := plan.Decide(train.burst("train", "first", "Ending=SoldOut", v1alpha1.Failed).s).Bursts()
	if next[0].Name == once[0].Name || next[0].Attempt != 1 {
		t.Errorf("the second attempt is number %d and called %s, as the first", next[0].Attempt, next[0].Name)
	}
}

func TestMoney(t *testing.T) {
	train := site().gang("train", 2).offer("ovh", 2, "2 EUR")
	t.Run("what is missing in a budget is said before a currency that does not fit", func(t *testing.T) {
		p := plan.Decide(train.offer("alps", 2, "1 CHF").budget("vision-month", "3 EUR").s)
		if got := outcomes(p); got != "train: refuse BUDGET_RESERVATION_EXCEEDS\n" {
			t.Errorf("%s%s", got, p.Explain())
		}
	})
	t.Run("the ceiling covers every wait on the way", func(t *testing.T) {
		b := plan.Decide(train.s).Bursts()[0]
		d := plan.Defaults()
		worst := d.Staging + d.Buy + d.Ready + time.Hour + max(d.Collect, d.Wipe) + d.DeadMan + d.Sweep + d.Delete
		if want := now().Add(worst); !b.Until.Equal(want) {
			t.Errorf("until %s, want %s", b.Until, want)
		}
		want, err := b.Offer.Price.For(int64(worst/time.Second), money.Whole)
		if err != nil || b.Ceiling != want {
			t.Errorf("ceiling %s, want %s (%v)", b.Ceiling, want, err)
		}
		if !b.Deadline.Equal(now().Add(d.Staging + d.Buy + d.Ready + time.Hour)) {
			t.Errorf("deadline %s", b.Deadline)
		}
	})
	t.Run("a meter that counts started hours is bounded at its worst", func(t *testing.T) {
		hourly := train.seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) {
			o.Meter = providers.MeterRule{Granularity: time.Hour, ClockAligned: true}
		})
		b := plan.Decide(hourly.s).Bursts()[0]
		if got, want := b.Ceiling, amount("8 EUR"); got != want { // 2 h 8 min touch four clock hours at the worst
			t.Errorf("ceiling %s, want %s", got, want)
		}
	})
	t.Run("a refusal names the missing amount", func(t *testing.T) {
		p := plan.Decide(train.budget("vision-month", "4 EUR").s)
		d := p.Decisions[0]
		if d.Verdict != plan.Refuse || d.Code != plan.BudgetExceeds {
			t.Fatalf("got %s", p.Explain())
		}
		if want := `is 0.266666667 EUR more than budget "vision-month" has left`; !strings.Contains(d.Message, want) {
			t.Errorf("message %q does not say %q", d.Message, want)
		}
		if want := "raise the budget by 0.266666667 EUR"; !strings.Contains(d.Remedy, want) {
			t.Errorf("remedy %q does not say %q", d.Remedy, want)
		}
	})
	t.Run("two gangs can't both spend the last euro", func(t *testing.T) {
		got := outcomes(plan.Decide(train.budget("vision-month", "5 EUR").gang("zweite", 2).s))
		if want := "train: burst 1xgpu2 at ovh for 1\nzweite: refuse BUDGET_RESERVATION_EXCEEDS\n"; got != want {
			t.Errorf("got:\n%s", got)
		}
	})
	t.Run("what is only observed takes no money from others", func(t *testing.T) {
		g := train.budget("vision-month", "5 EUR").mode(v1alpha1.ModeObserve).gang("zweite", 2)
		got := outcomes(plan.Decide(g.s))
		if want := "train: would burst 1xgpu2 at ovh for 1\nzweite: would burst 1xgpu2 at ovh for 1\n"; got != want {
			t.Errorf("got:\n%s", got)
		}
	})
	t.Run("a burst that the ledger has not booked yet is as good as booked", func(t *testing.T) { // cases: C-10 kubernetes-sigs/kueue KEP-4136
		got := outcomes(plan.Decide(train.budget("vision-month", "14 EUR").burst("other", "ovh").s)) // its ceiling is 10 EUR
		if want := "train: refuse BUDGET_RESERVATION_EXCEEDS\n"; got != want {
			t.Errorf("got:\n%s", got)
		}
	})
	t.Run("without any budget nothing is bought", func(t *testing.T) { // cases: H-24 kubernetes-sigs/kueue#5937
		if got := outcomes(plan.Decide(train.noBudget().s)); got != "train: refuse BUDGET_MISSING\n" {
			t.Errorf("got:\n%s", got)
		}
	})
	t.Run("an offer in another currency than the budget", func(t *testing.T) {
		got := outcomes(plan.Decide(site().gang("train", 2).offer("zh", 2, "2 CHF").s))
		if got != "train: refuse CURRENCY_MISMATCH\n" {
			t.Errorf("got:\n%s", got)
		}
	})
	t.Run("the dearer offer is taken when only its provider has money left", func(t *testing.T) {
		g := train.offer("other", 2, "3 EUR")
		tight := quota.Budget{ID: "ovh-day", Scope: quota.ScopeProvider, Subject: "ovh", Window: quota.WindowDay, Limit: amount("1 EUR"), Hard: true}
		wide := quota.Budget{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: amount("1000 EUR"), Hard: true}
		book, err := quota.NewBook(tight, wide)
		if err != nil {
			t.Fatal(err)
		}
		g.s.Book = book
		p := plan.Decide(g.s)
		if got := outcomes(p); got != "train: burst 1xgpu2 at other for 1\n" {
			t.Errorf("got:\n%s", got)
		}
		if diff := cmp.Diff([]plan.Code{plan.BudgetExceeds}, refused(t, p, "ovh")); diff != "" {
			t.Error(diff)
		}
		if b := p.Bursts()[0]; !slices.Equal(b.Budgets, []string{"all"}) {
			t.Errorf("budgets on the path: %v", b.Budgets)
		}
	})
}

// burstNode adds the node of a burst, ready or not, with two GPUs.
func (g given) burstNode(name string, ready bool) given {
	g = g.node("spw-"+name, 2)
	n := g.s.Cluster.Nodes[len(g.s.Cluster.Nodes)-1]
	n.Spec.Taints = []corev1.Taint{{Key: v1alpha1.BurstTaint, Value: "burst-" + name, Effect: corev1.TaintEffectNoSchedule}}
	if !ready {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule})
	}
	return g
}

// justNow moves the conditions of the burst that was added last to now.
func (g given) justNow() given {
	b := g.s.Bursts[len(g.s.Bursts)-1].DeepCopy()
	for i := range b.Status.Conditions {
		b.Status.Conditions[i].LastTransitionTime = at(0)
	}
	g.s.Bursts = append(slices.Clone(g.s.Bursts[:len(g.s.Bursts)-1]), *b)
	return g
}

// bench keeps the offers of a provider out until then.
func (g given) bench(provider string, until time.Duration) given {
	g.s.Providers = slices.Clone(g.s.Providers)
	for i := range g.s.Providers {
		p := g.s.Providers[i].DeepCopy()
		for _, o := range g.s.Offers {
			if o.Provider == provider && p.Name == provider {
				p.Status.Unavailable = append(p.Status.Unavailable, v1alpha1.UnavailableOffer{Offer: o.Key(), Until: at(until), Reason: "SoldOut"})
			}
		}
		g.s.Providers[i] = *p
	}
	return g
}

// alsoSells adds a second offer of a provider at the same price.
func (g given) alsoSells(provider, kind string) given {
	for _, o := range g.s.Offers {
		if o.Provider == provider {
			o.InstanceType = kind
			g.s.Offers = append(slices.Clone(g.s.Offers), o)
		}
	}
	return g
}

// onPremVolume lets the gang's pods mount a claim that is bound to a local disk.
func (g given) onPremVolume(name string) given {
	local := "local"
	g.s.Cluster.Claims = []corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "vision", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &local, VolumeName: "pv-1"},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}}
	g.s.Cluster.Volumes = []corev1.PersistentVolume{{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1"},
		Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"rack1"}}},
		}}}}},
	}}
	return g.pods(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	})
}

func number(n int32) *int32 { return &n }

// abroad moves the burst that was added last to another namespace.
func (g given) abroad(namespace string) given {
	g.s.Bursts = slices.Clone(g.s.Bursts)
	g.s.Bursts[len(g.s.Bursts)-1].Namespace = namespace
	return g
}

// placed says that the burst that was added last has seen a pod on its node.
func (g given) placed(pod string) given {
	g.s.Bursts = slices.Clone(g.s.Bursts)
	b := g.s.Bursts[len(g.s.Bursts)-1].DeepCopy()
	b.Status.Placed = []v1alpha1.PlacedPod{{Name: pod, UID: types.UID("uid-" + pod), Node: "spw-1"}}
	g.s.Bursts[len(g.s.Bursts)-1] = *b
	return g
}
