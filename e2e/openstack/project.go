package openstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Project is one fresh account: a project of its own whose one user is a plain
// member, as a customer of a cloud is.
type Project struct {
	ID     string
	Clouds []byte // clouds.yaml with an application credential of the user

	lab   *Lab
	user  string
	token string // of the user
}

// NewProject makes an account.
func (l *Lab) NewProject(ctx context.Context) (*Project, error) {
	name := "burst-" + strings.ToLower(rand.Text()[:8])
	p := &Project{lab: l}
	var project struct{ Project struct{ ID string } }
	if err := l.admin.Call(ctx, http.MethodPost, "identity", "/projects", map[string]any{"project": map[string]any{"name": name}}, &project); err != nil {
		return nil, err
	}
	p.ID = project.Project.ID
	var user struct{ User struct{ ID string } }
	body := map[string]any{"user": map[string]any{"name": name, "password": name}}
	if err := l.admin.Call(ctx, http.MethodPost, "identity", "/users", body, &user); err != nil {
		return nil, err
	}
	p.user = user.User.ID
	var roles struct{ Roles []struct{ ID string } }
	if err := l.admin.Call(ctx, http.MethodGet, "identity", "/roles?name=member", nil, &roles); err != nil {
		return nil, err
	}
	if len(roles.Roles) != 1 {
		return nil, fmt.Errorf("the lab has %d roles named member", len(roles.Roles))
	}
	role := "/projects/" + p.ID + "/users/" + p.user + "/roles/" + roles.Roles[0].ID
	if err := l.admin.Call(ctx, http.MethodPut, "identity", role, nil, nil); err != nil {
		return nil, err
	}
	return p, p.credential(ctx, name)
}

// credential logs in as the user and makes an application credential.
func (p *Project) credential(ctx context.Context, password string) error {
	scope := map[string]any{"project": map[string]any{"id": p.ID}}
	token, err := p.lab.admin.authenticate(ctx, map[string]any{"id": p.user, "password": password}, scope)
	if err != nil {
		return err
	}
	p.token = token
	var made struct {
		Credential struct{ ID, Secret string } `json:"application_credential"`
	}
	body := map[string]any{"application_credential": map[string]any{"name": "spillway"}}
	url := service("identity") + "/users/" + p.user + "/application_credentials"
	if _, err := p.lab.admin.do(ctx, token, http.MethodPost, url, body, &made); err != nil {
		return err
	}
	p.Clouds = fmt.Appendf(nil, `clouds:
  openstack:
    auth_type: v3applicationcredential
    region_name: %s
    auth:
      auth_url: %s
      application_credential_id: %s
      application_credential_secret: %s
`, Region, service("identity"), made.Credential.ID, made.Credential.Secret)
	return nil
}

// Lock takes the user's right to log in. The services remember for some minutes
// that a token was good.
func (p *Project) Lock(ctx context.Context) error {
	body := map[string]any{"user": map[string]any{"enabled": false}}
	return p.lab.admin.Call(ctx, http.MethodPatch, "identity", "/users/"+p.user, body, nil)
}

// Quota sets a limit of the project in Nova, for example "instances".
func (p *Project) Quota(ctx context.Context, name string, limit int) error {
	body := map[string]any{"quota_set": map[string]any{name: limit}}
	return p.lab.admin.Call(ctx, http.MethodPut, "compute", "/os-quota-sets/"+p.ID, body, nil)
}

// Server makes a server by the user's own hand, and returns its id.
func (p *Project) Server(ctx context.Context, name, flavor string, metadata map[string]string) (string, error) {
	server := map[string]any{
		"name": name, "flavorRef": p.lab.ids[flavor], "imageRef": p.lab.ids[Image],
		"networks": []any{map[string]any{"uuid": p.lab.ids[Network]}},
	}
	if metadata != nil {
		server["metadata"] = metadata
	}
	var made struct{ Server struct{ ID string } }
	_, err := p.lab.admin.do(ctx, p.token, http.MethodPost, service("compute")+"/servers", map[string]any{"server": server}, &made)
	return made.Server.ID, err
}

// Port makes a port by the user's own hand.
func (p *Project) Port(ctx context.Context, name, description string) error {
	body := map[string]any{"port": map[string]any{"name": name, "description": description, "network_id": p.lab.ids[Network]}}
	_, err := p.lab.admin.do(ctx, p.token, http.MethodPost, service("network")+"/ports", body, nil)
	return err
}

// Server is a server as the administrator sees it.
type Server struct {
	ID, Name, Status string
	Metadata         map[string]string
	TaskState        string `json:"OS-EXT-STS:task_state"`
	UserData         string `json:"OS-EXT-SRV-ATTR:user_data"` // base64
}

// Part is a port or a floating address as the administrator sees it.
type Part struct {
	ID, Name, Description string
	DeviceID              string `json:"device_id"`
}

// Servers lists the project's servers, past the driver.
func (p *Project) Servers(ctx context.Context) ([]Server, error) {
	return list[Server](ctx, p.lab.admin, "compute", "/servers/detail?all_tenants=1&project_id="+p.ID, "servers")
}

// Ports lists the project's ports, past the driver.
func (p *Project) Ports(ctx context.Context) ([]Part, error) {
	return list[Part](ctx, p.lab.admin, "network", "/ports?limit=100&project_id="+p.ID, "ports")
}

// Addresses lists the project's floating addresses, past the driver.
func (p *Project) Addresses(ctx context.Context) ([]Part, error) {
	return list[Part](ctx, p.lab.admin, "network", "/floatingips?limit=100&project_id="+p.ID, "floatingips")
}

// Close deletes all that the project has and waits until it is gone.
func (p *Project) Close(ctx context.Context) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		servers, err := p.Servers(ctx)
		if err != nil {
			return err
		}
		parts := 0
		var failed error
		for _, s := range servers {
			if s.TaskState != "deleting" {
				failed = errors.Join(failed, p.lab.admin.Call(ctx, http.MethodDelete, "compute", "/servers/"+s.ID, nil, nil))
			}
		}
		for _, kind := range []string{"floatingips", "ports"} {
			things, err := list[Part](ctx, p.lab.admin, "network", "/"+kind+"?limit=100&project_id="+p.ID, kind)
			if err != nil {
				return err
			}
			parts += len(things)
			for _, t := range things {
				failed = errors.Join(failed, p.lab.admin.Call(ctx, http.MethodDelete, "network", "/"+kind+"/"+t.ID, nil, nil))
			}
		}
		if len(servers)+parts == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("project %s still has %d servers and %d parts: %w: %w", p.ID, len(servers), parts, ctx.Err(), failed)
		}
	}
}

// TakeStock lets a neighbour occupy every free GPU in Placement; what it returns
// gives them back.
func (l *Lab) TakeStock(ctx context.Context) (giveBack func(context.Context) error, err error) {
	var candidates struct {
		Summaries map[string]struct {
			Resources map[string]struct{ Capacity, Used int }
		} `json:"provider_summaries"`
	}
	err = l.admin.Call(ctx, http.MethodGet, "placement", "/allocation_candidates?resources="+resource+":1", nil, &candidates)
	if err != nil {
		return nil, err
	}
	var consumers []string
	giveBack = func(ctx context.Context) error {
		for _, c := range consumers {
			if err := l.admin.Call(ctx, http.MethodDelete, "placement", "/allocations/"+c, nil, nil); err != nil {
				return err
			}
		}
		return nil
	}
	for host, summary := range candidates.Summaries {
		free := summary.Resources[resource].Capacity - summary.Resources[resource].Used
		if free <= 0 {
			continue
		}
		neighbour := newUUID()
		body := map[string]any{
			"allocations":         map[string]any{host: map[string]any{"resources": map[string]any{resource: free}}},
			"consumer_generation": nil, "project_id": newUUID(), "user_id": newUUID(), "consumer_type": "INSTANCE",
		}
		if err := l.admin.Call(ctx, http.MethodPut, "placement", "/allocations/"+neighbour, body, nil); err != nil {
			return nil, errors.Join(err, giveBack(ctx))
		}
		consumers = append(consumers, neighbour)
	}
	return giveBack, nil
}

// newUUID is a random UUID.
func newUUID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
