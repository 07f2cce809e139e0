package capi_test

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	controlplanev1 "spillway.dev/spillway/autoscaler/api/controlplane/v1alpha1"
	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/autoscaler/infra"
)

const (
	namespace = "spillway-system"
	burstUID  = types.UID("7f3a2b1c-0000-4000-8000-000000000001")
	node      = "spw-7f3a2b1c-0"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newClient(t *testing.T) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := capi.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fakeclient.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&infrav1.SpillwayMachine{}, &clusterv1.Machine{}, &controlplanev1.OnPremControlPlane{}).Build()
}

func cluster() capi.Cluster {
	return capi.Cluster{Name: "onprem", Namespace: namespace, Endpoint: "api.onprem.test:6443", Kubeconfig: []byte("kubeconfig-1")}
}

func newMachines(t *testing.T) *capi.Machines {
	t.Helper()
	return &capi.Machines{Client: newClient(t), Cluster: cluster()}
}

func burst(uid types.UID) *v1alpha1.Burst {
	b := &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{Namespace: "vision", Name: "train-b-0", UID: uid}}
	b.Spec.Offer = v1alpha1.OfferReference{Provider: "west", Region: "w1", InstanceType: "gpu", CapacityType: "on-demand", Country: "FR"}
	return b
}

func order(ordinal int32) capi.Order {
	return capi.Order{
		Burst: burst(burstUID), Ordinal: ordinal, Tenant: "t-0001", Installation: "onprem-1",
		UserData: []byte("#cloud-config\n"), Expires: noon.Add(25 * time.Minute),
	}
}

func get[T client.Object](t *testing.T, c client.Client, name string, obj T) T {
	t.Helper()
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

// cases: B-23 kubernetes-sigs/cluster-api#75, kubernetes/autoscaler#5465: a
// bare Machine; B-19 k0rdent/kcm#1077: one string, fixed in advance; B-5
// cluster-api#12920, B-7 #1870, #2998, B-8 #6285, #8507: neither a pod that is
// kept, nor a dead kubelet, nor a volume that never detaches holds its end up.
func TestEnsureMakesAMachineThatNothingRefills(t *testing.T) {
	m := newMachines(t)
	for range 2 { // the second time changes nothing
		if err := m.Ensure(t.Context(), order(0)); err != nil {
			t.Fatal(err)
		}
	}
	machine := get(t, m.Client, node, &clusterv1.Machine{})
	if len(machine.OwnerReferences) > 0 {
		t.Errorf("the Machine has owners: %v", machine.OwnerReferences)
	}
	hooks := map[string]string{
		"pre-drain.delete.hook.machine.cluster.x-k8s.io/spillway-results":  "spillway",
		"pre-terminate.delete.hook.machine.cluster.x-k8s.io/spillway-wipe": "spillway",
		"machine.cluster.x-k8s.io/exclude-node-draining":                   "spillway",
	}
	if diff := cmp.Diff(hooks, machine.Annotations); diff != "" {
		t.Errorf("hooks (-want +got):\n%s", diff)
	}
	zero, detach, userData := int32(0), int32(30), node+"-userdata"
	spec := clusterv1.MachineSpec{
		ClusterName: "onprem", Bootstrap: clusterv1.Bootstrap{DataSecretName: &userData},
		InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.spillway.dev", Kind: "SpillwayMachine", Name: node},
		Deletion:          clusterv1.MachineDeletionSpec{NodeDeletionTimeoutSeconds: &zero, NodeVolumeDetachTimeoutSeconds: &detach},
	}
	if diff := cmp.Diff(spec, machine.Spec); diff != "" {
		t.Errorf("Machine (-want +got):\n%s", diff)
	}
	restricted := map[string]string{}
	for k, v := range machine.Labels {
		if short, ok := strings.CutPrefix(k, "spillway.node-restriction.kubernetes.io/"); ok {
			restricted[short] = v
		}
	}
	if diff := cmp.Diff(map[string]string{"burst": string(burstUID), "tenant": "t-0001", "provider": "west", "jurisdiction": "FR"}, restricted); diff != "" {
		t.Errorf("labels for the node (-want +got):\n%s", diff)
	}
	sm := get(t, m.Client, node, &infrav1.SpillwayMachine{})
	want := infrav1.SpillwayMachineSpec{
		ProviderID: "spillway://west/w1/" + string(burstUID) + "-0", Provider: "west", Region: "w1", InstanceType: "gpu",
		CapacityType: "on-demand", Burst: string(burstUID), Tenant: "t-0001", Installation: "onprem-1",
		Token: string(burstUID) + "-0", Expires: metav1.NewTime(noon.Add(25 * time.Minute)),
	}
	if diff := cmp.Diff(want, sm.Spec); diff != "" {
		t.Errorf("SpillwayMachine (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{infrav1.MachineFinalizer, capi.RecordFinalizer}, sm.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	secret := get(t, m.Client, userData, &corev1.Secret{})
	if string(secret.Data["value"]) != "#cloud-config\n" || secret.Type != "cluster.x-k8s.io/secret" || secret.Labels[clusterv1.ClusterNameLabel] != "onprem" {
		t.Errorf("user-data Secret: type %s, labels %v", secret.Type, secret.Labels)
	}
}

func TestEnsureRefuses(t *testing.T) {
	tests := map[string]struct {
		before func(*testing.T, *capi.Machines)
		edit   func(*capi.Order)
		want   string
	}{
		"a burst that was never written": {nil, func(o *capi.Order) { o.Burst.UID = "" }, "has no UID yet"},
		"a tenant that fits no label":    {nil, func(o *capi.Order) { o.Tenant = "team vision" }, "/tenant=\"team vision\""},
		"a name of another burst": {func(t *testing.T, m *capi.Machines) {
			o := order(0)
			o.Burst = burst("7f3a2b1c-ffff-4000-8000-000000000002")
			if err := m.Ensure(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}, func(*capi.Order) {}, "share the first 8 characters"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := newMachines(t)
			if tt.before != nil {
				tt.before(t, m)
			}
			o := order(0)
			tt.edit(&o)
			if err := m.Ensure(t.Context(), o); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Ensure = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestReadJoinsRecordAndMachine(t *testing.T) {
	m := newMachines(t)
	for _, ordinal := range []int32{1, 0} {
		if err := m.Ensure(t.Context(), order(ordinal)); err != nil {
			t.Fatal(err)
		}
	}
	sm := get(t, m.Client, node, &infrav1.SpillwayMachine{})
	created, yes := metav1.NewTime(noon), true
	sm.Status = infrav1.SpillwayMachineStatus{
		InstanceID: "srv-1", State: "running", CreatedAt: &created, ExpiresAt: &created,
		Initialization: &infrav1.MachineInitialization{Provisioned: &yes},
	}
	meta.SetStatusCondition(&sm.Status.Conditions, metav1.Condition{Type: infra.Purchased, Status: metav1.ConditionTrue, Reason: infra.ReasonListed})
	if err := m.Client.Status().Update(t.Context(), sm); err != nil {
		t.Fatal(err)
	}
	machine := get(t, m.Client, node, &clusterv1.Machine{})
	machine.Status.Phase, machine.Status.NodeRef.Name = "Running", node
	if err := m.Client.Status().Update(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	second := get(t, m.Client, "spw-7f3a2b1c-1", &infrav1.SpillwayMachine{})
	meta.SetStatusCondition(&second.Status.Conditions, metav1.Condition{Type: infra.Purchased, Status: metav1.ConditionFalse, Reason: infra.RefusedSoldOut, Message: "No valid host was found."})
	if err := m.Client.Status().Update(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	got, err := m.Read(t.Context(), burstUID)
	if err != nil {
		t.Fatal(err)
	}
	want := []capi.View{
		{
			Name: node, Ordinal: 0, ProviderID: capi.ProviderID("west", "w1", burstUID, 0), InstanceID: "srv-1", State: "running",
			Bought: true, Provisioned: true, Phase: "Running", Node: node, Created: noon, Stamped: noon,
		},
		{Name: "spw-7f3a2b1c-1", Ordinal: 1, ProviderID: capi.ProviderID("west", "w1", burstUID, 1), Refusal: "SoldOut", Message: "No valid host was found."},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(time.Time.Equal)); diff != "" {
		t.Errorf("views (-want +got):\n%s", diff)
	}
}

func TestStampOnlyMovesLater(t *testing.T) {
	m := newMachines(t)
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ ask, want time.Duration }{{time.Hour, time.Hour}, {30 * time.Minute, time.Hour}, {2 * time.Hour, 2 * time.Hour}} {
		if err := m.Stamp(t.Context(), burstUID, noon.Add(tt.ask)); err != nil {
			t.Fatal(err)
		}
		if got := get(t, m.Client, node, &infrav1.SpillwayMachine{}).Spec.Expires.Time; !got.Equal(noon.Add(tt.want)) {
			t.Errorf("asked for %s: stamp is %s", tt.ask, got)
		}
	}
}

func TestEndInOrder(t *testing.T) {
	m := newMachines(t)
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	other := order(0)
	other.Burst = burst("aaaaaaaa-0000-4000-8000-000000000009")
	if err := m.Ensure(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		name string
		do   func() error
	}{
		{"release one hook", func() error { return m.Release(t.Context(), burstUID, capi.PreDrainHook) }},
		{"again", func() error { return m.Release(t.Context(), burstUID, capi.PreDrainHook) }},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
	}
	machine := get(t, m.Client, node, &clusterv1.Machine{})
	_, first := machine.Annotations[capi.PreDrainHook]
	if _, second := machine.Annotations[capi.PreTerminateHook]; first || !second {
		t.Errorf("annotations %v, want the second hook and not the first", machine.Annotations)
	}
	if err := m.Forget(t.Context(), burstUID); err != nil { // nothing is gone yet: nothing is forgotten
		t.Fatal(err)
	}
	if sm := get(t, m.Client, node, &infrav1.SpillwayMachine{}); len(sm.Finalizers) != 2 {
		t.Errorf("finalizers %v before the machine is gone", sm.Finalizers)
	}
	get(t, m.Client, node+"-userdata", &corev1.Secret{})
	gone := get(t, m.Client, node, &infrav1.SpillwayMachine{})
	at := metav1.NewTime(noon)
	gone.Status.GoneAt = &at
	if err := m.Client.Status().Update(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Delete(t.Context(), burstUID); err != nil {
		t.Fatal(err)
	}
	if err := m.Forget(t.Context(), burstUID); err != nil {
		t.Fatal(err)
	}
	var secrets corev1.SecretList
	if err := m.Client.List(t.Context(), &secrets); err != nil {
		t.Fatal(err)
	}
	if len(secrets.Items) != 1 || secrets.Items[0].Name != "spw-aaaaaaaa-0-userdata" {
		t.Errorf("Secrets left: %d, want the other burst's alone", len(secrets.Items))
	}
	get(t, m.Client, "spw-aaaaaaaa-0", &clusterv1.Machine{})
}

// A crash between the two objects leaves a SpillwayMachine without Machine.
func TestDeleteEndsAHalfMadeMachine(t *testing.T) {
	m := newMachines(t)
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	if err := m.Client.Delete(t.Context(), get(t, m.Client, node, &clusterv1.Machine{})); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Delete(t.Context(), burstUID); err != nil {
		t.Fatal(err)
	}
	if sm := get(t, m.Client, node, &infrav1.SpillwayMachine{}); sm.DeletionTimestamp.IsZero() {
		t.Error("the SpillwayMachine is not being deleted")
	}
}

// cases: B-4 kubernetes-sigs/cluster-api#7237
func TestStrayNodesGo(t *testing.T) {
	m := newMachines(t)
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]string{
		node: capi.ProviderID("west", "w1", burstUID, 0), "rack1": "", "rack2": "openstack://r/1",
		"spw-dead0000-0": "spillway://west/w1/dead0000-0",
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.NodeSpec{ProviderID: id}}
		if err := m.Client.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range [][]string{{"spw-dead0000-0"}, nil} {
		got, err := m.DropStrays(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("pass %d dropped (-want +got):\n%s", i, diff)
		}
	}
	var left corev1.NodeList
	if err := m.Client.List(t.Context(), &left); err != nil {
		t.Fatal(err)
	}
	if len(left.Items) != 3 {
		t.Errorf("%d nodes left, want 3", len(left.Items))
	}
}

// cases: B-1 kubernetes-sigs/cluster-api PR#11552, #3631, #3673
func TestEnsureClusterMakesAndMends(t *testing.T) {
	c := newClient(t)
	cl := cluster()
	check := func() {
		t.Helper()
		if err := capi.EnsureCluster(t.Context(), c, cl); err != nil {
			t.Fatal(err)
		}
		got := get(t, c, "onprem", &clusterv1.Cluster{})
		if got.Spec.ControlPlaneRef.Kind != "OnPremControlPlane" || got.Spec.ControlPlaneEndpoint.Host != "api.onprem.test" || got.Spec.ControlPlaneEndpoint.Port != 6443 || got.Spec.InfrastructureRef.Name != "" {
			t.Errorf("Cluster: %+v", got.Spec)
		}
		stub := get(t, c, "onprem", &controlplanev1.OnPremControlPlane{})
		if !stub.Status.ExternalManagedControlPlane || stub.Status.Initialization == nil || !*stub.Status.Initialization.ControlPlaneInitialized {
			t.Errorf("stub: %+v", stub.Status)
		}
		if secret := get(t, c, "onprem-kubeconfig", &corev1.Secret{}); string(secret.Data["value"]) != string(cl.Kubeconfig) {
			t.Errorf("kubeconfig is %q", secret.Data["value"])
		}
	}
	check()
	check()
	if err := c.Delete(t.Context(), get(t, c, "onprem", &controlplanev1.OnPremControlPlane{})); err != nil {
		t.Fatal(err)
	}
	cl.Kubeconfig = []byte("kubeconfig-2")
	check()
	cl.Endpoint = "api.onprem.test"
	if err := capi.EnsureCluster(t.Context(), c, cl); err == nil || !strings.Contains(err.Error(), "want host:port") {
		t.Errorf("an endpoint without a port: %v", err)
	}
}

func TestCRDs(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/cluster-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	crds, err := capi.CRDs(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, crd := range crds {
		names = append(names, strings.TrimSuffix(crd.Name, ".cluster.x-k8s.io"))
	}
	want := []string{
		"clusterclasses", "clusters", "machinedeployments", "machinedrainrules",
		"machinehealthchecks", "machinepools", "machines", "machinesets",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
	if _, err := capi.CRDs(t.TempDir()); err == nil || !strings.Contains(err.Error(), "8 are needed") {
		t.Errorf("an empty folder: %v", err)
	}
}

// blind is a cache that has not heard of anything yet.
type blind struct{ client.Client }

func (blind) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// TestNothingEndsOnOldNews: right after the machines were asked for, the cache
// may not show them. An empty list must not count as "none was bought", and a
// Node must not be taken for a stray.
//
// cases: H-14 kubernetes/autoscaler#7419
func TestNothingEndsOnOldNews(t *testing.T) {
	m := newMachines(t)
	m.Reader, m.Client = m.Client, blind{m.Client}
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	left, err := m.Delete(t.Context(), burstUID)
	if err != nil || len(left) != 1 || left[0].Name != node {
		t.Errorf("Delete() = %+v, %v; the machine that was just asked for is not in it", left, err)
	}
	err = m.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: node}, &clusterv1.Machine{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the Machine was not deleted: %v", err)
	}
}

// nodesOnly is a cache that has seen the Node of a machine and not its record.
type nodesOnly struct{ client.Client }

func (c nodesOnly) List(ctx context.Context, l client.ObjectList, opts ...client.ListOption) error {
	if _, ok := l.(*corev1.NodeList); ok {
		return c.Client.List(ctx, l, opts...)
	}
	return nil
}

func TestANodeIsNoStrayBeforeItsRecordIsSeen(t *testing.T) {
	m := newMachines(t)
	if err := m.Ensure(t.Context(), order(0)); err != nil {
		t.Fatal(err)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	n.Spec.ProviderID = capi.ProviderID("west", "w1", burstUID, 0)
	if err := m.Client.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	m.Reader, m.Client = m.Client, nodesOnly{m.Client}
	if dropped, err := m.DropStrays(t.Context()); err != nil || len(dropped) > 0 {
		t.Errorf("DropStrays() = %v, %v: the Node of a recorded machine", dropped, err)
	}
}
