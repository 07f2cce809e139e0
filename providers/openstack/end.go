package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"spillway.dev/spillway/providers"
)

// List implements [providers.Driver].
func (d *Driver) List(ctx context.Context) ([]providers.Machine, error) {
	const op = "list"
	s, err := d.session(ctx, op)
	if err != nil {
		return nil, err
	}
	held, err := d.hold(ctx, s, "")
	if err != nil {
		return nil, inListing(op, err)
	}
	return d.machines(held), nil
}

// inListing maps a failure of a list. A list that is not found is no list: it
// must not pass for an empty one.
func inListing(op string, err error) error {
	mapped := failure(op, err)
	if e, ok := errors.AsType[*providers.Error](mapped); ok && e.Kind == providers.NotFound {
		e.Kind = providers.OutcomeUnknown
	}
	return mapped
}

// Delete implements [providers.Driver].
func (d *Driver) Delete(ctx context.Context, id string) error {
	const op = "delete"
	s, err := d.session(ctx, op)
	if err != nil {
		return err
	}
	if token, ok := strings.CutPrefix(id, leftover); ok {
		return d.deleteLeftover(ctx, s, op, token)
	}
	server, m, err := d.own(ctx, s, id)
	if err != nil {
		return failure(op, err)
	}
	all, err := d.hold(ctx, s, "")
	if err != nil {
		return inListing(op, err)
	}
	held := all.of(m.token)
	last := len(held.servers) == 0 || len(held.servers) == 1 && held.servers[0].thing.ID == id
	return failure(op, d.remove(ctx, s, server, held.partsOf(id, last)))
}

// deleteLeftover removes the parts of a token of which no server is left.
func (d *Driver) deleteLeftover(ctx context.Context, s *session, op, token string) error {
	all, err := d.hold(ctx, s, "")
	if err != nil {
		return inListing(op, err)
	}
	held := all.of(token)
	switch {
	case len(held.servers) > 0:
		return &providers.Error{
			Kind: providers.OutcomeUnknown, Op: op,
			Err: fmt.Errorf("server %s carries token %s: delete it by its own id", held.servers[0].thing.ID, token),
		}
	case len(held.ports)+len(held.addresses) == 0:
		return &providers.Error{Kind: providers.NotFound, Op: op, Err: fmt.Errorf("nothing carries token %s", token)}
	}
	return failure(op, d.removeParts(ctx, s, held))
}

// own returns a server of this installation. One of another is not found: it is
// none of ours, and it stays untouched.
func (d *Driver) own(ctx context.Context, s *session, id string) (servers.Server, mark, error) {
	server, err := servers.Get(ctx, s.compute, id).Extract()
	if err != nil {
		return servers.Server{}, mark{}, err
	}
	m, ok := readMetadata(server.Metadata)
	if !ok || m.installation != d.config.Installation {
		return servers.Server{}, mark{}, &verdict{providers.NotFound, providers.ScopeOffer, fmt.Errorf("server %s belongs to somebody else", id)}
	}
	return *server, m, nil
}

// remove asks for the end of a server and of its parts. The parts go first: as
// long as the server is there, its entry leads to them, also when the answer to
// its delete is lost. But what fails with them never keeps the server. One that
// the cloud's policy keeps for later is deleted for good.
// cases: B-16 kubernetes-sigs/cluster-api-provider-openstack#2618
func (d *Driver) remove(ctx context.Context, s *session, server servers.Server, parts holding) error {
	failed := d.removeParts(ctx, s, parts)
	var err error
	if server.Status == "SOFT_DELETED" {
		err = servers.ForceDelete(ctx, s.compute, server.ID).Err
	} else {
		err = servers.Delete(ctx, s.compute, server.ID).Err
	}
	if err != nil && !gone(err) {
		return err
	}
	return failed
}

// removeParts deletes addresses, then ports.
// cases: D-1, B-13 kubernetes-sigs/cluster-api-provider-openstack#1404, #701
func (d *Driver) removeParts(ctx context.Context, s *session, h holding) error {
	for _, a := range h.addresses {
		if err := floatingips.Delete(ctx, s.network, a.thing.ID).Err; err != nil && !gone(err) {
			return fmt.Errorf("floating address %s: %w", a.thing.ID, err)
		}
	}
	for _, p := range h.ports {
		if err := ports.Delete(ctx, s.network, p.thing.ID).Err; err != nil && !gone(err) {
			return fmt.Errorf("port %s: %w", p.thing.ID, err)
		}
	}
	return nil
}

// gone reports whether a service itself says that there is nothing to delete.
func gone(err error) bool {
	a := answerOf(err)
	return a != nil && isNotFound(a)
}

// Extend implements [providers.Driver].
func (d *Driver) Extend(ctx context.Context, id string, until time.Time) error {
	const op = "extend"
	done, err := d.ids.take(ctx, id)
	if err != nil {
		return failure(op, err)
	}
	defer done()
	s, err := d.session(ctx, op)
	if err != nil {
		return err
	}
	_, m, err := d.own(ctx, s, id)
	if err != nil {
		return failure(op, err)
	}
	if !until.After(m.expires) {
		return nil
	}
	err = servers.UpdateMetadata(ctx, s.compute, id, servers.MetadataOpts{keyExpires: providers.Stamp(until)}).Err
	if a := answerOf(err); a != nil && a.own && a.status == http.StatusConflict {
		return failure(op, d.extendPort(ctx, s, id, m, until, err))
	}
	return failure(op, err)
}

// extendPort puts the stamp on the port: the metadata of a server that is being
// made, or that has failed, can't be changed.
func (d *Driver) extendPort(ctx context.Context, s *session, id string, m mark, until time.Time, why error) error {
	all, err := listPorts(ctx, s, "")
	if err != nil {
		return err
	}
	for _, p := range ours(d, all, func(p ports.Port) (mark, bool) { return readText(p.Description) }) {
		if p.mark.token != m.token || p.thing.DeviceID != id && p.thing.DeviceID != "" {
			continue
		}
		if !until.After(p.mark.expires) {
			return nil
		}
		p.mark.expires = until
		text := p.mark.text()
		return ports.Update(ctx, s.network, p.thing.ID, ports.UpdateOpts{Description: &text}).Err
	}
	return fmt.Errorf("the server can't take a stamp now and has no port: %w", why)
}
