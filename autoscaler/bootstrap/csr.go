package bootstrap

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// Join is the one certificate that a join token is worth.
type Join struct {
	Node     string    // name of the node that is expected
	Deadline time.Time // nothing is signed from here on
	// Certified is the name of the request that was approved for this token
	// before; empty while there is none. That one may be approved again, after
	// a crash between approval and record.
	Certified string
}

// ApproveCSR says whether a certificate signing request is the one that the
// join token of this node is worth. Nil means: approve. Any error means: this
// approver does not sign it, and says why; it is not to be denied for that
// alone, as the request may be another approver's business when its username
// is none of ours ([Ours]).
func ApproveCSR(csr *certificatesv1.CertificateSigningRequest, want Join, now time.Time) error {
	if err := checkAsker(csr, want); err != nil {
		return fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	if !now.Before(want.Deadline) {
		return fmt.Errorf("certificate request %s: the join deadline of node %s was %s", csr.Name, want.Node, want.Deadline.UTC().Format(time.RFC3339))
	}
	if want.Certified != "" && want.Certified != csr.Name {
		return fmt.Errorf("certificate request %s: the token of node %s was spent on request %s", csr.Name, want.Node, want.Certified)
	}
	if err := checkContent(csr, want.Node); err != nil {
		return fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	return nil
}

// Ours returns the node for which a request claims to speak with one of our
// join tokens. Whether it may is for [ApproveCSR] to say.
func Ours(csr *certificatesv1.CertificateSigningRequest) (node string, ok bool) {
	for _, g := range csr.Spec.Groups {
		if node, ok := strings.CutPrefix(g, Group("")); ok {
			return node, true
		}
	}
	return "", false
}

// checkAsker holds the request against the token: its user, and its groups to
// the last one.
func checkAsker(csr *certificatesv1.CertificateSigningRequest, want Join) error {
	if user := "system:bootstrap:" + TokenID(want.Node); csr.Spec.Username != user {
		return fmt.Errorf("asked by %q, the join token of node %s is %q", csr.Spec.Username, want.Node, user)
	}
	allowed := []string{"system:bootstrappers", Group(want.Node), "system:authenticated"}
	if !slices.Contains(csr.Spec.Groups, Group(want.Node)) {
		return fmt.Errorf("asker is not in group %s", Group(want.Node))
	}
	for _, g := range csr.Spec.Groups {
		if !slices.Contains(allowed, g) {
			return fmt.Errorf("asker is also in group %q: a join token is in no other", g)
		}
	}
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return fmt.Errorf("signer %q: a join token is worth a client certificate of %q only", csr.Spec.SignerName, certificatesv1.KubeAPIServerClientKubeletSignerName)
	}
	return nil
}

// checkContent holds the request itself against what a kubelet asks for.
func checkContent(csr *certificatesv1.CertificateSigningRequest, node string) error {
	usages := slices.Clone(csr.Spec.Usages)
	slices.Sort(usages)
	if rsa := slices.Index(usages, certificatesv1.UsageKeyEncipherment); rsa >= 0 {
		usages = slices.Delete(usages, rsa, rsa+1)
	}
	if !slices.Equal(usages, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature}) {
		return fmt.Errorf("usages %v: want digital signature and client auth, nothing else", csr.Spec.Usages)
	}
	block, rest := pem.Decode(csr.Spec.Request)
	if block == nil || !bytes.HasPrefix(csr.Spec.Request, []byte("-----BEGIN ")) || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(strings.TrimSpace(string(rest))) > 0 {
		return errors.New("body is not one PEM block of type CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if name := "system:node:" + node; req.Subject.CommonName != name {
		return fmt.Errorf("asks for the name %q, the token is worth %q", req.Subject.CommonName, name)
	}
	if !slices.Equal(req.Subject.Organization, []string{"system:nodes"}) {
		return fmt.Errorf("asks for the groups %q, a node is in \"system:nodes\" only", req.Subject.Organization)
	}
	if len(req.Subject.Names) != 2 {
		return fmt.Errorf("subject %q holds more than a name and a group", req.Subject)
	}
	if len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs)+len(req.Extensions) > 0 {
		return errors.New("asks for alternative names or extensions: a client certificate has none")
	}
	return nil
}
