package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack"
	"github.com/gophercloud/gophercloud/v2/openstack/common/extensions"
	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"github.com/gophercloud/gophercloud/v2/openstack/utils"

	"spillway.dev/spillway/providers"
)

// wanted is the microversion since which flavors are listed with their extra
// specs; servers have descriptions since 2.19. Older clouds are asked flavor by
// flavor, and know nothing of ours about servers that are gone. Nothing else that
// the driver does needs more than the first version of the API.
// cases: D-22 gtema/openstack#1218, cloud-provider-openstack#1394
const wanted = "2.61"

// session is a logged-in account.
type session struct {
	compute, network, image *gophercloud.ServiceClient

	project  string
	recent   bool // the compute service speaks the wanted microversion
	floating bool // the network service knows floating addresses
}

// session returns the open session, or logs in. A login that fails is tried
// again by the next call.
func (d *Driver) session(ctx context.Context, op string) (*session, error) {
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
	case <-ctx.Done():
		return nil, failure(op, ctx.Err())
	}
	if d.open != nil {
		return d.open, nil
	}
	s, err := d.login(ctx)
	if err != nil {
		return nil, failure(op, err)
	}
	d.open = s
	return s, nil
}

func (d *Driver) login(ctx context.Context) (*session, error) {
	client, err := openstack.NewClient(d.config.Login.Auth.IdentityEndpoint)
	if err != nil {
		return nil, err
	}
	// RetryFunc and RetryBackoffFunc stay nil: with them, the library would send
	// a create again.
	bound := &boundTransport{next: d.http.Transport}
	bound.ctx.Store(&ctx)
	defer bound.ctx.Store(nil)
	client.HTTPClient = *d.http
	client.HTTPClient.Transport = bound
	if err := openstack.Authenticate(ctx, client, d.config.Login.Auth); err != nil {
		return nil, fmt.Errorf("log in at %s: %w", d.config.Login.Auth.IdentityEndpoint, err)
	}
	where := d.config.Login.Endpoint
	where.Region = d.config.Region // cases: D-7 cluster-api-provider-openstack#2190
	s := &session{}
	for _, service := range []struct {
		client **gophercloud.ServiceClient
		open   func(*gophercloud.ProviderClient, gophercloud.EndpointOpts) (*gophercloud.ServiceClient, error)
	}{
		{&s.compute, openstack.NewComputeV2}, {&s.network, openstack.NewNetworkV2}, {&s.image, openstack.NewImageV2},
	} {
		*service.client, err = service.open(client, where) // asks the service for its versions
		if answerOf(err) != nil || isTransport(err) {
			return nil, err
		}
		if err != nil {
			return nil, &verdict{
				providers.Rejected, providers.ScopeAccount,
				fmt.Errorf("region %q in the account's catalogue: %w; correct the provider's region", d.config.Region, err),
			}
		}
	}
	if s.project, err = projectOf(client); err != nil {
		return nil, err
	}
	return s, s.discover(ctx)
}

// boundTransport ends calls with a context of its own while it has one: at a
// login, the library asks for versions with none that could end.
type boundTransport struct {
	next http.RoundTripper
	ctx  atomic.Pointer[context.Context]
}

// RoundTrip implements [http.RoundTripper].
func (t *boundTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if ctx := t.ctx.Load(); ctx != nil {
		r = r.WithContext(*ctx)
	}
	return t.next.RoundTrip(r)
}

// projectOf names the project that the login has chosen.
func projectOf(client *gophercloud.ProviderClient) (string, error) {
	result, ok := client.GetAuthResult().(tokens.CreateResult)
	if !ok {
		return "", errors.New("the cloud speaks an identity API older than v3")
	}
	project, err := result.ExtractProject()
	if err != nil {
		return "", fmt.Errorf("project of the login: %w", err)
	}
	if project == nil {
		return "", &verdict{
			providers.Unauthorized, providers.ScopeAccount,
			errors.New("the credential belongs to no project: state one, or use an application credential"),
		}
	}
	return project.ID, nil
}

// discover asks what this cloud can do.
func (s *session) discover(ctx context.Context) error {
	versions, err := utils.GetSupportedMicroversions(ctx, s.compute)
	if asked := answerOf(err); asked != nil || isTransport(err) {
		return fmt.Errorf("versions of the compute API: %w", err)
	}
	if err == nil { // an answer without versions is that of an old API
		if s.recent, err = versions.IsSupported(wanted); err != nil {
			return fmt.Errorf("versions of the compute API: %w", err)
		}
	}
	if s.recent {
		s.compute.Microversion = wanted
	}
	pages, err := extensions.List(s.network).AllPages(ctx)
	if err != nil {
		return fmt.Errorf("abilities of the network API: %w", err)
	}
	known, err := extensions.ExtractExtensions(pages)
	if err != nil {
		return fmt.Errorf("abilities of the network API: %w", err)
	}
	for _, e := range known {
		s.floating = s.floating || e.Alias == "router"
	}
	return nil
}
