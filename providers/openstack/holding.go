package openstack

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"spillway.dev/spillway/providers"
)

// pageSize is how many ports or addresses are asked for at once; Neutron gives
// no link to a next page unless a limit was asked for.
const pageSize = 500

// holding is all that an account shows of us at one moment.
type holding struct {
	servers   []marked[servers.Server]
	ports     []marked[ports.Port]
	addresses []marked[floatingips.FloatingIP]
}

// marked is a thing of the cloud with the mark it carries.
type marked[T any] struct {
	thing T
	mark  mark
}

// hold lists what carries this installation's mark; a name narrows it down to
// the servers and ports of that name, and leaves out addresses where machines
// get none. Parts come first: a part that is seen
// without a server then has none, also when servers are made meanwhile.
func (d *Driver) hold(ctx context.Context, s *session, name string) (holding, error) {
	var h holding
	allPorts, err := listPorts(ctx, s, name)
	if err != nil {
		return h, err
	}
	h.ports = ours(d, allPorts, func(p ports.Port) (mark, bool) { return readText(p.Description) })
	if s.floating && (name == "" || d.config.Addresses != "") {
		addresses, err := listAddresses(ctx, s)
		if err != nil {
			return h, err
		}
		h.addresses = ours(d, addresses, func(a floatingips.FloatingIP) (mark, bool) { return readText(a.Description) })
	}
	opts := servers.ListOpts{}
	if name != "" {
		opts.Name = exactly(name)
	}
	allServers, err := listServers(ctx, s, opts)
	if err != nil {
		return h, err
	}
	h.servers = ours(d, allServers, func(s servers.Server) (mark, bool) { return readMetadata(s.Metadata) })
	return h, s.explain(ctx, h.servers)
}

// explain asks for the faults of failed servers one by one: a list of Nova shows
// none for a server that has never found a host (measured).
func (s *session) explain(ctx context.Context, list []marked[servers.Server]) error {
	for i, server := range list {
		if server.thing.Status != failedStatus || server.thing.Fault.Message != "" {
			continue
		}
		one, err := servers.Get(ctx, s.compute, server.thing.ID).Extract()
		switch {
		case err == nil:
			list[i].thing.Fault = one.Fault
		case !gone(err):
			return fmt.Errorf("fault of server %s: %w", server.thing.ID, err)
		}
	}
	return nil
}

// ours keeps what carries the mark of the driver's own installation.
func ours[T any](d *Driver, all []T, read func(T) (mark, bool)) (mine []marked[T]) {
	for _, thing := range all {
		if m, ok := read(thing); ok && m.installation == d.config.Installation {
			mine = append(mine, marked[T]{thing, m})
		}
	}
	return mine
}

func listServers(ctx context.Context, s *session, opts servers.ListOpts) ([]servers.Server, error) {
	pages, err := servers.List(s.compute, opts).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return servers.ExtractServers(pages)
}

func listPorts(ctx context.Context, s *session, name string) ([]ports.Port, error) {
	pages, err := ports.List(s.network, ports.ListOpts{ProjectID: s.project, Name: name, Limit: pageSize}).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return ports.ExtractPorts(pages)
}

func listAddresses(ctx context.Context, s *session) ([]floatingips.FloatingIP, error) {
	pages, err := floatingips.List(s.network, floatingips.ListOpts{ProjectID: s.project, Limit: pageSize}).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return floatingips.ExtractFloatingIPs(pages)
}

// of narrows a holding down to one token, compared in full.
func (h holding) of(token string) holding {
	return holding{servers: withToken(h.servers, token), ports: withToken(h.ports, token), addresses: withToken(h.addresses, token)}
}

func withToken[T any](all []marked[T], token string) (some []marked[T]) {
	for _, m := range all {
		if m.mark.token == token {
			some = append(some, m)
		}
	}
	return some
}

// tokens are the tokens in a holding, sorted.
func (h holding) tokens() []string {
	var all []string
	for _, s := range h.servers {
		all = append(all, s.mark.token)
	}
	for _, p := range h.ports {
		all = append(all, p.mark.token)
	}
	for _, a := range h.addresses {
		all = append(all, a.mark.token)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// machines shows a holding as the contract wants it: one machine a server, and
// a leftover for each token that has parts and no server.
func (d *Driver) machines(h holding) []providers.Machine {
	var list []providers.Machine
	for _, token := range h.tokens() {
		one := h.of(token)
		slices.SortFunc(one.servers, older)
		for i, s := range one.servers {
			list = append(list, d.machine(s, one.partsOf(s.thing.ID, i == 0)))
		}
		if len(one.servers) == 0 {
			list = append(list, d.leftover(one))
		}
	}
	return list
}

// older orders servers of one token, the same way in whatever order they are
// listed. cases: D-4 kubernetes-sigs/cluster-api-provider-openstack#2088
func older(a, b marked[servers.Server]) int {
	failed := func(s marked[servers.Server]) int {
		if s.thing.Status == failedStatus {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(failed(a), failed(b)), a.thing.Created.Compare(b.thing.Created), cmp.Compare(a.thing.ID, b.thing.ID))
}

// partsOf narrows a holding of one token down to the parts of one server: those
// that are attached to it and, for the first one, those attached to nothing.
func (h holding) partsOf(server string, first bool) holding {
	var mine holding
	portsOf := map[string]bool{}
	for _, p := range h.ports {
		if p.thing.DeviceID == server || p.thing.DeviceID == "" && first {
			mine.ports = append(mine.ports, p)
			portsOf[p.thing.ID] = true
		}
	}
	for _, a := range h.addresses {
		if portsOf[a.thing.PortID] || a.thing.PortID == "" && first {
			mine.addresses = append(mine.addresses, a)
		}
	}
	return mine
}

// without is the parts that other does not have.
func (h holding) without(other holding) holding {
	var rest holding
	has := map[string]bool{}
	for _, p := range other.parts() {
		has[p.ID] = true
	}
	for _, p := range h.ports {
		if !has[p.thing.ID] {
			rest.ports = append(rest.ports, p)
		}
	}
	for _, a := range h.addresses {
		if !has[a.thing.ID] {
			rest.addresses = append(rest.addresses, a)
		}
	}
	return rest
}

func (h holding) parts() []providers.Part {
	var parts []providers.Part
	for _, p := range h.ports {
		parts = append(parts, providers.Part{Kind: "port", ID: p.thing.ID})
	}
	for _, a := range h.addresses {
		parts = append(parts, providers.Part{Kind: "address", ID: a.thing.ID})
	}
	return parts
}

// expires is the latest stamp that any of them carries: while a server is being
// made, only its port can be given a new one.
func (h holding) expires(first time.Time) time.Time {
	for _, p := range h.ports {
		if p.mark.expires.After(first) {
			first = p.mark.expires
		}
	}
	return first
}

func (d *Driver) machine(s marked[servers.Server], parts holding) providers.Machine {
	m := d.shown(s.mark)
	m.ID, m.Name, m.Zone = s.thing.ID, s.thing.Name, s.thing.AvailabilityZone
	m.State, m.Created, m.Started = stateOf(s.thing, time.Now()), s.thing.Created, s.thing.LaunchedAt
	if m.State == providers.StateFailed {
		m.Fault, m.FaultKind = s.thing.Fault.Message, faultKind(s.thing.Fault.Message)
	}
	m.Expires, m.Parts = parts.expires(s.mark.expires), parts.parts()
	for _, p := range parts.ports {
		for _, ip := range p.thing.FixedIPs {
			m.Addresses = append(m.Addresses, ip.IPAddress)
		}
	}
	for _, a := range parts.addresses {
		m.Addresses = append(m.Addresses, a.thing.FloatingIP)
	}
	return m
}

// leftover shows parts without a server.
func (d *Driver) leftover(h holding) providers.Machine {
	var m providers.Machine
	for _, a := range h.addresses {
		m = d.shown(a.mark)
		m.Created = a.thing.CreatedAt
	}
	for _, p := range h.ports {
		m = d.shown(p.mark)
		m.Name, m.Created = p.thing.Name, p.thing.CreatedAt
	}
	m.ID, m.State = leftover+m.Token, providers.StateLeftover
	m.Expires, m.Parts = h.expires(m.Expires), h.parts()
	return m
}

// shown is what a mark says about a machine.
func (d *Driver) shown(m mark) providers.Machine {
	return providers.Machine{
		Token: m.token, Installation: m.installation, Burst: m.burst, Tenant: m.tenant, InstanceType: m.kind,
		Provider: d.config.Provider, Region: d.config.Region, Expires: m.expires,
	}
}

const failedStatus = "ERROR"

// faultDelay is how long Nova may take to say why a server has failed: it writes
// the state first.
const faultDelay = 30 * time.Second

// stateOf reads Nova's states. One that is not known here, UNKNOWN of a cell
// that is down among them, is the empty state: never taken for gone.
func stateOf(s servers.Server, now time.Time) providers.State {
	if s.TaskState == "deleting" || s.TaskState == "soft-deleting" {
		return providers.StateDeleting
	}
	switch s.Status {
	case "BUILD", "REBUILD":
		return providers.StatePending
	case "ACTIVE", "REBOOT", "HARD_REBOOT", "PASSWORD", "VERIFY_RESIZE", "RESIZE", "MIGRATING":
		return providers.StateRunning
	case "SHUTOFF", "PAUSED", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "RESCUE":
		return providers.StateStopped
	case failedStatus:
		if s.Fault.Message == "" && now.Sub(s.Updated) < faultDelay {
			return providers.StatePending
		}
		return providers.StateFailed
	case "SOFT_DELETED", "DELETED":
		return providers.StateDeleting
	default:
		return ""
	}
}
