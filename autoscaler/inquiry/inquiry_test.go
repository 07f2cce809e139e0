package inquiry_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/inquiry"
	"spillway.dev/spillway/autoscaler/plan"
)

const mayGet = "get jobs.batch vision/train"

// A person who may get a Job, and nothing else anywhere, is told about it, and
// whoever stands between them has not seen their token.
func TestWhoMayGetItIsTold(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet)
	answer, err := s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
	if err != nil {
		t.Fatal(err)
	}
	if want := "vision/Job/train: wait: LOCAL_CHANCE: as tested\n"; answer.Explain() != want {
		t.Errorf("she is told %q, want %q", answer.Explain(), want)
	}
	if diff := cmp.Diff([]string{"ada " + mayGet}, s.asked); diff != "" {
		t.Errorf("what was asked about her:\n%s", diff)
	}
	if len(s.seen) != 1 || !strings.HasPrefix(s.seen[0], "/tunnel ") {
		t.Errorf("through the proxy went %q, want one tunnel", s.seen)
	}
}

func TestWhoIsTurnedAway(t *testing.T) {
	stranger := newAuthority(t)
	for name, tt := range map[string]struct {
		as     func(s *site) *rest.Config
		kind   string
		ns     string
		object string
		status int
		said   string
		shy    bool // nobody's rights are asked about
	}{
		"another's Job":       {kind: "job", ns: "other", object: "train", status: 403, said: "ada may not get jobs.batch train in namespace other: ask whoever gives rights there"},
		"one that is not":     {kind: "job", ns: "vision", object: "absent", status: 403, said: "ada may not get jobs.batch absent in namespace vision: ask whoever gives rights there"},
		"the pod, not theJob": {kind: "pod", ns: "vision", object: "train-0", status: 403, said: "ada may not get pods train-0 in namespace vision: ask whoever gives rights there"},
		"a Job of Volcano":    {kind: "jobs.batch.volcano.sh", ns: "vision", object: "train", status: 403, said: "ada may not get jobs.batch.volcano.sh train in namespace vision: ask whoever gives rights there"},
		"a kind of none":      {kind: "secret", ns: "vision", object: "train", status: 400, said: `kind "secret" is none that can be asked about; these are: pod, job, job, burst`, shy: true},
		"a huge name":         {kind: "job", ns: "vision", object: strings.Repeat("a", 5000), status: 400, said: "namespace or name is none that an object can have: must be no more than 253", shy: true},
		"no name":             {kind: "job", ns: "vision", object: "", status: 400, said: "the name is missing: say job/NAME", shy: true},
		"no namespace":        {kind: "job", ns: "", object: "train", status: 400, said: "namespace or name is none", shy: true},
		"a way up":            {kind: "job", ns: "vision", object: "../../other/train", status: 400, said: "namespace or name is none", shy: true},
		"a way up, encoded":   {kind: "job", ns: "vision%2f..%2fother", object: "train", status: 400, said: "namespace or name is none", shy: true},
		"a zero byte":         {kind: "job", ns: "vision", object: "train\x00", status: 400, said: "namespace or name is none", shy: true},
		"no token":            {as: func(s *site) *rest.Config { return s.config("") }, kind: "job", ns: "vision", object: "train", status: 401, said: "nobody is named by the request", shy: true},
		"a token of another audience": {
			as: func(s *site) *rest.Config { return s.config("for-the-registry") }, kind: "job", ns: "vision", object: "train", status: 401, said: "the API server does not know the token: log in again", shy: true,
		},
		"another namespace's account": {
			as: func(s *site) *rest.Config { return s.config("theirs") }, kind: "job", ns: "vision", object: "train", status: 403,
			said: "system:serviceaccount:other:default may not get jobs.batch train in namespace vision: ask whoever gives rights there",
		},
		"in another's name": {
			as: func(s *site) *rest.Config {
				c := s.config("ada-token")
				c.Impersonate.UserName = "boss"
				return c
			}, kind: "job", ns: "vision", object: "train", status: 400, said: "nobody can be impersonated here: ask without --as, as yourself", shy: true,
		},
		"a certificate of a stranger": {
			as: func(s *site) *rest.Config { return s.shownAs(stranger, "ada") }, kind: "job", ns: "vision", object: "train", status: 401, said: "nobody is named by the request", shy: true,
		},
		"a node": {
			as: func(s *site) *rest.Config { return s.shownAs(s.ca, "system:node:spw-1", "system:nodes") }, kind: "job", ns: "vision", object: "train",
			status: 403, said: "nodes may not ask: this is for people and their programs", shy: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet).person("system:serviceaccount:other:default", "theirs", "get jobs.batch other/*")
			config := s.config("ada-token")
			if tt.as != nil {
				config = tt.as(s)
			}
			answer, err := s.dial(config).Why(t.Context(), tt.kind, tt.ns, tt.object)
			refused, ok := errors.AsType[*inquiry.RefusedError](err)
			if !ok {
				t.Fatalf("answer %+v, error %v; want a refusal", answer, err)
			}
			if refused.Status != tt.status || !strings.HasPrefix(refused.Said, tt.said) || len(refused.Said) > 500 {
				t.Errorf("refused with %d: %s; want %d: %s", refused.Status, refused.Said, tt.status, tt.said)
			}
			if tt.shy != (len(s.asked) == 0) {
				t.Errorf("the API server was asked about %q", s.asked)
			}
		})
	}
}

// A kubeconfig with a client certificate is as good as one with a token: who
// stands between sees neither.
func TestCertificateIsAPerson(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "unused", mayGet)
	if _, err := s.dial(s.shownAs(s.ca, "ada", "team")).Why(t.Context(), "Job", "vision", "train"); err != nil {
		t.Fatal(err)
	}
	if s.shown != 0 {
		t.Errorf("%d tokens were reviewed", s.shown)
	}
}

// A controller that can't show the published authority's certificate is not
// told who asks.
func TestNobodyElseIsTheController(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet)
	s.ca = newAuthority(t) // what is published now is another
	_, err := s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
	if err == nil || !strings.Contains(err.Error(), "certificate") || s.shown != 0 {
		t.Errorf("error %v with %d tokens shown, want one about the certificate and none shown", err, s.shown)
	}
}

// Before its first look at the cluster a controller knows nothing, and says so.
func TestNothingIsKnownYet(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).person("ada", "ada-token", mayGet)
	_, err := s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
	if refused, ok := errors.AsType[*inquiry.RefusedError](err); !ok || refused.Status != http.StatusServiceUnavailable {
		t.Errorf("error %v, want 503", err)
	}
}

// One person who asks without end is slowed down, and nobody else is.
func TestEachPersonHasTheirShare(t *testing.T) {
	s := newSite(t, inquiry.Limits{Burst: 3, PerSecond: 0.0001}).hang().person("ada", "ada-token", mayGet).person("bob", "bob-token", mayGet)
	var statuses []int
	ask := func(token string) {
		_, err := s.dial(s.config(token)).Why(t.Context(), "job", "vision", "train")
		status := http.StatusOK
		if refused, ok := errors.AsType[*inquiry.RefusedError](err); ok {
			status = refused.Status
		} else if err != nil {
			t.Fatal(err)
		}
		statuses = append(statuses, status)
	}
	for _, token := range []string{"ada-token", "ada-token", "ada-token", "ada-token", "bob-token"} {
		ask(token)
	}
	if diff := cmp.Diff([]int{200, 200, 200, 429, 200}, statuses); diff != "" {
		t.Error(diff)
	}
	if len(s.asked) != 4 {
		t.Errorf("the API server was asked %d times about rights, want 4", len(s.asked))
	}
}

// Who guesses tokens does not make the API server guess with them.
func TestGuessesAreBounded(t *testing.T) {
	s := newSite(t, inquiry.Limits{Reviews: 0.0001}).hang()
	for range 5 {
		_, _ = s.dial(s.config("guess")).Why(t.Context(), "job", "vision", "train")
	}
	if s.shown != 1 {
		t.Errorf("%d tokens were reviewed, want 1", s.shown)
	}
}

func TestSimulate(t *testing.T) {
	const job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: new, namespace: %s}\nspec: {template: {spec: {containers: [{name: m, image: i, resources: {limits: {nvidia.com/gpu: 2}}}]}}}\n"
	for name, tt := range map[string]struct {
		manifest string
		want     string // the decision's text, or of the refusal
	}{
		"one's own":          {fmt.Sprintf(job, "vision"), "vision/Job/new: refuse: TENANT_UNKNOWN"},
		"in another's place": {fmt.Sprintf(job, "other"), "ada may not create jobs.batch in namespace other"},
		"one of each":        {fmt.Sprintf(job, "vision") + "---\n" + fmt.Sprintf(job, "other"), "ada may not create jobs.batch in namespace other"},
		"no manifest":        {"{", "manifest: document 1"},
		"too long":           {"#" + strings.Repeat(" ", 2<<20), "the manifest is larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", "create jobs.batch vision/")
			decided, err := s.dial(s.config("ada-token")).Simulate(t.Context(), "vision", []byte(tt.manifest))
			got := decided.Explain()
			if err != nil {
				got = err.Error()
			}
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if err == nil && len(decided.Decisions) != 1 {
				t.Errorf("%d decisions, want the one about the manifest: %s", len(decided.Decisions), got)
			}
		})
	}
}

// The whole state is for operators, and holds no secret.
func TestCapture(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet).person("ops", "ops-token", "get states.spillway.dev /")
	if _, err := s.dial(s.config("ada-token")).State(t.Context()); err == nil {
		t.Error("a tenant got the state of the whole cluster")
	}
	text, err := s.dial(s.config("ops-token")).State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var state plan.State
	if err := json.Unmarshal(text, &state); err != nil || len(state.Gangs) != 1 {
		t.Fatalf("the state is %s, %v", text, err)
	}
	if strings.Contains(string(text), "hunter2") {
		t.Error("a secret was captured")
	}
}

// raw opens a tunnel by hand, as a hostile caller would.
func (s *site) raw() net.Conn {
	s.t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(s.t.Context(), "tcp", s.outer.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const knock = "GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: spillway-desk\r\n\r\n"

// Who is slow, or says nothing, is gone after patience, wherever they stop; the
// place is free for the next.
func TestSlowCallersAreShownOut(t *testing.T) {
	for name, said := range map[string]string{
		"before the request":        "",
		"in the middle of a header": "GET /tunnel HTTP/1.1\r\nHost: x\r\nSlow: ",
		"before TLS":                knock,
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, inquiry.Limits{Patience: 300 * time.Millisecond, Tunnels: 1}).hang().person("ada", "ada-token", mayGet)
			conn := s.raw()
			if _, err := io.WriteString(conn, said); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, net.ErrClosed) {
				t.Fatal(err)
			} else if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				t.Fatal("a minute later the connection still stands")
			}
			for end := time.Now().Add(time.Minute); ; {
				_, err := s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
				if err == nil {
					return
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		})
	}
}

// More callers than there are places are told to come again.
func TestTunnelsAreBounded(t *testing.T) {
	s := newSite(t, inquiry.Limits{Tunnels: 1, Patience: time.Minute}).hang()
	first := s.raw()
	if _, err := io.WriteString(first, knock); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(first), nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", resp, err)
	}
	second := s.raw()
	if _, err := io.WriteString(second, knock); err != nil {
		t.Fatal(err)
	}
	if resp, err := http.ReadResponse(bufio.NewReader(second), nil); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("%v, %v, want 503", resp, err)
	}
}

// Outside of a tunnel nothing is served.
func TestNothingIsServedOutsideOfTheTunnel(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet, "get states.spillway.dev /")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, path := range []string{"/v1/state", "/v1/why?kind=job&namespace=vision&name=train", "/tunnel", "/tunnel/../v1/state", "//v1/state"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.outer.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer ada-token")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s answers %s", path, resp.Status)
		}
	}
}

// Without a controller the person is told so, and what to do.
func TestNoController(t *testing.T) {
	s := newSite(t, inquiry.Limits{}).hang().person("ada", "ada-token", mayGet)
	s.outer.Close()
	_, err := s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
	if !errors.Is(err, inquiry.ErrNoController) || !strings.Contains(err.Error(), "ask the platform team") {
		t.Errorf("error %v", err)
	}
	_, err = inquiry.Dial(t.Context(), s.config("ada-token"), "elsewhere")
	if err == nil {
		_, err = s.dial(s.config("ada-token")).Why(t.Context(), "job", "vision", "train")
	}
	if !errors.Is(err, inquiry.ErrNoController) {
		t.Errorf("error %v", err)
	}
}
