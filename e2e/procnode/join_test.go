package procnode_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/nodeagent/link"
)

// burst makes the join data of a burst machine: a bootstrap token in a group
// of its own that may create and read signing requests and nothing else.
func (w world) burst(t *testing.T, name, tokenID string) procnode.Config {
	t.Helper()
	group := "system:bootstrappers:spillway:" + name
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + tokenID, Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": tokenID, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": group, "expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}
	if _, err := w.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "join-" + name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create", "get"}},
	}}
	if _, err := w.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: role.ObjectMeta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
	if _, err := w.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(link.Join{
		APIServer: w.cp.URL, ClusterCA: w.cp.CACert, BootstrapToken: tokenID + ".0123456789abcdef",
		NodeName: name, ProviderID: "spillway://cloud/nl/" + name, Store: "s3.onprem.test:" + freePort(t),
		Taints: []link.Taint{{Key: "spillway.dev/burst", Value: "uid", Effect: "NoSchedule"}, {Key: "spillway.dev/burst", Value: "uid", Effect: "NoExecute"}},
		Labels: map[string]string{"spillway.dev/burst": "uid"}, GPUResource: "nvidia.com/gpu", GPUs: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	write(t, filepath.Join(dir, "join.json"), data)
	return procnode.Config{Exec: []string{os.Args[0], "machine"}, Dir: filepath.Join(dir, "m"), Join: filepath.Join(dir, "join.json")}
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
}

// request waits for the node's signing request and answers it.
func (w world) request(t *testing.T, name string, answer certificatesv1.RequestConditionType) certificatesv1.CertificateSigningRequest {
	t.Helper()
	var found certificatesv1.CertificateSigningRequest
	w.await(t, "the signing request of "+name, func() bool {
		list, err := w.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Items {
			if cn, err := commonName(r.Spec.Request); err == nil && cn == "system:node:"+name {
				found = r
				return true
			}
		}
		return false
	})
	found.Status.Conditions = append(found.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: answer, Status: corev1.ConditionTrue, Reason: "Test", Message: "said by the test",
	})
	if _, err := w.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), found.Name, &found, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return found
}

func commonName(request []byte) (string, error) {
	block, _ := pem.Decode(request)
	if block == nil {
		return "", fmt.Errorf("no PEM")
	}
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return "", err
	}
	return r.Subject.CommonName, nil
}

func testJoin(t *testing.T, w world) {
	config := w.burst(t, "spw-join-0", "joinaa")
	m := start(t, config)
	r := w.request(t, "spw-join-0", certificatesv1.CertificateApproved)
	if r.Spec.SignerName != "kubernetes.io/kube-apiserver-client-kubelet" || r.Spec.Username != "system:bootstrap:joinaa" {
		t.Errorf("request by %s for signer %s", r.Spec.Username, r.Spec.SignerName)
	}
	w.await(t, "the node has joined with its GPUs", func() bool {
		select {
		case <-m.Done():
			t.Fatal(m.Err())
		default:
		}
		return w.ready(t, "spw-join-0") == corev1.ConditionTrue && w.allocatable(t, "spw-join-0") == 4
	})
	node, err := w.CoreV1().Nodes().Get(t.Context(), "spw-join-0", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	effects := map[corev1.TaintEffect]bool{}
	for _, taint := range node.Spec.Taints {
		if taint.Key == "spillway.dev/burst" && taint.Value == "uid" {
			effects[taint.Effect] = true
		}
	}
	if !effects[corev1.TaintEffectNoSchedule] || !effects[corev1.TaintEffectNoExecute] || node.Spec.ProviderID != "spillway://cloud/nl/spw-join-0" {
		t.Errorf("taints = %v, providerID = %s", node.Spec.Taints, node.Spec.ProviderID)
	}
	pod := w.pod(t, "spw-join-0", os.Args[0]+" resolve s3.onprem.test")
	w.reaches(t, pod, corev1.PodSucceeded)
	if got := w.log(t, pod, corev1.PodLogOptions{}); !strings.HasPrefix(got, "[127.") || strings.HasPrefix(got, "[127.0.0.1]") {
		t.Errorf("the store's name means %q, want an address of this machine's own", got)
	}

	// After a restart the machine is the same node; its token is used up.
	if err := w.CoreV1().Secrets(metav1.NamespaceSystem).Delete(t.Context(), "bootstrap-token-joinaa", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	m.Kill()
	start(t, config)
	w.reaches(t, w.pod(t, "spw-join-0", "true"), corev1.PodSucceeded)
}

func testJoinDenied(t *testing.T, w world) {
	m := start(t, w.burst(t, "spw-denied-0", "denied"))
	w.request(t, "spw-denied-0", certificatesv1.CertificateDenied)
	goesOff(t, m)
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "said by the test") {
		t.Errorf("Err() = %v, want that the join was refused, with the approver's words", err)
	}
}

func testJoinTooLate(t *testing.T, w world) {
	for name, change := range map[string]struct {
		change func(*procnode.Config)
		want   string
	}{
		"nobody approves":                 {func(*procnode.Config) {}, "not approved"},
		"the API server can't be reached": {func(c *procnode.Config) { c.APIServer = "https://127.0.0.1:1" }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			config := w.burst(t, fmt.Sprintf("spw-late-%d", len(name)), fmt.Sprintf("late%02d", len(name)))
			config.JoinDeadline = 5 * time.Second // enough to ask
			change.change(&config)
			m := start(t, config)
			goesOff(t, m)
			err := m.Err()
			if err == nil {
				t.Fatal("Err() = nil, want that the deadline has passed")
			}
			for _, want := range []string{"join deadline of 5s has passed", change.want, "boot a new machine"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Err() = %v, want it to contain %q", err, want)
				}
			}
		})
	}
}
