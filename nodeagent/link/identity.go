package link

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"time"
)

// nodeOf returns the node that a connection speaks for. It verifies the
// certificate itself, on every request: a server that was configured to ask
// for certificates without verifying them changes nothing, and a connection
// does not outlive its certificate.
func nodeOf(state *tls.ConnectionState, ca *x509.CertPool, now time.Time) (string, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return "", refuse(http.StatusForbidden, "no client certificate: dial with the node's kubelet certificate over TLS")
	}
	leaf, rest := state.PeerCertificates[0], state.PeerCertificates[1:]
	intermediates := x509.NewCertPool()
	for _, c := range rest {
		intermediates.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: ca, Intermediates: intermediates, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return "", refuse(http.StatusForbidden, "client certificate is not accepted: %v", err)
	}
	node, ok := strings.CutPrefix(leaf.Subject.CommonName, "system:node:")
	if !ok || node == "" || !slices.Contains(leaf.Subject.Organization, "system:nodes") {
		return "", refuse(http.StatusForbidden, "client certificate of %q is not a node's: want CN system:node:<name> and O system:nodes", leaf.Subject.CommonName)
	}
	return node, nil
}
