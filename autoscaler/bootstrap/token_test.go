package bootstrap_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/bootstrap"
)

func TestNewToken(t *testing.T) {
	s, err := bootstrap.NewToken(&endless{}, node, deadline)
	if err != nil {
		t.Fatal(err)
	}
	id := bootstrap.TokenID(node)
	if s.Namespace != "kube-system" || s.Name != "bootstrap-token-"+id || s.Type != "bootstrap.kubernetes.io/token" {
		t.Errorf("made %s/%s of type %s", s.Namespace, s.Name, s.Type)
	}
	want := map[string]string{
		"description": "joins " + node + " and nothing else", "token-id": id,
		"usage-bootstrap-authentication": "true", "expiration": "2026-03-01T10:15:00Z",
		"auth-extra-groups": "system:bootstrappers:spillway:" + node,
	}
	got := map[string]string{}
	for k, v := range s.StringData {
		if k != "token-secret" {
			got[k] = v
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	token, err := bootstrap.TokenOf(s, node)
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`).MatchString(token) {
		t.Errorf("token %q has not the form that Kubernetes asks for", token)
	}
	if _, err := bootstrap.TokenOf(s, "spw-other-0"); err == nil {
		t.Error("the token of one node was given to another")
	}
}

func TestTokensDiffer(t *testing.T) {
	a, err := bootstrap.NewToken(rand.Reader, node, deadline)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bootstrap.NewToken(rand.Reader, node, deadline)
	if err != nil {
		t.Fatal(err)
	}
	if a.Name != b.Name {
		t.Errorf("one node has the tokens %s and %s: a crash in between would leave two", a.Name, b.Name)
	}
	if a.StringData["token-secret"] == b.StringData["token-secret"] {
		t.Error("two tokens have one secret")
	}
	if bootstrap.TokenID(node) == bootstrap.TokenID("spw-7f3a2b1c-1") {
		t.Error("two nodes have one token id")
	}
}

func TestTokenNeedsRandomness(t *testing.T) {
	if s, err := bootstrap.NewToken(bytes.NewReader([]byte("too short")), node, deadline); err == nil {
		t.Errorf("made %v from 9 random bytes", s.StringData)
	}
}

// Every character comes equally often: of the 256 bytes, 252 are used, 7 for each.
func TestTokenCharactersAreFair(t *testing.T) {
	all := make([]byte, 0, 256*16)
	for range 16 {
		for b := range 256 {
			all = append(all, byte(b))
		}
	}
	random, counts := bytes.NewReader(all), map[rune]int{}
	for random.Len() >= 256 {
		s, err := bootstrap.NewToken(random, node, deadline)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range s.StringData["token-secret"] {
			counts[c]++
		}
	}
	low, high := 1<<30, 0
	for _, n := range counts {
		low, high = min(low, n), max(high, n)
	}
	if len(counts) != 36 || high-low > 2 {
		t.Errorf("%d characters, between %d and %d times", len(counts), low, high)
	}
}

// ask is a kubelet's request, as a case changes it.
type ask struct {
	csr     certificatesv1.CertificateSigningRequest
	request x509.CertificateRequest
	want    bootstrap.Join
	now     time.Time
	body    func([]byte) []byte
}

func kubelet() *ask {
	return &ask{
		csr: certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "node-csr-1"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: "kubernetes.io/kube-apiserver-client-kubelet",
				Username:   "system:bootstrap:" + bootstrap.TokenID(node),
				Groups:     []string{"system:bootstrappers", "system:bootstrappers:spillway:" + node, "system:authenticated"},
				Usages:     []certificatesv1.KeyUsage{"digital signature", "client auth"},
			},
		},
		request: x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}},
		want:    bootstrap.Join{Node: node, Deadline: deadline},
		now:     deadline.Add(-time.Minute),
	}
}

func (a *ask) verdict(t *testing.T) error {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &a.request, key)
	if err != nil {
		t.Fatal(err)
	}
	a.csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	if a.body != nil {
		a.csr.Spec.Request = a.body(a.csr.Spec.Request)
	}
	return bootstrap.ApproveCSR(&a.csr, a.want, a.now)
}

func TestApproveCSR(t *testing.T) {
	tests := map[string]func(*ask){
		"a kubelet with an ECDSA key":         func(*ask) {},
		"a kubelet with an RSA key":           func(a *ask) { a.csr.Spec.Usages = append(a.csr.Spec.Usages, "key encipherment") },
		"the same request after a crash":      func(a *ask) { a.want.Certified = "node-csr-1" },
		"groups in another order":             func(a *ask) { g := a.csr.Spec.Groups; g[0], g[2] = g[2], g[0] },
		"the last moment before the deadline": func(a *ask) { a.now = deadline.Add(-1) },
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			a := kubelet()
			edit(a)
			if err := a.verdict(t); err != nil {
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestHostileCSRs(t *testing.T) {
	const other = "spw-00000000-0"
	tests := map[string]struct {
		edit func(*ask)
		want string
	}{
		"another node's name":               {func(a *ask) { a.request.Subject.CommonName = "system:node:" + other }, "the token is worth"},
		"an on-prem node's name":            {func(a *ask) { a.request.Subject.CommonName = "system:node:rack1" }, "the token is worth"},
		"no node at all":                    {func(a *ask) { a.request.Subject.CommonName = "system:kube-scheduler" }, "the token is worth"},
		"another token":                     {func(a *ask) { a.csr.Spec.Username = "system:bootstrap:" + bootstrap.TokenID(other) }, "asked by"},
		"a person":                          {func(a *ask) { a.csr.Spec.Username = "alice" }, "asked by"},
		"an existing node":                  {func(a *ask) { a.csr.Spec.Username = "system:node:" + node }, "asked by"},
		"the group of another node's token": {func(a *ask) { a.csr.Spec.Groups[1] = "system:bootstrappers:spillway:" + other }, "not in group"},
		"also in another node's group":      {func(a *ask) { a.csr.Spec.Groups = append(a.csr.Spec.Groups, "system:bootstrappers:spillway:"+other) }, "also in group"},
		"also an administrator":             {func(a *ask) { a.csr.Spec.Groups = append(a.csr.Spec.Groups, "system:masters") }, "also in group"},
		"the kubeadm group besides": {func(a *ask) {
			a.csr.Spec.Groups = append(a.csr.Spec.Groups, "system:bootstrappers:kubeadm:default-node-token")
		}, "also in group"},
		"a serving certificate":            {func(a *ask) { a.csr.Spec.SignerName = "kubernetes.io/kubelet-serving" }, "client certificate"},
		"a client certificate of any kind": {func(a *ask) { a.csr.Spec.SignerName = "kubernetes.io/kube-apiserver-client" }, "client certificate"},
		"a second request of the token":    {func(a *ask) { a.want.Certified = "node-csr-0" }, "was spent"},
		"after the deadline":               {func(a *ask) { a.now = deadline }, "join deadline"},
		"a group of administrators inside": {func(a *ask) { a.request.Subject.Organization = []string{"system:masters"} }, "\"system:nodes\" only"},
		"a second group inside":            {func(a *ask) { a.request.Subject.Organization = []string{"system:nodes", "system:masters"} }, "\"system:nodes\" only"},
		"a unit inside":                    {func(a *ask) { a.request.Subject.OrganizationalUnit = []string{"x"} }, "more than a name and a group"},
		"a second name inside": {func(a *ask) {
			a.request.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "system:node:" + other}, {Type: []int{2, 5, 4, 3}, Value: "system:node:" + node}}
		}, "holds more than"},
		"a DNS name":    {func(a *ask) { a.request.DNSNames = []string{"api.onprem.test"} }, "alternative names"},
		"an IP address": {func(a *ask) { a.request.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 1)} }, "alternative names"},
		"an extension": {func(a *ask) {
			a.request.ExtraExtensions = []pkix.Extension{{Id: []int{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
		}, "alternative names"},
		"usage server auth":              {func(a *ask) { a.csr.Spec.Usages = append(a.csr.Spec.Usages, "server auth") }, "usages"},
		"usage cert sign in place":       {func(a *ask) { a.csr.Spec.Usages[0] = "cert sign" }, "usages"},
		"usages doubled":                 {func(a *ask) { a.csr.Spec.Usages = append(a.csr.Spec.Usages, "client auth") }, "usages"},
		"no usages":                      {func(a *ask) { a.csr.Spec.Usages = nil }, "usages"},
		"two requests in one body":       {func(a *ask) { a.body = func(b []byte) []byte { return append(b, b...) } }, "one PEM block"},
		"something before the PEM block": {func(a *ask) { a.body = func(b []byte) []byte { return append([]byte("hello\n"), b...) } }, "one PEM block"},
		"another type of block": {func(a *ask) {
			a.body = func(b []byte) []byte {
				return bytes.ReplaceAll(b, []byte("CERTIFICATE REQUEST"), []byte("CERTIFICATE"))
			}
		}, "one PEM block"},
		"no body": {func(a *ask) { a.body = func([]byte) []byte { return nil } }, "one PEM block"},
		"a body whose signature is not its key's": {func(a *ask) { a.body = forge }, "body"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := kubelet()
			tt.edit(a)
			err := a.verdict(t)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ApproveCSR = %v, want an error with %q", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), "node-csr-1") {
				t.Errorf("%q does not name the request", err)
			}
		})
	}
}

// forge breaks the last byte of the signature.
func forge(body []byte) []byte {
	block, _ := pem.Decode(body)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

func TestOurs(t *testing.T) {
	a := kubelet()
	if got, ok := bootstrap.Ours(&a.csr); !ok || got != node {
		t.Errorf("Ours = %q, %v, want %q", got, ok, node)
	}
	a.csr.Spec.Groups = []string{"system:bootstrappers:kubeadm:default-node-token", "system:authenticated"}
	if got, ok := bootstrap.Ours(&a.csr); ok {
		t.Errorf("Ours = %q for a token of kubeadm", got)
	}
}
