package openstack

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"time"
)

// What every lab has. The names are those of a real cloud's shop window; the
// hypervisors have two GPUs each, so the fifth machine with one is a true
// stock-out.
const (
	Region    = region     // of every service
	Image     = "debian"   // of all machines
	Network   = "machines" // shared, inside
	Outside   = "outside"  // where floating addresses come from
	FlavorOne = "h100-380" // one GPU
	FlavorTwo = "h100-760" // two GPUs
	FlavorOut = "h100-out" // one GPU, marked as sold out, as Open Telekom Cloud marks it
	Flavor    = "b2-7"     // no GPU
	GPUs      = 4          // in the whole lab
)

// resource is the class of the hypervisors' GPUs in Placement.
const resource = "CUSTOM_GPU_H100"

// furnish makes flavors, an image and networks, and waits until both
// hypervisors can be bought from.
func (l *Lab) furnish(ctx context.Context) error {
	gpu := map[string]string{"resources:" + resource: "1", "trait:CUSTOM_GPU_NVIDIA_H100": "required"}
	two, out := maps.Clone(gpu), maps.Clone(gpu)
	two["resources:"+resource] = "2"
	out["cond:operation:status"] = "sellout"
	for _, f := range []struct {
		name             string
		vcpus, ram, disk int
		extra            map[string]string
	}{
		{FlavorOne, 30, 380_000, 200, gpu},
		{FlavorTwo, 60, 760_000, 200, two},
		{FlavorOut, 30, 380_000, 200, out},
		{Flavor, 2, 4096, 20, nil},
	} {
		if err := l.flavor(ctx, f.name, f.vcpus, f.ram, f.disk, f.extra); err != nil {
			return err
		}
	}
	if err := l.image(ctx); err != nil {
		return err
	}
	if err := l.networks(ctx); err != nil {
		return err
	}
	return l.hypervisors(ctx)
}

func (l *Lab) flavor(ctx context.Context, name string, vcpus, ram, disk int, extra map[string]string) error {
	body := map[string]any{"flavor": map[string]any{"name": name, "vcpus": vcpus, "ram": ram, "disk": disk}}
	var made struct{ Flavor struct{ ID string } }
	if err := l.admin.Call(ctx, http.MethodPost, "compute", "/flavors", body, &made); err != nil {
		return err
	}
	l.ids[name] = made.Flavor.ID
	if extra == nil {
		return nil
	}
	specs := map[string]any{"extra_specs": extra}
	return l.admin.Call(ctx, http.MethodPost, "compute", "/flavors/"+made.Flavor.ID+"/os-extra_specs", specs, nil)
}

func (l *Lab) image(ctx context.Context) error {
	body := map[string]any{
		"name": Image, "disk_format": "raw", "container_format": "bare",
		"visibility": "public", "architecture": "x86_64",
	}
	var made struct{ ID string }
	if err := l.admin.Call(ctx, http.MethodPost, "image", "/images", body, &made); err != nil {
		return err
	}
	l.ids[Image] = made.ID
	return l.admin.Call(ctx, http.MethodPut, "image", "/images/"+made.ID+"/file", make([]byte, 64<<10), nil)
}

// networks makes an inside and an outside, and a router between them, so that
// floating addresses can be had.
func (l *Lab) networks(ctx context.Context) error {
	inside, err := l.network(ctx, "10.20.0.0/16", map[string]any{"name": Network, "shared": true})
	if err != nil {
		return err
	}
	outside, err := l.network(ctx, "198.51.100.0/24", map[string]any{"name": Outside, "router:external": true})
	if err != nil {
		return err
	}
	l.ids[Network] = inside.network
	body := map[string]any{"router": map[string]any{
		"name": "door", "external_gateway_info": map[string]any{"network_id": outside.network},
	}}
	var made struct{ Router struct{ ID string } }
	if err := l.admin.Call(ctx, http.MethodPost, "network", "/routers", body, &made); err != nil {
		return err
	}
	join := map[string]any{"subnet_id": inside.subnet}
	return l.admin.Call(ctx, http.MethodPut, "network", "/routers/"+made.Router.ID+"/add_router_interface", join, nil)
}

type network struct{ network, subnet string }

func (l *Lab) network(ctx context.Context, cidr string, body map[string]any) (n network, err error) {
	var net struct{ Network struct{ ID string } }
	if err := l.admin.Call(ctx, http.MethodPost, "network", "/networks", map[string]any{"network": body}, &net); err != nil {
		return n, err
	}
	n.network = net.Network.ID
	var sub struct{ Subnet struct{ ID string } }
	in := map[string]any{"subnet": map[string]any{"network_id": n.network, "ip_version": 4, "cidr": cidr}}
	err = l.admin.Call(ctx, http.MethodPost, "network", "/subnets", in, &sub)
	n.subnet = sub.Subnet.ID
	return n, err
}

// hypervisors waits until both have shown their GPUs to Placement and Nova has
// found them.
func (l *Lab) hypervisors(ctx context.Context) error {
	l.say("waiting for the hypervisors")
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		var found struct{ Hypervisors []struct{ State string } }
		var stock struct {
			Candidates []any `json:"allocation_requests"`
		}
		err := l.admin.Call(ctx, http.MethodGet, "compute", "/os-hypervisors", nil, &found)
		if err == nil {
			err = l.admin.Call(ctx, http.MethodGet, "placement", "/allocation_candidates?resources="+resource+":2", nil, &stock)
		}
		if err == nil && len(found.Hypervisors) == 2 && len(stock.Candidates) == 2 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d hypervisors and %d of them with GPUs, want 2: %w", len(found.Hypervisors), len(stock.Candidates), context.Cause(ctx))
		}
	}
}
