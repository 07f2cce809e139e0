package openstack

import (
	"context"
	"fmt"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"spillway.dev/spillway/providers"
)

// Usage implements [providers.UsageReporter]. Nova shows a tenant its deleted
// servers only when asked for changes since a time, until the operator purges
// them; what it says is its own record, the one that it bills by.
func (d *Driver) Usage(ctx context.Context, token string) (providers.Machine, error) {
	const op = "usage"
	s, err := d.session(ctx, op)
	if err != nil {
		return providers.Machine{}, err
	}
	since := time.Now().Add(-keptFor).UTC().Format(time.RFC3339)
	all, err := listServers(ctx, s, servers.ListOpts{ChangesSince: since})
	if err != nil {
		return providers.Machine{}, inListing(op, err)
	}
	var held holding
	held.servers = withToken(ours(d, all, func(s servers.Server) (mark, bool) { return readMetadata(s.Metadata) }), token)
	if len(held.servers) == 0 {
		return providers.Machine{}, &providers.Error{
			Kind: providers.NotFound, Op: op, Err: fmt.Errorf("no server of the last %s carries token %s", keptFor, token),
		}
	}
	last := held.servers[0]
	for _, s := range held.servers[1:] {
		if s.thing.Created.After(last.thing.Created) {
			last = s
		}
	}
	m := d.machine(last, holding{})
	if last.thing.Status == "DELETED" {
		m.State, m.Deleted = providers.StateDeleted, last.thing.TerminatedAt
		if m.Deleted.IsZero() {
			m.Deleted = last.thing.Updated
		}
	}
	return m, nil
}

// keptFor is how far back usage is looked for.
const keptFor = 40 * 24 * time.Hour
