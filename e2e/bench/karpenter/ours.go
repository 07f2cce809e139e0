package main

import (
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/karpenter/pkg/cloudprovider/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

const gpu = "nvidia.com/gpu"

// decide has Spillway plan for the pods.
func decide(pods []*corev1.Pod) (outcome, error) {
	s, err := stateOf(pods)
	if err != nil {
		return outcome{}, err
	}
	began := time.Now()
	p := plan.Decide(s)
	o := outcome{took: time.Since(began)}
	served := 0
	for _, b := range p.Bursts() {
		served += len(b.Pods)
		o.nodes += int(b.Machines)
		o.nano += b.Hourly.NanoPerHour
	}
	if served != len(pods) {
		d := p.Decisions[0]
		return outcome{}, fmt.Errorf("%d of %d pods are bought for: %s %s", served, len(pods), d.Verdict, d.Reason)
	}
	return o, nil
}

// stateOf is an empty home with one tenant, one provider with karpenter's types,
// and the pods as independent work of one owner.
func stateOf(pods []*corev1.Pod) (plan.State, error) {
	now := time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	papers := v1alpha1.Evidence{Link: "https://example.org/evidence", Reviewed: at(-24 * time.Hour), Expires: at(365 * 24 * time.Hour)}
	limit := money.Amount{Nano: 9e17, Currency: "EUR"}
	book, err := quota.NewBook(quota.Budget{ID: "month", Scope: quota.ScopeTenant, Subject: "team", Window: quota.WindowMonth, Limit: limit, Hard: true})
	if err != nil {
		return plan.State{}, err
	}
	s := plan.State{
		Now: now, Book: book, Offers: offers(now),
		Settings: plan.Settings{Machines: 64, ReserveMilliCPU: 100, ReservePercent: 1},
		Tenants: []v1alpha1.BurstTenant{{
			ObjectMeta: metav1.ObjectMeta{Name: "team"},
			Spec: v1alpha1.BurstTenantSpec{ID: "team", Namespaces: []string{"default"}, DataClass: "internal", Burst: v1alpha1.BurstRules{
				Mode: v1alpha1.ModeOn, Reserve: quota.ModeSafe, BurstAfter: metav1.Duration{Duration: time.Minute},
				DataRules: []v1alpha1.DataRule{{Class: "internal", Countries: []string{"DE"}}},
			}},
		}},
		Providers: []v1alpha1.BurstProvider{{
			ObjectMeta: metav1.ObjectMeta{Name: "cloud"},
			Spec: v1alpha1.BurstProviderSpec{
				Driver: "fake", Region: "one", Country: "DE", CredentialsSecret: "cloud",
				Legal: v1alpha1.LegalFacts{Seat: "DE", Owner: "Cloud SE", OwnerCountry: "DE", Evidence: &papers}, ProcessingAgreement: &papers,
			},
		}},
	}
	work := plan.Gang{
		Owner:   plan.Owner{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Namespace: "default", Name: "diverse", UID: "diverse"},
		Created: now.Add(-time.Hour), MaxRun: time.Hour,
	}
	for _, p := range pods {
		own := p.DeepCopy()
		own.Spec.Containers[0].Resources.Requests[gpu] = *resource.NewQuantity(1, resource.DecimalSI)
		own.Status.Conditions[0].LastTransitionTime = at(-time.Hour)
		work.Pods = append(work.Pods, own)
	}
	s.Gangs = []plan.Gang{work}
	return s, nil
}

// offers are karpenter's types, read from karpenter, at its prices.
func offers(now time.Time) []providers.Offer {
	var all []providers.Offer
	for _, it := range fake.InstanceTypes(types400) {
		cpu, memory, room := it.Capacity[corev1.ResourceCPU], it.Capacity[corev1.ResourceMemory], it.Capacity[corev1.ResourcePods]
		kept := it.Overhead.KubeReserved[corev1.ResourceMemory]
		all = append(all, providers.Offer{
			Provider: "cloud", Region: "one", Zone: "test-zone-1", InstanceType: it.Name, CapacityType: "on-demand", Country: "DE",
			GPUModel: "any", GPUResource: gpu, GPUs: int(room.Value()), Arch: "amd64", Seen: now,
			MilliCPU: cpu.MilliValue(),
			// One percent of it is kept: what is left is not more than karpenter's.
			MemoryMiB: (memory.Value() - kept.Value()) * 100 / 99 >> 20, DiskGiB: 100,
			Price: money.Rate{NanoPerHour: int64(math.Round(it.Offerings.Cheapest().Price * 1e9)), Currency: "EUR"},
		})
	}
	return all
}
