package openstack

import (
	"context"
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/flavors"
	"github.com/gophercloud/gophercloud/v2/openstack/image/v2/images"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/extensions/security/groups"
	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/networks"

	"spillway.dev/spillway/providers"
)

// flavorNamed is the id of a flavor. Flavors are few and their names unique.
func (d *Driver) flavorNamed(ctx context.Context, s *session, name string) (string, error) {
	all, err := listFlavors(ctx, s)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, f := range all {
		if f.Name == name {
			ids = append(ids, f.ID)
		}
	}
	return only("flavor", name, ids)
}

func listFlavors(ctx context.Context, s *session) ([]flavors.Flavor, error) {
	pages, err := flavors.ListDetail(s.compute, flavors.ListOpts{}).AllPages(ctx)
	if err != nil {
		return nil, err
	}
	return flavors.ExtractFlavors(pages)
}

// imageNamed is an image. Names of images are not unique.
func imageNamed(ctx context.Context, s *session, name string) (images.Image, error) {
	if looksLikeID(name) {
		image, err := images.Get(ctx, s.image, name).Extract()
		if err != nil {
			return images.Image{}, fmt.Errorf("image %s: %w", name, err)
		}
		return *image, nil
	}
	pages, err := images.List(s.image, images.ListOpts{Name: name, Status: images.ImageStatusActive}).AllPages(ctx)
	if err != nil {
		return images.Image{}, fmt.Errorf("image %q: %w", name, err)
	}
	found, err := images.ExtractImages(pages)
	if err != nil {
		return images.Image{}, fmt.Errorf("image %q: %w", name, err)
	}
	var ids []string
	for _, i := range found {
		ids = append(ids, i.ID)
	}
	if _, err := only("image", name, ids); err != nil {
		return images.Image{}, err
	}
	return found[0], nil
}

// archOf is the architecture that an image says it is for, in Kubernetes' words.
func archOf(image images.Image) string {
	if image.Properties["architecture"] == "aarch64" {
		return "arm64"
	}
	return "amd64"
}

// networkNamed is the id of a network.
func networkNamed(ctx context.Context, s *session, name string) (string, error) {
	if looksLikeID(name) {
		return name, nil
	}
	pages, err := networks.List(s.network, networks.ListOpts{Name: name}).AllPages(ctx)
	if err != nil {
		return "", fmt.Errorf("network %q: %w", name, err)
	}
	found, err := networks.ExtractNetworks(pages)
	if err != nil {
		return "", fmt.Errorf("network %q: %w", name, err)
	}
	var ids []string
	for _, n := range found {
		ids = append(ids, n.ID)
	}
	return only("network", name, ids)
}

// groupNamed is the id of a security group of the account's own project.
func groupNamed(ctx context.Context, s *session, name string) (string, error) {
	if looksLikeID(name) {
		return name, nil
	}
	pages, err := groups.List(s.network, groups.ListOpts{Name: name, ProjectID: s.project}).AllPages(ctx)
	if err != nil {
		return "", fmt.Errorf("security group %q: %w", name, err)
	}
	found, err := groups.ExtractGroups(pages)
	if err != nil {
		return "", fmt.Errorf("security group %q: %w", name, err)
	}
	var ids []string
	for _, g := range found {
		ids = append(ids, g.ID)
	}
	return only("security group", name, ids)
}

// only picks the one thing that a name may mean.
func only(what, name string, ids []string) (string, error) {
	switch len(ids) {
	case 1:
		return ids[0], nil
	case 0:
		return "", &verdict{
			providers.Rejected, providers.ScopeRegion,
			fmt.Errorf("the cloud shows no %s named %q: correct the name in the provider's settings", what, name),
		}
	default:
		return "", &verdict{
			providers.Rejected, providers.ScopeRegion,
			fmt.Errorf("%d %ss are named %q: state the id in the provider's settings", len(ids), what, name),
		}
	}
}

// looksLikeID reports whether a setting is an id: those need no look-up.
func looksLikeID(s string) bool {
	return len(strings.ReplaceAll(s, "-", "")) == 32 && strings.Trim(s, "0123456789abcdef-") == ""
}
