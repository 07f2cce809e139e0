package fake_test

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

func testOffer() providers.Offer {
	return providers.Offer{InstanceType: "gpu", CapacityType: "on-demand", GPUs: 1, GPUResource: "nvidia.com/gpu"}
}

func request(provider, region, token string) providers.Request {
	o := testOffer()
	o.Provider, o.Region = provider, region
	return providers.Request{
		Token: token, Installation: installation, Burst: "b", Tenant: "t", Name: "spw-b-0",
		Offer: o, UserData: []byte("data"), Expires: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC),
	}
}

// dial serves one cloud on loopback and returns a driver for it.
func dial(t *testing.T, c *fake.Cloud) providers.Driver {
	t.Helper()
	server := httptest.NewServer(c.Handler())
	t.Cleanup(server.Close)
	return fake.Dial(server.URL, secret, installation, server.Client())
}

func TestBootRunsUntilTheMachineIsDeleted(t *testing.T) {
	c := fake.New(fake.Config{Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	t.Cleanup(c.Close)
	booted, ended := make(chan string, 1), make(chan struct{})
	c.Boot = func(ctx context.Context, m providers.Machine, userData []byte) {
		booted <- m.Name + " " + string(userData)
		<-ctx.Done()
		close(ended)
	}
	d := dial(t, c)
	m, err := d.Create(t.Context(), request("p", "r", "tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := <-booted, "spw-b-0 data"; got != want {
		t.Errorf("booted with %q, want %q", got, want)
	}
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	<-ended
	c.Close()
	if left := c.Billing(); len(left) > 0 {
		t.Errorf("still billed: %+v", left)
	}
}

// case D-29: powering off ends neither the bill nor the machine.
func TestPoweredOffMachineIsStillBilled(t *testing.T) {
	c := fake.New(fake.Config{Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	c.Boot = func(context.Context, providers.Machine, []byte) {} // powers off at once
	d := dial(t, c)
	if _, err := d.Create(t.Context(), request("p", "r", "tok-1")); err != nil {
		t.Fatal(err)
	}
	c.Close()
	left := c.Billing()
	if len(left) != 1 || left[0].State != providers.StateStopped || len(left[0].Parts) != 2 {
		t.Errorf("billed: %+v, want one stopped machine with its two parts", left)
	}
}

func TestMachineThatStillRunsIsNotGone(t *testing.T) {
	c := fake.New(fake.Config{Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	t.Cleanup(c.Close)
	booted, release := make(chan struct{}), make(chan struct{})
	c.Boot = func(context.Context, providers.Machine, []byte) {
		close(booted)
		<-release // deaf to its end
	}
	d := dial(t, c)
	m, err := d.Create(t.Context(), request("p", "r", "tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	<-booted
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if left := c.Billing(); len(left) != 1 {
		t.Errorf("billed: %+v, want the machine that still runs", left)
	}
	close(release)
	c.Close()
	if left := c.Billing(); len(left) != 0 {
		t.Errorf("billed: %+v, want nothing", left)
	}
}

func TestTimersMoveTheCloudByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake.New(fake.Config{
			Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()},
			Timing: fake.Timing{BootTakes: time.Minute, DeleteTakes: 2 * time.Minute},
		})
		defer c.Close()
		var mu sync.Mutex
		var bootedAt time.Time
		c.Boot = func(ctx context.Context, _ providers.Machine, _ []byte) {
			mu.Lock()
			bootedAt = time.Now()
			mu.Unlock()
			<-ctx.Done()
		}
		start := time.Now()
		m := inProcess(t, c, request("p", "r", "tok-1"))
		time.Sleep(90 * time.Second)
		mu.Lock()
		if got := bootedAt.Sub(start); got != time.Minute {
			t.Errorf("booted after %s, want 1m", got)
		}
		mu.Unlock()
		handlerDelete(t, c, m.ID)
		time.Sleep(3 * time.Minute)
		got := c.Snapshot()[0]
		want := start.Add(90*time.Second + 2*time.Minute)
		if got.State != providers.StateDeleted || !got.Deleted.Equal(want) {
			t.Errorf("state %s, deleted at %s, want deleted at %s", got.State, got.Deleted, want)
		}
	})
}

// inProcess buys through the handler without a network, which synctest's
// bubble can't wait for.
func inProcess(t *testing.T, c *fake.Cloud, req providers.Request) providers.Machine {
	t.Helper()
	m, err := fake.Dial("http://fake", secret, installation, handlerClient(c)).Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func handlerDelete(t *testing.T, c *fake.Cloud, id string) {
	t.Helper()
	if err := fake.Dial("http://fake", secret, installation, handlerClient(c)).Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func TestSeveralCloudsInOneProcess(t *testing.T) {
	east := fake.New(fake.Config{Provider: "east", Region: "e1", Country: "PL", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	west := fake.New(fake.Config{Provider: "west", Region: "w1", Country: "FR", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	west.SellOut("west/w1//gpu/on-demand", true)
	server := httptest.NewServer(fake.Serve(east, west))
	defer server.Close()
	type seen struct {
		Key, Country string
		SoldOut      bool
	}
	var got []seen
	for _, name := range []string{"east", "west"} {
		offers, err := fake.Dial(server.URL+"/"+name, secret, installation, nil).Offers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range offers {
			got = append(got, seen{o.Key(), o.Country, o.SoldOut})
		}
	}
	want := []seen{{"east/e1//gpu/on-demand", "PL", false}, {"west/w1//gpu/on-demand", "FR", true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("offers (-want +got):\n%s", diff)
	}
	_, err := fake.Dial(server.URL+"/west", secret, installation, nil).Create(t.Context(), request("west", "w1", "tok-1"))
	if providers.KindOf(err) != providers.SoldOut {
		t.Errorf("create at the sold-out cloud: %v, want sold out", err)
	}
}

func TestCallsAreLoggedWithWhatTheyCameTo(t *testing.T) {
	c := fake.New(fake.Config{Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	d := dial(t, c)
	c.Script(fake.Fault{Op: "create", Effect: fake.LostResponse}, fake.Fault{Op: "delete", Effect: fake.ServerError})
	_, _ = d.Create(t.Context(), request("p", "r", "tok-1")) // lost on purpose
	m, err := d.Create(t.Context(), request("p", "r", "tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Delete(t.Context(), m.ID) // fails on purpose
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	got := c.Calls()
	for i := range got {
		got[i].At = time.Time{}
	}
	want := []fake.Call{
		{Op: "create", Token: "tok-1", ID: m.ID, Done: true, Status: 0},
		{Op: "create", Token: "tok-1", ID: m.ID, Done: false, Status: 200},
		{Op: "delete", ID: m.ID, Done: false, Status: 503},
		{Op: "delete", Token: "tok-1", ID: m.ID, Done: true, Status: 204},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestTokenOfAMachineThatIsGoneBuysNothing(t *testing.T) {
	c := fake.New(fake.Config{Provider: "p", Region: "r", Secrets: []string{secret}, Offers: []providers.Offer{testOffer()}})
	d := dial(t, c)
	m, err := d.Create(t.Context(), request("p", "r", "tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	c.Vanish(m.ID)
	if _, err := d.Create(t.Context(), request("p", "r", "tok-1")); providers.KindOf(err) != providers.Rejected {
		t.Errorf("create with a spent token: %v, want rejected", err)
	}
}
