package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota/money"
)

// A decision of mode Observe is written once and stays as it was first seen,
// until its words change. The record keeps the newest.
func TestObserved(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	tenant := &v1alpha1.BurstTenant{ObjectMeta: metav1.ObjectMeta{Name: "team-new"}}
	c := &Cycle{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(tenant).WithStatusSubresource(tenant).Build()}
	start := time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)
	observe := func(after time.Duration, job, message string, localIn time.Duration) {
		t.Helper()
		b := plan.Burst{
			Owner: plan.Owner{Namespace: "new", Kind: "Job", Name: job}, ReadyAt: start.Add(after + 10*time.Minute),
			Ceiling: money.Amount{Nano: 5e9, Currency: "EUR"}, Expected: money.Amount{Nano: 3e9, Currency: "EUR"},
			Hourly: money.Rate{NanoPerHour: 2e9, Currency: "EUR"},
		}
		if localIn > 0 {
			b.LocalAt = start.Add(localIn)
		}
		d := plan.Decision{Owner: b.Owner, Tenant: "team-new", Verdict: plan.WouldBuy, Burst: &b}
		d.Message = message
		if err := c.observed(t.Context(), plan.Plan{At: start.Add(after), Decisions: []plan.Decision{d}}); err != nil {
			t.Fatal(err)
		}
	}
	record := func() []v1alpha1.ObservedBurst {
		t.Helper()
		now := &v1alpha1.BurstTenant{}
		if err := c.Client.Get(t.Context(), types.NamespacedName{Name: "team-new"}, now); err != nil {
			t.Fatal(err)
		}
		return now.Status.Observed
	}
	observe(0, "a", "first", time.Hour)
	observe(time.Minute, "a", "first", time.Hour)
	if got := record(); len(got) != 1 || !got[0].At.Time.Equal(start) || got[0].SavedWaiting.Duration != 50*time.Minute || got[0].Expected != "3.00 EUR" {
		t.Errorf("seen twice it is %+v, want one record of %s that saves 50m", got, start)
	}
	observe(2*time.Minute, "a", "second", 0)
	if got := record(); len(got) != 1 || !got[0].At.Time.Equal(start.Add(2*time.Minute)) || got[0].SavedWaiting != nil {
		t.Errorf("in other words it is %+v, want one record that says nothing of waiting", got)
	}
	for i := range v1alpha1.ObservedKept {
		observe(time.Hour, fmt.Sprintf("job-%03d", i), "x", 0)
	}
	if got := record(); len(got) != v1alpha1.ObservedKept || got[0].Owner != "new/Job/job-000" {
		t.Errorf("%d records are kept, the first of %s; want %d, without the oldest", len(got), got[0].Owner, v1alpha1.ObservedKept)
	}
}

// stale reads as a cache does that is behind the API server for a whole cycle.
type stale struct {
	client.Client
	read   map[string]*v1alpha1.BurstTenant
	writes int
}

func (s *stale) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if s.read[key.Name] == nil {
		now := &v1alpha1.BurstTenant{}
		if err := s.Client.Get(ctx, key, now, opts...); err != nil {
			return err
		}
		s.read[key.Name] = now
	}
	s.read[key.Name].DeepCopyInto(o.(*v1alpha1.BurstTenant))
	return nil
}

func (s *stale) Status() client.SubResourceWriter { s.writes++; return s.Client.Status() }

// What is seen in one cycle is written down at once and whole, whatever the cache
// knows of it; nothing is written while all stays as it is, also when there is
// more than the record holds; and the record fits into etcd.
func TestObservedTogether(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	tenant := &v1alpha1.BurstTenant{ObjectMeta: metav1.ObjectMeta{Name: "team-new"}}
	server := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tenant).WithStatusSubresource(tenant).Build()
	p := plan.Plan{At: time.Date(2026, 11, 2, 10, 0, 0, 0, time.UTC)}
	for i := range v1alpha1.ObservedKept + 50 {
		b := plan.Burst{Owner: plan.Owner{Namespace: "new", Kind: "Job", Name: fmt.Sprintf("job-%03d", i)}}
		d := plan.Decision{Owner: b.Owner, Tenant: "team-new", Verdict: plan.WouldBuy, Burst: &b}
		d.Message = strings.Repeat("1 node(s) had untolerated taint {ü: ü}, ", 500)
		p.Decisions = append(p.Decisions, d)
	}
	cycle := func(p plan.Plan) (record []v1alpha1.ObservedBurst, writes int) {
		t.Helper()
		cached := &stale{Client: server, read: map[string]*v1alpha1.BurstTenant{}}
		if err := (&Cycle{Client: cached}).observed(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		now := &v1alpha1.BurstTenant{}
		if err := server.Get(t.Context(), types.NamespacedName{Name: "team-new"}, now); err != nil {
			t.Fatal(err)
		}
		return now.Status.Observed, cached.writes
	}
	three := plan.Plan{At: p.At, Decisions: p.Decisions[:3]}
	if got, writes := cycle(three); len(got) != 3 || writes != 1 {
		t.Errorf("of 3 seen together %d are in the record after %d writes, want all after one", len(got), writes)
	}
	for turn := range 2 {
		got, writes := cycle(p)
		if len(got) != v1alpha1.ObservedKept || writes != 1-turn {
			t.Errorf("turn %d: the record has %d entries after %d writes, want %d after %d", turn, len(got), writes, v1alpha1.ObservedKept, 1-turn)
		}
		data, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) > 1<<20 {
			t.Errorf("the record has %d bytes, more than etcd takes", len(data))
		}
	}
}
