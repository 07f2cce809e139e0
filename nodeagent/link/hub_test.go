package link

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// post sends a body with a certificate and returns status and answer.
func (w *world) post(cert *tls.Certificate, method, path string, body []byte) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.server.URL+path, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := w.http(cert).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // read below
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func body(t testing.TB, r Report) []byte {
	t.Helper()
	data, err := json.Marshal(ask{Report: r})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Whoever is not the node gets nothing, and a sentence that says why.
func TestStrangersAreRefused(t *testing.T) {
	w := newWorld(t)
	foreign := newAuthority(t)
	subject := pkix.Name{CommonName: "system:node:node-a", Organization: []string{"system:nodes"}}
	tests := map[string]struct {
		cert tls.Certificate
		want string // in the answer, or in the error of the handshake
	}{
		"certificate of another authority": {foreign.node("node-a"), "tls:"},
		"expired certificate": {
			w.cluster.issue(subject, x509.ExtKeyUsageClientAuth, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), "tls:",
		},
		"a server's certificate": {w.cluster.issue(subject, x509.ExtKeyUsageServerAuth, nil), "tls:"},
		"a user's certificate": {
			w.cluster.issue(pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, x509.ExtKeyUsageClientAuth, nil),
			`client certificate of "admin" is not a node's`,
		},
		"a node's name without the nodes' group": {
			w.cluster.issue(pkix.Name{CommonName: "system:node:node-a"}, x509.ExtKeyUsageClientAuth, nil), "is not a node's",
		},
		"no name behind the prefix": {w.cluster.node(""), "is not a node's"},
		"a node that nobody expects": {
			w.cluster.node("node-x"), "node node-x is not expected",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status, answer := w.post(&tt.cert, http.MethodPost, SyncPath, body(t, report(t, "node-a", "burst-1")))
			if (status != 0 && status != http.StatusForbidden) || !strings.Contains(answer, tt.want) {
				t.Errorf("status %d, %q; want 403 or no handshake, with %q", status, answer, tt.want)
			}
			if _, _, ok := w.hub.Report("node-a"); ok {
				t.Error("the stranger's report was taken")
			}
		})
	}
	if status, _ := w.post(nil, http.MethodPost, SyncPath, nil); status != 0 {
		t.Errorf("without a certificate: status %d, want no handshake", status)
	}
}

// A server that was configured to verify nothing changes nothing.
func TestHubVerifiesItself(t *testing.T) {
	w := newWorld(t)
	lax := httptest.NewUnstartedServer(w.hub)
	lax.TLS = w.hub.TLSConfig(w.site.issue(pkix.Name{CommonName: "hub"}, x509.ExtKeyUsageServerAuth, nil))
	lax.TLS.ClientAuth = tls.RequestClientCert
	lax.StartTLS()
	t.Cleanup(lax.Close)
	w.server = lax
	foreign := newAuthority(t).node("node-a")
	for name, cert := range map[string]*tls.Certificate{"foreign": &foreign, "none": nil} {
		t.Run(name, func(t *testing.T) {
			if status, answer := w.post(cert, http.MethodPost, SyncPath, body(t, report(t, "node-a", "burst-1"))); status != http.StatusForbidden {
				t.Errorf("status %d, %q, want 403", status, answer)
			}
		})
	}
}

func usage(change func(*quota.Usage)) quota.Usage {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	u := quota.Usage{
		Node: "node-a", Boot: "boot-1", Journal: "journal-1", Seq: 1, Burst: "burst-1", PodUID: "pod-1",
		Device: "gpu-0", Share: 840, Start: start, End: start.Add(time.Minute), Phase: "run", Source: "agent",
	}
	if change != nil {
		change(&u)
	}
	return u
}

// A rented node's agent is untrusted input.
func TestHostileReports(t *testing.T) {
	w := newWorld(t)
	cert := w.cluster.node("node-a")
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	proof := func(node, burst string) *wipe.SignedProof {
		s, err := wipe.Sign(key, wipe.Proof{Node: node, Burst: burst, At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		return &s
	}
	with := func(change func(*quota.Usage)) func(*Report) {
		return func(r *Report) { r.Usage = []quota.Usage{usage(change)} }
	}
	tests := map[string]struct {
		spoil  func(*Report)
		status int
		want   string
	}{
		"another node's report":   {func(r *Report) { r.Node = "node-b" }, 403, `may not report for node "node-b"`},
		"another burst":           {func(r *Report) { r.Burst = "burst-2" }, 403, `may not report for burst "burst-2"`},
		"no burst":                {func(r *Report) { r.Burst = "" }, 403, "may not report for burst"},
		"usage of another node":   {with(func(u *quota.Usage) { u.Node = "node-b" }), 403, `usage of node "node-b"`},
		"usage of another burst":  {with(func(u *quota.Usage) { u.Burst = "burst-2" }), 403, `burst "burst-2"`},
		"usage at another's cost": {with(func(u *quota.Usage) { u.Tenant = "team-b" }), 403, "the controller decides who pays"},
		"usage that ends before it began": {
			with(func(u *quota.Usage) { u.End = u.Start.Add(-time.Second) }), 400, "which can't be",
		},
		"usage in the far future":     {with(func(u *quota.Usage) { u.End = time.Now().Add(48 * time.Hour) }), 400, "which can't be"},
		"usage of two devices in one": {with(func(u *quota.Usage) { u.Share = 1680 }), 400, "share of 1680/840"},
		"usage of less than nothing":  {with(func(u *quota.Usage) { u.Share = -1 }), 400, "share of -1/840"},
		"usage without a number":      {with(func(u *quota.Usage) { u.Seq = 0 }), 400, "has no key"},
		"a text without end":          {with(func(u *quota.Usage) { u.Owner = strings.Repeat("x", 4096) }), 400, "too long"},
		"more records than allowed":   {func(r *Report) { r.Usage = make([]quota.Usage, MaxUsage+1) }, 400, "number of records"},
		"negative bytes":              {func(r *Report) { r.Cache.BytesStaged = -1 }, 400, "cache counter"},
		"a key of the wrong size":     {func(r *Report) { r.HPKE = []byte("short") }, 400, "public key"},
		"an upload of minus two bytes": {
			func(r *Report) { r.Uploads = []Upload{{Bucket: "b", Key: "k", Size: -2}} }, 400, "an upload has no name",
		},
		"an upload in endless parts": {
			func(r *Report) {
				r.Uploads = []Upload{{Bucket: "b", Key: "k", Parts: make([]datasync.Part, maxParts+1)}}
			}, 400, "impossible",
		},
		"a forged proof": {
			func(r *Report) { r.Wipe = proof("node-a", "burst-1") }, 403, "signature does not match",
		},
		"another node's proof": {
			func(r *Report) { r.ProofKey, r.Wipe = pub, proof("node-b", "burst-2") }, 403, `wipe of node "node-b"`,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := report(t, "node-a", "burst-1")
			tt.spoil(&r)
			status, answer := w.post(&cert, http.MethodPost, SyncPath, body(t, r))
			if status != tt.status || !strings.Contains(answer, tt.want) {
				t.Errorf("status %d, %q; want %d with %q", status, answer, tt.status, tt.want)
			}
			if _, _, ok := w.hub.Report("node-a"); ok {
				t.Error("the report was taken")
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	w := newWorld(t)
	cert := w.cluster.node("node-a")
	tests := map[string]struct {
		method, path string
		body         []byte
		want         int
	}{
		"another path":      {http.MethodPost, "/v1/other", nil, 404},
		"another method":    {http.MethodGet, SyncPath, nil, 405},
		"no JSON":           {http.MethodPost, SyncPath, []byte("hello"), 400},
		"an oversized body": {http.MethodPost, SyncPath, bytes.Repeat([]byte(" "), MaxBody+1), 413},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status, answer := w.post(&cert, tt.method, tt.path, tt.body)
			if status != tt.want || strings.TrimSpace(answer) == "" {
				t.Errorf("status %d, %q; want %d and a sentence", status, answer, tt.want)
			}
		})
	}
}

func TestOnPremReportsUsageOnly(t *testing.T) {
	w := newWorld(t)
	cert := w.cluster.node("onprem-1")
	for name, spoil := range map[string]func(*Report){
		"uploads": func(r *Report) { r.Uploads = []Upload{{Bucket: "b", Key: "k"}} },
		"a key":   func(r *Report) { r.KeyHeld = true },
		"a wipe":  func(r *Report) { r.Wipe = &wipe.SignedProof{} },
	} {
		t.Run(name, func(t *testing.T) {
			r := report(t, "onprem-1", "")
			spoil(&r)
			if status, answer := w.post(&cert, http.MethodPost, SyncPath, body(t, r)); status != 403 || !strings.Contains(answer, "readiness and usage only") {
				t.Errorf("status %d, %q", status, answer)
			}
		})
	}
	r := report(t, "onprem-1", "")
	r.Usage = []quota.Usage{usage(func(u *quota.Usage) { u.Node, u.Burst = "onprem-1", "" })}
	if status, answer := w.post(&cert, http.MethodPost, SyncPath, body(t, r)); status != 200 {
		t.Errorf("usage of an on-prem node: status %d, %q", status, answer)
	}
}

// The hub shows what a node last said and tells it what was ordered, at once
// or when it changes.
func TestReportAndTell(t *testing.T) {
	w := newWorld(t)
	a := w.agent("node-a")
	a.set(func(r *Report) { r.KeyHeld = true; r.Usage = []quota.Usage{usage(nil)} })
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, seen, ok := w.hub.Report("node-a")
	if !ok || time.Since(seen) > time.Minute || !got.KeyHeld || len(got.Usage) != 1 {
		t.Errorf("Report = %+v, %v, %t", got, seen, ok)
	}
	if name := <-w.hub.Updates(); name != "node-a" {
		t.Errorf("update of %q", name)
	}
	orders := Orders{UsageAck: 1, UsageJournal: "journal-1"}
	done := make(chan error, 1)
	go func() { done <- a.Sync(t.Context()) }() // held until told
	w.hub.Tell("node-a", orders)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for len(a.heard) < 4 && cmp.Diff(orders, a.last().Reply.Orders) != "" {
		if err := a.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(orders, a.last().Reply.Orders); diff != "" {
		t.Errorf("orders (-want +got):\n%s", diff)
	}
	if _, _, ok := w.hub.Report("node-b"); ok {
		t.Error("a node that has not spoken has a report")
	}
	w.hub.Forget("node-a")
	if _, _, ok := w.hub.Report("node-a"); ok {
		t.Error("a forgotten node has a report")
	}
}

// Another node's orders never reach this one.
func TestOrdersAreForOneNode(t *testing.T) {
	w := newWorld(t)
	w.hub.Tell("node-b", Orders{Wipe: &WipeOrder{ID: "w"}})
	a := w.agent("node-a")
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a.last().Reply.Orders.Wipe != nil {
		t.Error("node-a was told to wipe for node-b")
	}
}

// Updates are hints, one a node, and a flood of one node's reports does not
// drown those of others.
func TestUpdatesDoNotFlood(t *testing.T) {
	w := newWorld(t)
	a, b := w.agent("node-a"), w.agent("node-b")
	for range 5 {
		a.version, a.hub = 0, "" // never held
		if err := a.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(w.hub.Updates()); n != 2 {
		t.Errorf("%d hints for two nodes", n)
	}
}

// After a restart of the controller the hub knows nothing; it must not show a
// job's results as missing before it has heard of them again.
func TestUploadsSurviveAHubRestart(t *testing.T) {
	w := newWorld(t)
	a := w.agent("node-a")
	up := []Upload{{Bucket: "out", Key: "model", Size: 7, SHA256: "ab"}}
	a.set(func(r *Report) { r.Uploads = up })
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if body, err := a.ask(); err != nil || bytes.Contains(body, []byte("model")) {
		t.Errorf("the list travels again although the hub has it: %s, %v", body, err)
	}
	fresh := NewHub(w.hub.config)
	w.server.Config.Handler = fresh
	w.hub = fresh
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, _, ok := fresh.Report("node-a"); ok {
		t.Errorf("a report without its uploads is shown: %+v", r.Uploads)
	}
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, _, ok := fresh.Report("node-a")
	if diff := cmp.Diff(up, r.Uploads); !ok || diff != "" {
		t.Errorf("uploads after the second report (-want +got):\n%s", diff)
	}
}

// An agent that was killed has forgotten what its predecessor saw; the hub has
// not, and of the same object the newer entry counts.
func TestUploadsSurviveAnAgentRestart(t *testing.T) {
	w := newWorld(t)
	a := w.agent("node-a")
	a.set(func(r *Report) {
		r.Uploads = []Upload{{Bucket: "out", Key: "one", Size: 1}, {Bucket: "out", Key: "two", Size: 2}}
	})
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := w.agent("node-a") // the same node, a new process
	b.set(func(r *Report) { r.Uploads = []Upload{{Bucket: "out", Key: "two", Size: 22}} })
	if err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, _, _ := w.hub.Report("node-a")
	want := []Upload{{Bucket: "out", Key: "one", Size: 1}, {Bucket: "out", Key: "two", Size: 22}}
	if diff := cmp.Diff(want, r.Uploads); diff != "" {
		t.Errorf("uploads (-want +got):\n%s", diff)
	}
}

// cases: N60: a second machine that uses a node's identity is told so, and the
// two do not chase each other.
func TestSecondAgentOfANode(t *testing.T) {
	w := newWorld(t)
	w.hub.config.Hold = time.Minute
	first, second := w.agent("node-a"), w.agent("node-a")
	if err := first.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- first.Sync(t.Context()) }()
	eventually(t, "the first agent's request is held", func() bool {
		w.hub.mu.Lock()
		defer w.hub.mu.Unlock()
		return w.hub.nodes["node-a"].turn == 2
	})
	if err := second.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "is a second agent running") {
		t.Errorf("the first agent heard %v", err)
	}
}

// A burst that ended takes its nodes' voice away, also on an open connection.
func TestEndedBurst(t *testing.T) {
	w := newWorld(t)
	a := w.agent("node-a")
	if err := a.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.end("node-a")
	err := a.Sync(t.Context())
	if err == nil || !strings.Contains(err.Error(), "its burst has ended or never was") {
		t.Errorf("Sync = %v", err)
	}
}

// The client takes nothing from a hub that the site's authority did not sign.
func TestFalseHub(t *testing.T) {
	w := newWorld(t)
	a := w.agent("node-a")
	w.server.TLS.Certificates[0] = newAuthority(t).issue(pkix.Name{CommonName: "hub"}, x509.ExtKeyUsageServerAuth, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := a.Sync(ctx); err == nil || len(a.heard) > 0 {
		t.Errorf("Sync with a false hub = %v", err)
	}
}
