package openstack

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"spillway.dev/spillway/providers"
)

// Usage implements [providers.UsageReporter]. Nova shows a tenant its deleted
// servers only when asked for changes since a time, without their metadata, and
// until the cloud purges them; what it says is its own record.
func (d *Driver) Usage(ctx context.Context, token string) (providers.Machine, error) {
	const op = "usage"
	s, err := d.session(ctx, op)
	if err != nil {
		return providers.Machine{}, err
	}
	since := time.Now().Add(-keptFor).UTC().Format(time.RFC3339)
	all, err := listDescribed(ctx, s, servers.ListOpts{ChangesSince: since})
	if err != nil {
		return providers.Machine{}, inListing(op, err)
	}
	found := withToken(ours(d, all, func(s describedServer) (mark, bool) { return readText(s.description) }), token)
	if len(found) == 0 {
		return providers.Machine{}, &providers.Error{
			Kind: providers.NotFound, Op: op, Err: fmt.Errorf("no server of the last %s carries token %s", keptFor, token),
		}
	}
	last := slices.MaxFunc(found, func(a, b marked[describedServer]) int { return a.thing.Created.Compare(b.thing.Created) })
	m := d.machine(marked[servers.Server]{last.thing.Server, last.mark}, holding{})
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

// describedServer is a server with its description.
type describedServer struct {
	servers.Server
	description string
}

func listDescribed(ctx context.Context, s *session, opts servers.ListOpts) ([]describedServer, error) {
	pages, err := servers.List(s.compute, opts).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	all, err := servers.ExtractServers(pages)
	if err != nil {
		return nil, err
	}
	var texts []struct {
		Description string `json:"description"`
	}
	if err := servers.ExtractServersInto(pages, &texts); err != nil {
		return nil, err
	}
	list := make([]describedServer, len(all))
	for i, server := range all {
		list[i] = describedServer{server, texts[i].Description}
	}
	return list, nil
}
