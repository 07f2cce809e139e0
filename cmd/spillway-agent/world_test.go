package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
	"spillway.dev/spillway/nodeagent"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
)

// TestMain lets the test binary be the agent: a child that runs main.
func TestMain(m *testing.M) {
	if os.Getenv("SPILLWAY_AGENT_CHILD") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

const (
	nodeName  = "spw-12345678-0"
	burstUID  = "12345678-burst"
	storeHost = "s3.onprem.test"
	secret    = "the training data that nobody outside may read"
)

// world is all that an agent meets: controller, gate, staging store and the
// machine that it runs on.
type world struct {
	t        *testing.T
	dir      string
	ca       *x509.Certificate
	caKey    *ecdsa.PrivateKey
	leaseKey ed25519.PrivateKey
	join     link.Join
	hub      *link.Hub
	hubTCP   *httptest.Server
	machine  *fakeMachine
	gate     *fakeGate
	dataKey  seal.DataKey
	front    string
}

func newWorld(t *testing.T, soft, hard time.Duration) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), front: freePort(t), gate: &fakeGate{}}
	w.newCA()
	_, w.leaseKey, _ = ed25519.GenerateKey(nil)
	var err error
	if w.dataKey, err = seal.NewDataKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(w.ca)
	w.hub = link.NewHub(link.HubConfig{
		ClusterCA: pool, Now: time.Now, Hold: 5 * time.Second,
		NodeBurst: func(node string) (string, bool) { return w.join.Burst, node == nodeName },
	})
	w.hubTCP = httptest.NewUnstartedServer(w.hub)
	w.hubTCP.TLS = w.hub.TLSConfig(w.issue("hub", nil))
	w.hubTCP.StartTLS()
	t.Cleanup(w.hubTCP.Close)
	gate := httptest.NewUnstartedServer(w.gate)
	gate.TLS = &tls.Config{
		Certificates: []tls.Certificate{w.issue("gate", nil)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13,
	}
	gate.StartTLS()
	t.Cleanup(gate.Close)
	w.machine = newFakeMachine(t, filepath.Join(w.dir, "machine.sock"))

	pemCA := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.ca.Raw})
	w.join = link.Join{
		NodeName: nodeName, Burst: burstUID, Tenant: "team-vision",
		Controller: w.hubTCP.Listener.Addr().String(), ControllerCA: pemCA,
		Gate: "https://" + gate.Listener.Addr().String(), GateCA: pemCA, Store: storeHost + ":9000",
		LeaseKey: w.leaseKey.Public().(ed25519.PublicKey), GPUResource: "nvidia.com/gpu", GPUs: 1,
		Lease: w.lease(1, soft, hard),
	}
	return w
}

// lease signs a lease that ends so long from now.
func (w *world) lease(serial int64, soft, hard time.Duration) link.SignedLease {
	w.t.Helper()
	now := time.Now()
	l, err := link.SignLease(w.leaseKey, link.Lease{
		Burst: burstUID, Node: nodeName, Serial: serial, Issued: now.Add(min(0, soft)), Soft: now.Add(soft), Hard: now.Add(hard),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *world) newCA() {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		w.t.Fatal(err)
	}
	if w.ca, err = x509.ParseCertificate(der); err != nil {
		w.t.Fatal(err)
	}
	w.caKey = key
}

func (w *world) issue(name string, groups []string) tls.Certificate {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, w.ca, &key.PublicKey, w.caKey)
	if err != nil {
		w.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// stage puts one sealed object and the sealed manifest into a staging store.
func (w *world) stage() *link.Stage {
	w.t.Helper()
	files := map[string][]byte{}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		data, ok := files[r.URL.Path]
		if !ok {
			http.NotFound(rw, r)
			return
		}
		rw.Write(data) //nolint:errcheck // the agent notices
	}))
	w.t.Cleanup(server.Close)
	sum := sha256.Sum256([]byte(secret))
	o := datasync.Object{
		Bucket: "data", Key: "train/part-0", ETag: "etag-0", Size: int64(len(secret)),
		LastModified: time.Now().Add(-time.Hour).Truncate(time.Second), SHA256: hex.EncodeToString(sum[:]),
	}
	var sealed bytes.Buffer
	sw, err := seal.NewWriter(&sealed, w.dataKey, datasync.InputContext(burstUID, o), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	_, err = io.WriteString(sw, secret)
	if err = firstError(err, sw.Close()); err != nil {
		w.t.Fatal(err)
	}
	o.Staged, o.StagedSize, o.URL = "part", int64(sealed.Len()), server.URL+"/part"
	pub, signer, err := ed25519.GenerateKey(nil)
	if err != nil {
		w.t.Fatal(err)
	}
	manifest, err := datasync.SealManifest(datasync.Manifest{
		Burst: burstUID, Made: time.Now(), Expires: time.Now().Add(time.Hour), Objects: []datasync.Object{o},
	}, w.dataKey, signer, rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	files["/part"], files["/manifest"] = sealed.Bytes(), manifest
	digest := sha256.Sum256(manifest)
	return &link.Stage{ManifestURL: server.URL + "/manifest", ManifestSHA256: hex.EncodeToString(digest[:]), ManifestKey: pub}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// fakeGate is the gate with the source store behind it: one object, which is
// answered with 304 when it is unchanged.
type fakeGate struct {
	mu                  sync.Mutex
	full, notModified   int
	bodies              int64
	lastAuth, lastEntry string
}

func (g *fakeGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastAuth, g.lastEntry = r.Header.Get("Authorization"), r.Host+r.URL.Path
	if r.Method == http.MethodPut {
		n, _ := io.Copy(io.Discard, r.Body)
		g.bodies += n
		w.Header().Set("ETag", `"etag-out"`)
		return
	}
	w.Header().Set("ETag", `"etag-0"`)
	if r.Header.Get("If-None-Match") == `"etag-0"` {
		g.notModified++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	g.full++
	io.WriteString(w, secret) //nolint:errcheck // the agent notices
}

func (g *fakeGate) counts() (full, notModified int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.full, g.notModified
}

// fakeMachine serves the machine's socket.
type fakeMachine struct {
	mu    sync.Mutex
	pods  []nodeagent.Pod
	stops []nodeagent.StopRequest
	offs  []nodeagent.PowerOffRequest
	deaf  bool // ignores requests to stop
}

func newFakeMachine(t *testing.T, path string) *fakeMachine {
	t.Helper()
	m := &fakeMachine{}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go server.Serve(l) //nolint:errcheck // ends with the test
	t.Cleanup(func() { _ = server.Close() })
	return m
}

func (m *fakeMachine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	switch r.Method + " " + r.URL.Path {
	case "GET /pods":
		err = json.NewEncoder(w).Encode(m.pods)
	case "GET /devices":
		err = json.NewEncoder(w).Encode([]nodeagent.Device{{ID: "gpu-0", Resource: "nvidia.com/gpu", Model: "Fake", Healthy: true}})
	case "POST /stop":
		var s nodeagent.StopRequest
		err = json.NewDecoder(r.Body).Decode(&s)
		m.stops = append(m.stops, s)
		for i := range m.pods {
			if !m.deaf && m.pods[i].Finished.IsZero() {
				m.pods[i].Finished = time.Now()
			}
		}
	case "POST /poweroff":
		var s nodeagent.PowerOffRequest
		err = json.NewDecoder(r.Body).Decode(&s)
		m.offs = append(m.offs, s)
	default:
		http.NotFound(w, r)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (m *fakeMachine) run(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods = append(m.pods, nodeagent.Pod{UID: uid, Namespace: "team", Name: uid, Owner: "job-" + uid, GPUs: []string{"gpu-0"}, Started: time.Now()})
}

func (m *fakeMachine) finish(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.pods {
		if m.pods[i].UID == uid {
			m.pods[i].Finished = time.Now()
		}
	}
}

func (m *fakeMachine) asked() (stops, offs int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.stops), len(m.offs)
}

// child is a running agent.
type child struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *logBuffer
	done chan error
}

// logBuffer keeps what the agent logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// agent starts the binary. It is killed at the end of the test if need be.
func (w *world) agent(extra ...string) *child {
	w.t.Helper()
	cert := w.issue("system:node:"+nodeName, []string{"system:nodes"})
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	join, err := json.Marshal(w.join)
	if err != nil {
		w.t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"join.json": join,
		"node.crt":  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		"node.key":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		if err := os.WriteFile(filepath.Join(w.dir, name), data, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	args := append([]string{
		"--join", filepath.Join(w.dir, "join.json"), "--client-cert", filepath.Join(w.dir, "node.crt"),
		"--client-key", filepath.Join(w.dir, "node.key"), "--state", w.state(), "--pods", filepath.Join(w.dir, "machine.sock"),
	}, extra...)
	return start(w.t, args...)
}

func (w *world) state() string { return filepath.Join(w.dir, "disk") }

func start(t *testing.T, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(self, args...), log: &logBuffer{}, done: make(chan error, 1)}
	c.cmd.Env = append(os.Environ(), "SPILLWAY_AGENT_CHILD=1")
	c.cmd.Stderr, c.cmd.Stdout = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { c.done <- c.cmd.Wait() }()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", c.log)
		}
	})
	return c
}

// exit waits for the end and returns the exit code.
func (c *child) exit() int {
	c.t.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		c.t.Fatal("the agent did not end")
		return -1
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// report waits until the node's report satisfies a condition.
func (w *world) report(what string, ok func(link.Report) bool) link.Report {
	w.t.Helper()
	var r link.Report
	eventually(w.t, what, func() bool {
		got, _, heard := w.hub.Report(nodeName)
		r = got
		return heard && ok(got)
	})
	return r
}

// onDisk returns the files on the node's disk that hold the needle.
func (w *world) onDisk(needle string) (found []string) {
	w.t.Helper()
	files := 0
	err := filepath.WalkDir(w.state(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files++
		if bytes.Contains(data, []byte(needle)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil || files < 3 {
		w.t.Fatalf("%d files searched: %v", files, err)
	}
	return found
}

// releaseKey gives the data key to the agent that reports now.
func (w *world) releaseKey() {
	w.t.Helper()
	r := w.report("a report", func(r link.Report) bool { return !r.KeyHeld })
	sealed, err := link.SealKey(r.HPKE, burstUID, nodeName, w.dataKey)
	if err != nil {
		w.t.Fatal(err)
	}
	w.hub.Tell(nodeName, link.Orders{Key: &sealed})
	w.report("the key", func(r link.Report) bool { return r.KeyHeld })
}

// wipe orders the wipe and returns the proof.
func (w *world) wipe() wipe.Proof {
	w.t.Helper()
	w.hub.Tell(nodeName, link.Orders{Wipe: &link.WipeOrder{ID: "order-1"}})
	r := w.report("the proof", func(r link.Report) bool { return r.Wipe != nil })
	p, err := wipe.Verify(r.ProofKey, *r.Wipe)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// job makes a request as a job on the node does and returns what it gets.
func (w *world) job(method, path, body string) (string, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, "http://"+w.front+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return "", err
	}
	req.Host = storeHost + ":9000"
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=job")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	data, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s", resp.StatusCode, data)
	}
	return string(data), err
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only its number is wanted
	return l.Addr().String()
}
