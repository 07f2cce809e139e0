package ec2fake

import (
	"fmt"
	"slices"
)

// describeSubnets is "DescribeSubnets".
func describeSubnets(c *Cloud, cl call) (response, *refusal) {
	all, refused := pick(cl.form.list("SubnetId"), c.cfg.Subnets, func(s Subnet) string { return s.ID }, noSubnet)
	if refused != nil {
		return nil, refused
	}
	all, refused = filtered(cl, all, func(s Subnet) attributes {
		return attributes{"subnet-id": {s.ID}, "vpc-id": {s.VPC}, "availability-zone": {s.Zone}}
	})
	if refused != nil {
		return nil, refused
	}
	type wireSubnet struct {
		ID    string `xml:"subnetId"`
		State string `xml:"state"`
		VPC   string `xml:"vpcId"`
		Zone  string `xml:"availabilityZone"`
		Owner string `xml:"ownerId"`
	}
	var list []wireSubnet
	for _, s := range all {
		list = append(list, wireSubnet{s.ID, "available", s.VPC, s.Zone, c.cfg.Account})
	}
	return &struct {
		envelope
		Subnets []wireSubnet `xml:"subnetSet>item"`
	}{Subnets: list}, nil
}

// describeImages is "DescribeImages": without owners it shows what everybody has
// published.
func describeImages(c *Cloud, cl call) (response, *refusal) {
	all, refused := pick(cl.form.list("ImageId"), c.cfg.Images, func(i Image) string { return i.ID }, func(id string) *refusal {
		return invalid("InvalidAMIID.NotFound", fmt.Sprintf("The image id '[%s]' does not exist", id))
	})
	if refused != nil {
		return nil, refused
	}
	if owners := cl.form.list("Owner"); len(owners) > 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(i Image) bool {
			return !slices.Contains(owners, i.Owner) && !(i.Owner == c.cfg.Account && slices.Contains(owners, "self"))
		})
	}
	all, refused = filtered(cl, all, func(i Image) attributes {
		return attributes{"name": {i.Name}, "state": {"available"}, "architecture": {i.Arch}, "owner-id": {i.Owner}}
	})
	if refused != nil {
		return nil, refused
	}
	type wireImage struct {
		ID           string        `xml:"imageId"`
		State        string        `xml:"imageState"`
		Owner        string        `xml:"imageOwnerId"`
		Architecture string        `xml:"architecture"`
		Name         string        `xml:"name"`
		RootType     string        `xml:"rootDeviceType"`
		Root         string        `xml:"rootDeviceName"`
		Devices      []wireMapping `xml:"blockDeviceMapping>item"`
	}
	var list []wireImage
	for _, i := range all {
		w := wireImage{i.ID, "available", i.Owner, i.Arch, i.Name, "ebs", i.RootDevice, nil}
		for _, v := range i.volumes() {
			m := wireMapping{DeviceName: v.device}
			m.EBS.SnapshotID, m.EBS.VolumeSize, m.EBS.DeleteOnTermination = i.snapshot(v.device), v.sizeGiB, v.deletes
			w.Devices = append(w.Devices, m)
		}
		list = append(list, w)
	}
	return &struct {
		envelope
		Images []wireImage `xml:"imagesSet>item"`
	}{Images: list}, nil
}

// wireGPU is "GpuDeviceInfo". Count is of whole devices; a part of one shows in
// the logical count and the partition size.
type wireGPU struct {
	Name      string `xml:"name"`
	Maker     string `xml:"manufacturer"`
	Count     int    `xml:"count"`
	Logical   int    `xml:"logicalGpuCount,omitempty"`
	Partition string `xml:"gpuPartitionSize,omitempty"`
	Memory    int    `xml:"memoryInfo>sizeInMiB"`
}

// wireType is "InstanceTypeInfo".
type wireType struct {
	Name      string    `xml:"instanceType"`
	Usage     []string  `xml:"supportedUsageClasses>item"`
	RootTypes []string  `xml:"supportedRootDeviceTypes>item"`
	Arch      []string  `xml:"processorInfo>supportedArchitectures>item"`
	VCPUs     int       `xml:"vCpuInfo>defaultVCpus"`
	Memory    int       `xml:"memoryInfo>sizeInMiB"`
	GPUs      *wireGPUs `xml:"gpuInfo"`
}

type wireGPUs struct {
	GPUs []wireGPU `xml:"gpus>item"`
}

// describeTypes is "DescribeInstanceTypes": at most 100 a page.
func describeTypes(c *Cloud, cl call) (response, *refusal) {
	all, refused := pick(cl.form.list("InstanceType"), c.cfg.Types, func(t Type) string { return t.Name }, func(name string) *refusal {
		return invalid("InvalidInstanceType", fmt.Sprintf("The following supplied instance types do not exist: [%s]", name))
	})
	if refused != nil {
		return nil, refused
	}
	all, refused = filtered(cl, all, func(t Type) attributes {
		return attributes{"instance-type": {t.Name}, "processor-info.supported-architecture": {t.Arch}}
	})
	if refused != nil {
		return nil, refused
	}
	from, to, next, refused := c.paged(cl, len(all), 5, 100)
	if refused != nil {
		return nil, refused
	}
	var list []wireType
	for _, t := range all[from:to] {
		w := wireType{t.Name, t.Usage, []string{"ebs"}, []string{t.Arch}, t.VCPUs, t.MemoryMiB, nil}
		if t.Usage == nil {
			w.Usage = []string{"on-demand", "spot"}
		}
		for _, g := range t.GPUs {
			if w.GPUs == nil {
				w.GPUs = &wireGPUs{}
			}
			w.GPUs.GPUs = append(w.GPUs.GPUs, wireGPU{g.Name, g.Maker, g.Count, g.Logical, g.PartitionSize, g.MemoryMiB})
		}
		list = append(list, w)
	}
	return &struct {
		envelope
		Types []wireType `xml:"instanceTypeSet>item"`
		Next  string     `xml:"nextToken,omitempty"`
	}{Types: list, Next: next}, nil
}

// describeOfferings is "DescribeInstanceTypeOfferings": offered, which says
// nothing about stock.
func describeOfferings(c *Cloud, cl call) (response, *refusal) {
	if cl.form["LocationType"] != "availability-zone" {
		return nil, invalid("InvalidParameterValue", "This endpoint knows offerings by availability-zone only.")
	}
	type offering struct {
		Type  string `xml:"instanceType"`
		Kind  string `xml:"locationType"`
		Place string `xml:"location"`
	}
	var all []offering
	for _, t := range c.cfg.Types {
		for _, zone := range t.Zones {
			all = append(all, offering{t.Name, "availability-zone", zone})
		}
	}
	all, refused := filtered(cl, all, func(o offering) attributes {
		return attributes{"instance-type": {o.Type}, "location": {o.Place}}
	})
	if refused != nil {
		return nil, refused
	}
	from, to, next, refused := c.paged(cl, len(all), 5, 1000)
	if refused != nil {
		return nil, refused
	}
	return &struct {
		envelope
		Offerings []offering `xml:"instanceTypeOfferingSet>item"`
		Next      string     `xml:"nextToken,omitempty"`
	}{Offerings: all[from:to], Next: next}, nil
}
