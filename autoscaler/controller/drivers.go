package controller

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/ec2"
	"spillway.dev/spillway/providers/openstack"
)

// drivers keeps one driver a provider, and makes a new one when the provider's
// object or its credential changes.
type drivers struct {
	reader       client.Reader
	dialers      map[string]Dialer
	installation string
	accounts     *accounts // used under mu

	mu   sync.Mutex
	made map[string]madeDriver
}

type madeDriver struct {
	version string
	driver  providers.Driver
}

// of returns the driver of a provider with the credential that is valid now.
func (d *drivers) of(ctx context.Context, provider string) (providers.Driver, error) {
	p := &v1alpha1.BurstProvider{}
	if err := d.reader.Get(ctx, types.NamespacedName{Name: provider}, p); err != nil {
		return nil, fmt.Errorf("read provider %s: %w", provider, err)
	}
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: p.Spec.CredentialsSecret}
	if err := d.reader.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("credential of provider %s, Secret %s: %w", provider, key, err)
	}
	version := fmt.Sprintf("%d/%s", p.Generation, secret.ResourceVersion)
	d.mu.Lock()
	defer d.mu.Unlock()
	if made, ok := d.made[provider]; ok && made.version == version {
		return made.driver, nil
	}
	dial, ok := d.dialers[p.Spec.Driver]
	if !ok {
		return nil, fmt.Errorf("provider %s wants driver %q, which this build does not have", provider, p.Spec.Driver)
	}
	driver, err := dial(p, secret.Data, d.installation)
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", provider, err)
	}
	if d.made == nil {
		d.made = map[string]madeDriver{}
	}
	driver = d.accounts.around(provider, driver)
	d.made[provider] = madeDriver{version, driver}
	return driver, nil
}

// DialOpenStack is the driver "openstack" for [Config.Dialers]. The credentials
// Secret holds clouds.yaml; see [openstack.ReadLogin].
func DialOpenStack(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (providers.Driver, error) {
	config, err := OpenStackConfig(p, credential, installation)
	if err != nil {
		return nil, err
	}
	d, err := openstack.New(config)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// OpenStackConfig reads the driver's settings from a provider and its credential.
func OpenStackConfig(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (openstack.Config, error) {
	login, err := openstack.ReadLogin(credential, p.Spec.Region)
	if err != nil {
		return openstack.Config{}, fmt.Errorf("credential of provider %s, Secret %s/%s: %w", p.Name, v1alpha1.SystemNamespace, p.Spec.CredentialsSecret, err)
	}
	if p.Spec.Endpoint != "" {
		login.Auth.IdentityEndpoint = p.Spec.Endpoint
	}
	m := p.Spec.Machines
	gpus := map[string]openstack.GPU{}
	for flavor, stated := range m.GPUs {
		gpus[flavor] = openstack.GPU{Model: stated.Model, Count: int(stated.Count)}
	}
	return openstack.Config{
		Provider: p.Name, Region: p.Spec.Region, Country: p.Spec.Country, Installation: installation, Login: login,
		Image: m.Image, Network: m.Network, SecurityGroups: m.SecurityGroups, Addresses: m.AddressNetwork, GPUs: gpus,
	}, nil
}

// amazonPool is the one source of public addresses that EC2's driver knows, by
// EC2's own name for it.
const amazonPool = "amazon"

// DialEC2 is the driver "ec2" for [Config.Dialers]. The credentials Secret holds
// accessKey and secretKey; see [ec2.ReadLogin].
func DialEC2(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (providers.Driver, error) {
	config, err := EC2Config(p, credential, installation)
	if err != nil {
		return nil, err
	}
	d, err := ec2.New(config)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// EC2Config reads the driver's settings from a provider and its credential.
func EC2Config(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (ec2.Config, error) {
	login, err := ec2.ReadLogin(credential)
	if err != nil {
		return ec2.Config{}, fmt.Errorf("credential of provider %s, Secret %s/%s: %w", p.Name, v1alpha1.SystemNamespace, p.Spec.CredentialsSecret, err)
	}
	m := p.Spec.Machines
	if m.AddressNetwork != "" && m.AddressNetwork != amazonPool {
		return ec2.Config{}, fmt.Errorf("machines.addressNetwork is %q: at EC2 it can be %q, or empty for no public address", m.AddressNetwork, amazonPool)
	}
	gpus := map[string]ec2.GPU{}
	for name, stated := range m.GPUs {
		gpus[name] = ec2.GPU{Model: stated.Model, Count: int(stated.Count)}
	}
	return ec2.Config{
		Provider: p.Name, Region: p.Spec.Region, Country: p.Spec.Country, Installation: installation,
		Endpoint: p.Spec.Endpoint, Login: login, Image: m.Image, Subnets: m.Subnets, SecurityGroups: m.SecurityGroups,
		PublicAddress: m.AddressNetwork == amazonPool, DiskGiB: int(m.DiskGiB), GPUs: gpus,
	}, nil
}
