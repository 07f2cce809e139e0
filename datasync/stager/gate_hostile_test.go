package stager_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/datasync/stager"
)

// What gate and store may read in two ways goes no further: a job that signs
// its own requests may write them as it likes.
//
// cases: E10 pydio/cells#873 (the virtual-host style)
func TestGateRefusesWhatCanBeReadInTwoWays(t *testing.T) {
	header := func(name string, values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header[name] = values }
	}
	tests := map[string]struct {
		method, target string
		change         func(*http.Request)
		refused        string
	}{
		"a sub-resource with a broken escape":     {"PUT", "/data/out/r?acl=%zz", nil, "query"},
		"a sub-resource with a semicolon":         {"PUT", "/data/out/r?acl=;", nil, "query"},
		"a prefix behind a fragment":              {"GET", "/data?x-id=#&prefix=set/", nil, "#"},
		"a prefix in a fragment":                  {"GET", "/data?prefix=#set/", nil, "#"},
		"an access list in the query":             {"PUT", "/data/out/r?x-amz-acl=public-read", nil, "x-amz-acl"},
		"a copy source in the query":              {"PUT", "/data/out/r?x-amz-copy-source=%2Fother%2Fa", nil, "x-amz-copy-source"},
		"two copy sources":                        {"PUT", "/data/out/r", header("X-Amz-Copy-Source", "/data/set/a", "/other/a"), "x-amz-copy-source"},
		"an unsigned header with an underscore":   {"PUT", "/data/out/r", header("X_amz_acl", "public-read"), "x_amz_acl"},
		"two authorizations":                      {"PUT", "/data/out/r", header("Authorization", "AWS AK:0", signed), "signed twice"},
		"an authorization beside a presigned URL": {"PUT", "/data/out/r?X-Amz-Signature=0&X-Amz-SignedHeaders=host", header("Authorization", "AWS AK:0"), "signed twice"},
		"a presigned URL with two lists":          {"PUT", "/data/out/r?X-Amz-Signature=0&X-Amz-SignedHeaders=host%3Bx-amz-date&X-Amz-SignedHeaders=host", func(r *http.Request) { r.Header.Del("Authorization") }, "signed twice"},
		"an authorization with two lists":         {"PUT", "/data/out/r", header("Authorization", signed+", SignedHeaders=host"), "signed twice"},
		"the region of a bucket and its list":     {"GET", "/data?location&list-type=2", nil, "GET of s3://data/ is not"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			r := nodeRequest(tt.method, tt.target, "", "system:node:n1", "system:nodes")
			if tt.change != nil {
				tt.change(r)
			}
			status, _ := g.do(r)
			if status != 403 || len(g.audits) != 1 || !strings.Contains(g.audits[0].Reason, tt.refused) {
				t.Errorf("%d %+v, want a refusal for %q", status, g.audits, tt.refused)
			}
		})
	}
}

// A store that knows no buckets in host names reads the path alone: then the
// bucket in the host must not count.
//
// cases: E10 pydio/cells#873
func TestGateReadsHostsAsItsStoreDoes(t *testing.T) {
	store := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(store.Close)
	u, err := url.Parse(store.URL)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	for _, domains := range [][]string{nil, {"s3.onprem.test"}} {
		g := &gateRig{now: now, gate: stager.NewGate(stager.GateConfig{
			Store: u, Hosts: []string{"s3.onprem.test"}, Domains: domains, Now: func() time.Time { return now },
			NodeBurst: func(string) (string, bool) { return "burst-1", true },
		})}
		g.gate.Allow("burst-1", now.Add(time.Hour), []stager.Grant{{Bucket: "data", Methods: []string{"GET"}}})
		r := nodeRequest("GET", "/secret/a", "", "system:node:n1", "system:nodes")
		r.Host = "data.s3.onprem.test:9000"
		want := 403
		if domains != nil {
			want = 200 // secret/a is a key of the bucket data
		}
		if status, _ := g.do(r); status != want {
			t.Errorf("buckets in %q: status %d, want %d", domains, status, want)
		}
	}
}

// A transfer that is under way when the lease ends is cut, in either
// direction; one whose lease is extended meanwhile goes on.
func TestGateCutsTransfersAtTheEndOfTheLease(t *testing.T) {
	begun, more := make(chan struct{}), make(chan struct{})
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first ")
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		select {
		case <-more:
			_, _ = io.WriteString(w, "last")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(store.Close)
	u, err := url.Parse(store.URL)
	if err != nil {
		t.Fatal(err)
	}
	grants := []stager.Grant{{Bucket: "data", Methods: []string{"GET"}}}
	soon := func(g *stager.Gate) { g.Allow("burst-1", time.Now().Add(100*time.Millisecond), grants) }
	tests := map[string]struct {
		meanwhile func(*stager.Gate)
		whole     bool
	}{
		"the lease ends":      {soon, false},
		"the burst is ended":  {func(g *stager.Gate) { g.Revoke("burst-1") }, false},
		"another is extended": {func(g *stager.Gate) { soon(g); g.Allow("burst-2", time.Now().Add(time.Hour), grants) }, false},
		"it is extended":      {func(g *stager.Gate) { soon(g); g.Allow("burst-1", time.Now().Add(2*time.Hour), grants) }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			gate := stager.NewGate(stager.GateConfig{
				Store: u, Hosts: []string{"s3.onprem.test"}, Now: time.Now,
				NodeBurst: func(string) (string, bool) { return "burst-1", true },
			})
			gate.Allow("burst-1", time.Now().Add(time.Hour), grants)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.TLS, r.Host = nodeRequest("GET", "/", "", "system:node:n1", "system:nodes").TLS, "s3.onprem.test"
				gate.ServeHTTP(w, r)
			}))
			t.Cleanup(server.Close)
			got := make(chan string)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/data/a", nil)
				resp, err := http.DefaultClient.Do(req)
				var body []byte
				if err == nil {
					body, err = io.ReadAll(resp.Body)
					_ = resp.Body.Close()
				}
				switch {
				case ctx.Err() != nil:
					got <- "nothing more, for a minute"
				case err != nil:
					got <- "cut"
				default:
					got <- string(body)
				}
			}()
			<-begun
			tt.meanwhile(gate)
			if tt.whole {
				<-time.After(200 * time.Millisecond) // the end that was moved has passed
				more <- struct{}{}
			}
			if body := <-got; tt.whole != (body == "first last") || !tt.whole && body != "cut" {
				t.Errorf("the job got %q", body)
			}
		})
	}
}
