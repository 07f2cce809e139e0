package stager_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/stager"
)

const signed = "AWS4-HMAC-SHA256 Credential=AK/20260101/r/s3/aws4_request,SignedHeaders=host;x-amz-content-sha256;x-amz-copy-source;x-amz-date, Signature=0"

// nodeRequest is a request as it comes over a node's verified connection.
func nodeRequest(method, target, body, cn string, org ...string) *http.Request {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	r.Host = "s3.onprem.test:9000"
	r.Header.Set("Authorization", signed)
	r.Header.Set("X-Amz-Date", "d")
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: cn, Organization: org}}
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{cert}}}
	return r
}

// gateRig is a gate before a store that answers 200 with what it was sent.
type gateRig struct {
	gate   *stager.Gate
	now    time.Time
	audits []stager.Audit
}

func newGate(t *testing.T) *gateRig {
	t.Helper()
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(store.Close)
	u, err := url.Parse(store.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateRig{now: time.Unix(1_800_000_000, 0)}
	g.gate = stager.NewGate(stager.GateConfig{
		Store: u, Hosts: []string{"s3.onprem.test"}, Domains: []string{"s3.onprem.test"}, Now: func() time.Time { return g.now },
		Audit: func(a stager.Audit) { g.audits = append(g.audits, a) },
		NodeBurst: func(node string) (string, bool) {
			burst, ok := map[string]string{"n1": "burst-1", "n2": "burst-2", "home1": ""}[node]
			return burst, ok
		},
	})
	g.gate.Allow("burst-1", g.now.Add(time.Hour), []stager.Grant{
		{Bucket: "data", Prefix: "set/", Methods: []string{"GET"}},
		{Bucket: "data", Prefix: "out/", Methods: []string{"GET", "PUT", "POST", "DELETE"}},
	})
	return g
}

func (g *gateRig) do(r *http.Request) (int, string) {
	w := httptest.NewRecorder()
	g.gate.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

const deleteTwo = `<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>out/a</Key></Object><Object><Key>KEY</Key></Object></Delete>`

func TestGate(t *testing.T) {
	with := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	tests := map[string]struct {
		method, target, body string
		change               func(*http.Request)
		refused              string // part of the reason; empty: goes through
	}{
		"read an input":               {method: "GET", target: "/data/set/a"},
		"look at an input":            {method: "HEAD", target: "/data/set/a"},
		"list an input":               {method: "GET", target: "/data?list-type=2&prefix=set%2F&delimiter=%2F"},
		"list below an input":         {method: "GET", target: "/data?prefix=set/x"},
		"look at the bucket":          {method: "HEAD", target: "/data"},
		"region of the bucket":        {method: "GET", target: "/data?location="},
		"write a result":              {method: "PUT", target: "/data/out/r", body: "x"},
		"write a result in parts":     {method: "POST", target: "/data/out/r?uploads="},
		"delete a result":             {method: "DELETE", target: "/data/out/r"},
		"delete several results":      {method: "POST", target: "/data?delete=", body: strings.Replace(deleteTwo, "KEY", "out/b", 1)},
		"presigned read":              {method: "GET", target: "/data/set/a?X-Amz-Signature=0&X-Amz-SignedHeaders=host%3Bx-amz-date", change: func(r *http.Request) { r.Header.Del("Authorization") }},
		"an added If-None-Match":      {method: "GET", target: "/data/set/a", change: with("If-None-Match", `"e"`)},
		"copy from an input":          {method: "PUT", target: "/data/out/r", change: with("X-Amz-Copy-Source", "/data/set/a")},
		"read the tags of an input":   {method: "GET", target: "/data/set/a?tagging"},
		"tag a result":                {method: "PUT", target: "/data/out/r?tagging"},
		"tag an input":                {method: "PUT", target: "/data/set/a?tagging", refused: "PUT of s3://data/set/a"},
		"tags of another object":      {method: "GET", target: "/data/secret/a?tagging", refused: "GET of s3://data/secret/a"},
		"tags of the bucket":          {method: "GET", target: "/data?tagging&prefix=set/", refused: `sub-resource "tagging"`},
		"who may read an input":       {method: "GET", target: "/data/set/a?acl"},
		"who may read the bucket":     {method: "GET", target: "/data?acl&prefix=set/", refused: `sub-resource "acl"`},
		"key with a dot segment":      {method: "GET", target: "/data/set/./a"},
		"key with two slashes":        {method: "GET", target: "/data/set//a"},
		"virtual-host style":          {method: "GET", target: "/set/a", change: func(r *http.Request) { r.Host = "data.s3.onprem.test:9000" }},
		"another prefix":              {method: "GET", target: "/data/secret/a", refused: "GET of s3://data/secret/a"},
		"another bucket":              {method: "GET", target: "/other/set/a", refused: "s3://other/set/a"},
		"write to an input":           {method: "PUT", target: "/data/set/a", refused: "PUT of s3://data/set/a"},
		"delete an input":             {method: "DELETE", target: "/data/set/a", refused: "DELETE of"},
		"list the whole bucket":       {method: "GET", target: "/data?list-type=2", refused: "GET of s3://data/ is not"},
		"list with two prefixes":      {method: "GET", target: "/data?prefix=set/&prefix=", refused: "two prefixes"},
		"list the buckets":            {method: "GET", target: "/", refused: "listing of buckets"},
		"look at another bucket":      {method: "HEAD", target: "/other", refused: "bucket other"},
		"make a bucket":               {method: "PUT", target: "/data", refused: "PUT of a bucket"},
		"an access list":              {method: "PUT", target: "/data/out/r?acl", refused: `sub-resource "acl"`},
		"a policy":                    {method: "GET", target: "/data?policy", refused: `sub-resource "policy"`},
		"delete an input with others": {method: "POST", target: "/data?delete", body: strings.Replace(deleteTwo, "KEY", "set/a", 1), refused: "DELETE of s3://data/set/a"},
		"a list to delete with two keys in one": {
			method: "POST", target: "/data?delete", body: `<Delete><Object><Key>set/a</Key><Key>out/a</Key></Object></Delete>`, refused: "in two ways",
		},
		"a list to delete that's none":       {method: "POST", target: "/data?delete", body: "x", refused: "can't be read"},
		"copy from elsewhere":                {method: "PUT", target: "/data/out/r", change: with("X-Amz-Copy-Source", "/other/a"), refused: "GET of s3://other/a"},
		"climb out of the prefix":            {method: "GET", target: "/data/set/../secret/a", refused: "is not among"},
		"climb out of the bucket":            {method: "GET", target: "/data/set/../../other/a", refused: "is not among"},
		"climb out in escapes":               {method: "GET", target: "/data/set/%2e%2e%2fsecret/a", refused: "is not among"},
		"copy source that climbs":            {method: "PUT", target: "/data/out/r", change: with("X-Amz-Copy-Source", "/data/set/../secret/a"), refused: "is not among"},
		"another host":                       {method: "GET", target: "/data/set/a", change: func(r *http.Request) { r.Host = "data.other.test" }, refused: "host"},
		"unsigned x-amz header":              {method: "PUT", target: "/data/out/r", change: with("X-Amz-Acl", "public-read"), refused: "x-amz-acl is not signed"},
		"anonymous with an x-amz header":     {method: "PUT", target: "/data/out/r", change: func(r *http.Request) { r.Header.Del("Authorization") }, refused: "not signed"},
		"unsigned header that a store obeys": {method: "GET", target: "/data/set/a", change: with("X-Amz-Cache", "1"), refused: "x-amz-cache"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			r := nodeRequest(tt.method, tt.target, tt.body, "system:node:n1", "system:nodes")
			if tt.change != nil {
				tt.change(r)
			}
			status, body := g.do(r)
			if tt.refused == "" {
				if status != 200 || body != tt.body || len(g.audits) != 0 {
					t.Errorf("%d %s %+v, want it through with its body", status, body, g.audits)
				}
				return
			}
			want, code := 403, "AccessDenied"
			if strings.HasPrefix(tt.refused, "sub-resource") {
				want, code = 501, "NotImplemented"
			}
			if status != want || len(g.audits) != 1 || !strings.Contains(g.audits[0].Reason, tt.refused) {
				t.Fatalf("%d %+v, want a refusal for %q", status, g.audits, tt.refused)
			}
			if a := g.audits[0]; a.Node != "n1" || a.Burst != "burst-1" || a.Method != tt.method || strings.Contains(a.Reason, "Signature=") {
				t.Errorf("audit line %+v", a)
			}
			if tt.method != "HEAD" && !strings.Contains(body, "<Code>"+code+"</Code>") {
				t.Errorf("answer %s", body)
			}
		})
	}
}

func TestGateKnowsItsNodes(t *testing.T) {
	tests := map[string]struct {
		cn      string
		org     []string
		refused string
	}{
		"the node of a burst with a lease": {"system:node:n1", []string{"system:nodes"}, ""},
		"a burst without grants":           {"system:node:n2", []string{"system:nodes"}, "no lease"},
		"an on-prem node":                  {"system:node:home1", []string{"system:nodes"}, "belongs to no burst"},
		"an unknown node":                  {"system:node:n9", []string{"system:nodes"}, "belongs to no burst"},
		"another group":                    {"system:node:n1", []string{"tenants"}, "not a node's"},
		"another name":                     {"n1", []string{"system:nodes"}, "not a node's"},
		"no name":                          {"system:node:", []string{"system:nodes"}, "not a node's"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			status, _ := g.do(nodeRequest("GET", "/data/set/a", "", tt.cn, tt.org...))
			if tt.refused == "" != (status == 200) {
				t.Fatalf("status %d", status)
			}
			if tt.refused != "" && !strings.Contains(g.audits[0].Reason, tt.refused) {
				t.Errorf("reason %q", g.audits[0].Reason)
			}
		})
	}
	t.Run("no certificate", func(t *testing.T) {
		g := newGate(t)
		r := nodeRequest("GET", "/data/set/a", "", "system:node:n1", "system:nodes")
		r.TLS = nil
		if status, _ := g.do(r); status != 403 {
			t.Errorf("status %d", status)
		}
	})
}

func TestGateFollowsTheLease(t *testing.T) {
	g := newGate(t)
	try := func() int {
		status, _ := g.do(nodeRequest("GET", "/data/set/a", "", "system:node:n1", "system:nodes"))
		return status
	}
	grants := []stager.Grant{{Bucket: "data", Prefix: "set/", Methods: []string{"GET"}}}
	steps := []struct {
		name string
		do   func()
		want int
	}{
		{"within the lease", func() {}, 200},
		{"at its end", func() { g.now = g.now.Add(time.Hour) }, 403},
		{"extended", func() { g.gate.Allow("burst-1", g.now.Add(time.Minute), grants) }, 200},
		{"revoked", func() { g.gate.Revoke("burst-1") }, 403},
		{"declared again", func() { g.gate.Allow("burst-1", g.now.Add(time.Minute), grants) }, 200},
		{"declared without grants", func() { g.gate.Allow("burst-1", g.now.Add(time.Minute), nil) }, 403},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			step.do()
			if got := try(); got != step.want {
				t.Errorf("status %d, want %d", got, step.want)
			}
		})
	}
}

func TestGateTLSNeedsACluster(t *testing.T) {
	if _, err := stager.GateTLS(tls.Certificate{}, []byte("no pem")); err == nil {
		t.Error("a cluster CA that is none is taken")
	}
}

// TestGateWaitsForTheFirstDeclaration: right after a restart of the controller
// a request of a burst waits for its grants; a revoked burst is refused at
// once. A refusal here would fail the job for nothing.
func TestGateWaitsForTheFirstDeclaration(t *testing.T) {
	store := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(store.Close)
	u, err := url.Parse(store.URL)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	g := &gateRig{now: now, gate: stager.NewGate(stager.GateConfig{
		Store: u, Hosts: []string{"s3.onprem.test"}, Now: func() time.Time { return now }, Patience: time.Minute,
		NodeBurst: func(string) (string, bool) { return "burst-1", true },
	})}
	read := func() int {
		code, _ := g.do(nodeRequest("GET", "/data/set/x", "", "system:node:n1", "system:nodes"))
		return code
	}
	answered := make(chan int)
	go func() { answered <- read() }()
	select {
	case code := <-answered:
		t.Fatalf("answered %d before anything was declared", code)
	case <-time.After(50 * time.Millisecond):
	}
	g.gate.Allow("burst-1", now.Add(time.Hour), []stager.Grant{{Bucket: "data", Prefix: "set/", Methods: []string{"GET"}}})
	if code := <-answered; code != http.StatusOK {
		t.Errorf("answered %d after the declaration, want 200", code)
	}
	g.gate.Revoke("burst-1")
	if code := read(); code != http.StatusForbidden {
		t.Errorf("a revoked burst was answered %d, want 403 at once", code)
	}
}
