package cache_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/seal"
)

// gateway is a home that answers as Ceph RGW 16.2.15 does: a bare 304 without
// validators; with x-rgw-auth the present headers, a length of 0 and no body;
// 206 to any range, even one that can't be. "make ceph" asks a real one.
type gateway struct {
	body, etag string
	metadata   string
	asked      []string // for objects, as "auth STATUS" or "STATUS"
	deaf       bool     // something on the way takes x-rgw-auth away
}

func (g *gateway) serve(w http.ResponseWriter, r *http.Request) {
	status, auth, body := http.StatusOK, !g.deaf && r.Header.Get("X-Rgw-Auth") != "", g.body
	if r.Header.Get("Range") != "" {
		status, body = http.StatusPartialContent, g.body[:1]
	}
	switch {
	case r.Header.Get("Authorization") == "stranger":
		status, auth, body = http.StatusForbidden, false, "no"
	case r.Header.Get("If-None-Match") == g.etag:
		status, body = http.StatusNotModified, ""
	default:
		w.Header().Set("Etag", g.etag)
		w.Header().Set("Last-Modified", "Tue, 01 Dec 2026 02:54:31 GMT")
		w.Header().Set("Content-Type", "binary/octet-stream")
		w.Header().Set("X-Rgw-Object-Type", "Normal")
		w.Header().Set("X-Amz-Meta-Owner", g.metadata)
		w.Header().Set("X-Amz-Request-Id", fmt.Sprintf("tx%d", len(g.asked)))
	}
	said := fmt.Sprint(status)
	if auth {
		said, body = "auth "+said, ""
		if status == http.StatusPartialContent {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-1/%d", len(g.body)))
		}
	}
	g.asked = append(g.asked, said)
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// A Ceph gateway is asked by x-rgw-auth: its 304 would hide a rewrite that kept
// the ETag, also one in the same second. What it says is compared, header by
// header, and whom it refuses gets its refusal.
func TestAGatewayTellsOfEveryRewrite(t *testing.T) {
	type step struct {
		change func(*gateway)
		header [2]string
		status int
		body   string
		owner  string
		asked  string // of the gateway, since the step before
	}
	ask := func(asked string) step {
		return step{status: 200, body: "a body", owner: "vision", asked: asked}
	}
	changed := func(s step, change func(*gateway)) step { s.change = change; return s }
	for name, steps := range map[string][]step{
		"the same is served from the disk": {ask("[200]"), ask("[auth 200]"), ask("[auth 200]")},
		"a range of it": {
			ask("[200]"), {header: [2]string{"Range", "bytes=2-5"}, status: 206, body: "body", owner: "vision", asked: "[auth 206]"},
		},
		"a stranger gets the refusal, and the copy stays": {
			ask("[200]"), {header: [2]string{"Authorization", "stranger"}, status: 403, body: "no", asked: "[403]"}, ask("[auth 200]"),
		},
		"other metadata, same ETag, same second": {
			ask("[200]"),
			{change: func(g *gateway) { g.metadata = "audio" }, status: 200, body: "a body", owner: "audio", asked: "[auth 200 200]"},
			{status: 200, body: "a body", owner: "audio", asked: "[auth 200]"},
		},
		"another body": {
			ask("[200]"),
			{change: func(g *gateway) { g.body, g.etag = "another", `"f"` }, status: 200, body: "another", owner: "vision", asked: "[auth 200 200]"},
			{status: 200, body: "another", owner: "vision", asked: "[auth 200]"},
		},
		"no bytes any more": {
			ask("[200]"),
			{change: func(g *gateway) { g.body, g.etag = "", `"0"` }, status: 200, owner: "vision", asked: "[auth 200 200]"},
		},
		"something on the way takes the question away: the body comes from home": {
			changed(ask("[200]"), func(g *gateway) { g.deaf = true }), ask("[200]"),
			{change: func(g *gateway) { g.body = "seen" }, status: 200, body: "seen", owner: "vision", asked: "[200]"},
		},
		"a job that asks so itself gets what it asks for, and spoils nothing": {
			{header: [2]string{"x_rgw_auth", "yes"}, status: 200, body: "a body", owner: "vision", asked: "[200]"},
			{header: [2]string{"X-Rgw-Auth", "yes"}, status: 200, owner: "vision", asked: "[auth 200]"},
			ask("[200]"), ask("[auth 200]"),
		},
		"an answer for one origin is not kept for others": {
			{header: [2]string{"Origin", "http://a"}, status: 200, body: "a body", owner: "vision", asked: "[200]"}, ask("[200]"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := &gateway{body: "a body", etag: `"e"`, metadata: "vision"}
			f, front := fakeHome(t, g.serve)
			if err := f.Unlock(seal.DataKey{1}, datasync.Manifest{Burst: burst}); err != nil {
				t.Fatal(err)
			}
			for i, s := range steps {
				if g.asked = nil; s.change != nil {
					s.change(g)
				}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/data/k", nil)
				if err != nil {
					t.Fatal(err)
				}
				if s.header[0] != "" {
					r.Header[s.header[0]] = []string{s.header[1]}
				}
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != s.status || string(body) != s.body || resp.Header.Get("X-Amz-Meta-Owner") != s.owner || fmt.Sprint(g.asked) != s.asked {
					t.Errorf("step %d: %d %q of %q, asked %v, %v; want %d %q of %q, asked %s", i,
						resp.StatusCode, body, resp.Header.Get("X-Amz-Meta-Owner"), g.asked, err, s.status, s.body, s.owner, s.asked)
				}
			}
		})
	}
}
