package openstack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/layer3/floatingips"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"spillway.dev/spillway/providers"
)

const opCreate = "create"

// maxUserData is the most user data that Nova takes, as base64.
const maxUserData = 65535

// Create implements [providers.Driver].
func (d *Driver) Create(ctx context.Context, req providers.Request) (providers.Machine, error) {
	if err := d.checkRequest(req); err != nil {
		return providers.Machine{}, &providers.Error{Kind: providers.Rejected, Op: opCreate, Err: err}
	}
	done, err := d.tokens.take(ctx, req.Token)
	if err != nil {
		return providers.Machine{}, failure(opCreate, err)
	}
	defer done()
	s, err := d.session(ctx, opCreate)
	if err != nil {
		return providers.Machine{}, err
	}
	held, err := d.lookUp(ctx, s, req)
	if err != nil {
		return providers.Machine{}, failure(opCreate, err)
	}
	if len(held.servers) > 0 {
		return d.adopt(ctx, s, held)
	}
	m, err := d.build(ctx, s, req, held)
	if err == nil {
		return m, nil
	}
	return providers.Machine{}, d.clear(ctx, s, req, inMaking(opCreate, err))
}

func (d *Driver) checkRequest(req providers.Request) error {
	switch size := base64.StdEncoding.EncodedLen(len(req.UserData)); {
	case req.Installation != d.config.Installation:
		return fmt.Errorf("request is of installation %q, this driver acts for %q", req.Installation, d.config.Installation)
	case size > maxUserData:
		return fmt.Errorf("user data of %d bytes: at most %d", len(req.UserData), maxUserData/4*3)
	}
	return checkMark(req)
}

// lookUp finds what carries the request's token: what is listed, and what this
// process has made and the list does not show yet.
func (d *Driver) lookUp(ctx context.Context, s *session, req providers.Request) (holding, error) {
	all, err := d.hold(ctx, s, req.Name)
	if err != nil {
		return holding{}, err
	}
	held := all.of(req.Token)
	id := d.recall(req.Token)
	if len(held.servers) > 0 || id == "" {
		return held, nil
	}
	server, err := servers.Get(ctx, s.compute, id).Extract()
	if err != nil {
		if a := answerOf(err); a != nil && isNotFound(a) {
			return held, nil
		}
		return holding{}, err
	}
	if m, ok := readMetadata(server.Metadata); ok && m.token == req.Token {
		held.servers = append(held.servers, marked[servers.Server]{*server, m})
	}
	return held, nil
}

// adopt returns the one machine of a token and deletes further ones, with what
// was made for them: two processes that created at the same time choose the same
// one.
func (d *Driver) adopt(ctx context.Context, s *session, held holding) (providers.Machine, error) {
	slices.SortFunc(held.servers, older)
	winner := held.servers[0]
	for _, other := range held.servers[1:] {
		if err := d.remove(ctx, s, other.thing, held.partsOf(other.thing.ID, false)); err != nil {
			return providers.Machine{}, failure(opCreate, fmt.Errorf("remove duplicate server %s: %w", other.thing.ID, err))
		}
	}
	mine, all := held.partsOf(winner.thing.ID, false), held.partsOf(winner.thing.ID, true)
	if len(mine.ports) > 0 && len(all.ports) > len(mine.ports) { // made for a server that lost
		if err := d.removeParts(ctx, s, all.without(mine)); err != nil {
			return providers.Machine{}, failure(opCreate, fmt.Errorf("remove what was made twice: %w", err))
		}
		all = mine
	}
	return d.machine(winner, all), nil
}

// build makes port, address and server, in this order, around what an earlier
// call has left.
func (d *Driver) build(ctx context.Context, s *session, req providers.Request, held holding) (providers.Machine, error) {
	flavor, err := d.flavorNamed(ctx, s, req.Offer.InstanceType)
	if err != nil {
		return providers.Machine{}, err
	}
	image, err := imageNamed(ctx, s, d.config.Image)
	if err != nil {
		return providers.Machine{}, err
	}
	port, err := d.portFor(ctx, s, req, held)
	if err != nil {
		return providers.Machine{}, err
	}
	if err := d.addressFor(ctx, s, req, held, port); err != nil {
		return providers.Machine{}, err
	}
	drive := true
	opts := described{CreateOpts: servers.CreateOpts{
		Name: req.Name, ImageRef: image.ID, FlavorRef: flavor, AvailabilityZone: req.Offer.Zone,
		Networks: []servers.Network{{Port: port.ID}}, ConfigDrive: &drive, Metadata: markOf(req).metadata(),
		// Encoded here: the library sends what looks encoded as it is.
		UserData: []byte(base64.StdEncoding.EncodeToString(req.UserData)),
	}}
	if s.recent {
		opts.description = markOf(req).text()
	}
	id, err := idOf(servers.Create(ctx, s.compute, opts, nil))
	if err != nil {
		return providers.Machine{}, err
	}
	d.remember(req.Token, id, time.Now())
	return d.lookAgain(ctx, s, req, id), nil
}

// described adds a description, which outlives a server where its metadata does
// not. The library knows none.
type described struct {
	servers.CreateOpts
	description string // empty: none
}

// ToServerCreateMap implements [servers.CreateOptsBuilder].
func (d described) ToServerCreateMap() (map[string]any, error) {
	body, err := d.CreateOpts.ToServerCreateMap()
	if server, ok := body["server"].(map[string]any); ok && d.description != "" {
		server["description"] = d.description
	}
	return body, err
}

// idOf reads the new server's id. Open Telekom Cloud throttles with a success
// that holds no server (cases: D-76).
func idOf(result servers.CreateResult) (string, error) {
	if result.Err != nil {
		return "", result.Err
	}
	body, err := json.Marshal(result.Body)
	if err != nil {
		return "", err
	}
	var made struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
	}
	if err := json.Unmarshal(body, &made); err != nil {
		return "", err
	}
	if made.Server.ID != "" {
		return made.Server.ID, nil
	}
	a := &answer{call: "POST servers", status: 202}
	a.code, a.message, a.own = readBody(body)
	if kind, known := telekomKind(a.code); known {
		return "", &verdict{kind, scopeOf(kind), a}
	}
	return "", errors.New("the cloud accepted the server and named no id")
}

// lookAgain shows the new machine, and removes duplicates that another process
// has made meanwhile. The server is bought: what fails here is no failure of
// Create.
func (d *Driver) lookAgain(ctx context.Context, s *session, req providers.Request, id string) providers.Machine {
	held, err := d.lookUp(ctx, s, req)
	if err == nil && len(held.servers) > 0 {
		if m, err := d.adopt(ctx, s, held); err == nil {
			return m
		}
	}
	m := d.shown(markOf(req))
	m.ID, m.Name, m.State, m.Created = id, req.Name, providers.StatePending, time.Now()
	return m
}

// portFor adopts the port of an earlier call, or makes one.
// cases: D-2 kubernetes-sigs/cluster-api-provider-openstack#2576
func (d *Driver) portFor(ctx context.Context, s *session, req providers.Request, held holding) (ports.Port, error) {
	for _, p := range held.ports {
		if p.thing.DeviceID == "" {
			return p.thing, nil
		}
	}
	network, err := networkNamed(ctx, s, d.config.Network)
	if err != nil {
		return ports.Port{}, err
	}
	opts := ports.CreateOpts{NetworkID: network, Name: req.Name, Description: markOf(req).text()}
	if len(d.config.SecurityGroups) > 0 {
		var ids []string
		for _, name := range d.config.SecurityGroups {
			id, err := groupNamed(ctx, s, name)
			if err != nil {
				return ports.Port{}, err
			}
			ids = append(ids, id)
		}
		opts.SecurityGroups = &ids
	}
	port, err := ports.Create(ctx, s.network, opts).Extract()
	if err != nil {
		return ports.Port{}, err
	}
	return *port, nil
}

// addressFor gives the port a floating address, where machines have one.
func (d *Driver) addressFor(ctx context.Context, s *session, req providers.Request, held holding, port ports.Port) error {
	if d.config.Addresses == "" {
		return nil
	}
	for _, a := range held.addresses {
		if a.thing.PortID == port.ID {
			return nil
		}
	}
	network, err := networkNamed(ctx, s, d.config.Addresses)
	if err != nil {
		return err
	}
	return floatingips.Create(ctx, s.network, floatingips.CreateOpts{
		FloatingNetworkID: network, PortID: port.ID, Description: markOf(req).text(),
	}).Err
}

// clear removes what a create that was not done has made ahead of the server.
// After an unknown outcome everything stays: a server may be using it.
func (d *Driver) clear(ctx context.Context, s *session, req providers.Request, refused error) error {
	kind := providers.KindOf(refused)
	if kind == providers.OutcomeUnknown {
		return refused
	}
	left, err := d.hold(ctx, s, req.Name)
	if err == nil {
		if left = left.of(req.Token); len(left.servers) > 0 {
			err = fmt.Errorf("server %s carries the token all the same", left.servers[0].thing.ID)
		} else {
			err = d.removeParts(ctx, s, left)
		}
	}
	if err == nil || !kind.Refusal() {
		return refused // what is left is adopted by the next call
	}
	return &providers.Error{
		Kind: providers.CleanupFailed, Scope: providers.ScopeAccount, Op: opCreate,
		Err: fmt.Errorf("%w; and what was made ahead of it could not be removed: %w", refused, err),
	}
}

// isNotFound reports whether the service itself says that it knows no such thing.
func isNotFound(a *answer) bool {
	return a.own && a.status == 404
}
