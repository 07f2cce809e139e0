package ec2fake

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"time"
)

// stampFormat is how the API writes times.
const stampFormat = "2006-01-02T15:04:05.000Z"

type wireTag struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

func wireTags(shown map[string]string) []wireTag {
	var all []wireTag
	for key, value := range shown {
		all = append(all, wireTag{key, value})
	}
	return all
}

type wireState struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

type wireReason struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type wireMapping struct {
	DeviceName string `xml:"deviceName"`
	EBS        struct {
		VolumeID            string `xml:"volumeId,omitempty"`
		SnapshotID          string `xml:"snapshotId,omitempty"`
		VolumeSize          int    `xml:"volumeSize,omitempty"`
		DeleteOnTermination bool   `xml:"deleteOnTermination"`
	} `xml:"ebs"`
}

type wireAttachment struct {
	InstanceID          string `xml:"instanceId"`
	Device              string `xml:"device,omitempty"`
	Status              string `xml:"status"`
	AttachTime          string `xml:"attachTime"`
	DeleteOnTermination bool   `xml:"deleteOnTermination"`
}

// wireInstance is "Instance".
type wireInstance struct {
	ID           string        `xml:"instanceId"`
	Image        string        `xml:"imageId"`
	State        wireState     `xml:"instanceState"`
	Transition   string        `xml:"reason"`
	Type         string        `xml:"instanceType"`
	Launched     string        `xml:"launchTime"`
	Zone         string        `xml:"placement>availabilityZone"`
	Subnet       string        `xml:"subnetId,omitempty"`
	VPC          string        `xml:"vpcId,omitempty"`
	Address      string        `xml:"privateIpAddress,omitempty"`
	Public       string        `xml:"ipAddress,omitempty"`
	Reason       *wireReason   `xml:"stateReason"`
	Architecture string        `xml:"architecture"`
	RootDevice   string        `xml:"rootDeviceName"`
	Devices      []wireMapping `xml:"blockDeviceMapping>item"`
	Token        string        `xml:"clientToken"`
	Tags         []wireTag     `xml:"tagSet>item"`
}

func (c *Cloud) wire(i *instance, now time.Time) wireInstance {
	w := wireInstance{
		ID: i.id, Image: i.image.ID, State: wireState{stateCode(i.state), i.state}, Transition: i.transition, Type: i.kind.Name,
		Launched: i.launched.UTC().Format(stampFormat), Zone: i.subnet.Zone, Architecture: i.image.Arch,
		RootDevice: i.image.RootDevice, Token: i.token, Tags: wireTags(i.tags.seen(now)),
	}
	if i.why.code != "" {
		w.Reason = &wireReason{i.why.code, i.why.message}
	}
	for _, v := range c.volumes {
		if v.instance == i.id {
			m := wireMapping{DeviceName: v.device}
			m.EBS.VolumeID, m.EBS.DeleteOnTermination = v.id, v.deletes
			w.Devices = append(w.Devices, m)
		}
	}
	slices.SortFunc(w.Devices, func(a, b wireMapping) int { return strings.Compare(a.DeviceName, b.DeviceName) })
	for _, n := range c.interfaces {
		if n.instance == i.id {
			w.Address, w.Subnet, w.VPC = n.address, n.subnet.ID, n.subnet.VPC
			if i.public {
				w.Public = strings.Replace(n.address, "10.0.", "198.51.", 1)
			}
		}
	}
	return w
}

// ran is the answer of "RunInstances".
func (c *Cloud) ran(i *instance, now time.Time) response {
	return &struct {
		envelope
		Reservation string         `xml:"reservationId"`
		Owner       string         `xml:"ownerId"`
		Instances   []wireInstance `xml:"instancesSet>item"`
	}{Reservation: "r-" + i.id[2:], Owner: c.cfg.Account, Instances: []wireInstance{c.wire(i, now)}}
}

func noInstance(id string) *refusal {
	if !strings.HasPrefix(id, "i-") {
		return invalid("InvalidInstanceID.Malformed", fmt.Sprintf("Invalid id: \"%s\"", id))
	}
	return invalid("InvalidInstanceID.NotFound", fmt.Sprintf("The instance ID '%s' does not exist", id))
}

// seen are the instances that describe actions show ("eventual consistency").
func (c *Cloud) seen(now time.Time) []*instance {
	var all []*instance
	for _, i := range sorted(c.instances) {
		if !i.visible.After(now) {
			all = append(all, i)
		}
	}
	return all
}

// describeInstances is "DescribeInstances".
func describeInstances(c *Cloud, cl call) (response, *refusal) {
	ids := cl.form.list("InstanceId")
	if _, sized := cl.form["MaxResults"]; sized && len(ids) > 0 {
		return nil, invalid("InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
	}
	all, refused := pick(ids, c.seen(cl.now), func(i *instance) string { return i.id }, noInstance)
	if refused != nil {
		return nil, refused
	}
	all, refused = filtered(cl, all, func(i *instance) attributes {
		return attributes{
			"instance-state-name": {i.state}, "instance-type": {i.kind.Name}, "client-token": {i.token}, "availability-zone": {i.subnet.Zone},
		}.withTags(i.tags.seen(cl.now))
	})
	if refused != nil {
		return nil, refused
	}
	from, to, next, refused := c.paged(cl, len(all), 5, 1000)
	if refused != nil {
		return nil, refused
	}
	type reservation struct {
		ID        string         `xml:"reservationId"`
		Owner     string         `xml:"ownerId"`
		Instances []wireInstance `xml:"instancesSet>item"`
	}
	var list []reservation
	for _, i := range all[from:to] {
		list = append(list, reservation{"r-" + i.id[2:], c.cfg.Account, []wireInstance{c.wire(i, cl.now)}})
	}
	return &struct {
		envelope
		Reservations []reservation `xml:"reservationSet>item"`
		Next         string        `xml:"nextToken,omitempty"`
	}{Reservations: list, Next: next}, nil
}

// terminateInstances is "TerminateInstances": idempotent, and all or nothing.
func terminateInstances(c *Cloud, cl call) (response, *refusal) {
	all, refused := pick(cl.form.list("InstanceId"), c.seen(cl.now), func(i *instance) string { return i.id }, noInstance)
	if refused != nil {
		return nil, refused
	}
	type change struct {
		ID       string    `xml:"instanceId"`
		Current  wireState `xml:"currentState"`
		Previous wireState `xml:"previousState"`
	}
	var list []change
	for _, i := range all {
		before := wireState{stateCode(i.state), i.state}
		c.end(i, cl.now, reason{"Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"}, byUser(cl.now))
		list = append(list, change{i.id, wireState{stateCode(i.state), i.state}, before})
	}
	return &struct {
		envelope
		Instances []change `xml:"instancesSet>item"`
	}{Instances: list}, nil
}

// createTags is "CreateTags": it adds or overwrites.
func createTags(c *Cloud, cl call) (response, *refusal) {
	var set []*tags
	for _, id := range cl.form.list("ResourceId") {
		i, isInstance := c.instances[id]
		v, isVolume := c.volumes[id]
		n, isInterface := c.interfaces[id]
		switch {
		case isInstance && !i.visible.After(cl.now):
			set = append(set, &i.tags)
		case isVolume:
			set = append(set, &v.tags)
		case isInterface:
			set = append(set, &n.tags)
		default:
			return nil, noInstance(id)
		}
	}
	for _, tag := range cl.form.items("Tag") {
		if refused := checkTag(tag["Key"], tag["Value"]); refused != nil {
			return nil, refused
		}
		for _, t := range set {
			*t = append(*t, tagged{tag["Key"], tag["Value"], cl.now.Add(c.timing.TagLag)})
		}
	}
	return &done{Return: true}, nil
}

// consoleOutput is "GetConsoleOutput".
func consoleOutput(c *Cloud, cl call) (response, *refusal) {
	all, refused := pick([]string{cl.form["InstanceId"]}, c.seen(cl.now), func(i *instance) string { return i.id }, noInstance)
	if refused != nil {
		return nil, refused
	}
	return &struct {
		envelope
		ID     string `xml:"instanceId"`
		Output string `xml:"output"`
	}{ID: all[0].id, Output: base64.StdEncoding.EncodeToString([]byte("booting " + all[0].id + "\n"))}, nil
}
