package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/money"
)

// mixState is work of eleven pods at a provider that sells machines of one GPU
// and of four: three and two of them are cheapest. A third type is dear.
func mixState(t testing.TB, now time.Time) plan.State {
	s := sweepState(t, now, 11, time.Hour, 3*time.Minute)
	small := s.Offers[0]
	small.Meter.Granularity = time.Second
	large, dear := small, small
	small.Price.NanoPerHour, large.Price.NanoPerHour, dear.Price.NanoPerHour = 600_000_000, 2_000_000_000, 9_000_000_000
	large.InstanceType, large.GPUs, dear.InstanceType, dear.GPUs = "gpu4", 4, "gpu3", 3
	s.Offers = append(s.Offers[:0:0], small, large, dear)
	return s
}

// quietly tells nobody.
type quietly struct{}

func (quietly) TellOwner(context.Context, plan.Owner, string, string) error { return nil }

func cycleOn(s plan.State, c client.Client) *Cycle {
	return &Cycle{Client: c, Observe: func(context.Context) (plan.State, error) { return s, nil }, Teller: quietly{}}
}

func burstsIn(t testing.TB, c client.Client) []v1alpha1.Burst {
	t.Helper()
	var list v1alpha1.BurstList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.Burst) int { return int(a.Spec.Attempt - b.Spec.Attempt) })
	return list.Items
}

func apiServer(t testing.TB) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fakeclient.NewClientBuilder().WithScheme(scheme).Build()
}

// bought writes bursts as "3xgpu for 3".
func bought(bursts []v1alpha1.Burst) string {
	var all []string
	for _, b := range bursts {
		all = append(all, fmt.Sprintf("%dx%s for %d", b.Spec.Machines, b.Spec.Offer.InstanceType, len(b.Spec.Gang.Pods)))
	}
	return strings.Join(all, ", ")
}

// TestAMixedPlanIsBought: from one decision to the last machine. One burst runs to
// its end. Of the other's three machines two are bought when the third is sold out:
// they go back, no tenant is charged for them, and the pods of this burst alone are
// bought for again.
func TestAMixedPlanIsBought(t *testing.T) {
	start := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	s, server := mixState(t, start), apiServer(t)
	if err := cycleOn(s, server).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := burstsIn(t, server)
	if got := bought(written); got != "3xgpu for 3, 2xgpu4 for 8" {
		t.Fatalf("written are %s", got)
	}
	lives := make([]*bench, 2)
	for i := range lives {
		lives[i] = newBench(t, written[i].Spec.Machines, 11, func(b *v1alpha1.Burst) { b.Spec, b.CreationTimestamp = written[i].Spec, metav1.NewTime(start) })
	}
	small, large := lives[0], lives[1]

	small.live(v1alpha1.MachineRequested)
	small.yard.slow = true
	for i := range 2 {
		v := &small.yard.views[i]
		v.Bought, v.InstanceID, v.Created, v.Started = true, fmt.Sprint("i-", i), small.now, small.now
	}
	small.yard.views[2].Refusal = v1alpha1.EndSoldOut
	small.liveOn(time.Hour)
	for _, v := range small.yard.views {
		if v.Gone.IsZero() {
			t.Errorf("machine %s stayed", v.Name)
		}
	}
	if got := small.books.settlement; !small.books.settled || got.Seconds == 0 || got.Cause != quota.CauseProviderFault {
		t.Errorf("settlement of what was given back: %+v", got)
	}

	free := []int32{0, 0, 0, 0, 1, 1, 1, 1}
	large.inTurns(free, 50*time.Minute)
	large.live(v1alpha1.MachineBought)
	again := s
	again.Now = small.now
	again.Bursts = []v1alpha1.Burst{named(small, written[0].Name), named(large, written[1].Name)}
	if err := cycleOn(again, server).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	written = burstsIn(t, server)
	if got := bought(written); got != "3xgpu for 3, 2xgpu4 for 8, 1xgpu4 for 3" {
		t.Fatalf("then written are %s: %s", got, plan.Decide(again).Explain())
	}
	if !slices.Equal(written[2].Spec.Gang.Pods, written[0].Spec.Gang.Pods) {
		t.Errorf("bought for again are %v, without a machine are %v", written[2].Spec.Gang.Pods, written[0].Spec.Gang.Pods)
	}
	large.liveOn(6 * time.Hour)
	if !large.has(v1alpha1.Complete) || len(large.work.admitted) != 8 {
		t.Errorf("%d pods of the other burst were let in: %v", len(large.work.admitted), large.facts())
	}
}

// named is a burst as the API server has it.
func named(b *bench, name string) v1alpha1.Burst {
	burst := b.burst().DeepCopy()
	burst.Name, burst.UID = name, types.UID(name)
	return *burst
}

// frugal is an API server that takes so many bursts and no more.
type frugal struct {
	client.Client
	left int
}

func (f *frugal) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if f.left--; f.left < 0 {
		return errDown()
	}
	o.SetCreationTimestamp(metav1.NewTime(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)))
	return f.Client.Create(ctx, o, opts...)
}

// TestAPlanThatWasWrittenInPart: the controller dies between two bursts of one
// decision. The next one buys for those who have none; whoever still sees the old
// state writes nothing.
func TestAPlanThatWasWrittenInPart(t *testing.T) {
	start := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	s, server := mixState(t, start), apiServer(t)
	if err := cycleOn(s, &frugal{server, 1}).Once(t.Context()); err == nil {
		t.Fatal("nobody was told of the burst that could not be written")
	}
	if got := bought(burstsIn(t, server)); got != "3xgpu for 3" {
		t.Fatalf("written are %s", got)
	}
	behind := s
	behind.Offers = slices.Clone(s.Offers)
	behind.Offers[1].SoldOut = true // it would be bought otherwise now
	if err := cycleOn(behind, &frugal{server, 99}).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := bought(burstsIn(t, server)); got != "3xgpu for 3" {
		t.Fatalf("with a state that does not show the first burst %s are written", got)
	}
	s.Bursts = burstsIn(t, server)
	if err := cycleOn(s, &frugal{server, 99}).Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	written := burstsIn(t, server)
	if got := bought(written); got != "3xgpu for 3, 2xgpu4 for 8" {
		t.Fatalf("in the end %s are written", got)
	}
	had := map[types.UID]bool{}
	for _, b := range written {
		for _, p := range b.Spec.Gang.Pods {
			if had[p.UID] {
				t.Errorf("%s is bought for twice", p.Name)
			}
			had[p.UID] = true
		}
	}
}

// TestAMixIsObservedWhole: what would be bought together is recorded with its price
// in all.
func TestAMixIsObservedWhole(t *testing.T) {
	s := mixState(t, time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC))
	s.Tenants[0].Spec.Burst.Mode = v1alpha1.ModeObserve
	d := plan.Decide(s).Decisions[0]
	if len(d.Bursts()) != 2 {
		t.Fatalf("it is not a mix: %s", d.Explain())
	}
	if got := observedBurst(s.Now, d).PricePerHour; got != moneyOf(money.Amount{Nano: 3*600_000_000 + 2*2_000_000_000, Currency: "EUR"}) {
		t.Errorf("observed is a price of %s an hour", got)
	}
}
