//go:build openstack

// The tests here need root and install Debian packages: make e2e runs them.

package openstack_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/e2e/openstack"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/conformance"
	driver "spillway.dev/spillway/providers/openstack"
)

const (
	provider     = "lab-cloud"
	installation = "spillway-test"
)

// TestOpenStack starts one lab and runs everything against it.
func TestOpenStack(t *testing.T) {
	lab := start(t)
	t.Run("conformance", func(t *testing.T) {
		conformance.Run(t, conformance.Suite{New: func(t testing.TB) conformance.World { return newWorld(t, lab).World }})
	})
	for name, story := range map[string]func(*testing.T, *world){
		"a create is never sent twice":          sentOnce,
		"two processes end with one machine":    twoProcesses,
		"a floating address is a part":          floatingAddress,
		"every page of a list is read":          everyPage,
		"a leftover is found by its mark alone": leftovers,
		"a refusal says which limit":            whichLimit,
		"a failed machine says why":             whyFailed,
		"a whole burst":                         wholeBurst,
	} {
		t.Run(name, func(t *testing.T) { story(t, newWorld(t, lab)) })
	}
}

// start starts a lab and says how long that took.
func start(t *testing.T) *openstack.Lab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	began := time.Now()
	lab, err := openstack.Start(ctx, openstack.Config{
		Cache: filepath.Join("..", "..", "bin", ".built"), Dir: t.ArtifactDir(),
		Progress: func(line string) { t.Logf("%4.0f s: %s", time.Since(began).Seconds(), line) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%4.0f s: OpenStack serves", time.Since(began).Seconds())
	return lab
}

// world is a fresh account of the lab, with a driver behind a proxy.
type world struct {
	conformance.World
	t       testing.TB
	lab     *openstack.Lab
	project *openstack.Project
	proxy   *openstack.Proxy
	driver  *driver.Driver
	expires time.Time
	lag     atomic.Int32 // moments for which lists are empty
}

func newWorld(t testing.TB, lab *openstack.Lab) *world {
	t.Helper()
	w := &world{t: t, lab: lab, expires: time.Now().Add(10 * time.Hour).Truncate(time.Second)}
	var err error
	if w.project, err = lab.NewProject(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.lab.Order(""); err != nil {
			t.Error(err)
		}
		if err := w.project.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	w.proxy = lab.NewProxy()
	t.Cleanup(w.proxy.Close)
	w.driver = w.dial(func(*driver.Config) {})
	w.World = conformance.World{
		Driver: w.driver, Request: w.request, Make: w.trouble, Audit: w.audit, Plant: w.plant,
		Pass: func() {
			w.lag.Add(-1)
			<-time.After(500 * time.Millisecond)
		},
	}
	return w
}

// dial returns a driver of the world's account.
func (w *world) dial(change func(*driver.Config)) *driver.Driver {
	w.t.Helper()
	login, err := driver.ReadLogin(map[string][]byte{"clouds.yaml": w.project.Clouds}, openstack.Region)
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := w.proxy.Client()
	if err != nil {
		w.t.Fatal(err)
	}
	config := driver.Config{
		Provider: provider, Region: openstack.Region, Country: "DE", Installation: installation,
		Login: login, HTTP: client, Image: openstack.Image, Network: openstack.Network,
	}
	change(&config)
	d, err := driver.New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) request(token string) providers.Request {
	return providers.Request{
		Token: token, Installation: installation, Burst: "0b7c0f52-burst", Tenant: "team-vision", Name: "spw-" + token,
		Offer: providers.Offer{
			Provider: provider, Region: openstack.Region, InstanceType: openstack.FlavorOne, CapacityType: "on-demand",
		},
		UserData: []byte("#cloud-config\n"), Expires: w.expires,
	}
}

// What other clouds and the ways to them answer, as it was seen.
const (
	create   = "/servers$"
	noHost   = `{"computeFault": {"code": 500, "message": "No valid host was found. There are not enough hosts available."}}`
	tooMany  = `{"overLimit": {"code": 429, "message": "This request was rate-limited.", "retryAfter": "7"}}`
	noToken  = `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`
	badProxy = "<html><head><title>503 Service Unavailable</title></head></html>"
	noSite   = "<html><head><title>404 Not Found</title></head></html>"
)

// trouble makes the lab misbehave where it can, and the way to it elsewhere.
func (w *world) trouble(trouble conformance.Trouble) error {
	post := func(f openstack.Fault) []openstack.Fault {
		f.Method, f.Path = http.MethodPost, create
		return []openstack.Fault{f}
	}
	faults := map[conformance.Trouble][]openstack.Fault{
		conformance.CreateLost:       post(openstack.Fault{Effect: openstack.LoseAnswer}),
		conformance.CreateErrorAfter: post(openstack.Fault{Effect: openstack.AnswerAfter, Status: 503, Body: badProxy}),
		conformance.CreateError:      post(openstack.Fault{Effect: openstack.Refuse, Status: 503, Body: badProxy}),
		conformance.CreateSoldOut:    post(openstack.Fault{Effect: openstack.Refuse, Status: 500, Body: noHost}),
		conformance.CreateHalfMade:   post(openstack.Fault{Effect: openstack.Refuse, Status: 500, Body: noHost}),
		conformance.CreateHalfStuck: append(post(openstack.Fault{Effect: openstack.Refuse, Status: 500, Body: noHost}),
			openstack.Fault{Method: http.MethodDelete, Path: "/ports/", Effect: openstack.Refuse, Status: 503, Body: badProxy}),
		conformance.CreateThrottled: post(openstack.Fault{
			Effect: openstack.Refuse, Status: 429, Body: tooMany, Header: map[string]string{"Retry-After": "7"},
		}),
		conformance.CreateHangs: post(openstack.Fault{Effect: openstack.Hang}),
		conformance.ListBroken:  {{Method: http.MethodGet, Path: "/servers/detail$", Effect: openstack.CutAnswer}},
		conformance.DeleteLost:  {{Method: http.MethodDelete, Path: "/servers/", Effect: openstack.LoseAnswer}},
		conformance.DeleteGatewayError: {{
			Method: http.MethodDelete, Path: "/servers/", Effect: openstack.Refuse, Status: 404, Body: noSite,
		}},
	}
	if list, ok := faults[trouble]; ok {
		w.proxy.Script(list...)
		return nil
	}
	ctx := w.t.Context()
	switch trouble {
	case conformance.CreateLimit:
		return w.project.Quota(ctx, "instances", 0)
	case conformance.CreateInvalid: // cases: D-28
		return w.project.Quota(ctx, "metadata_items", 0)
	case conformance.SoldOutLater:
		return w.sellOut()
	case conformance.BreaksLater:
		return w.lab.Order("abort")
	case conformance.NeverBoots:
		return w.lab.Order("spawn 10")
	case conformance.DeleteSlow:
		return w.lab.Order("destroy 5")
	case conformance.Unauthorized:
		// The services remember for minutes that a token was good: what they say
		// after that is played. That no new one is to be had is real.
		w.proxy.Script(openstack.Fault{Path: "^/v2", Effect: openstack.Refuse, Status: 401, Body: noToken, Times: -1})
		return w.project.Lock(ctx)
	case conformance.ListLags:
		w.lag.Store(4)
		for _, list := range []string{"servers", "ports"} {
			path := "/" + list + "$"
			if list == "servers" {
				path = "/servers/detail$"
			}
			w.proxy.Script(openstack.Fault{
				Method: http.MethodGet, Path: path, Effect: openstack.Edit, Times: -1,
				Edit: func(body []byte) []byte {
					if w.lag.Load() > 0 {
						return fmt.Appendf(nil, `{"%s": []}`, list)
					}
					return body
				},
			})
		}
		return nil
	default:
		return fmt.Errorf("the lab can't make trouble %q", trouble)
	}
}

// sellOut lets a neighbour take every GPU until the world ends.
func (w *world) sellOut() error {
	giveBack, err := w.lab.TakeStock(w.t.Context())
	if err != nil {
		return err
	}
	w.t.Cleanup(func() {
		if err := giveBack(context.Background()); err != nil {
			w.t.Error(err)
		}
	})
	return nil
}

// audit reads the account with the administrator's eyes and by its own reading
// of the marks.
func (w *world) audit() []providers.Machine {
	ctx := context.Background()
	servers, err := w.project.Servers(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	ports, err := w.project.Ports(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	addresses, err := w.project.Addresses(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	var billed []providers.Machine
	known := map[string]bool{}
	for _, s := range servers {
		m := providers.Machine{
			ID: s.ID, Name: s.Name, State: providers.State(strings.ToLower(s.Status)),
			Token: s.Metadata["spillway-token"], Installation: s.Metadata["spillway-installation"],
		}
		if s.TaskState == "deleting" {
			m.State = providers.StateDeleting
		}
		if m.Expires, err = time.Parse(time.RFC3339, s.Metadata["spillway-expires"]); err != nil {
			w.t.Errorf("server %s: stamp: %v", s.ID, err)
		}
		known[m.Token] = true
		billed = append(billed, m)
	}
	for _, part := range append(ports, addresses...) {
		text, ours := strings.CutPrefix(part.Description, "spillway:")
		mark, err := url.ParseQuery(text)
		if !ours || err != nil {
			continue
		}
		if token := mark.Get("t"); !known[token] {
			known[token] = true
			billed = append(billed, providers.Machine{
				ID: "leftover:" + token, Token: token, Installation: mark.Get("i"), State: providers.StateLeftover,
			})
		}
	}
	return billed
}

// plant makes a server by the hand of another installation.
func (w *world) plant(m providers.Machine) string {
	id, err := w.project.Server(w.t.Context(), m.Name, openstack.FlavorOne, map[string]string{
		"spillway-installation": m.Installation, "spillway-token": m.Token, "spillway-expires": m.Expires.UTC().Format(time.RFC3339),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}
