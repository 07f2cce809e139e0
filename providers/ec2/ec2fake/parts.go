package ec2fake

import "fmt"

// describeVolumes is "DescribeVolumes".
func describeVolumes(c *Cloud, cl call) (response, *refusal) {
	var shown []*volume
	for _, v := range sorted(c.volumes) {
		if !v.visible.After(cl.now) {
			shown = append(shown, v)
		}
	}
	all, refused := pick(cl.form.list("VolumeId"), shown, func(v *volume) string { return v.id }, noVolume)
	if refused != nil {
		return nil, refused
	}
	all, refused = filtered(cl, all, func(v *volume) attributes {
		return attributes{"status": {v.state()}, "attachment.instance-id": {v.instance}}.withTags(v.tags.seen(cl.now))
	})
	if refused != nil {
		return nil, refused
	}
	from, to, next, refused := c.paged(cl, len(all), 5, 1000)
	if refused != nil {
		return nil, refused
	}
	type wireVolume struct {
		ID          string           `xml:"volumeId"`
		Size        int              `xml:"size"`
		Zone        string           `xml:"availabilityZone"`
		Status      string           `xml:"status"`
		Created     string           `xml:"createTime"`
		Type        string           `xml:"volumeType"`
		Encrypted   bool             `xml:"encrypted"`
		Attachments []wireAttachment `xml:"attachmentSet>item"`
		Tags        []wireTag        `xml:"tagSet>item"`
	}
	var list []wireVolume
	for _, v := range all[from:to] {
		w := wireVolume{
			ID: v.id, Size: v.sizeGiB, Zone: v.zone, Status: v.state(), Created: v.made.UTC().Format(stampFormat),
			Type: v.kind, Encrypted: v.encrypted, Tags: wireTags(v.tags.seen(cl.now)),
		}
		if v.instance != "" {
			w.Attachments = []wireAttachment{{v.instance, v.device, "attached", v.made.UTC().Format(stampFormat), v.deletes}}
		}
		list = append(list, w)
	}
	return &struct {
		envelope
		Volumes []wireVolume `xml:"volumeSet>item"`
		Next    string       `xml:"nextToken,omitempty"`
	}{Volumes: list, Next: next}, nil
}

func noVolume(id string) *refusal {
	return invalid("InvalidVolume.NotFound", fmt.Sprintf("The volume '%s' does not exist.", id))
}

// deleteVolume is "DeleteVolume": the volume must be available.
func deleteVolume(c *Cloud, cl call) (response, *refusal) {
	v, ok := c.volumes[cl.form["VolumeId"]]
	if !ok {
		return nil, noVolume(cl.form["VolumeId"])
	}
	if v.instance != "" {
		return nil, invalid("VolumeInUse", fmt.Sprintf("Volume %s is currently attached to %s", v.id, v.instance))
	}
	delete(c.volumes, v.id)
	return &done{Return: true}, nil
}

// describeInterfaces is "DescribeNetworkInterfaces".
func describeInterfaces(c *Cloud, cl call) (response, *refusal) {
	var shown []*netInterface
	for _, n := range sorted(c.interfaces) {
		if !n.visible.After(cl.now) {
			shown = append(shown, n)
		}
	}
	all, refused := pick(cl.form.list("NetworkInterfaceId"), shown, func(n *netInterface) string { return n.id }, noInterface)
	if refused != nil {
		return nil, refused
	}
	all, refused = filtered(cl, all, func(n *netInterface) attributes {
		return attributes{"status": {n.state()}, "attachment.instance-id": {n.instance}}.withTags(n.tags.seen(cl.now))
	})
	if refused != nil {
		return nil, refused
	}
	from, to, next, refused := c.paged(cl, len(all), 5, 1000)
	if refused != nil {
		return nil, refused
	}
	type wireInterface struct {
		ID         string          `xml:"networkInterfaceId"`
		Subnet     string          `xml:"subnetId"`
		VPC        string          `xml:"vpcId"`
		Zone       string          `xml:"availabilityZone"`
		Owner      string          `xml:"ownerId"`
		Status     string          `xml:"status"`
		Address    string          `xml:"privateIpAddress"`
		Attachment *wireAttachment `xml:"attachment"`
		Tags       []wireTag       `xml:"tagSet>item"`
	}
	var list []wireInterface
	for _, n := range all[from:to] {
		w := wireInterface{
			ID: n.id, Subnet: n.subnet.ID, VPC: n.subnet.VPC, Zone: n.subnet.Zone, Owner: c.cfg.Account, Status: n.state(),
			Address: n.address, Tags: wireTags(n.tags.seen(cl.now)),
		}
		if n.instance != "" {
			w.Attachment = &wireAttachment{n.instance, "", "attached", n.made.UTC().Format(stampFormat), n.deletes}
		}
		list = append(list, w)
	}
	return &struct {
		envelope
		Interfaces []wireInterface `xml:"networkInterfaceSet>item"`
		Next       string          `xml:"nextToken,omitempty"`
	}{Interfaces: list, Next: next}, nil
}

func noInterface(id string) *refusal {
	return invalid("InvalidNetworkInterfaceID.NotFound", fmt.Sprintf("The networkInterface ID '%s' does not exist", id))
}

// deleteInterface is "DeleteNetworkInterface": it must be detached first.
func deleteInterface(c *Cloud, cl call) (response, *refusal) {
	n, ok := c.interfaces[cl.form["NetworkInterfaceId"]]
	if !ok {
		return nil, noInterface(cl.form["NetworkInterfaceId"])
	}
	if n.instance != "" {
		return nil, invalid("InvalidParameterValue", fmt.Sprintf("Network interface '%s' is currently in use.", n.id))
	}
	delete(c.interfaces, n.id)
	return &done{Return: true}, nil
}
