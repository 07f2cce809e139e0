package ec2

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// pageSize is how much is asked for at once, the most there may be: 2,000
// machines with their parts are six calls.
const pageSize = 1000

// holding is all that an account shows of us at one moment.
type holding struct {
	instances []instance
	parts     []part
}

// instance is an instance with the mark it carries.
type instance struct {
	types.Instance
	mark mark
}

// part is a volume or a network interface with the mark it carries.
type part struct {
	providers.Part
	mark     mark
	zone     string
	instance string // attached to; empty: free, so that it can be deleted
	going    bool   // its deletion is under way
	made     time.Time
}

// The kinds of parts.
const (
	kindVolume    = "volume"
	kindInterface = "port"
)

// holdOf lists what carries one token.
func (d *Driver) holdOf(ctx context.Context, token string) (holding, error) {
	h, err := d.hold(ctx, tagged(keyToken, token))
	return h.byToken()[token], err
}

// hold lists what carries this installation's mark and meets further filters.
// Parts come first: a part that is seen without an instance then has none, also
// when instances are made meanwhile.
func (d *Driver) hold(ctx context.Context, filters ...types.Filter) (holding, error) {
	filters = append(filters, tagged(keyInstallation, d.config.Installation))
	var h holding
	volumes := &sdk.DescribeVolumesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	err := eachPage(ctx, d.api.describeVolumes, volumes, &volumes.NextToken, func(page *sdk.DescribeVolumesOutput) *string {
		for _, v := range page.Volumes {
			h.addVolume(d.config.Installation, v)
		}
		return page.NextToken
	})
	if err != nil {
		return holding{}, err
	}
	cards := &sdk.DescribeNetworkInterfacesInput{Filters: filters, MaxResults: aws.Int32(pageSize)}
	err = eachPage(ctx, d.api.describeInterfaces, cards, &cards.NextToken, func(page *sdk.DescribeNetworkInterfacesOutput) *string {
		for _, n := range page.NetworkInterfaces {
			h.addInterface(d.config.Installation, n)
		}
		return page.NextToken
	})
	if err != nil {
		return holding{}, err
	}
	instances, err := d.describe(ctx, &sdk.DescribeInstancesInput{Filters: filters, MaxResults: aws.Int32(pageSize)})
	if err != nil {
		return holding{}, err
	}
	h.instances = slices.DeleteFunc(instances, func(i instance) bool { return i.mark.installation != d.config.Installation })
	return h, nil
}

// describe lists instances with their marks, from every page.
func (d *Driver) describe(ctx context.Context, in *sdk.DescribeInstancesInput) ([]instance, error) {
	var all []instance
	err := eachPage(ctx, d.api.describeInstances, in, &in.NextToken, func(page *sdk.DescribeInstancesOutput) *string {
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				if m, ours := readTags(i.Tags); ours {
					_, over := d.over.read(aws.ToString(i.InstanceId), time.Now())
					m.ended = m.ended || over
					all = append(all, instance{i, m})
				}
			}
		}
		return page.NextToken
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (h *holding) addVolume(installation string, v types.Volume) {
	m, ours := readTags(v.Tags)
	if !ours || m.installation != installation || v.State == types.VolumeStateDeleted {
		return
	}
	p := part{
		Part: providers.Part{Kind: kindVolume, ID: aws.ToString(v.VolumeId)}, mark: m, zone: aws.ToString(v.AvailabilityZone),
		going: v.State == types.VolumeStateDeleting, made: aws.ToTime(v.CreateTime),
	}
	for _, a := range v.Attachments {
		p.instance = aws.ToString(a.InstanceId)
	}
	h.parts = append(h.parts, p)
}

func (h *holding) addInterface(installation string, n types.NetworkInterface) {
	m, ours := readTags(n.TagSet)
	if !ours || m.installation != installation {
		return
	}
	p := part{Part: providers.Part{Kind: kindInterface, ID: aws.ToString(n.NetworkInterfaceId)}, mark: m, zone: aws.ToString(n.AvailabilityZone)}
	if n.Attachment != nil {
		p.instance, p.made = aws.ToString(n.Attachment.InstanceId), aws.ToTime(n.Attachment.AttachTime)
	}
	h.parts = append(h.parts, p)
}

// byToken cuts a holding into one for each token, compared in full.
func (h holding) byToken() map[string]holding {
	all := map[string]holding{}
	for _, i := range h.instances {
		one := all[i.mark.token]
		one.instances = append(one.instances, i)
		all[i.mark.token] = one
	}
	for _, p := range h.parts {
		one := all[p.mark.token]
		one.parts = append(one.parts, p)
		all[p.mark.token] = one
	}
	return all
}

// alive are the instances that have not ended, the oldest first and failed ones
// last, in the same order however they are listed.
func (h holding) alive() []instance {
	alive := slices.DeleteFunc(slices.Clone(h.instances), func(i instance) bool { return i.state() == providers.StateDeleted })
	failed := func(i instance) int {
		if i.failed() {
			return 1
		}
		return 0
	}
	slices.SortFunc(alive, func(a, b instance) int {
		return cmp.Or(
			cmp.Compare(failed(a), failed(b)), aws.ToTime(a.LaunchTime).Compare(aws.ToTime(b.LaunchTime)),
			cmp.Compare(aws.ToString(a.InstanceId), aws.ToString(b.InstanceId)),
		)
	})
	return alive
}

// partsOf are the parts of one of a token's instances: those that are attached
// to it and, for the first one, those that no living instance holds.
func (h holding) partsOf(id string, first bool) []part {
	var mine []part
	for _, p := range h.parts {
		if p.instance == id || first && !h.lives(p.instance) {
			mine = append(mine, p)
		}
	}
	return mine
}

// lives reports whether an instance is listed and has not ended.
func (h holding) lives(id string) bool {
	return slices.ContainsFunc(h.instances, func(i instance) bool {
		return aws.ToString(i.InstanceId) == id && i.state() != providers.StateDeleted
	})
}

// unseen is an instance that parts are attached to and that is not listed: it
// was made a moment ago.
func (h holding) unseen() string {
	for _, p := range h.parts {
		listed := slices.ContainsFunc(h.instances, func(i instance) bool { return aws.ToString(i.InstanceId) == p.instance })
		if p.instance != "" && !listed {
			return p.instance
		}
	}
	return ""
}

// machines shows a holding as the contract wants it: one machine an instance
// that lives, and a leftover for each token that has parts and no instance.
func (d *Driver) machines(h holding) []providers.Machine {
	var list []providers.Machine
	all := h.byToken()
	for _, token := range slices.Sorted(maps.Keys(all)) {
		one := all[token]
		alive := one.alive()
		for n, i := range alive {
			list = append(list, d.machine(i, one.partsOf(aws.ToString(i.InstanceId), n == 0)))
		}
		if len(alive) == 0 && len(one.parts) > 0 {
			list = append(list, d.remains(one))
		}
	}
	return list
}

func (d *Driver) machine(i instance, parts []part) providers.Machine {
	m := d.shown(i.mark, parts)
	m.ID, m.InstanceType, m.State = aws.ToString(i.InstanceId), string(i.InstanceType), i.state()
	m.Created = aws.ToTime(i.LaunchTime)
	if i.Placement != nil {
		m.Zone = aws.ToString(i.Placement.AvailabilityZone)
	}
	switch m.State {
	case providers.StatePending: // not yet
	case providers.StateFailed:
		m.Fault = strings.TrimSpace(aws.ToString(i.StateReason.Message))
		m.FaultKind, _ = meaning(aws.ToString(i.StateReason.Code))
	default: // EC2 tells no time of the first start: the launch was earlier
		m.Started = m.Created
	}
	for _, a := range []*string{i.PrivateIpAddress, i.PublicIpAddress} {
		if aws.ToString(a) != "" {
			m.Addresses = append(m.Addresses, *a)
		}
	}
	return m
}

// remains shows the parts of a token of which no instance is listed alive. Where
// one is still to be seen, the machine has its id and a state that nobody knows.
func (d *Driver) remains(h holding) providers.Machine {
	first := h.parts[0]
	m := d.shown(first.mark, h.parts)
	m.ID, m.State, m.InstanceType, m.Zone = leftover+m.Token, providers.StateLeftover, first.mark.kind, first.zone
	if id := h.unseen(); id != "" {
		m.ID, m.State = id, ""
	}
	for _, p := range h.parts {
		if m.Created.IsZero() || !p.made.IsZero() && p.made.Before(m.Created) {
			m.Created = p.made
		}
	}
	return m
}

// shown is what marks say about a machine.
func (d *Driver) shown(m mark, parts []part) providers.Machine {
	mach := providers.Machine{
		Token: m.token, Installation: m.installation, Burst: m.burst, Tenant: m.tenant, Name: m.name,
		Provider: d.config.Provider, Region: d.config.Region, Expires: m.expires,
	}
	for _, p := range parts {
		mach.Parts = append(mach.Parts, p.Part)
	}
	return mach
}

// state reads an instance's state. One that is not known here is the empty
// state: never taken for gone.
func (i instance) state() providers.State {
	if i.failed() {
		return providers.StateFailed
	}
	if i.State == nil {
		return ""
	}
	switch i.State.Name {
	case types.InstanceStateNamePending:
		return providers.StatePending
	case types.InstanceStateNameRunning:
		return providers.StateRunning
	case types.InstanceStateNameStopping, types.InstanceStateNameStopped:
		return providers.StateStopped
	case types.InstanceStateNameShuttingDown:
		return providers.StateDeleting
	case types.InstanceStateNameTerminated:
		return providers.StateDeleted
	default:
		return ""
	}
}

// failed reports whether the cloud itself has ended the instance, and nobody has
// asked for the end of it since: the launch was accepted, and not served.
// cases: D-67 skypilot-org/skypilot#6856
func (i instance) failed() bool {
	if i.State == nil || i.StateReason == nil || i.mark.ended {
		return false
	}
	over := i.State.Name == types.InstanceStateNameShuttingDown || i.State.Name == types.InstanceStateNameTerminated
	switch code := aws.ToString(i.StateReason.Code); code {
	case "", "Client.UserInitiatedShutdown", "Client.InstanceInitiatedShutdown":
		return false
	default:
		return over
	}
}
