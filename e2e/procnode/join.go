package procnode

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// joinRetry is the pause between two tries to reach the API server.
const joinRetry = time.Second

// joinPoll is the pause between two looks at the signing request.
const joinPoll = 200 * time.Millisecond

// identity is who the machine is towards the cluster.
type identity struct {
	certFile, keyFile string
	config            *rest.Config
}

// join returns the machine's identity: the given certificate, the one it got
// before a restart, or a new one for its bootstrap token.
func join(ctx context.Context, c Config, log *slog.Logger) (identity, error) {
	id := identity{certFile: c.ClientCert, keyFile: c.ClientKey}
	if c.burst() {
		id.certFile, id.keyFile = c.disk("pki", "client.crt"), c.disk("pki", "client.key")
		if _, err := os.Stat(id.certFile); err != nil {
			log.Info("asking for a node certificate", "node", c.Name, "server", c.APIServer)
			if err := bootstrap(ctx, c, id, log); err != nil {
				return identity{}, err
			}
			log.Info("node certificate received", "node", c.Name)
		}
	}
	id.config = c.client()
	id.config.CertFile, id.config.KeyFile = id.certFile, id.keyFile
	return id, nil
}

// client is a configuration without credentials.
func (c Config) client() *rest.Config {
	return &rest.Config{
		Host:            c.APIServer,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.joined.ClusterCA},
		QPS:             50,
		Burst:           100,
		UserAgent:       "spillway-procnode",
	}
}

// bootstrap asks for the certificate until it comes, is refused, or the join
// deadline has passed. The key is kept across restarts, so that all of them
// together ask once.
func bootstrap(ctx context.Context, c Config, id identity, log *slog.Logger) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.JoinDeadline, fmt.Errorf("the join deadline of %v has passed", c.JoinDeadline))
	defer cancel()
	key, err := loadKey(id.keyFile)
	if err != nil {
		return err
	}
	config := c.client()
	config.BearerToken = c.joined.BootstrapToken
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client for the join: %w", err)
	}
	last := ""
	for {
		cert, err := requestCertificate(ctx, client, c.Name, key)
		if err == nil {
			return writeFile(id.certFile, cert)
		}
		if errors.Is(err, errRefused) {
			return fmt.Errorf("join of node %s refused: %w: see the CertificateSigningRequest's conditions, and boot a new machine", c.Name, err)
		}
		if ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			log.Warn("can't join yet, trying again", "error", last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("join of node %s: %w (last answer: %s): check that %s can be reached and that the bootstrap token and its approval are in time, then boot a new machine",
				c.Name, context.Cause(ctx), either(last, err.Error()), c.APIServer)
		case <-time.After(joinRetry):
		}
	}
}

// errRefused marks an answer that won't change.
var errRefused = errors.New("the request was denied or failed")

// requestCertificate creates the signing request, or finds the one of an
// earlier try by its name, and polls it: the join token needs the rights to
// create and get requests, nothing more.
func requestCertificate(ctx context.Context, client kubernetes.Interface, node string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make the signing request: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("encode the node's public key: %w", err)
	}
	digest := sha256.Sum256(append(public, node...))
	name := "node-csr-" + hex.EncodeToString(digest[:16])
	requests := client.CertificatesV1().CertificateSigningRequests()
	_, err = requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create signing request %s: %w", name, err)
	}
	waited := fmt.Errorf("signing request %s is not approved and issued", name)
	for {
		request, err := requests.Get(ctx, name, metav1.GetOptions{})
		if err != nil && ctx.Err() != nil {
			return nil, waited // a question that the deadline cut says nothing new
		}
		if err != nil {
			return nil, fmt.Errorf("read signing request %s: %w", name, err)
		}
		if len(request.Status.Certificate) > 0 {
			return request.Status.Certificate, nil
		}
		for _, condition := range request.Status.Conditions {
			if condition.Type != certificatesv1.CertificateApproved {
				return nil, fmt.Errorf("%w: %s is %s: %s", errRefused, name, condition.Type, either(condition.Message, condition.Reason))
			}
		}
		select {
		case <-ctx.Done():
			return nil, waited
		case <-time.After(joinPoll):
		}
	}
}

// loadKey reads the machine's private key, and makes one on the first boot.
func loadKey(path string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(path)
	if err == nil {
		block, _ := pem.Decode(data)
		if block == nil {
			return nil, fmt.Errorf("the node's key %s is no PEM: remove it to make a new one", path)
		}
		key, err := x509.ParseECPrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("the node's key %s: %w: remove it to make a new one", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the node's key: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the node's key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the node's key: %w", err)
	}
	return key, writeFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

// writeFile replaces a file at once: readers, and a restart after a crash,
// see the old content or the new.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says more
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
