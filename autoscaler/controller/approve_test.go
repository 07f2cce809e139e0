package controller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/autoscaler/lifecycle"
)

const joining = "spw-0123abcd-0"

// askFor is a kubelet's request with the join token of the node.
func askFor(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + joining, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Username:   "system:bootstrap:" + bootstrap.TokenID(joining),
			Groups:     []string{"system:bootstrappers", bootstrap.Group(joining), "system:authenticated"},
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}

// TestATokenIsWorthOneCertificate, for a machine that is expected and stays.
func TestATokenIsWorthOneCertificate(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	gone := metav1.NewTime(now)
	tests := map[string]struct {
		machine func(*infrav1.SpillwayMachine)
		want    []string // requests that are approved
	}{
		"the first request alone":    {func(*infrav1.SpillwayMachine) {}, []string{"first"}},
		"the one it was spent on":    {func(m *infrav1.SpillwayMachine) { m.Annotations = map[string]string{certifiedBy: "second"} }, []string{"second"}},
		"none after the deadline":    {func(m *infrav1.SpillwayMachine) { m.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour)) }, nil},
		"none for one that is going": {func(m *infrav1.SpillwayMachine) { m.DeletionTimestamp = &gone }, nil},
		"none for one that is gone":  {func(m *infrav1.SpillwayMachine) { m.Status.GoneAt = &gone }, nil},
		"none for another":           {func(m *infrav1.SpillwayMachine) { m.Name = "spw-other-0" }, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			scheme, err := Scheme()
			if err != nil {
				t.Fatal(err)
			}
			sm := &infrav1.SpillwayMachine{ObjectMeta: metav1.ObjectMeta{
				Namespace: v1alpha1.SystemNamespace, Name: joining, CreationTimestamp: metav1.NewTime(now), Finalizers: []string{infrav1.MachineFinalizer},
			}}
			sm.Spec.Provider = "west"
			tt.machine(sm)
			first, second := askFor(t, "first"), askFor(t, "second")
			c := fakeclient.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&infrav1.SpillwayMachine{}).WithObjects(
				sm, first, second, &v1alpha1.BurstProvider{ObjectMeta: metav1.ObjectMeta{Name: "west"}}).Build()
			kube := kubefake.NewClientset(first, second)
			a := &approver{
				client: c, reader: c, certs: kube, settings: lifecycle.DefaultSettings(), log: slog.New(slog.DiscardHandler),
				now: func() time.Time { return now.Add(time.Minute) },
			}
			var approved []string
			for _, name := range []string{"first", "second"} {
				if _, err := a.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: name}}); err != nil {
					t.Fatal(err)
				}
				csr, err := kube.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, cond := range csr.Status.Conditions {
					if cond.Type == certificatesv1.CertificateApproved {
						approved = append(approved, name)
					}
				}
			}
			if len(approved) != len(tt.want) || len(approved) > 0 && approved[0] != tt.want[0] {
				t.Errorf("approved %v, want %v", approved, tt.want)
			}
		})
	}
}
