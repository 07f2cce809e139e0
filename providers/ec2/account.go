package ec2

import (
	"context"
	"fmt"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// account is what the credential has shown: that it belongs to the account of
// the settings, and where machines can be attached there.
type account struct {
	subnets map[string]string // by zone
	missing []string          // subnets of the settings that are not there
}

// account looks at the account once. A look that fails is repeated by the next
// call.
func (d *Driver) account(ctx context.Context, op string) (*account, error) {
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
	case <-ctx.Done():
		return nil, failure(op, ctx.Err())
	}
	if d.open != nil {
		return d.open, nil
	}
	// By filter and not by id: one that is missing must not hide the others, or
	// nothing could be deleted before the settings are right.
	in := &sdk.DescribeSubnetsInput{Filters: []types.Filter{{Name: aws.String("subnet-id")}}}
	for _, id := range d.config.Subnets {
		in.Filters[0].Values = append(in.Filters[0].Values, exactly(id))
	}
	zones := map[string]string{}
	err := eachPage(ctx, d.api.describeSubnets, in, &in.NextToken, func(page *sdk.DescribeSubnetsOutput) *string {
		for _, s := range page.Subnets {
			zones[aws.ToString(s.SubnetId)] = aws.ToString(s.AvailabilityZone)
		}
		return page.NextToken
	})
	if err != nil {
		return nil, failure(op, err)
	}
	a := &account{subnets: map[string]string{}}
	for _, id := range d.config.Subnets {
		switch zone, there := zones[id]; {
		case !there:
			a.missing = append(a.missing, id)
		case a.subnets[zone] == "":
			a.subnets[zone] = id
		}
	}
	if len(a.subnets) == 0 {
		return nil, failure(op, a.incomplete())
	}
	if len(a.missing) == 0 { // else it is looked at again: somebody may be making them
		d.open = a
	}
	return a, nil
}

// incomplete says that subnets of the settings are not there, or returns nil.
func (a *account) incomplete() error {
	if len(a.missing) == 0 {
		return nil
	}
	return &verdict{
		providers.Rejected, providers.ScopeRegion,
		fmt.Errorf("the account has no subnets %q: correct the provider's subnets, or its credential if that belongs to another account", a.missing),
	}
}

// image is the image that machines boot from. A name counts among the account's
// own images only: anybody may publish an image of any name.
func (d *Driver) image(ctx context.Context) (types.Image, error) {
	in := &sdk.DescribeImagesInput{ImageIds: []string{d.config.Image}}
	if !strings.HasPrefix(d.config.Image, "ami-") {
		in = &sdk.DescribeImagesInput{
			Owners: []string{"self"},
			Filters: []types.Filter{
				{Name: aws.String("name"), Values: []string{exactly(d.config.Image)}},
				{Name: aws.String("state"), Values: []string{"available"}},
			},
		}
	}
	out, err := d.api.describeImages(ctx, in)
	if err != nil {
		return types.Image{}, err
	}
	if len(out.Images) != 1 {
		return types.Image{}, &verdict{
			providers.Rejected, providers.ScopeRegion,
			fmt.Errorf("the account owns %d images named %q: correct the name, or state an id, in the provider's settings", len(out.Images), d.config.Image),
		}
	}
	if out.Images[0].RootDeviceType != types.DeviceTypeEbs {
		return types.Image{}, &verdict{
			providers.Rejected, providers.ScopeRegion,
			fmt.Errorf("image %s does not boot from a volume, so its disk can't be encrypted: choose another in the provider's settings", d.config.Image),
		}
	}
	return out.Images[0], nil
}

// archOf is an architecture in Kubernetes' words, or "" for one that no node has.
func archOf(a string) string {
	return map[string]string{"x86_64": "amd64", "arm64": "arm64"}[a]
}
