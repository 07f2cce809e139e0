package controller

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// keyRing is the signing keys of an installation, each for one purpose, and
// the authority of the servers that burst nodes dial.
type keyRing struct {
	lease, certificate, manifest, join ed25519.PrivateKey
	ca                                 *x509.Certificate
	caPEM                              []byte
	caKey                              ed25519.PrivateKey
}

// openKeys reads the keys in a folder and makes those that are missing. Two
// processes that start at the same time end up with the same keys.
func openKeys(dir string, now time.Time) (*keyRing, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keys folder: %w", err)
	}
	k := &keyRing{}
	for _, key := range []struct {
		name string
		to   *ed25519.PrivateKey
	}{{"lease", &k.lease}, {"certificate", &k.certificate}, {"manifest", &k.manifest}, {"join", &k.join}, {"server-ca", &k.caKey}} {
		var err error
		if *key.to, err = signingKey(filepath.Join(dir, key.name+".key")); err != nil {
			return nil, fmt.Errorf("signing key %q: %w", key.name, err)
		}
	}
	pub, err := x509.MarshalPKIXPublicKey(k.certificate.Public())
	if err != nil {
		return nil, fmt.Errorf("certificate key: %w", err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})
	if err := once(filepath.Join(dir, "certificate.pub"), public, 0o644); err != nil {
		return nil, err
	}
	return k, k.authority(filepath.Join(dir, "server-ca.pem"), now)
}

// signingKey reads an ed25519 key, or makes it.
func signingKey(path string) (ed25519.PrivateKey, error) {
	_, fresh, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(fresh)
	if err != nil {
		return nil, err
	}
	if err := once(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM key; restore it from your backup", path)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T, not an ed25519 key", path, parsed)
	}
	return key, nil
}

// once writes a file whole unless it exists; the first writer wins.
func once(path string, data []byte, mode os.FileMode) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // linked or not, the second name goes
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// authority reads or makes the certificate that burst nodes trust.
func (k *keyRing) authority(path string, now time.Time) error {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "spillway servers"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.caKey.Public(), k.caKey)
	if err != nil {
		return fmt.Errorf("server authority: %w", err)
	}
	if err := once(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		return err
	}
	if k.caPEM, err = os.ReadFile(path); err != nil {
		return fmt.Errorf("server authority: %w", err)
	}
	block, _ := pem.Decode(k.caPEM)
	if block == nil {
		return fmt.Errorf("server authority: %s holds no certificate", path)
	}
	if k.ca, err = x509.ParseCertificate(block.Bytes); err != nil {
		return fmt.Errorf("server authority %s: %w", path, err)
	}
	return nil
}

// server makes a server certificate for one address.
func (k *keyRing) server(address string, now time.Time) (tls.Certificate, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("address %q: %w", address, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("server key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("server certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, k.ca, key.Public(), k.caKey)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("server certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Authority returns the certificate, PEM, of the servers that burst nodes and
// on-prem agents dial. It makes the keys in the data folder when there are
// none, so that nodes can be set up before the first controller runs.
func Authority(dataDir string) ([]byte, error) {
	k, err := openKeys(filepath.Join(dataDir, "keys"), time.Now())
	if err != nil {
		return nil, err
	}
	return k.caPEM, nil
}
