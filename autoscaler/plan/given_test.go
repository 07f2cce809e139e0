package plan_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
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

// given builds a State with only what a case is about; each method returns a
// changed copy, so cases can share a beginning. Methods that describe a gang, a
// provider or a burst change the one that was added last.
type given struct{ s plan.State }

func now() time.Time { return time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC) }

func at(d time.Duration) metav1.Time { return metav1.NewTime(now().Add(d)) }

// site is a home without nodes and the tenant vision: data class confidential,
// Germany, France and Finland allowed, no provider under the US CLOUD Act,
// burstAfter 5 minutes, an hour of run time, 1,000 EUR a month.
func site() given {
	g := given{s: plan.State{Now: now()}}
	return g.tenant("vision").budget("vision-month", "1000 EUR")
}

func (g given) tenant(name string) given {
	g.s.Tenants = append(slices.Clone(g.s.Tenants), v1alpha1.BurstTenant{
		ObjectMeta: metav1.ObjectMeta{Name: "team-" + name},
		Spec: v1alpha1.BurstTenantSpec{
			ID: name, Namespaces: []string{name}, DataClass: "confidential",
			Burst: v1alpha1.BurstRules{
				Mode: v1alpha1.ModeOn, BurstAfter: metav1.Duration{Duration: 5 * time.Minute},
				MaxRunTime: &metav1.Duration{Duration: time.Hour}, Reserve: "safe",
				DataRules: []v1alpha1.DataRule{{Class: "confidential", Countries: []string{"DE", "FR", "FI"}, ForbiddenLaws: []string{"us-cloud-act"}}},
			},
		},
	})
	return g
}

// rules changes the tenant that was added last.
func (g given) rules(change func(*v1alpha1.BurstTenantSpec)) given {
	g.s.Tenants = slices.Clone(g.s.Tenants)
	t := g.s.Tenants[len(g.s.Tenants)-1].DeepCopy()
	change(&t.Spec)
	g.s.Tenants[len(g.s.Tenants)-1] = *t
	return g
}

func (g given) mode(mode string) given {
	return g.rules(func(t *v1alpha1.BurstTenantSpec) { t.Burst.Mode = mode })
}

// budget gives the tenant that was added last one hard budget a month, and
// drops the others.
func (g given) budget(id, limit string) given {
	t := g.s.Tenants[len(g.s.Tenants)-1]
	b := quota.Budget{ID: id, Scope: quota.ScopeTenant, Subject: t.Spec.ID, Window: quota.WindowMonth, Limit: amount(limit), Hard: true}
	book, err := quota.NewBook(b)
	if err != nil {
		panic(err)
	}
	g.s.Book = book
	return g
}

func (g given) noBudget() given { g.s.Book = quota.Book{}; return g }

func (g given) node(name string, gpus int64) given {
	list := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("512Gi"), corev1.ResourcePods: resource.MustParse("110"),
		"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI),
	}
	g.s.Cluster.Nodes = append(slices.Clone(g.s.Cluster.Nodes), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status:     corev1.NodeStatus{Allocatable: list, Capacity: list},
	})
	return g
}

// daemonSet adds a DaemonSet of the cluster itself that runs on every node and
// asks for so many cores.
func (g given) daemonSet(cores string) given { return g.daemonSetOf("kube-system", cores) }

func (g given) daemonSetOf(namespace, cores string) given {
	p := makePod(namespace, "agent", 0)
	p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cores)
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	g.s.Cluster.DaemonSets = append(slices.Clone(g.s.Cluster.DaemonSets), appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: p.Spec}},
	})
	return g
}

// running adds a bound pod; ends 0 means that nobody knows when it is over.
func (g given) running(name, node string, gpus int64, ends time.Duration) given {
	p := makePod("other", name, gpus)
	p.Spec.NodeName = node
	g.s.Cluster.Pods = append(slices.Clone(g.s.Cluster.Pods), &p)
	if ends != 0 {
		m := map[types.UID]time.Time{p.UID: now().Add(ends)}
		for k, v := range g.s.Cluster.Ends {
			m[k] = v
		}
		g.s.Cluster.Ends = m
	}
	return g
}

// gang adds a Job in the tenant's namespace with one pod of so many GPUs and an
// hour to run, created and unschedulable for ten minutes.
func (g given) gang(name string, gpus int64) given { return g.gangOf("vision", name, gpus) }

func (g given) gangOf(namespace, name string, gpus int64) given {
	g.s.Gangs = append(slices.Clone(g.s.Gangs), plan.Gang{
		Owner:   plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Created: now().Add(-10 * time.Minute), MaxRun: time.Hour,
		Pods: []*corev1.Pod{new(makePod(namespace, name+"-0", gpus))},
	})
	return g
}

// work changes the gang that was added last.
func (g given) work(change func(*plan.Gang)) given {
	g.s.Gangs = slices.Clone(g.s.Gangs)
	last := &g.s.Gangs[len(g.s.Gangs)-1]
	pods := make([]*corev1.Pod, len(last.Pods))
	for i := range last.Pods {
		pods[i] = last.Pods[i].DeepCopy()
	}
	last.Pods = pods
	change(last)
	return g
}

// pods changes every pod of the gang that was added last.
func (g given) pods(change func(*corev1.Pod)) given {
	return g.work(func(w *plan.Gang) {
		for i := range w.Pods {
			change(w.Pods[i])
		}
	})
}

// times makes the gang n pods like its first one.
func (g given) times(n int) given {
	return g.work(func(w *plan.Gang) {
		first := w.Pods[0]
		w.Pods = nil
		for i := range n {
			p := first.DeepCopy()
			p.Name = fmt.Sprintf("%s-%d", w.Owner.Name, i)
			p.UID = types.UID("uid-" + p.Name)
			w.Pods = append(w.Pods, p)
		}
	})
}

// endless takes from the gang that was added last what its owner says of its end.
func (g given) endless() given { return g.work(func(w *plan.Gang) { w.MaxRun = 0 }) }

func (g given) together() given { return g.work(func(w *plan.Gang) { w.Together = true }) }

func (g given) priority(p int32) given { return g.work(func(w *plan.Gang) { w.Priority = p }) }

// waiting says since when the gang's pods are unschedulable.
func (g given) waiting(d time.Duration) given {
	return g.pods(func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = at(-d) })
}

func makePod(namespace, name string, gpus int64) corev1.Pod {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}}}}},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: at(-10 * time.Minute),
		}}},
	}
	if gpus > 0 {
		p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"] = *resource.NewQuantity(gpus, resource.DecimalSI)
	}
	return p
}

// offer adds a provider in Germany with all its papers, that sells one type of
// machine with so many GPUs at a price per hour, billed by the second.
func (g given) offer(provider string, gpus int, price string) given {
	good := v1alpha1.Evidence{Link: "https://example.org/evidence", Reviewed: at(-24 * time.Hour), Expires: at(365 * 24 * time.Hour)}
	g.s.Providers = append(slices.Clone(g.s.Providers), v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: provider},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "fake", Region: "one", Country: "DE", CredentialsSecret: provider,
			Legal:               v1alpha1.LegalFacts{Seat: "DE", Owner: provider + " SE", OwnerCountry: "DE", Evidence: &good},
			ProcessingAgreement: &good,
		},
	})
	o := providers.Offer{
		Provider: provider, Region: "one", InstanceType: fmt.Sprintf("gpu%d", gpus), CapacityType: "on-demand", Country: "DE",
		GPUModel: "L40S-48", GPUs: gpus, GPUResource: "nvidia.com/gpu", MilliCPU: 16_000, MemoryMiB: 65_536, DiskGiB: 400, Arch: "amd64",
		Seen: now(), Labels: map[string]string{"nvidia.com/gpu.product": "NVIDIA-L40S"},
	}
	if price != "" {
		rate, err := money.ParseRate(price)
		if err != nil {
			panic(err)
		}
		o.Price = rate
	}
	g.s.Offers = append(slices.Clone(g.s.Offers), o)
	return g
}

// seller changes the provider and the offer that were added last.
func (g given) seller(change func(*v1alpha1.BurstProvider, *providers.Offer)) given {
	g.s.Providers, g.s.Offers = slices.Clone(g.s.Providers), slices.Clone(g.s.Offers)
	p := g.s.Providers[len(g.s.Providers)-1].DeepCopy()
	change(p, &g.s.Offers[len(g.s.Offers)-1])
	g.s.Providers[len(g.s.Providers)-1] = *p
	return g
}

func (g given) soldOut() given {
	return g.seller(func(_ *v1alpha1.BurstProvider, o *providers.Offer) { o.SoldOut = true })
}

func (g given) american() given {
	return g.seller(func(p *v1alpha1.BurstProvider, _ *providers.Offer) {
		p.Spec.Legal.OwnerCountry, p.Spec.Legal.SubjectTo = "US", []string{"us-cloud-act"}
	})
}

// burst adds an earlier purchase of one machine for an owner, with conditions
// "Type" or "Type=Reason" an hour ago.
func (g given) burst(owner, provider string, conditions ...string) given {
	var o providers.Offer
	for _, s := range g.s.Offers {
		if s.Provider == provider {
			o = s
		}
	}
	attempt := int32(0)
	for _, b := range g.s.Bursts {
		if b.Spec.Gang.UID == types.UID("uid-"+owner) {
			attempt++
		}
	}
	name, namespace := fmt.Sprintf("%s-%d", owner, attempt), "vision"
	var pods []v1alpha1.PodReference
	for _, w := range g.s.Gangs {
		if w.Owner.Name != owner {
			continue
		}
		namespace = w.Owner.Namespace // a burst lies beside its work
		for _, p := range w.Pods {
			pods = append(pods, v1alpha1.PodReference{Name: p.Name, UID: p.UID})
		}
	}
	b := v1alpha1.Burst{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("burst-" + name), CreationTimestamp: at(-time.Hour)},
		Spec: v1alpha1.BurstSpec{
			Tenant: "team-vision", TenantID: "vision", Attempt: attempt, Machines: 1, Ceiling: "10 EUR", Mode: "safe",
			Gang:     v1alpha1.GangReference{APIVersion: "batch/v1", Kind: "Job", Name: owner, UID: types.UID("uid-" + owner), Pods: pods},
			Offer:    v1alpha1.OfferReference{Provider: o.Provider, Region: o.Region, InstanceType: o.InstanceType, CapacityType: o.CapacityType, GPUModel: o.GPUModel, GPUs: int32(o.GPUs), PricePerHour: "2 EUR"},
			Deadline: at(time.Hour), Until: at(2 * time.Hour),
		},
	}
	for _, text := range conditions {
		c := metav1.Condition{Type: text, Status: metav1.ConditionTrue, Reason: "Done", LastTransitionTime: at(-time.Hour)}
		for i := range text {
			if text[i] == '=' {
				c.Type, c.Reason = text[:i], text[i+1:]
			}
		}
		b.Status.Conditions = append(b.Status.Conditions, c)
	}
	g.s.Bursts = append(slices.Clone(g.s.Bursts), b)
	return g
}

func (g given) later(d time.Duration) given { g.s.Now = g.s.Now.Add(d); return g }

func newQuantity(bytes int64) *resource.Quantity {
	return resource.NewQuantity(bytes, resource.BinarySI)
}

func amount(text string) money.Amount {
	a, err := money.Parse(text)
	if err != nil {
		panic(err)
	}
	return a
}

// outcomes writes a plan with one short line a gang: verdict, code, and what is
// bought where.
func outcomes(p plan.Plan) string {
	text := ""
	for _, d := range p.Decisions {
		text += d.Owner.Name + ": " + string(d.Verdict)
		if d.Burst != nil {
			text += fmt.Sprintf(" %dx%s at %s for %d", d.Burst.Machines, d.Burst.Offer.InstanceType, d.Burst.Offer.Provider, len(d.Burst.Pods))
		} else {
			text += " " + string(d.Code)
		}
		text += "\n"
	}
	return text
}

// refused lists the codes against the offer of one provider.
func refused(t *testing.T, p plan.Plan, provider string) []plan.Code {
	t.Helper()
	var codes []plan.Code
	for _, d := range p.Decisions {
		for _, f := range d.Refusals {
			if f.Provider == provider {
				codes = append(codes, f.Code)
			}
		}
	}
	return codes
}

type condition = metav1.Condition
