package capi_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/autoscaler/infra"
	chart "spillway.dev/spillway/charts/spillway"
	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// stage is a real control plane with Cluster API embedded in this process, the
// infrastructure controller, and a fake cloud whose machines register Nodes.
type stage struct {
	t        *testing.T
	plane    *controlplane.ControlPlane
	client   client.Client
	cloud    *fake.Cloud
	url      string
	machines *capi.Machines
	stop     func()
}

// yes is a ledger that permits everything, once an epoch: here Cluster API is
// what is tried, and the ledger has its own tests.
type yes struct{}

func (yes) Permit(context.Context, string, int) error { return nil }

func newStage(t *testing.T) *stage {
	t.Helper()
	ctrl.SetLogger(klog.New(nil))
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: bin, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	s := &stage{t: t, plane: plane}
	applyKinds(t, plane)
	s.client, err = client.New(plane.AdminConfig, client.Options{Scheme: scheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(plane.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cl := capi.Cluster{Name: "onprem", Namespace: namespace, Endpoint: strings.TrimPrefix(plane.URL, "https://"), Kubeconfig: kubeconfig}
	if err := capi.EnsureCluster(t.Context(), s.client, cl); err != nil {
		t.Fatal(err)
	}
	s.machines = &capi.Machines{Client: s.client, Cluster: cl}
	s.cloud = fake.New(fake.Config{
		Provider: "west", Region: "w1", Secrets: []string{"secret"},
		Offers: []providers.Offer{{InstanceType: "gpu", CapacityType: "on-demand", GPUs: 1, GPUResource: "nvidia.com/gpu"}},
		Timing: fake.Timing{BootTakes: 300 * time.Millisecond, DeleteTakes: time.Second},
	})
	s.cloud.Boot = s.boot
	server := httptest.NewServer(s.cloud.Handler())
	t.Cleanup(server.Close)
	t.Cleanup(s.cloud.Close)
	s.url = server.URL
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := capi.EmbeddedScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// applyKinds makes the API server serve Cluster API's kinds and ours.
func applyKinds(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	crds, err := capi.CRDs(strings.TrimSpace(string(dir)))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := chart.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(u *unstructured.Unstructured) bool {
		return u.GetKind() != "CustomResourceDefinition" && u.GetKind() != "Namespace"
	})
	for _, crd := range crds {
		crd.TypeMeta = metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"}
		raw, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
		if err != nil {
			t.Fatal(err)
		}
		delete(raw, "status")
		objects = append(objects, &unstructured.Unstructured{Object: raw})
	}
	dyn, err := dynamic.NewForConfig(plane.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := chart.ApplyObjects(t.Context(), dyn, objects); err != nil {
		t.Fatal(err)
	}
}

// start runs the controllers, as one process does; stop ends them.
func (s *stage) start() {
	s.t.Helper()
	options := capi.ManagerOptions(scheme(s.t), "")
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	mgr, err := ctrl.NewManager(s.plane.AdminConfig, options)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := capi.SetupEmbedded(ctx, mgr); err != nil {
		s.t.Fatal(err)
	}
	driver := fake.Dial(s.url, "secret", "onprem-1", nil)
	rec := &infra.Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Permits: yes{}, Log: slog.New(slog.DiscardHandler),
		Drivers: func(context.Context, string) (providers.Driver, error) { return driver, nil },
		Timing:  infra.Timing{LookAgain: 2 * time.Second, Poll: 200 * time.Millisecond, Watch: time.Second, Trouble: time.Second},
	}
	if err := rec.SetupWithManager(mgr); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		s.stop = func() {}
	}
}

// boot is a machine: it registers its Node under its own identity.
func (s *stage) boot(ctx context.Context, m providers.Machine, userData []byte) {
	if err := s.register(ctx, m.Name, userData); err != nil && ctx.Err() == nil {
		s.t.Errorf("machine %s: %v", m.Name, err)
	}
	<-ctx.Done()
}

func (s *stage) register(ctx context.Context, name string, userData []byte) error {
	join, err := bootstrap.ParseJoin(userData)
	if err != nil {
		return err
	}
	config, err := s.plane.NodeConfig(name)
	if err != nil {
		return err
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: join.NodeName}, Spec: corev1.NodeSpec{ProviderID: join.ProviderID}}
	for _, taint := range join.Taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taint.Key, Value: taint.Value, Effect: corev1.TaintEffect(taint.Effect)})
	}
	_, err = c.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
	return err
}

// order asks for the first machine of a burst.
func (s *stage) order(uid types.UID) {
	s.t.Helper()
	userData, err := bootstrap.Render(link.Join{
		APIServer: s.plane.URL, BootstrapToken: "abcdef.0123456789abcdef", ClusterCA: s.plane.CACert,
		NodeName: capi.NodeName(uid, 0), ProviderID: capi.ProviderID("west", "w1", uid, 0), Taints: bootstrap.Taints(string(uid), false),
		Burst: string(uid), Tenant: "t-0001", Installation: "onprem-1", Controller: "127.0.0.1:1", ControllerCA: s.plane.CACert,
		Gate: "https://127.0.0.1:2", Store: "s3.onprem.test:9000", Lease: link.SignedLease{Payload: []byte("x")}, LeaseKey: make([]byte, 32),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	err = s.machines.Ensure(s.t.Context(), capi.Order{
		Burst: burst(uid), Tenant: "t-0001", Installation: "onprem-1", UserData: userData, Expires: time.Now().Add(25 * time.Minute),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// until polls the machine of a burst until the condition holds.
func (s *stage) until(uid types.UID, what string, cond func(capi.View) bool) capi.View {
	s.t.Helper()
	var last []capi.View
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		views, err := s.machines.Read(s.t.Context(), uid)
		if err != nil {
			s.t.Fatal(err)
		}
		if last = views; len(views) == 1 && cond(views[0]) {
			return views[0]
		}
	}
	s.t.Fatalf("burst %s: never %s; last: %+v", uid, what, last)
	return capi.View{}
}

// finish deletes, releases and forgets, and waits until nothing is left.
func (s *stage) finish(uid types.UID) {
	s.t.Helper()
	ctx := s.t.Context()
	if _, err := s.machines.Delete(ctx, uid); err != nil {
		s.t.Fatal(err)
	}
	if err := s.machines.Release(ctx, uid, capi.PreDrainHook, capi.PreTerminateHook); err != nil {
		s.t.Fatal(err)
	}
	s.until(uid, "gone", func(v capi.View) bool { return !v.Gone.IsZero() })
	for _, m := range s.cloud.Billing() {
		if m.Burst == string(uid) {
			s.t.Errorf("gone is recorded, and the cloud bills %+v", m)
		}
	}
	if err := s.machines.Forget(ctx, uid); err != nil {
		s.t.Fatal(err)
	}
	name := capi.NodeName(uid, 0)
	s.eventually("objects and Node of "+name+" are gone", func() bool {
		views, err := s.machines.Read(ctx, uid)
		nodeErr := s.client.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
		secretErr := s.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name + "-userdata"}, &corev1.Secret{})
		return err == nil && len(views) == 0 && apierrors.IsNotFound(nodeErr) && apierrors.IsNotFound(secretErr)
	})
}

func (s *stage) eventually(what string, cond func() bool) {
	s.t.Helper()
	for end := time.Now().Add(90 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if cond() {
			return
		}
	}
	s.t.Fatalf("never: %s", what)
}

// condition reads reason and message of condition Ready of a SpillwayMachine.
func (s *stage) ready(uid types.UID) (reason, message string) {
	s.t.Helper()
	sm := get(s.t, s.client, capi.NodeName(uid, 0), &infrav1.SpillwayMachine{})
	if c := meta.FindStatusCondition(sm.Status.Conditions, infra.Ready); c != nil {
		return c.Reason, c.Message
	}
	return "", ""
}

func uidOf(n int) types.UID { return types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", n)) }

// TestStoryOnARealControlPlane carries machines through Cluster API's own
// reconcilers on a real API server.
func TestStoryOnARealControlPlane(t *testing.T) {
	s := newStage(t)
	t.Run("bought, joined, held by the hooks, ended", func(t *testing.T) { s.t = t; s.wholeLife(uidOf(1)) })
	t.Run("the controllers are replaced in the middle", func(t *testing.T) { s.t = t; s.replaced(uidOf(2)) })
	t.Run("a SpillwayMachine deleted directly is held", func(t *testing.T) { s.t = t; s.direct(uidOf(3)) })
	t.Run("sold out", func(t *testing.T) { s.t = t; s.soldOut(uidOf(4)) })
	t.Run("the provider id is final", func(t *testing.T) { s.t = t; s.final(uidOf(5)) })
	s.t = t
}

// cases: B-1 kubernetes-sigs/cluster-api PR#11552 (the Node goes), B-2
// cluster-api#3872 (the pre-terminate hook holds)
func (s *stage) wholeLife(uid types.UID) {
	s.order(uid)
	v := s.until(uid, "a running node", func(v capi.View) bool { return v.Phase == "Running" && v.Node != "" })
	if !v.Bought || !v.Provisioned || v.Node != v.Name || v.InstanceID == "" || v.Created.IsZero() {
		s.t.Errorf("running is %+v", v)
	}
	s.eventually("the restricted labels are on the Node", func() bool {
		n := &corev1.Node{}
		return s.client.Get(s.t.Context(), client.ObjectKey{Name: v.Node}, n) == nil &&
			n.Labels[capi.NodeLabelPrefix+"burst"] == string(uid) && n.Labels[capi.NodeLabelPrefix+"jurisdiction"] == "FR"
	})
	if _, err := s.machines.Delete(s.t.Context(), uid); err != nil {
		s.t.Fatal(err)
	}
	s.until(uid, "held by the pre-drain hook", func(v capi.View) bool { return deletingReason(v) == "WaitingForPreDrainHook" })
	if err := s.machines.Release(s.t.Context(), uid, capi.PreDrainHook); err != nil {
		s.t.Fatal(err)
	}
	s.until(uid, "held by the pre-terminate hook", func(v capi.View) bool { return deletingReason(v) == "WaitingForPreTerminateHook" })
	if len(s.cloud.Billing()) != 1 {
		s.t.Errorf("billed while held: %+v", s.cloud.Billing())
	}
	s.finish(uid)
}

func deletingReason(v capi.View) string {
	if c := meta.FindStatusCondition(v.Conditions, "Deleting"); c != nil {
		return c.Reason
	}
	return ""
}

func (s *stage) replaced(uid types.UID) {
	s.order(uid)
	s.until(uid, "bought", func(v capi.View) bool { return v.Bought })
	s.stop()
	s.start()
	s.until(uid, "a running node", func(v capi.View) bool { return v.Phase == "Running" && v.Node != "" })
	s.finish(uid)
	made := 0
	for _, m := range s.cloud.Snapshot() {
		if m.Burst == string(uid) {
			made++
		}
	}
	if made != 1 {
		s.t.Errorf("%d machines were made, want 1", made)
	}
}

// cases: B-38 Cluster API core v1.14.2 isNodeDrainAllowed
func (s *stage) direct(uid types.UID) {
	s.order(uid)
	v := s.until(uid, "a running node", func(v capi.View) bool { return v.Node != "" })
	sm := get(s.t, s.client, v.Name, &infrav1.SpillwayMachine{})
	if err := s.client.Delete(s.t.Context(), sm); err != nil {
		s.t.Fatal(err)
	}
	s.eventually("held by the gate", func() bool { reason, _ := s.ready(uid); return reason == infra.ReasonHeldByGate })
	if _, message := s.ready(uid); !strings.Contains(message, "Delete the Burst instead") {
		s.t.Errorf("message %q", message)
	}
	if len(s.cloud.Billing()) != 1 {
		s.t.Errorf("billed while held: %+v", s.cloud.Billing())
	}
	s.finish(uid)
}

func (s *stage) soldOut(uid types.UID) {
	s.cloud.Script(fake.Fault{Op: "create", Effect: fake.SoldOut})
	s.order(uid)
	v := s.until(uid, "refused", func(v capi.View) bool { return v.Refusal != "" })
	if v.Refusal != infra.RefusedSoldOut || !strings.Contains(v.Message, "no capacity for this type here") {
		s.t.Errorf("refused as %q: %q", v.Refusal, v.Message)
	}
	s.finish(uid)
}

func (s *stage) final(uid types.UID) {
	s.order(uid)
	sm := get(s.t, s.client, capi.NodeName(uid, 0), &infrav1.SpillwayMachine{})
	old := sm.DeepCopy()
	sm.Spec.ProviderID += "x"
	if err := s.client.Patch(s.t.Context(), sm, client.MergeFrom(old)); err == nil || !strings.Contains(err.Error(), "identity is final") {
		s.t.Errorf("a changed provider id: %v", err)
	}
	s.finish(uid)
}
