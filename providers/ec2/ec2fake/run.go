package ec2fake

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// launch is what a client token was used for.
type launch struct{ asked, instance string }

// runInstances is "RunInstances", one instance a call.
func runInstances(c *Cloud, cl call) (response, *refusal) {
	token := cl.form["ClientToken"]
	// "idempotency", RunInstances: zonal where Placement names a zone, regional else.
	key := token + "@" + cl.form["Placement.AvailabilityZone"]
	if earlier, used := c.launches[key]; used && token != "" {
		return c.again(earlier, cl)
	}
	o, refused := c.order(cl.form)
	if refused != nil {
		return nil, refused
	}
	if refused := c.stock(o); refused != nil {
		return nil, refused
	}
	i := c.launch(cl, o)
	if cl.fault.Effect == Leaves {
		delete(c.instances, i.id)
		for id, v := range c.volumes {
			if v.instance == i.id {
				delete(c.volumes, id)
			}
		}
		for _, n := range c.interfaces {
			if n.instance == i.id {
				n.instance = ""
			}
		}
		return nil, cl.fault.refusal()
	}
	if token != "" {
		c.launches[key] = launch{asked(cl.form), i.id}
	}
	return c.ran(i, cl.now), nil
}

// again answers a client token that was used before ("idempotency" and
// "errors-overview": IdempotentParameterMismatch, IdempotentInstanceTerminated).
func (c *Cloud) again(earlier launch, cl call) (response, *refusal) {
	if earlier.asked != asked(cl.form) {
		return nil, invalid("IdempotentParameterMismatch",
			"Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	i, ok := c.instances[earlier.instance]
	if !ok || i.state == stateTerminated {
		return nil, invalid("IdempotentInstanceTerminated",
			"The request to launch an instance uses the same client token as a previous request for which the instance has been terminated.")
	}
	return c.ran(i, cl.now), nil
}

// asked is all that a client token covers.
func asked(f form) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if key != "ClientToken" {
			fmt.Fprintf(&b, "%s=%s\n", key, f[key])
		}
	}
	return b.String()
}

// order is a launch request whose words are all known.
type order struct {
	kind   Type
	image  Image
	subnet Subnet
	form   form
	card   form // the network interface, or nothing
	tags   map[string]map[string]string
}

// order checks a launch request.
func (c *Cloud) order(f form) (o order, refused *refusal) {
	o.form = f
	if f["MinCount"] != "1" || f["MaxCount"] != "1" {
		return o, invalid("InvalidParameterValue", "This endpoint launches one instance a call.")
	}
	at := slices.IndexFunc(c.cfg.Images, func(i Image) bool { return i.ID == f["ImageId"] })
	switch {
	case !strings.HasPrefix(f["ImageId"], "ami-"):
		return o, invalid("InvalidAMIID.Malformed", fmt.Sprintf("Invalid id: \"%s\" (expecting \"ami-...\")", f["ImageId"]))
	case at < 0:
		return o, invalid("InvalidAMIID.NotFound", fmt.Sprintf("The image id '[%s]' does not exist", f["ImageId"]))
	}
	o.image = c.cfg.Images[at]
	if at = slices.IndexFunc(c.cfg.Types, func(t Type) bool { return t.Name == f["InstanceType"] }); at < 0 {
		return o, invalid("InvalidParameterValue", fmt.Sprintf("Invalid value '%s' for InstanceType.", f["InstanceType"]))
	}
	o.kind = c.cfg.Types[at]
	if o.kind.Arch != o.image.Arch {
		return o, invalid("InvalidParameterValue", fmt.Sprintf(
			"The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI. "+
				"Specify an instance type and an AMI that have matching architectures, and try again.", o.kind.Arch, o.image.Arch))
	}
	if o.subnet, o.card, refused = c.network(f); refused != nil {
		return o, refused
	}
	if o.tags, refused = tagsOf(f); refused != nil {
		return o, refused
	}
	return o, checkUserData(f["UserData"])
}

// network reads where an instance is attached ("RunInstances", NetworkInterface:
// with one, subnet and security groups are named as part of it).
func (c *Cloud) network(f form) (Subnet, form, *refusal) {
	id, card := f["SubnetId"], form{}
	if cards := f.items("NetworkInterface"); len(cards) > 0 {
		if card = cards[0]; id != "" || len(f.list("SecurityGroupId")) > 0 {
			return Subnet{}, nil, invalid("InvalidParameterCombination",
				"Network interfaces and an instance-level subnet ID or security groups may not be specified on the same request")
		}
		id = card["SubnetId"]
	}
	for _, s := range c.cfg.Subnets {
		if s.ID == id {
			return s, card, nil
		}
	}
	return Subnet{}, nil, noSubnet(id)
}

func noSubnet(id string) *refusal {
	return invalid("InvalidSubnetID.NotFound", fmt.Sprintf("The subnet ID '%s' does not exist", id))
}

// checkUserData holds user data to 16 KB before it is encoded ("RunInstances").
func checkUserData(encoded string) *refusal {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return invalid("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data")
	}
	if len(data) > 16384 {
		return invalid("InvalidParameterValue", "User data is limited to 16384 bytes")
	}
	return nil
}

// tagsOf reads the tags of what a launch makes, by kind ("TagSpecification";
// limits from "Tag your Amazon EC2 resources", tag restrictions).
func tagsOf(f form) (map[string]map[string]string, *refusal) {
	byKind := map[string]map[string]string{}
	for _, spec := range f.items("TagSpecification") {
		some := map[string]string{}
		for _, tag := range spec.items("Tag") {
			if refused := checkTag(tag["Key"], tag["Value"]); refused != nil {
				return nil, refused
			}
			if f["MetadataOptions.InstanceMetadataTags"] == "enabled" && strings.Contains(tag["Key"], "/") {
				return nil, invalid("InvalidParameterValue", fmt.Sprintf("'%s' is not a valid tag key. Tag keys must match the pattern of instance metadata.", tag["Key"]))
			}
			some[tag["Key"]] = tag["Value"]
		}
		byKind[spec["ResourceType"]] = some
	}
	return byKind, nil
}

func checkTag(key, value string) *refusal {
	switch {
	case strings.HasPrefix(key, "aws:"):
		return invalid("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
	case key == "" || len(key) > 128:
		return invalid("InvalidParameterValue", fmt.Sprintf("Tag key '%s' must have 1 to 128 characters", key))
	case len(value) > 256:
		return invalid("InvalidParameterValue", "Tag value exceeds the maximum length of 256 characters")
	}
	return nil
}

// stock refuses what can't be had.
func (c *Cloud) stock(o order) *refusal {
	if !slices.Contains(o.kind.Zones, o.subnet.Zone) {
		return invalid("Unsupported", fmt.Sprintf(
			"Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", o.kind.Name, o.subnet.Zone))
	}
	running := 0
	for _, i := range c.instances {
		if i.state == statePending || i.state == stateRunning {
			running += i.kind.VCPUs
		}
	}
	if c.cfg.VCPUs > 0 && running+o.kind.VCPUs > c.cfg.VCPUs {
		return invalid("VcpuLimitExceeded", fmt.Sprintf(
			"You have requested more vCPU capacity than your current vCPU limit of %d allows for the instance bucket that the specified instance type belongs to.", c.cfg.VCPUs))
	}
	if !slices.Contains(o.kind.Empty, o.subnet.Zone) {
		return nil
	}
	others := slices.DeleteFunc(slices.Clone(o.kind.Zones), func(z string) bool { return slices.Contains(o.kind.Empty, z) })
	// A server error of "errors-overview": answered with a 500-series code.
	return &refusal{
		status: http.StatusInternalServerError, code: "InsufficientInstanceCapacity",
		message: fmt.Sprintf("We currently do not have sufficient %s capacity in the Availability Zone you requested (%s). "+
			"Our system will be working on provisioning additional capacity. You can currently get %s capacity by not specifying an Availability Zone in your request or choosing %s.",
			o.kind.Name, o.subnet.Zone, o.kind.Name, strings.Join(others, ", ")),
	}
}

// launch makes an instance with its parts.
func (c *Cloud) launch(cl call, o order) *instance {
	i := &instance{
		id: c.id("i"), state: statePending, kind: o.kind, image: o.image, subnet: o.subnet, token: o.form["ClientToken"],
		onShutdown: o.form["InstanceInitiatedShutdownBehavior"], asked: maps.Clone(o.form),
		public: o.card.flag("AssociatePublicIpAddress", false), launched: cl.now.Truncate(time.Second),
		visible: cl.now.Add(c.timing.ListLag), boots: cl.now.Add(c.timing.BootTakes), tags: told(o.tags[kindInstance]),
	}
	switch cl.fault.Effect {
	case FailsLater:
		i.fails = &cl.fault
	case NeverBoots:
		i.boots = time.Time{}
	}
	c.instances[i.id] = i
	for _, v := range volumesOf(o) {
		v.id, v.zone, v.instance, v.made, v.visible = c.id("vol"), o.subnet.Zone, i.id, cl.now, i.visible
		v.tags, v.deletes = told(o.tags[kindVolume]), v.deletes && cl.fault.Effect != KeepsParts
		c.volumes[v.id] = v
	}
	n := &netInterface{
		id: c.id("eni"), subnet: o.subnet, groups: o.card.list("SecurityGroupId"), instance: i.id,
		address: fmt.Sprintf("10.0.%d.%d", c.made/250, c.made%250+4), made: cl.now, visible: i.visible, tags: told(o.tags[kindInterface]),
		// "InstanceNetworkInterfaceSpecification": what a launch makes goes with it unless told else.
		deletes: o.card.flag("DeleteOnTermination", true) && cl.fault.Effect != KeepsParts,
	}
	c.interfaces[n.id] = n
	return i
}

// volumesOf lays the request's block devices over the image's ("BlockDeviceMapping",
// "EbsBlockDevice").
func volumesOf(o order) []*volume {
	all := o.image.volumes()
	for _, m := range o.form.items("BlockDeviceMapping") {
		at := slices.IndexFunc(all, func(v *volume) bool { return v.device == m["DeviceName"] })
		if at < 0 {
			at, all = len(all), append(all, &volume{device: m["DeviceName"]})
		}
		v := all[at]
		if size, refused := m.number("Ebs.VolumeSize", v.sizeGiB); refused == nil {
			v.sizeGiB = size
		}
		if kind := m["Ebs.VolumeType"]; kind != "" {
			v.kind = kind
		}
		v.encrypted = m.flag("Ebs.Encrypted", false)
		v.deletes = m.flag("Ebs.DeleteOnTermination", v.deletes)
	}
	return all
}

// volumes are those of an image's block device mapping.
func (i Image) volumes() []*volume {
	all := []*volume{{device: i.RootDevice, sizeGiB: i.SizeGiB, kind: "gp2", deletes: !i.Keeps}}
	if i.DataGiB > 0 {
		all = append(all, &volume{device: "/dev/sdb", sizeGiB: i.DataGiB, kind: "gp2", deletes: !i.Keeps})
	}
	return all
}

// snapshot is what a volume of an image is made from.
func (i Image) snapshot(device string) string {
	return "snap-" + strings.TrimPrefix(i.ID, "ami-") + strings.ReplaceAll(device, "/", "-")
}

// told are tags that are there from the first moment ("TagSpecification": on
// creation).
func told(some map[string]string) tags {
	var all tags
	for key, value := range some {
		all = append(all, tagged{key: key, value: value})
	}
	return all
}
