package ec2

import (
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	smithy "github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota/money"
)

// Whole devices of NVIDIA, in the zones that sell them and have a subnet, that
// can be bought on demand and boot the image. Prices are never told.
// cases: D-44 dstack#4039, D-54 eusc-de-east-1, D-77 SkyPilot's price 0
func TestOffers(t *testing.T) {
	w := newWorld(t)
	offers, err := w.Driver.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	type line struct {
		key, model string
		gpus       int
		soldOut    bool
	}
	const at = "aws-frankfurt/eu-central-1/eu-central-1"
	want := []line{
		{at + "a/p5.48xlarge/on-demand", "H100-80", 8, true},
		{at + "a/p5.4xlarge/on-demand", "H100-80", 1, false},
		{at + "b/g6e.12xlarge/on-demand", "L40S", 4, false},
		{at + "b/p5.48xlarge/on-demand", "H100-80", 8, false},
		{at + "b/p5.4xlarge/on-demand", "H100-80", 1, false},
	}
	var got []line
	for _, o := range offers {
		got = append(got, line{o.Key(), o.GPUModel, o.GPUs, o.SoldOut})
		if o.Price != (money.Rate{}) {
			t.Errorf("%s: price %+v: nobody has told one", o.Key(), o.Price)
		}
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
		t.Fatal(diff)
	}
	one := offers[1]
	one.Seen = time.Time{}
	if diff := cmp.Diff(providers.Offer{
		Provider: "aws-frankfurt", Region: "eu-central-1", Zone: "eu-central-1a", InstanceType: oneGPU, CapacityType: "on-demand",
		Country: "DE", GPUModel: "H100-80", GPUs: 1, GPUResource: "nvidia.com/gpu",
		MilliCPU: 16000, MemoryMiB: 262144, DiskGiB: 200, Arch: "amd64",
		Meter:  providers.MeterRule{Start: "created", Stop: "deleted", Granularity: time.Second, Minimum: time.Minute},
		Labels: map[string]string{LabelGPUSource: "gpu-info"},
	}, one); diff != "" {
		t.Error(diff)
	}
}

// The operator's own statement wins, and can keep a type out.
func TestStatedGPUs(t *testing.T) {
	w := newWorld(t)
	d := w.dial(func(c *Config) {
		c.GPUs = map[string]GPU{oneGPU: {}, "g6f.large": {"L4-eighth", 1}}
		c.Subnets = []string{"subnet-b"}
	})
	offers, err := d.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range offers {
		got = append(got, o.InstanceType+" "+o.GPUModel+" "+o.Labels[LabelGPUSource])
	}
	if diff := cmp.Diff([]string{"g6e.12xlarge L40S gpu-info", "g6f.large L4-eighth override", "p5.48xlarge H100-80 gpu-info"}, got); diff != "" {
		t.Error(diff)
	}
}

// What was without stock counts as sold out for a while, in its zone alone, and a
// launch that succeeds ends that. No other failure says anything about stock.
func TestStockIsLearned(t *testing.T) {
	d := newWorld(t).dial(func(*Config) {})
	now := time.Now()
	o := providers.Offer{InstanceType: oneGPU, Zone: "z1"}
	soldOut := func(zone string, at time.Time) bool { return d.at(o, zone, at).SoldOut }
	d.notice(o, &smithy.GenericAPIError{Code: "InternalError"}, now)
	if soldOut("z1", now) {
		t.Error("a failure that nobody knows counts as sold out")
	}
	d.notice(o, &smithy.GenericAPIError{Code: "InsufficientInstanceCapacity"}, now)
	if !soldOut("z1", now) || soldOut("z2", now) || soldOut("z1", now.Add(emptyFor+time.Second)) {
		t.Error("sold out in another zone, or for ever, or not at all")
	}
	d.notice(o, nil, now)
	if soldOut("z1", now) {
		t.Error("a launch has succeeded, and it counts as sold out")
	}
}

func TestModel(t *testing.T) {
	for name, tt := range map[string]struct {
		gpu  types.GpuDeviceInfo
		want string
	}{
		"A100 of 40": {types.GpuDeviceInfo{Name: aws.String("A100"), MemoryInfo: &types.GpuDeviceMemoryInfo{SizeInMiB: aws.Int32(40960)}}, "A100-40"},
		"H200":       {types.GpuDeviceInfo{Name: aws.String("H200"), MemoryInfo: &types.GpuDeviceMemoryInfo{SizeInMiB: aws.Int32(144384)}}, "H200-141"},
		"L4":         {types.GpuDeviceInfo{Name: aws.String("L4"), MemoryInfo: &types.GpuDeviceMemoryInfo{SizeInMiB: aws.Int32(22888)}}, "L4"},
		"no memory":  {types.GpuDeviceInfo{Name: aws.String("H100")}, "H100"},
		"two words":  {types.GpuDeviceInfo{Name: aws.String("RTX PRO Server 6000")}, "RTX-PRO-SERVER-6000"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := model(tt.gpu); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
