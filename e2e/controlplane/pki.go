package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

const (
	// validity of all certificates; a control plane lives for one test run.
	validity = 30 * 24 * time.Hour
	// backdate lets a machine whose clock is behind accept them.
	backdate = 10 * time.Minute
)

// authority signs certificates; its key never leaves the control plane.
type authority struct {
	cert    *x509.Certificate
	key     crypto.Signer
	certPEM []byte
	keyPEM  []byte
}

func newAuthority(name string) (*authority, error) {
	a := &authority{}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the key of the authority %s: %w", name, err)
	}
	a.key = key
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if a.cert, a.certPEM, err = sign(template, nil, key, key); err != nil {
		return nil, err
	}
	if a.keyPEM, err = encodeKey(key); err != nil {
		return nil, err
	}
	return a, nil
}

// issue returns a certificate and its new key (PEM) for the subject. Hosts
// make it a server's certificate too: names or IP addresses.
func (a *authority) issue(name string, groups []string, hosts ...string) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key for %s: %w", name, err)
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	if len(hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if _, certPEM, err = sign(template, a.cert, key, a.key); err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return certPEM, keyPEM, err
}

// sign completes the template and signs it; a nil parent means itself.
func sign(template, parent *x509.Certificate, key, signer crypto.Signer) (*x509.Certificate, []byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("serial number: %w", err)
	}
	now := time.Now()
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-backdate), now.Add(validity)
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// makeCredentials writes the authorities and all certificates of the
// components to pki/. Those of their clients go into the kubeconfigs.
func (c *ControlPlane) makeCredentials() error {
	var err error
	if c.ca, err = newAuthority("kubernetes"); err != nil {
		return err
	}
	if c.etcdCA, err = newAuthority("etcd"); err != nil {
		return err
	}
	c.CACert, c.CAKey = c.ca.certPEM, c.ca.keyPEM
	accounts, err := newAuthority("service-accounts") // only its key is used
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": c.CACert, "ca.key": c.CAKey,
		"etcd-ca.crt":         c.etcdCA.certPEM,
		"service-account.key": accounts.keyPEM,
	}
	for _, issue := range []struct {
		file   string
		by     *authority
		name   string
		groups []string
		hosts  []string
	}{
		{"etcd-server", c.etcdCA, "etcd", nil, []string{loopback}},
		{"etcd-client", c.etcdCA, "kube-apiserver", nil, nil},
		{"apiserver", c.ca, "kube-apiserver", nil, []string{
			loopback, "localhost", "10.0.0.1",
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		}},
		{"kubelet-client", c.ca, KubeletClient, []string{"kubeadm:cluster-admins"}, nil},
	} {
		certPEM, keyPEM, err := issue.by.issue(issue.name, issue.groups, issue.hosts...)
		if err != nil {
			return err
		}
		files[issue.file+".crt"], files[issue.file+".key"] = certPEM, keyPEM
	}
	for name, content := range files {
		if err := os.WriteFile(c.file("pki", name), content, 0o600); err != nil {
			return fmt.Errorf("write the control plane's credentials: %w", err)
		}
	}
	return nil
}
