//go:build openstack

package openstack_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"spillway.dev/spillway/e2e/openstack"
	"spillway.dev/spillway/providers"
	driver "spillway.dev/spillway/providers/openstack"
)

// sentOnce: whatever a create meets, neither the driver nor the library under it
// sends it again.
func sentOnce(t *testing.T, w *world) {
	creates := func() (n int) {
		for _, c := range w.proxy.Calls() {
			if c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/servers") {
				n++
			}
		}
		return n
	}
	for name, fault := range map[string]openstack.Fault{
		"throttled":     {Effect: openstack.Refuse, Status: 429, Body: tooMany, Header: map[string]string{"Retry-After": "1"}},
		"broken":        {Effect: openstack.Refuse, Status: 500, Body: `{"computeFault": {"code": 500, "message": "Unexpected API Error."}}`},
		"unavailable":   {Effect: openstack.Refuse, Status: 503, Body: badProxy},
		"busy":          {Effect: openstack.Refuse, Status: 409, Body: `{"conflictingRequest": {"code": 409, "message": "x"}}`},
		"never answers": {Effect: openstack.LoseAnswer},
	} {
		fault.Method, fault.Path, fault.Times = http.MethodPost, create, -1
		before := creates()
		w.proxy.Only(fault)
		if _, err := w.driver.Create(t.Context(), w.request("tok-"+strings.ReplaceAll(name, " ", "-"))); err == nil {
			t.Errorf("%s: no error", name)
		}
		if n := creates() - before; n != 1 {
			t.Errorf("%s: sent %d times", name, n)
		}
	}
}

// twoProcesses: two drivers that know nothing of each other create at the same
// time, for a list that shows neither; the next call leaves one machine.
// cases: D-4 kubernetes-sigs/cluster-api-provider-openstack#2088
func twoProcesses(t *testing.T, w *world) {
	if err := w.trouble("the next machine stays out of lists for a while"); err != nil {
		t.Fatal(err)
	}
	w.lag.Store(1000)
	drivers := []*driver.Driver{w.driver, w.dial(func(*driver.Config) {})}
	var group sync.WaitGroup
	for _, d := range drivers {
		group.Go(func() {
			// Where both take the port that one has made, Nova lets one of them have it.
			if _, err := d.Create(t.Context(), w.request("tok-1")); err != nil && providers.KindOf(err) != providers.OutcomeUnknown {
				t.Error(err)
			}
		})
	}
	group.Wait()
	made := len(w.audit())
	w.lag.Store(0)
	ids := map[string]bool{}
	for _, d := range drivers {
		m, err := d.Create(t.Context(), w.request("tok-1"))
		if err != nil {
			t.Fatal(err)
		}
		ids[m.ID] = true
	}
	if len(ids) != 1 {
		t.Errorf("%d servers were made; the two drivers name %v", made, ids)
	}
	w.until(t, "one server with one port is left", func() bool {
		ports, err := w.project.Ports(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(ports) > 1 { // known for a duplicate's as soon as the winner has its own
			if _, err := w.driver.Create(t.Context(), w.request("tok-1")); err != nil {
				t.Fatal(err)
			}
		}
		return len(w.audit()) == 1 && len(ports) == 1
	})
	t.Logf("%d servers were made, one is left", made)
}

// floatingAddress: an address is made, shown and deleted with its machine.
func floatingAddress(t *testing.T, w *world) {
	d := w.dial(func(c *driver.Config) { c.Addresses = openstack.Outside })
	m, err := d.Create(t.Context(), w.request("tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]int{}
	for _, p := range m.Parts {
		kinds[p.Kind]++
	}
	if kinds["port"] != 1 || kinds["address"] != 1 || len(m.Addresses) != 2 {
		t.Errorf("parts %v, addresses %v", m.Parts, m.Addresses)
	}
	again, err := d.Create(t.Context(), w.request("tok-1"))
	if err != nil || again.ID != m.ID || len(again.Parts) != 2 {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.until(t, "nothing is billed", func() bool { return len(w.audit()) == 0 })
}

// everyPage: the lab shows three things a page.
// cases: D-61 hcloud-k8s-ctl#91
func everyPage(t *testing.T, w *world) {
	if _, err := w.driver.Create(t.Context(), w.request("tok-1")); err != nil {
		t.Fatal(err)
	}
	for range 7 { // the newest come first: ours is on the last page
		if _, err := w.project.Server(t.Context(), "somebody", openstack.Flavor, nil); err != nil {
			t.Fatal(err)
		}
	}
	list, err := w.driver.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Token != "tok-1" {
		t.Errorf("listed %+v, %v", list, err)
	}
}

// leftovers: a process that died between port and server has left a port. Any
// later one finds it with its stamp; foreign ports stay.
// cases: B-13 kubernetes-sigs/cluster-api-provider-openstack#701
func leftovers(t *testing.T, w *world) {
	w.proxy.Script(openstack.Fault{Method: http.MethodPost, Path: create, Effect: openstack.Refuse, Status: 503, Body: badProxy})
	if _, err := w.driver.Create(t.Context(), w.request("tok-1")); providers.KindOf(err) != providers.OutcomeUnknown {
		t.Fatalf("got %v", err)
	}
	if err := w.project.Port(t.Context(), "spw-tok-1", "spillway:i=another&t=tok-1"); err != nil {
		t.Fatal(err)
	}
	later := w.dial(func(*driver.Config) {})
	list, err := later.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("listed %+v, %v", list, err)
	}
	m := list[0]
	if m.State != providers.StateLeftover || !m.Expires.Equal(w.expires) || m.Burst != w.request("tok-1").Burst || len(m.Parts) != 1 {
		t.Errorf("listed %+v", m)
	}
	if err := later.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if err := later.Delete(t.Context(), m.ID); providers.KindOf(err) != providers.NotFound {
		t.Errorf("the second delete: %v", err)
	}
	ports, err := w.project.Ports(t.Context())
	if err != nil || len(ports) != 1 || !strings.Contains(ports[0].Description, "another") {
		t.Errorf("left are %+v, %v", ports, err)
	}
}

// whichLimit: the person who has to ask for more reads what is short.
// cases: D-26
func whichLimit(t *testing.T, w *world) {
	if err := w.project.Quota(t.Context(), "cores", 20); err != nil {
		t.Fatal(err)
	}
	_, err := w.driver.Create(t.Context(), w.request("tok-1"))
	if providers.KindOf(err) != providers.LimitReached || !strings.Contains(err.Error(), "Requested 30, but already used 0 of 20 cores") {
		t.Errorf("got %v", err)
	}
	if left := w.audit(); len(left) > 0 {
		t.Errorf("left behind: %+v", left)
	}
}

// whyFailed: the fault of a stock-out, in the words of a real scheduler.
// cases: B-14 kubernetes-sigs/cluster-api-provider-openstack#3375, D-25
func whyFailed(t *testing.T, w *world) {
	if err := w.sellOut(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.driver.Create(t.Context(), w.request("tok-1")); err != nil {
		t.Fatal(err)
	}
	w.until(t, "the machine has failed", func() bool {
		list, err := w.driver.List(t.Context())
		return err == nil && len(list) == 1 && list[0].State == providers.StateFailed &&
			list[0].FaultKind == providers.SoldOut && strings.HasPrefix(list[0].Fault, "No valid host was found")
	})
}

// until polls a condition of the lab.
func (w *world) until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 120 {
		if cond() {
			return
		}
		w.Pass()
	}
	t.Errorf("it never came true: %s", what)
}
