package infra_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
	"spillway.dev/spillway/quota"
)

const (
	namespace    = "spillway-system"
	name         = "spw-burst-0"
	token        = "burst-uid-0"
	installation = "test-cluster"
	secret       = "bearer"
)

// clock is a virtual clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// permits is a ledger that knows permits only.
type permits struct {
	epoch int // the newest
	used  map[string]bool
	err   error // answers every call when set
	calls int
}

// leader is the ledger as one leader sees it.
type leader struct {
	*permits
	epoch int
}

func (l leader) Permit(_ context.Context, burst string, ordinal int) error {
	p := l.permits
	p.calls++
	key := fmt.Sprintf("%s/%d/%d", burst, ordinal, l.epoch)
	switch {
	case p.err != nil:
		return p.err
	case l.epoch < p.epoch:
		return quota.ErrStaleEpoch
	case p.used[key]:
		return quota.ErrPermitUsed
	}
	p.used[key] = true
	return nil
}

// bench is one SpillwayMachine with its Machine and Cluster in a fake API
// server, and a fake cloud behind real loopback HTTP.
type bench struct {
	t       *testing.T
	clock   *clock
	client  client.Client
	cloud   *fake.Cloud
	driver  providers.Driver
	permits *permits
	rec     *infra.Reconciler
}

func offer() providers.Offer {
	return providers.Offer{InstanceType: "gpu", CapacityType: "on-demand", GPUs: 1, GPUResource: "nvidia.com/gpu"}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{
		t: t, clock: &clock{now: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)},
		permits: &permits{used: map[string]bool{}},
	}
	b.cloud = fake.New(fake.Config{
		Provider: "west", Region: "w1", Secrets: []string{secret}, Offers: []providers.Offer{offer()}, Now: b.clock.Now,
		Timing: fake.Timing{BootTakes: 5 * time.Second, DeleteTakes: 8 * time.Second},
	})
	server := httptest.NewServer(b.cloud.Handler())
	t.Cleanup(server.Close)
	t.Cleanup(b.cloud.Close)
	b.driver = fake.Dial(server.URL, secret, installation, server.Client())
	b.client = fakeclient.NewClientBuilder().WithScheme(testScheme(t)).WithObjects(b.objects()...).
		WithStatusSubresource(&infrav1.SpillwayMachine{}, &clusterv1.Machine{}, &clusterv1.Cluster{}).Build()
	b.restart()
	return b
}

func testScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, infrav1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// objects are what stands in the API server when the controller starts.
func (b *bench) objects() []client.Object {
	yes, userData := true, name+"-userdata"
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "onprem"}}
	cluster.Status.Initialization.InfrastructureProvisioned = &yes
	machine := &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: "machine-uid",
			Annotations: map[string]string{clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/spillway-wipe": "spillway"},
		},
		Spec: clusterv1.MachineSpec{ClusterName: "onprem", Bootstrap: clusterv1.Bootstrap{DataSecretName: &userData}},
	}
	return []client.Object{
		cluster, machine,
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: userData},
			Data:       map[string][]byte{"value": []byte("#cloud-config\n")},
		},
		&infrav1.SpillwayMachine{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name,
				Finalizers: []string{infrav1.MachineFinalizer, "test/record"},
				OwnerReferences: []metav1.OwnerReference{{
					APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: "machine-uid",
				}},
			},
			Spec: infrav1.SpillwayMachineSpec{
				ProviderID: "spillway://west/w1/" + token, Provider: "west", Region: "w1",
				InstanceType: "gpu", CapacityType: "on-demand", Burst: "burst-uid", Tenant: "t1",
				Installation: installation, Token: token, Expires: metav1.NewTime(b.clock.Now().Add(25 * time.Minute)),
			},
		},
	}
}

// restart puts a new controller in place of the old one, in a new epoch: what
// was in its memory is gone.
func (b *bench) restart() {
	b.permits.epoch++
	b.rec = &infra.Reconciler{
		Client: b.client, Reader: b.client, Permits: leader{b.permits, b.permits.epoch}, Now: b.clock.Now, Log: slog.New(slog.DiscardHandler),
		Drivers: func(context.Context, string) (providers.Driver, error) { return b.driver, nil },
	}
}

// once reconciles once and must not fail.
func (b *bench) once() ctrl.Result {
	b.t.Helper()
	res, err := b.reconcile(b.t.Context())
	if err != nil {
		b.t.Fatalf("Reconcile: %v", err)
	}
	return res
}

func (b *bench) reconcile(ctx context.Context) (ctrl.Result, error) {
	return b.rec.Reconcile(ctx, request())
}

func request() ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: name}}
}

// run reconciles as a manager does, for so much virtual time: after each pass
// as long as it asked for, 5 seconds when it asked for nothing.
func (b *bench) run(d time.Duration) {
	b.t.Helper()
	for end := b.clock.Now().Add(d); b.clock.Now().Before(end); {
		wait := b.once().RequeueAfter
		if wait < 0 {
			b.t.Fatalf("Reconcile asked for %s", wait)
		}
		if wait == 0 {
			wait = 5 * time.Second
		}
		b.clock.step(wait)
	}
}

// get reads the SpillwayMachine; nil when it is gone.
func (b *bench) get() *infrav1.SpillwayMachine {
	b.t.Helper()
	sm := &infrav1.SpillwayMachine{}
	err := b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, sm)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return sm
}

// change edits an object of the bench by the given key.
func change[T client.Object](b *bench, obj T, key string, edit func(T)) {
	b.t.Helper()
	if err := b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: key}, obj); err != nil {
		b.t.Fatal(err)
	}
	edit(obj)
	if err := b.client.Update(b.t.Context(), obj); err != nil {
		b.t.Fatal(err)
	}
}

// release lets go of the gate on the Machine.
func (b *bench) release() {
	b.t.Helper()
	change(b, &clusterv1.Machine{}, name, func(m *clusterv1.Machine) { m.Annotations = nil })
}

// remove deletes the SpillwayMachine, as Cluster API does after the hooks.
func (b *bench) remove() {
	b.t.Helper()
	if err := b.client.Delete(b.t.Context(), b.get()); err != nil {
		b.t.Fatal(err)
	}
}

// reason returns status and reason of a condition, as "False SoldOut".
func (b *bench) reason(kind string) string {
	b.t.Helper()
	c := meta.FindStatusCondition(b.get().Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func (b *bench) wantReason(kind, want string) {
	b.t.Helper()
	if got := b.reason(kind); got != want {
		b.t.Errorf("condition %s is %q, want %q", kind, got, want)
	}
}

// made counts the machines that the cloud ever made for the token.
func (b *bench) made() int {
	n := 0
	for _, m := range b.cloud.Snapshot() {
		if m.Token == token {
			n++
		}
	}
	return n
}

func (b *bench) wantMade(made, billed int) {
	b.t.Helper()
	if got := b.made(); got != made {
		b.t.Errorf("the cloud made %d machines, want %d", got, made)
	}
	if got := len(b.cloud.Billing()); got != billed {
		b.t.Errorf("the cloud bills %d machines, want %d: %+v", got, billed, b.cloud.Billing())
	}
}

// creates counts the create calls that reached the cloud.
func (b *bench) creates() int {
	n := 0
	for _, c := range b.cloud.Calls() {
		if c.Op == "create" {
			n++
		}
	}
	return n
}

var errKilled = errors.New("killed")
