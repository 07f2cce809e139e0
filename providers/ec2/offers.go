package ec2

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// LabelGPUSource is the label of an offer that says how its GPUs are known.
const LabelGPUSource = "spillway.dev/gpu-source"

// nvidia is the extended resource of NVIDIA's device plugin.
const nvidia = "nvidia.com/gpu"

const onDemand = "on-demand"

// emptyFor is how long a type that was without stock in a zone counts as sold
// out. EC2 tells stock by refusing only.
const emptyFor = 3 * time.Minute

// Offers implements [providers.Driver]. It lists the types whose GPUs are known
// for sure, once for each zone that sells them and has a subnet of ours. Prices
// are unknown to this API; the operator states them, in his own currency: what
// a type costs elsewhere is no price.
// cases: D-54 eusc-de-east-1 has no price list, D-77 zero is unknown
func (d *Driver) Offers(ctx context.Context) ([]providers.Offer, error) {
	const op = "offers"
	a, err := d.account(ctx, op)
	if err != nil {
		return nil, err
	}
	// What can't be made is not offered: a wrong name shows here, not at a purchase.
	if err := a.incomplete(); err != nil {
		return nil, failure(op, err)
	}
	image, err := d.image(ctx)
	if err != nil {
		return nil, failure(op, err)
	}
	zones, err := d.offerings(ctx)
	if err != nil {
		return nil, failure(op, err)
	}
	var offers []providers.Offer
	in := &sdk.DescribeInstanceTypesInput{MaxResults: aws.Int32(100)} // the most there may be
	err = eachPage(ctx, d.api.describeTypes, in, &in.NextToken, func(page *sdk.DescribeInstanceTypesOutput) *string {
		for _, t := range page.InstanceTypes {
			gpu, source, ok := d.detect(t)
			if !ok || !fits(t, image) {
				continue
			}
			offer := d.offer(t, gpu, source, image)
			for _, zone := range zones[offer.InstanceType] {
				if a.subnets[zone] != "" {
					offers = append(offers, d.at(offer, zone, time.Now()))
				}
			}
		}
		return page.NextToken
	})
	if err != nil {
		return nil, failure(op, err)
	}
	slices.SortFunc(offers, func(x, y providers.Offer) int { return strings.Compare(x.Key(), y.Key()) })
	return offers, nil
}

// offerings are the zones that sell a type.
func (d *Driver) offerings(ctx context.Context) (map[string][]string, error) {
	zones := map[string][]string{}
	in := &sdk.DescribeInstanceTypeOfferingsInput{LocationType: types.LocationTypeAvailabilityZone, MaxResults: aws.Int32(pageSize)}
	err := eachPage(ctx, d.api.describeOfferings, in, &in.NextToken, func(page *sdk.DescribeInstanceTypeOfferingsOutput) *string {
		for _, o := range page.InstanceTypeOfferings {
			zones[string(o.InstanceType)] = append(zones[string(o.InstanceType)], aws.ToString(o.Location))
		}
		return page.NextToken
	})
	if err != nil {
		return nil, err
	}
	return zones, nil
}

// fits reports whether a type can be bought on demand and boot an image.
func fits(t types.InstanceTypeInfo, image types.Image) bool {
	if !slices.Contains(t.SupportedUsageClasses, types.UsageClassTypeOnDemand) || t.ProcessorInfo == nil {
		return false
	}
	return slices.ContainsFunc(t.ProcessorInfo.SupportedArchitectures, func(a types.ArchitectureType) bool {
		return string(a) == string(image.Architecture) && archOf(string(a)) != ""
	})
}

func (d *Driver) offer(t types.InstanceTypeInfo, gpu GPU, source string, image types.Image) providers.Offer {
	offer := providers.Offer{
		Provider: d.config.Provider, Region: d.config.Region, Country: d.config.Country,
		InstanceType: string(t.InstanceType), CapacityType: onDemand,
		GPUModel: gpu.Model, GPUs: gpu.Count, GPUResource: nvidia,
		DiskGiB: int64(d.rootGiB(image)), Arch: archOf(string(image.Architecture)), Meter: d.meter,
		Labels: map[string]string{LabelGPUSource: source},
	}
	if t.VCpuInfo != nil {
		offer.MilliCPU = int64(aws.ToInt32(t.VCpuInfo.DefaultVCpus)) * 1000
	}
	if t.MemoryInfo != nil {
		offer.MemoryMiB = aws.ToInt64(t.MemoryInfo.SizeInMiB)
	}
	return offer
}

// at is an offer in one zone, at one time.
func (d *Driver) at(o providers.Offer, zone string, now time.Time) providers.Offer {
	o.Zone, o.Seen = zone, now
	_, o.SoldOut = d.empty.read(o.InstanceType+"/"+zone, now)
	return o
}

// notice keeps what a launch has told about stock: in that zone, of that type,
// and nothing else.
// cases: D-48 karpenter-provider-aws#732
func (d *Driver) notice(o providers.Offer, err error, now time.Time) {
	switch kind, _ := meaning(codeOf(err)); {
	case err == nil:
		d.empty.forget(o.InstanceType + "/" + o.Zone)
	case kind == providers.SoldOut:
		d.empty.note(o.InstanceType+"/"+o.Zone, struct{}{}, now)
	}
}
