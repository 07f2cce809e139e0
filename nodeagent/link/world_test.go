package link

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// authority is a certificate authority of a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{t: t, cert: cert, key: key}
}

func (a authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// issue signs a certificate for the subject; change may spoil it.
func (a authority) issue(subject pkix.Name, usage x509.ExtKeyUsage, change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func (a authority) node(name string) tls.Certificate {
	return a.issue(pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}, x509.ExtKeyUsageClientAuth, nil)
}

// world is a hub behind real TLS, with the nodes that it expects.
type world struct {
	t       testing.TB
	cluster authority
	site    authority
	hub     *Hub
	server  *httptest.Server

	mu     sync.Mutex
	bursts map[string]string
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		t: t, cluster: newAuthority(t), site: newAuthority(t),
		bursts: map[string]string{"node-a": "burst-1", "node-b": "burst-2", "onprem-1": ""},
	}
	w.hub = NewHub(HubConfig{ClusterCA: w.cluster.pool(), NodeBurst: w.burst, Now: time.Now, Hold: 300 * time.Millisecond})
	w.server = httptest.NewUnstartedServer(w.hub)
	w.server.TLS = w.hub.TLSConfig(w.site.issue(pkix.Name{CommonName: "hub"}, x509.ExtKeyUsageServerAuth, nil))
	w.server.Config.ErrorLog = nil
	w.server.StartTLS()
	t.Cleanup(w.server.Close)
	return w
}

func (w *world) burst(node string) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, ok := w.bursts[node]
	return b, ok
}

func (w *world) end(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.bursts, node)
}

// http returns a client with this certificate.
func (w *world) http(cert *tls.Certificate) *http.Client {
	config := &tls.Config{RootCAs: w.site.pool(), MinVersion: tls.VersionTLS13}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: config}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// agent is a client of a node with a report that a test may change.
type agent struct {
	*Client
	mu     sync.Mutex
	report Report
	heard  []Heard
	failed []error
}

func (w *world) agent(node string) *agent {
	w.t.Helper()
	cert := w.cluster.node(node)
	a := &agent{report: report(w.t, node, w.bursts[node])}
	start := time.Now()
	a.Client = NewClient(ClientConfig{
		Controller: w.server.Listener.Addr().String(), ControllerCA: w.site.pool(),
		Certificate: func() (*tls.Certificate, error) { return &cert, nil },
		Report: func() Report {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.report
		},
		Heard: func(h Heard) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.heard = append(a.heard, h)
		},
		Failed: func(err error, _ time.Duration) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.failed = append(a.failed, err)
		},
		Since: func() time.Duration { return time.Since(start) }, Wall: time.Now,
	})
	return a
}

func (a *agent) set(change func(*Report)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change(&a.report)
}

// last returns the newest reply.
func (a *agent) last() Heard {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.heard) == 0 {
		return Heard{}
	}
	return a.heard[len(a.heard)-1]
}

// report is one that a hub accepts.
func report(t testing.TB, node, burst string) Report {
	t.Helper()
	r := Report{Node: node, Burst: burst, BootID: "boot-1", Agent: "test", Journal: "journal-1"}
	if burst != "" {
		key, err := NewNodeKey()
		if err != nil {
			t.Fatal(err)
		}
		pub, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		r.HPKE, r.ProofKey = key.Public(), pub
	}
	return r
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
