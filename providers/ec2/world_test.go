package ec2

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/conformance"
	"spillway.dev/spillway/providers/ec2/ec2fake"
)

const (
	installation = "spillway-test"
	oneGPU       = "p5.4xlarge"
	eightGPUs    = "p5.48xlarge" // without stock in the first zone
)

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Suite{New: func(t testing.TB) conformance.World { return newWorld(t).World }})
}

// clock is a virtual clock.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

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

// world is an account behind loopback HTTP. Pages are short, so that every list
// has several.
type world struct {
	conformance.World
	t     testing.TB
	cloud *ec2fake.Cloud
	clock *clock
	url   string
	http  *http.Client
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, clock: &clock{now: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)}}
	h100 := ec2fake.GPU{Maker: "NVIDIA", Name: "H100", Count: 1, MemoryMiB: 81920}
	eight := h100
	eight.Count = 8
	both := []string{"eu-central-1a", "eu-central-1b"}
	w.cloud = ec2fake.New(ec2fake.Config{
		Account: "123456789012", Region: "eu-central-1", Keys: map[string]string{"AKIDEXAMPLE": "secret"},
		Subnets: []ec2fake.Subnet{{ID: "subnet-a", VPC: "vpc-1", Zone: both[0]}, {ID: "subnet-a2", VPC: "vpc-1", Zone: both[0]}, {ID: "subnet-b", VPC: "vpc-1", Zone: both[1]}},
		Images: []ec2fake.Image{
			{ID: "ami-1", Name: "gpu-node", Owner: "123456789012", Arch: "x86_64", RootDevice: "/dev/xvda", SizeGiB: 30, Keeps: true},
			{ID: "ami-3", Name: "two-disks", Owner: "123456789012", Arch: "x86_64", RootDevice: "/dev/xvda", SizeGiB: 300, Keeps: true, DataGiB: 50},
			{ID: "ami-2", Name: "gpu-node", Owner: "666666666666", Arch: "x86_64", RootDevice: "/dev/xvda", SizeGiB: 30},
		},
		Types: []ec2fake.Type{
			{Name: "m7i.large", Arch: "x86_64", VCPUs: 2, MemoryMiB: 8192, Zones: both},
			{Name: oneGPU, Arch: "x86_64", VCPUs: 16, MemoryMiB: 262144, GPUs: []ec2fake.GPU{h100}, Zones: append(both, "eu-central-1c")},
			{Name: eightGPUs, Arch: "x86_64", VCPUs: 192, MemoryMiB: 2097152, GPUs: []ec2fake.GPU{eight}, Zones: both, Empty: both[:1]},
			{
				Name: "g6f.large", Arch: "x86_64", VCPUs: 2, MemoryMiB: 8192, Zones: both,
				GPUs: []ec2fake.GPU{{Maker: "NVIDIA", Name: "L4", Logical: 1, MemoryMiB: 2861, PartitionSize: "0.125"}},
			},
			{
				Name: "g6e.12xlarge", Arch: "x86_64", VCPUs: 48, MemoryMiB: 393216, Zones: both[1:],
				GPUs: []ec2fake.GPU{{Maker: "NVIDIA", Name: "L40S", Count: 4, Logical: 4, MemoryMiB: 45776, PartitionSize: "1.0"}},
			},
			{Name: "g4ad.xlarge", Arch: "x86_64", VCPUs: 4, MemoryMiB: 16384, Zones: both, GPUs: []ec2fake.GPU{{Maker: "AMD", Name: "Radeon Pro V520", Count: 1, MemoryMiB: 8192}}},
			{Name: "g5g.xlarge", Arch: "arm64", VCPUs: 4, MemoryMiB: 8192, Zones: both, GPUs: []ec2fake.GPU{{Maker: "NVIDIA", Name: "T4g", Count: 1, MemoryMiB: 16384}}},
			{Name: "p6-b200.48xlarge", Arch: "x86_64", VCPUs: 192, MemoryMiB: 2097152, Zones: both, Usage: []string{"capacity-block"}, GPUs: []ec2fake.GPU{eight}},
		},
		PageSize: 2, Now: w.clock.Now, Timing: times(),
	})
	server := httptest.NewServer(w.cloud)
	t.Cleanup(server.Close)
	w.url, w.http = server.URL, server.Client()
	d := w.dial(func(*Config) {})
	w.World = conformance.World{
		Driver: d, Request: w.request, Make: w.trouble, Audit: w.audit, Plant: w.plant,
		Pass: func() { w.clock.step(time.Second) },
	}
	// What is without stock is known once it was asked for.
	none := w.request("tok-stock")
	none.Offer.InstanceType = eightGPUs
	if _, err := d.Create(t.Context(), none); providers.KindOf(err) != providers.SoldOut {
		t.Fatalf("the type without stock: %v", err)
	}
	return w
}

func times() ec2fake.Timing {
	return ec2fake.Timing{BootTakes: 5 * time.Second, TerminateTakes: 2 * time.Second}
}

// dial returns a driver of the world's account.
func (w *world) dial(change func(*Config)) *Driver {
	w.t.Helper()
	config := Config{
		Provider: "aws-frankfurt", Region: "eu-central-1", Country: "DE", Installation: installation, Endpoint: w.url, HTTP: w.http,
		Login: Login{AccessKey: "AKIDEXAMPLE", SecretKey: "secret"},
		Image: "ami-1", Subnets: []string{"subnet-a", "subnet-b"}, SecurityGroups: []string{"sg-1"},
	}
	change(&config)
	d, err := New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) request(token string) providers.Request {
	return providers.Request{
		Token: token, Installation: installation, Burst: "0b7c0f52-burst", Tenant: "team-vision", Name: "spw-" + token,
		Offer: providers.Offer{
			Provider: "aws-frankfurt", Region: "eu-central-1", Zone: "eu-central-1a", InstanceType: oneGPU, CapacityType: onDemand,
		},
		UserData: []byte("#cloud-config\n"), Expires: time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC),
	}
}

// client is the SDK itself, for another hand.
func (w *world) client() *sdk.Client {
	return sdk.New(sdk.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String(w.url), HTTPClient: w.http, Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}, nil
		}),
	})
}

// plant launches a machine past the driver.
func (w *world) plant(m providers.Machine) string {
	w.t.Helper()
	written := mark{installation: m.Installation, token: m.Token, name: m.Name, kind: m.InstanceType, expires: m.Expires}
	out, err := w.client().RunInstances(w.t.Context(), &sdk.RunInstancesInput{
		ImageId: aws.String("ami-1"), InstanceType: types.InstanceType(m.InstanceType), MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		SubnetId:          aws.String("subnet-b"),
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: written.tags()}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return *out.Instances[0].InstanceId
}

// audit is what the account holds, by the tags on it: instances, and one
// leftover for each token of which only parts are there.
func (w *world) audit() []providers.Machine {
	var all []providers.Machine
	has := map[string]bool{}
	for _, r := range w.cloud.Existing() {
		m := providers.Machine{ID: r.ID, Token: r.Tags[keyToken], Installation: r.Tags[keyInstallation], Expires: providers.ReadStamp(r.Tags[keyExpires])}
		switch {
		case r.Kind == "instance":
			m.State = providers.StateRunning
			if r.State == "shutting-down" {
				m.State = providers.StateDeleting
			}
		case r.Instance != "" || has[m.Token] || m.Token == "":
			continue
		default:
			m.State = providers.StateLeftover
		}
		has[m.Token] = true
		all = append(all, m)
	}
	return all
}

// noStock and internal are refusals of a launch, in the words of the API
// reference.
func noStock() ec2fake.Fault {
	return ec2fake.Fault{Effect: ec2fake.Refused, Status: 500, Code: "InsufficientInstanceCapacity", Message: "We currently do not have sufficient capacity."}
}

func internal() ec2fake.Fault {
	return ec2fake.Fault{Effect: ec2fake.Refused, Status: 500, Code: "InternalError", Message: "An internal error has occurred."}
}

// trouble translates the suite's troubles into faults of the account.
func (w *world) trouble(trouble conformance.Trouble) error {
	const run, end = "RunInstances", "TerminateInstances"
	half, stuck := noStock(), internal()
	half.Effect, half.Action, stuck.Action = ec2fake.Leaves, run, "DeleteNetworkInterface"
	slow := times()
	switch trouble {
	case conformance.CreateHalfMade:
		w.cloud.Script(half)
	case conformance.CreateHalfStuck:
		w.cloud.Script(half, stuck)
	case conformance.ListLags:
		slow.ListLag = 40 * time.Second
		w.cloud.Tune(slow)
	case conformance.DeleteSlow:
		slow.TerminateTakes = 30 * time.Second
		w.cloud.Tune(slow)
	case conformance.Unauthorized:
		w.cloud.Rotate(map[string]string{"AKIDOTHER": "other"})
	case conformance.ListBroken:
		w.cloud.Script(ec2fake.Fault{Action: "DescribeInstances", Effect: ec2fake.Cut})
	case conformance.DeleteLost:
		w.cloud.Script(ec2fake.Fault{Action: end, Effect: ec2fake.Lost})
	case conformance.DeleteGatewayError:
		w.cloud.Script(ec2fake.Fault{Action: end, Effect: ec2fake.Gateway})
	default:
		f, ok := map[conformance.Trouble]ec2fake.Fault{
			conformance.CreateLost:       {Effect: ec2fake.Lost},
			conformance.CreateErrorAfter: {Effect: ec2fake.ErrorAfter},
			conformance.CreateError:      internal(),
			conformance.CreateSoldOut:    noStock(),
			conformance.CreateLimit:      {Effect: ec2fake.Refused, Status: 400, Code: "VcpuLimitExceeded", Message: "You have requested more vCPU capacity than your current vCPU limit of 0 allows."},
			conformance.CreateInvalid:    {Effect: ec2fake.Refused, Status: 400, Code: "InvalidParameterValue", Message: "Invalid value for InstanceType."},
			conformance.CreateThrottled:  {Effect: ec2fake.Refused, Status: 503, Code: "RequestLimitExceeded", Message: "Request limit exceeded.", RetryAfter: 7 * time.Second},
			conformance.CreateHangs:      {Effect: ec2fake.Hangs},
			conformance.SoldOutLater:     {Effect: ec2fake.FailsLater, Code: "Server.InsufficientInstanceCapacity", Message: "Insufficient capacity to satisfy instance request"},
			conformance.BreaksLater:      {Effect: ec2fake.FailsLater, Code: "Server.InternalError", Message: "Internal error on launch"},
			conformance.NeverBoots:       {Effect: ec2fake.NeverBoots},
		}[trouble]
		if !ok {
			return fmt.Errorf("the account can't make trouble %q", trouble)
		}
		f.Action = run
		w.cloud.Script(f)
	}
	return nil
}

// buy creates a machine that must succeed.
func (w *world) buy(token string) providers.Machine {
	w.t.Helper()
	m, err := w.Driver.Create(w.t.Context(), w.request(token))
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// list returns what the driver lists.
func (w *world) list() []providers.Machine {
	w.t.Helper()
	list, err := w.Driver.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

// mustBe holds an error to its kind.
func mustBe(t testing.TB, err error, kind providers.Kind) {
	t.Helper()
	if err == nil || providers.KindOf(err) != kind {
		t.Fatalf("got %v, want kind %s", err, kind)
	}
}
