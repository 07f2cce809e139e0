package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/bootstrap"
	spillway "spillway.dev/spillway/charts/spillway"
	"spillway.dev/spillway/e2e/controlplane"
)

const (
	team     = "team-vision"     // a tenant's namespace
	system   = "spillway-system" // ours
	burstUID = "aaaaaaaa-0000"   // of the one burst in this world
	rented   = "spw-aaaaaaaa-0"  // its node
	stranger = "spw-bbbbbbbb-0"  // a burst node that nobody bought
	home     = "rack1"           // a node on-prem
	machine  = "spw-aaaaaaaa-0"  // its Cluster API machine
	taintKey = "spillway.dev/burst"
	gpu      = corev1.ResourceName("nvidia.com/gpu")
)

// actor is somebody who talks to the API server.
type actor struct {
	config *rest.Config
	kube   kubernetes.Interface
	dyn    dynamic.Interface
}

// guarded is a real control plane with the chart applied, one burst under way,
// and the people and machines of the guards story.
type guarded struct {
	*controlplane.ControlPlane
	admin      actor // system:masters
	tenant     actor // may do everything in its own namespace
	insider    actor // may do everything anywhere, but is not system:masters
	viewer     actor // may view the tenant's namespace
	controller actor // our controller
	approver   actor // our approver
	joiner     actor // holds the join token of the node rented
	node       actor // the node rented itself
	unborn     actor // the identity of a burst node that is not registered
	homeNode   actor // the node on-prem
}

// newGuarded brings the world up and takes it down with the test.
func newGuarded(t *testing.T) *guarded {
	t.Helper()
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	cp, err := controlplane.Start(ctx, controlplane.Config{BinDir: bin, Dir: t.TempDir(), Progress: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	g := &guarded{ControlPlane: cp, admin: newActor(t, cp.AdminConfig, nil)}
	core, err := spillway.Read(os.DirFS(bin), "crds/*.yaml")
	if err != nil || len(core) == 0 {
		t.Fatalf("the kinds of Cluster API are not in %s/crds (%v): run make build", bin, err)
	}
	for _, step := range []error{
		spillway.ApplyObjects(ctx, g.admin.dyn, core),
		spillway.Apply(ctx, g.admin.dyn),
		spillway.WaitForGuards(ctx, g.admin.dyn),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	g.people(t)
	g.machines(t)
	g.records(t)
	return g
}

func newActor(t *testing.T, config *rest.Config, err error) actor {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return actor{config: config, kube: kube, dyn: objects}
}

// must fails the test when the world can't be set up.
func must(t *testing.T) func(any, error) {
	return func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// people makes namespaces and identities. The tenant and the insider have all
// the rights that RBAC can give, so that only a guard can refuse them.
func (g *guarded) people(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	must(t)(g.admin.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: team},
	}, metav1.CreateOptions{}))
	bind := func(user, role string) {
		must(t)(g.admin.kube.RbacV1().RoleBindings(team).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: user}},
		}, metav1.CreateOptions{}))
	}
	bind("tenant", "cluster-admin")
	bind("viewer", "view")
	must(t)(g.admin.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "insider"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "insider"}},
	}, metav1.CreateOptions{}))

	user := func(config *rest.Config, err error) actor { return newActor(t, config, err) }
	g.tenant = user(g.UserConfig("tenant"))
	g.viewer = user(g.UserConfig("viewer"))
	g.insider = user(g.UserConfig("insider"))
	g.controller = user(g.ServiceAccountConfig(ctx, system, "spillway-controller"))
	g.approver = user(g.ServiceAccountConfig(ctx, system, "spillway-approver"))
	g.node = user(g.NodeConfig(rented))
	g.unborn = user(g.NodeConfig(stranger))
	g.homeNode = user(g.NodeConfig(home))
}

// machines registers one node on-prem, whose GPUs are all gone, and one burst
// node, and the join token that the burst node came with, which the controller
// wrote.
func (g *guarded) machines(t *testing.T) {
	t.Helper()
	secret, err := bootstrap.NewToken(rand.Reader, rented, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	token := rest.AnonymousClientConfig(g.AdminConfig)
	if token.BearerToken, err = bootstrap.TokenOf(secret, rented); err != nil {
		t.Fatal(err)
	}
	g.joiner = newActor(t, token, nil)
	must(t)(g.controller.kube.CoreV1().Secrets(secret.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}))
	must(t)(g.homeNode.kube.CoreV1().Nodes().Create(t.Context(), newNode(home), metav1.CreateOptions{}))
	must(t)(g.node.kube.CoreV1().Nodes().Create(t.Context(), burstNode(rented), metav1.CreateOptions{}))
	g.beat(t)
}

// beat is the heartbeat of both nodes: without one a minute they are lost.
func (g *guarded) beat(t *testing.T) {
	t.Helper()
	for name, gpus := range map[string]string{home: "0", rented: "4"} {
		who := map[string]actor{home: g.homeNode, rented: g.node}[name]
		status := fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":%q}],
			"capacity":{"cpu":"8","memory":"16Gi","pods":"50","nvidia.com/gpu":%[2]q},
			"allocatable":{"cpu":"8","memory":"16Gi","pods":"50","nvidia.com/gpu":%[2]q}}}`, time.Now().UTC().Format(time.RFC3339), gpus)
		must(t)(who.kube.CoreV1().Nodes().PatchStatus(t.Context(), name, []byte(status)))
	}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func burstNode(name string) *corev1.Node {
	node := newNode(name)
	burst := burstUID
	if name == stranger {
		burst = "bbbbbbbb-0000"
	}
	node.Spec.ProviderID = "spillway://fake/eu-1/" + burst + "-0"
	node.Spec.Taints = []corev1.Taint{
		{Key: taintKey, Value: burst, Effect: corev1.TaintEffectNoSchedule},
		{Key: taintKey, Value: burst, Effect: corev1.TaintEffectNoExecute},
	}
	return node
}

// records writes the burst and its machine as the controller would.
func (g *guarded) records(t *testing.T) {
	t.Helper()
	for _, object := range []*unstructured.Unstructured{newBurst("train"), newMachine(machine), newSpillwayMachine(machine)} {
		must(t)(g.controller.resource(object).Create(t.Context(), object, metav1.CreateOptions{}))
	}
}

// resource is where an object of ours or of Cluster API lives.
func (a actor) resource(object *unstructured.Unstructured) dynamic.ResourceInterface {
	plurals := map[string]string{"Burst": "bursts", "Machine": "machines", "SpillwayMachine": "spillwaymachines"}
	gv := schema.FromAPIVersionAndKind(object.GetAPIVersion(), object.GetKind()).GroupVersion()
	return a.dyn.Resource(gv.WithResource(plurals[object.GetKind()])).Namespace(object.GetNamespace())
}

func newBurst(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "spillway.dev/v1alpha1", "kind": "Burst",
		"metadata": map[string]any{"name": name, "namespace": team, "finalizers": []any{"spillway.dev/settled"}},
		"spec": map[string]any{
			"tenant": "team-vision", "tenantID": "t1", "until": "2100-01-01T00:00:00Z", "attempt": int64(0), "machines": int64(1), "ceiling": "5.00 EUR", "mode": "safe",
			"maxRunTime": "1h0m0s", "deadline": "2100-01-01T00:00:00Z",
			"gang": map[string]any{
				"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u",
				"pods": []any{map[string]any{"name": "train-0", "uid": "p"}},
			},
			"offer": map[string]any{
				"provider": "fake", "region": "eu-1", "instanceType": "g2", "gpuResource": "nvidia.com/gpu", "gpus": int64(2),
				"pricePerHour": "2.10 EUR", "meter": map[string]any{"start": "created", "granularity": "1s"},
			},
		},
	}}
}

func newMachine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
		"metadata": map[string]any{
			"name": name, "namespace": system,
			"annotations": map[string]any{"pre-terminate.delete.hook.machine.cluster.x-k8s.io/spillway": ""},
		},
		"spec": map[string]any{
			"clusterName":       "home",
			"bootstrap":         map[string]any{"dataSecretName": name},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.spillway.dev", "kind": "SpillwayMachine", "name": name},
		},
	}}
}

func newSpillwayMachine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "infrastructure.spillway.dev/v1alpha1", "kind": "SpillwayMachine",
		"metadata": map[string]any{"name": name, "namespace": system},
		"spec": map[string]any{
			"providerID": "spillway://fake/eu-1/" + name, "provider": "fake", "region": "eu-1", "instanceType": "g2", "burst": burstUID,
			"ordinal": int64(0), "tenant": "t1", "installation": "i1", "token": "tok", "expires": "2100-01-01T00:00:00Z",
		},
	}}
}

// newPod asks for one GPU and does nothing with it.
func newPod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: team},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "work", Image: "work",
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("1")}},
			}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// tolerates adds tolerations to a pod.
func tolerates(tolerations ...corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = append(p.Spec.Tolerations, tolerations...) }
}

// newRequest is a certificate request for the node identity of that name.
func newRequest(t *testing.T, name, signer, node string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: signer,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature},
		},
	}
}

// eventually polls until done, or fails the test after a minute with what was
// last seen.
func eventually(t *testing.T, what string, done func(context.Context) (bool, string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := done(ctx)
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within a minute; last seen: %s", what, seen)
		case <-tick.C:
		}
	}
}
