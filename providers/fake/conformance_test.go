package fake_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/conformance"
	"spillway.dev/spillway/providers/fake"
	"spillway.dev/spillway/quota/money"
)

const (
	secret       = "bearer-secret"
	installation = "spillway-test"
)

// cases: H-40 gardener/machine-controller-manager driver/fake.go: the fake is
// held to the same promises as a real driver.
func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Suite{New: func(t testing.TB) conformance.World {
		return newWorld(t, http.DefaultTransport).World
	}})
}

// clock is a virtual clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// world is a fake cloud behind real loopback HTTP.
type world struct {
	conformance.World
	cloud *fake.Cloud
	clock *clock
	url   string
}

func newWorld(t testing.TB, transport http.RoundTripper) world {
	clk := newClock()
	gpu := providers.Offer{
		Zone: "z1", InstanceType: "h100-380", CapacityType: "on-demand", GPUModel: "H100-80", GPUs: 1,
		GPUResource: "nvidia.com/gpu", Price: money.Rate{NanoPerHour: 2_800_000_000, Currency: "EUR"},
	}
	soldOut := gpu
	soldOut.InstanceType, soldOut.SoldOut = "h100-760", true
	cloud := fake.New(fake.Config{
		Provider: "west", Region: "w1", Country: "FR", Secrets: []string{secret},
		Offers: []providers.Offer{gpu, soldOut}, Now: clk.Now,
		Timing: fake.Timing{BootTakes: 5 * time.Second},
	})
	t.Cleanup(cloud.Close)
	server := httptest.NewServer(fake.Serve(cloud))
	t.Cleanup(server.Close)
	url := server.URL + "/west"
	gpu.Provider, gpu.Region, gpu.Country = "west", "w1", "FR"
	return world{cloud: cloud, clock: clk, url: url, World: conformance.World{
		Driver: fake.Dial(url, secret, installation, &http.Client{Transport: transport}),
		Request: func(token string) providers.Request {
			return providers.Request{
				Token: token, Installation: installation, Burst: "burst-uid", Tenant: "team-vision", Name: "spw-1-0",
				Offer: gpu, UserData: []byte("#cloud-config\n"), Expires: clk.Now().Truncate(24 * time.Hour).Add(34 * time.Hour),
			}
		},
		Make:  func(trouble conformance.Trouble) error { return makeTrouble(cloud, trouble) },
		Audit: cloud.Billing,
		Plant: func(m providers.Machine) string { return cloud.Plant(m).ID },
		Pass:  func() { clk.step(time.Second); cloud.Tick() },
	}}
}

// makeTrouble translates the suite's troubles into the fake's faults.
func makeTrouble(cloud *fake.Cloud, trouble conformance.Trouble) error {
	creates := map[conformance.Trouble]fake.Fault{
		conformance.CreateLost:       {Effect: fake.LostResponse},
		conformance.CreateErrorAfter: {Effect: fake.ServerErrorAfter},
		conformance.CreateError:      {Effect: fake.ServerError},
		conformance.CreateSoldOut:    {Effect: fake.SoldOut},
		conformance.CreateLimit:      {Effect: fake.LimitReached},
		conformance.CreateInvalid:    {Effect: fake.Invalid},
		conformance.CreateHalfMade:   {Effect: fake.HalfMade},
		conformance.CreateThrottled:  {Effect: fake.Throttle, RetryAfter: 7 * time.Second},
		conformance.CreateHangs:      {Effect: fake.Slow, Delay: 3 * time.Second},
		conformance.SoldOutLater:     {Effect: fake.SoldOutLater},
		conformance.BreaksLater:      {Effect: fake.BreaksLater},
		conformance.NeverBoots:       {Effect: fake.NeverBoots},
	}
	if f, ok := creates[trouble]; ok {
		f.Op = "create"
		cloud.Script(f)
		return nil
	}
	switch trouble {
	case conformance.CreateHalfStuck:
		cloud.Script(fake.Fault{Op: "create", Effect: fake.HalfMade}, fake.Fault{Op: "delete", Effect: fake.ServerError})
	case conformance.ListLags:
		cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, ListLag: 40 * time.Second})
	case conformance.ListBroken:
		cloud.Script(fake.Fault{Op: "list", Effect: fake.Incomplete})
	case conformance.DeleteSlow:
		cloud.Tune(fake.Timing{BootTakes: 5 * time.Second, DeleteTakes: 30 * time.Second})
	case conformance.DeleteLost:
		cloud.Script(fake.Fault{Op: "delete", Effect: fake.LostResponse})
	case conformance.DeleteGatewayError:
		cloud.Script(fake.Fault{Op: "delete", Effect: fake.Gateway})
	case conformance.Unauthorized:
		cloud.Rotate("another")
	default:
		return fmt.Errorf("the fake can't make trouble %q", trouble)
	}
	return nil
}
