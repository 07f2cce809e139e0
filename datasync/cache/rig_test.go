package cache_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/cache"
	"spillway.dev/spillway/datasync/s3"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/e2e/objectstore"
	"spillway.dev/spillway/e2e/relay"
)

const (
	storeName = "s3.onprem.test"
	burst     = "burst-1"
)

// home is a store at home. It knows the users root, job and stranger.
type home interface {
	Addr() string // host:port
	URL() string
	Stop() error
	Log() ([]objectstore.Entry, error) // what it says about the requests that it got
	Same() int                         // status by which it says that a version is still the same
	Policy(bucket, user string) string // lets a user do everything in a bucket
}

// rig is a source store at home, the gate in front of it, and the front of
// one burst node, with a user "job" that may use the bucket "data".
type rig struct {
	store  home
	gate   *stager.Gate
	audits *audits
	front  *cache.Front
	server *httptest.Server
	dir    string // the front's disk
	key    seal.DataKey
	root   *minio.Core

	own   atomic.Value // address that the gang's own pods reach the front at
	ahead atomic.Int64 // of the front's clock, in nanoseconds
	marks atomic.Int64

	clients map[string]*http.Client // of TestAnyHistoryIsTheSameAsDirect, by address

	// Set by newRigOnLines: what lies between the front and the others.
	toGate, toStaging *relay.Relay
}

type audits struct {
	mu    sync.Mutex
	lines []stager.Audit
}

func (a *audits) add(l stager.Audit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lines = append(a.lines, l)
}

func (a *audits) reasons() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, l := range a.lines {
		out = append(out, l.Reason)
	}
	return out
}

func newRig(t testing.TB) *rig { return furnish(t, func(string, **relay.Relay) string { return "" }) }

// newRigOnLines is a rig whose front reaches gate and staging store over lines
// that a test can break.
func newRigOnLines(t testing.TB) *rig {
	return furnish(t, func(to string, line **relay.Relay) string {
		var err error
		if *line, err = relay.Start(to); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*line).Close() })
		return (*line).Addr()
	})
}

// furnish makes a rig; by puts a line on the way to an address, or returns "".
func furnish(t testing.TB, by func(to string, line **relay.Relay) string) *rig {
	t.Helper()
	dir := t.TempDir()
	g := &rig{store: openHome(t), dir: filepath.Join(dir, "cache"), audits: &audits{}}
	g.root = g.client(t, g.store.Addr(), "root", "rootsecret")
	for _, bucket := range []string{"data", "other", "staging"} {
		if err := g.root.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.root.SetBucketPolicy(t.Context(), "data", g.store.Policy("data", "job")); err != nil {
		t.Fatal(err)
	}
	var err error
	if g.key, err = seal.NewDataKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	g.openGateAndFront(t, by)
	return g
}

func (g *rig) openGateAndFront(t testing.TB, by func(string, **relay.Relay) string) {
	t.Helper()
	ca := newAuthority(t)
	storeURL, err := url.Parse(g.store.URL())
	if err != nil {
		t.Fatal(err)
	}
	var domains []string
	if d, ok := g.store.(interface{ Domains() []string }); ok {
		domains = d.Domains()
	}
	g.gate = stager.NewGate(stager.GateConfig{
		Store: storeURL, Hosts: []string{storeName}, Domains: domains, Now: time.Now, Audit: g.audits.add,
		NodeBurst: func(node string) (string, bool) { return burst, node == "n1" },
	})
	g.gate.Allow(burst, time.Now().Add(time.Hour), []stager.Grant{
		{Bucket: "data", Methods: []string{"GET", "PUT", "POST", "DELETE"}},
	})
	gate := httptest.NewUnstartedServer(g.gate)
	if gate.TLS, err = stager.GateTLS(ca.issue(t, pkix.Name{CommonName: "gate"}), ca.pem); err != nil {
		t.Fatal(err)
	}
	gate.StartTLS()
	t.Cleanup(gate.Close)
	gateURL, err := url.Parse(gate.URL)
	if err != nil {
		t.Fatal(err)
	}
	node := ca.issue(t, pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}})
	transport := cache.Transport(func() (*tls.Certificate, error) { return &node, nil }, ca.pool)
	fetch := dialTo(g.store.Addr())
	if addr := by(gateURL.Host, &g.toGate); addr != "" {
		transport.DialContext = dialTo(addr).DialContext
		fetch = dialTo(by(g.store.Addr(), &g.toStaging))
	}
	g.front, err = cache.New(cache.Config{
		Burst: burst, Gate: gateURL, Hosts: []string{storeName}, Dir: g.dir, Random: rand.Reader, Own: g.isOwn,
		Now:       func() time.Time { return time.Now().Add(time.Duration(g.ahead.Load())) },
		Transport: transport, Fetch: &http.Client{Transport: fetch},
	})
	if err != nil {
		t.Fatal(err)
	}
	g.server = httptest.NewServer(g.front)
	t.Cleanup(g.server.Close)
}

// client speaks to addr under the store's own name, as a job does.
func (g *rig) client(t testing.TB, addr, access, secret string) *minio.Core {
	t.Helper()
	return g.connect(t, addr, access, secret, false)
}

// addr is where the front listens.
func (g *rig) addr() string { return g.server.Listener.Addr().String() }

// connect makes a client, on request one that sends trailing checksums.
func (g *rig) connect(t testing.TB, addr, access, secret string, trailers bool) *minio.Core {
	t.Helper()
	_, port, err := net.SplitHostPort(g.store.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c, err := minio.NewCore(net.JoinHostPort(storeName, port), &minio.Options{
		Creds: credentials.NewStaticV4(access, secret, ""), Region: "us-east-1", BucketLookup: minio.BucketLookupPath,
		Transport: dialTo(addr), MaxRetries: 1, TrailingHeaders: trailers,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dialTo(addr string) *http.Transport {
	return &http.Transport{
		DisableCompression: true, MaxIdleConnsPerHost: 64,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	}
}

// job is the job's client on the burst node, direct the same at home.
func (g *rig) job(t testing.TB) *minio.Core {
	return g.client(t, g.addr(), "job", "jobsecret")
}

func (g *rig) direct(t testing.TB) *minio.Core {
	return g.client(t, g.store.Addr(), "job", "jobsecret")
}

func (g *rig) put(t testing.TB, key string, body []byte) {
	t.Helper()
	_, err := g.root.Client.PutObject(t.Context(), "data", key, bytes.NewReader(body), int64(len(body)), minio.PutObjectOptions{
		ContentType: "application/x-test", DisableContentSha256: true, UserMetadata: map[string]string{"Owner": "vision"},
	})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
}

// stage seals objects into the staging bucket and unlocks the front with
// their manifest.
func (g *rig) stage(t testing.TB, keys ...string) datasync.Manifest {
	t.Helper()
	end := s3.Endpoint{URL: g.store.URL(), AccessKey: "root", SecretKey: "rootsecret"}
	src, err := s3.NewSource(end)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s3.NewStaging(end)
	if err != nil {
		t.Fatal(err)
	}
	m := datasync.Manifest{Burst: burst}
	for _, key := range keys {
		o, err := src.Pin(t.Context(), "data", key)
		if err != nil {
			t.Fatal(err)
		}
		body, err := src.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		box, err := seal.NewReader(io.TeeReader(body, sum), o.Size, g.key, datasync.InputContext(burst, o), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		o.Staged, o.StagedSize = datasync.StagedName(g.key, o), seal.Size(o.Size)
		if err := st.Put(t.Context(), "staging", o.Staged, box, o.StagedSize); err != nil {
			t.Fatal(err)
		}
		_ = body.Close()
		o.SHA256 = hex.EncodeToString(sum.Sum(nil))
		if o.URL, err = st.Presign(t.Context(), "staging", o.Staged, time.Hour); err != nil {
			t.Fatal(err)
		}
		m.Objects = append(m.Objects, o)
	}
	if err := g.front.Unlock(g.key, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// seen waits for n lines of the store's own log about a key of "data" and
// returns the last of them as "METHOD status bytes".
func (g *rig) seen(t testing.TB, key string, n int) []objectstore.Entry {
	t.Helper()
	var got []objectstore.Entry
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		all, err := g.store.Log()
		if err != nil {
			t.Fatal(err)
		}
		got = slices.DeleteFunc(all, func(e objectstore.Entry) bool { return e.Bucket != "data" || e.Key != key })
		if len(got) >= n || time.Now().After(deadline) {
			return got
		}
	}
}

func read(t testing.TB, c *minio.Core, key string, opts minio.GetObjectOptions) ([]byte, http.Header, error) {
	t.Helper()
	body, _, header, err := c.GetObject(t.Context(), "data", key, opts)
	if err != nil {
		return nil, nil, err
	}
	defer body.Close()
	got, err := io.ReadAll(body)
	return got, header, err
}

func mustRead(t testing.TB, c *minio.Core, key string, want []byte) http.Header {
	t.Helper()
	got, header, err := read(t, c, key, minio.GetObjectOptions{})
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read %q: %d bytes, want %d, error %v", key, len(got), len(want), err)
	}
	return header
}

// blob is n bytes that differ by seed.
func blob(n int, seed string) []byte {
	return []byte(strings.Repeat(seed+" spillway ", n/(len(seed)+10)+1))[:n]
}

// authority is a small certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{cert: cert, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func (a *authority) issue(t testing.TB, subject pkix.Name) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
