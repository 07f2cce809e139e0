package lifecycle

import (
	"fmt"
	"testing"
	"time"

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

// A hyperparameter sweep of many short pods, at a provider that bills started
// hours, is not paid by the pod: planned, lived through in virtual time, and
// settled from what the meter showed.
func TestSweepPaysForStartedHoursOnce(t *testing.T) {
	s := liveSweep(t, 50, 6*time.Minute)
	if s.seconds != 6*3600 {
		t.Errorf("%d machine seconds are billed, want those of 6 hours", s.seconds)
	}
	if s.burst.Machines != 6 || s.burst.Turns != 9 {
		t.Errorf("%d machines and %d turns, want 6 and 9", s.burst.Machines, s.burst.Turns)
	}
}

// BenchmarkHyperparameters tells how much is paid for a second of work. Five
// hours of work can't be paid with less than six: a boot is billed as well.
func BenchmarkHyperparameters(b *testing.B) {
	var s sweep
	for b.Loop() {
		s = liveSweep(b, 50, 6*time.Minute)
	}
	b.ReportMetric(float64(s.seconds)/s.computed.Seconds(), "paid/computed")
}

// sweep is what became of one.
type sweep struct {
	burst    plan.Burst
	seconds  int64 // that were billed
	computed time.Duration
}

// liveSweep decides on a sweep, and carries its burst through all ten steps. The
// machines take longer to boot than was planned.
func liveSweep(t testing.TB, pods int, run time.Duration) sweep {
	t.Helper()
	const boot = 3 * time.Minute
	b := newBench(t, 1, pods)
	state := sweepState(t, b.now, pods, run, boot)
	bought := plan.Decide(state).Bursts()
	if len(bought) != 1 {
		t.Fatalf("%d bursts, want 1:\n%s", len(bought), plan.Decide(state).Explain())
	}
	decided, err := burstOf(bought[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	b = newBench(t, 1, pods, func(burst *v1alpha1.Burst) { burst.Spec = decided.Spec })
	b.yard.absent = true
	b.later(boot+30*time.Second, func() { b.yard.absent = false })
	free := make([]int32, decided.Spec.Machines)
	for i := range free {
		free[i] = int32(i)
	}
	b.inTurns(free, run)
	b.liveOn(6 * time.Hour)
	if !b.has(v1alpha1.Complete) {
		t.Fatalf("the sweep did not complete: %v", b.facts())
	}
	return sweep{bought[0], b.books.settlement.Seconds, time.Duration(pods) * run}
}

// inTurns is a scheduler: an admitted pod runs where a machine is free, and the
// others wait.
func (b *bench) inTurns(free []int32, run time.Duration) {
	var waiting []string
	var next func()
	next = func() {
		for len(free) > 0 && len(waiting) > 0 {
			at, name := free[0], waiting[0]
			free, waiting = free[1:], waiting[1:]
			b.place(name, at, corev1.PodRunning)
			b.later(run, func() {
				b.place(name, at, corev1.PodSucceeded)
				free = append(free, at)
				next()
			})
		}
	}
	b.work.onAdmit = func(name string) {
		waiting = append(waiting, name)
		next()
	}
}

func sweepState(t testing.TB, now time.Time, pods int, run, boot time.Duration) plan.State {
	t.Helper()
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(d)) }
	papers := v1alpha1.Evidence{Link: "https://example.org/evidence", Reviewed: at(-24 * time.Hour), Expires: at(365 * 24 * time.Hour)}
	limit, price := money.Amount{Nano: 1000e9, Currency: "EUR"}, money.Rate{NanoPerHour: 3_600_000_000, Currency: "EUR"}
	book, err := quota.NewBook(quota.Budget{ID: "t-1/month", Scope: quota.ScopeTenant, Subject: "t-1", Window: quota.WindowMonth, Limit: limit, Hard: true})
	if err != nil {
		t.Fatal(err)
	}
	s := plan.State{
		Now: now, Book: book,
		Tenants: []v1alpha1.BurstTenant{{ObjectMeta: metav1.ObjectMeta{Name: team}, Spec: v1alpha1.BurstTenantSpec{
			ID: "t-1", Namespaces: []string{team}, DataClass: "internal",
			Burst: v1alpha1.BurstRules{
				Mode: v1alpha1.ModeOn, Reserve: quota.ModeSafe,
				DataRules: []v1alpha1.DataRule{{Class: "internal", Countries: []string{"NL"}}},
			},
		}}},
		Providers: []v1alpha1.BurstProvider{{ObjectMeta: metav1.ObjectMeta{Name: "west"}, Spec: v1alpha1.BurstProviderSpec{
			Driver: "fake", Region: "w1", Country: "NL", CredentialsSecret: "west",
			Legal: v1alpha1.LegalFacts{Seat: "NL", Owner: "West BV", OwnerCountry: "NL", Evidence: &papers}, ProcessingAgreement: &papers,
			Join: v1alpha1.JoinSettings{BootTime: metav1.Duration{Duration: boot}},
		}}},
		Offers: []providers.Offer{{
			Provider: "west", Region: "w1", InstanceType: "gpu", Country: "NL", GPUModel: "L40S-48", GPUs: 1, GPUResource: gpu,
			MilliCPU: 16_000, MemoryMiB: 65_536, DiskGiB: 400, Seen: now, Price: price,
			Meter: providers.MeterRule{Start: providers.MeterCreated, Granularity: time.Hour},
		}},
		Gangs: []plan.Gang{{
			Owner:   plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: team, Name: "sweep", UID: "sweep"},
			Created: now.Add(-time.Hour), MaxRun: run,
		}},
	}
	seconds := int64(run / time.Second)
	for i := range pods {
		name := fmt.Sprintf("pod-%d", i)
		s.Gangs[0].Pods = append(s.Gangs[0].Pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: team, Name: name, UID: types.UID(name)},
			Spec: corev1.PodSpec{ActiveDeadlineSeconds: &seconds, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{gpu: resource.MustParse("1")},
			}}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: at(-time.Hour),
			}}},
		})
	}
	return s
}
