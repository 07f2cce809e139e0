package observe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
)

// cluster is a cache that is empty, and fails for one kind.
type cluster struct {
	client.Reader
	broken string
	mirror *Mirror // whose reading shows in asked
	asked  []string
}

func (c *cluster) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	kind := fmt.Sprintf("%T", list)
	if c.mirror != nil && c.mirror.told.From > 0 && !slices.Contains(c.asked, "the mirror") {
		c.asked = append(c.asked, "the mirror")
	}
	c.asked = append(c.asked, kind)
	if kind == c.broken {
		return errors.New("the cache is gone")
	}
	return nil
}

type nothing struct{}

func (nothing) Offers(context.Context, []v1alpha1.BurstProvider) []providers.Offer { return nil }

func observer(c *cluster) *Observer {
	table, err := NewTable()
	if err != nil {
		panic(err) // the built-in kinds
	}
	watched := []Watched{
		{GroupVersionKind: schema.GroupVersionKind{Group: "jobset.x-k8s.io", Version: "v1alpha2", Kind: "JobSet"}, Whole: true},
		{GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ReplicaSet"}},
	}
	mirror := NewMirror()
	mirror.tell(nil, &corev1.Node{})
	return &Observer{
		Table: table, Watched: watched,
		Cache: c, Mirror: mirror, Synced: func(context.Context) bool { return true }, Offers: nothing{}, Now: time.Now,
		Book: func(context.Context) (quota.Book, error) { return quota.Book{}, nil },
	}
}

// What can't be read is an error, never an empty list: a cluster without nodes
// has no room, one without bursts buys everything again.
func TestWhatCantBeReadIsAnError(t *testing.T) {
	whole := &cluster{}
	if s, err := observer(whole).State(t.Context()); err != nil || len(s.Cluster.Nodes) != 1 {
		t.Fatalf("State() = %+v, %v", s, err)
	}
	if len(whole.asked) < 13 {
		t.Errorf("only %v were read", whole.asked)
	}
	for _, kind := range whole.asked {
		t.Run(kind, func(t *testing.T) {
			if _, err := observer(&cluster{broken: kind}).State(t.Context()); err == nil {
				t.Error("State() went on without it")
			}
		})
	}
}

// cases: C-27 BerriAI/litellm#30039, #30684: without the one durable source nothing is decided.
func TestNoStateWithoutTheLedger(t *testing.T) {
	o := observer(&cluster{})
	o.Book = func(context.Context) (quota.Book, error) { return quota.Book{}, errors.New("the disk is gone") }
	if _, err := o.State(t.Context()); err == nil {
		t.Error("State() went on without the ledger")
	}
}

// What happens between two reads is seen at its later place: a burst that was
// bought meanwhile still has its pods pending and is found by its name.
func TestBurstsAreReadBeforePodsBeforeOwners(t *testing.T) {
	c := &cluster{}
	o := observer(c)
	c.mirror = o.Mirror
	if _, err := o.State(t.Context()); err != nil {
		t.Fatal(err)
	}
	order := []int{slices.Index(c.asked, "*v1alpha1.BurstList"), slices.Index(c.asked, "the mirror"), slices.Index(c.asked, "*v1.JobList"), slices.Index(c.asked, "*unstructured.UnstructuredList")}
	if order[0] < 0 || !slices.IsSorted(order) {
		t.Errorf("they were read in the order %v", c.asked)
	}
}

// Only those who use Spillway are told why it does nothing for them.
func TestHeldWorkConcernsTenantsOnly(t *testing.T) {
	tenant := v1alpha1.BurstTenant{Spec: v1alpha1.BurstTenantSpec{Namespaces: []string{"team"}}}
	held, waits := plan.Gang{Hold: &plan.Reason{Code: plan.QueueHeld}}, plan.Gang{}
	var names []string
	for _, namespace := range []string{"team", "stranger"} {
		for _, g := range []plan.Gang{held, waits} {
			g.Owner.Namespace = namespace
			for _, left := range concerned([]plan.Gang{g}, []v1alpha1.BurstTenant{tenant}) {
				names = append(names, fmt.Sprint(left.Owner.Namespace, left.Hold != nil))
			}
		}
	}
	if diff := cmp.Diff([]string{"teamtrue", "teamfalse", "strangerfalse"}, names); diff != "" {
		t.Error(diff)
	}
}
