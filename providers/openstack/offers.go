package openstack

import (
	"context"
	"fmt"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"

	"spillway.dev/spillway/providers"
)

// LabelGPUSource is the label of an offer that says how its GPUs are known.
const LabelGPUSource = "spillway.dev/gpu-source"

// nvidia is the extended resource of NVIDIA's device plugin.
const nvidia = "nvidia.com/gpu"

// Offers implements [providers.Driver]. It lists the flavors whose GPUs are
// known for sure, one offer each and without a zone: Nova looks for a host in
// all zones then, so a stock-out is that of the region. Prices are unknown to
// OpenStack; the operator states them.
// cases: D-34 ovh/public-cloud-roadmap#1165: a listed flavor promises no stock
func (d *Driver) Offers(ctx context.Context) ([]providers.Offer, error) {
	const op = "offers"
	s, err := d.session(ctx, op)
	if err != nil {
		return nil, err
	}
	// What can't be made is not offered: a wrong name shows here, not at a purchase.
	image, err := imageNamed(ctx, s, d.config.Image)
	if err != nil {
		return nil, inMaking(op, err)
	}
	if _, err := networkNamed(ctx, s, d.config.Network); err != nil {
		return nil, inMaking(op, err)
	}
	all, err := listFlavors(ctx, s)
	if err != nil {
		return nil, inListing(op, err)
	}
	var offers []providers.Offer
	for _, f := range all {
		if !s.recent {
			specs, err := flavors.ListExtraSpecs(ctx, s.compute, f.ID).Extract()
			if err != nil {
				return nil, inListing(op, fmt.Errorf("extra specs of flavor %s: %w", f.Name, err))
			}
			f.ExtraSpecs = specs
		}
		if gpu, source, ok := d.detect(f.Name, f.ExtraSpecs); ok {
			offer := d.offer(f, gpu, source, time.Now())
			offer.Arch = archOf(image)
			offers = append(offers, offer)
		}
	}
	return offers, nil
}

func (d *Driver) offer(f flavors.Flavor, gpu GPU, source string, now time.Time) providers.Offer {
	return providers.Offer{
		Provider: d.config.Provider, Region: d.config.Region, Country: d.config.Country,
		InstanceType: f.Name, CapacityType: "on-demand",
		GPUModel: gpu.Model, GPUs: gpu.Count, GPUResource: nvidia,
		MilliCPU: int64(f.VCPUs) * 1000, MemoryMiB: int64(f.RAM), DiskGiB: int64(f.Disk + f.Ephemeral),
		Meter: d.cloud.meter, SoldOut: soldOut(f.ExtraSpecs), Seen: now,
		Labels: map[string]string{LabelGPUSource: source},
	}
}

// soldOut reads the one stock signal that an OpenStack is known to give: Open
// Telekom Cloud marks flavors that it has stopped selling or sold out.
func soldOut(specs map[string]string) bool {
	status := specs["cond:operation:status"]
	return status == "sellout" || status == "abandon"
}
