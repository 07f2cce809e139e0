package openstack

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"
	"sigs.k8s.io/yaml"
)

// The keys of a credentials Secret.
const (
	keyClouds = "clouds.yaml" // as Horizon hands it out
	keyCloud  = "cloud"       // which of its clouds; empty means DefaultCloud
	keyCA     = "ca.crt"      // PEM; certificate authorities of a private cloud
)

// DefaultCloud is the entry of a clouds.yaml that counts when none is named:
// Horizon gives this name to what it hands out.
const DefaultCloud = "openstack"

// ReadLogin reads the data of a credentials Secret: clouds.yaml, and optionally
// cloud and ca.crt. Files and environment variables of this process are not
// looked at.
func ReadLogin(secret map[string][]byte, region string) (Login, error) {
	text := secret[keyClouds]
	if len(text) == 0 {
		return Login{}, fmt.Errorf("the Secret has no key %s: put the cloud's file of that name there", keyClouds)
	}
	name := string(bytes.TrimSpace(secret[keyCloud]))
	if name == "" {
		name = DefaultCloud
	}
	if err := checkEntry(text, name); err != nil {
		return Login{}, err
	}
	auth, endpoint, config, err := clouds.Parse(
		clouds.WithCloudsYAML(bytes.NewReader(text)), clouds.WithCloudName(name), clouds.WithRegion(region),
		clouds.WithEndpointType(""), clouds.WithCloudsPublicYAML(bytes.NewReader([]byte("public-clouds: {}"))),
	)
	if err != nil {
		return Login{}, fmt.Errorf("%s, cloud %q: %w", keyClouds, name, err)
	}
	auth.AllowReauth = true // a token lives an hour, a driver for months
	if pem := secret[keyCA]; len(pem) > 0 {
		if config == nil {
			config = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return Login{}, fmt.Errorf("%s: no certificate in it", keyCA)
		}
	}
	return Login{Auth: auth, Endpoint: endpoint, TLS: config}, nil
}

// checkEntry refuses what the library would not survive.
func checkEntry(text []byte, name string) error {
	var file struct {
		Clouds map[string]struct {
			Auth struct {
				URL string `json:"auth_url"`
			} `json:"auth"`
		} `json:"clouds"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %w", keyClouds, err)
	}
	entry, found := file.Clouds[name]
	switch {
	case !found:
		return fmt.Errorf("%s has no cloud %q: it has %q; name one under the key %s", keyClouds, name, slices.Sorted(maps.Keys(file.Clouds)), keyCloud)
	case entry.Auth.URL == "":
		return fmt.Errorf("%s, cloud %q: auth.auth_url is missing", keyClouds, name)
	}
	return nil
}

// check names everything that is missing, at once.
func (c *Config) check() error {
	var missing []error
	for _, f := range []struct{ name, value string }{
		{"provider", c.Provider},
		{"region", c.Region},
		{"installation", c.Installation},
		{"image", c.Image},
		{"network", c.Network},
		{"auth_url", c.Login.Auth.IdentityEndpoint},
	} {
		if f.value == "" {
			missing = append(missing, fmt.Errorf("openstack: %s is not set", f.name))
		}
	}
	return errors.Join(missing...)
}
