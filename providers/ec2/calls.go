package ec2

import (
	"context"
	"errors"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
)

// call is one action of the API.
type call[In, Out any] func(context.Context, *In, ...func(*sdk.Options)) (*Out, error)

// calls are the actions that the driver asks for. They are held as functions and
// not as the SDK's client, which has hundreds: behind an interface or in reach of
// reflection the linker would keep all of them, 36 MB of a binary.
type calls struct {
	runInstances       call[sdk.RunInstancesInput, sdk.RunInstancesOutput]
	describeInstances  call[sdk.DescribeInstancesInput, sdk.DescribeInstancesOutput]
	terminateInstances call[sdk.TerminateInstancesInput, sdk.TerminateInstancesOutput]
	createTags         call[sdk.CreateTagsInput, sdk.CreateTagsOutput]
	describeVolumes    call[sdk.DescribeVolumesInput, sdk.DescribeVolumesOutput]
	deleteVolume       call[sdk.DeleteVolumeInput, sdk.DeleteVolumeOutput]
	describeInterfaces call[sdk.DescribeNetworkInterfacesInput, sdk.DescribeNetworkInterfacesOutput]
	deleteInterface    call[sdk.DeleteNetworkInterfaceInput, sdk.DeleteNetworkInterfaceOutput]
	describeSubnets    call[sdk.DescribeSubnetsInput, sdk.DescribeSubnetsOutput]
	describeImages     call[sdk.DescribeImagesInput, sdk.DescribeImagesOutput]
	describeTypes      call[sdk.DescribeInstanceTypesInput, sdk.DescribeInstanceTypesOutput]
	describeOfferings  call[sdk.DescribeInstanceTypeOfferingsInput, sdk.DescribeInstanceTypeOfferingsOutput]
}

func newCalls(options sdk.Options) calls {
	c := sdk.New(options)
	return calls{
		runInstances: c.RunInstances, describeInstances: c.DescribeInstances, terminateInstances: c.TerminateInstances,
		createTags: c.CreateTags, describeVolumes: c.DescribeVolumes, deleteVolume: c.DeleteVolume,
		describeInterfaces: c.DescribeNetworkInterfaces, deleteInterface: c.DeleteNetworkInterface,
		describeSubnets: c.DescribeSubnets, describeImages: c.DescribeImages,
		describeTypes: c.DescribeInstanceTypes, describeOfferings: c.DescribeInstanceTypeOfferings,
	}
}

// eachPage reads a list to its end. Read takes a page and returns the token of
// the next one; token is where the request names it.
func eachPage[In, Out any](ctx context.Context, do call[In, Out], in *In, token **string, read func(*Out) *string) error {
	for {
		page, err := do(ctx, in)
		if err != nil {
			return err
		}
		next := read(page)
		switch aws.ToString(next) {
		case "":
			return nil
		case aws.ToString(*token):
			return errors.New("the cloud's list does not end: its next page is the one that was read")
		}
		*token = next
	}
}
