package ec2

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

const opCreate = "create"

// maxUserData is the most user data that EC2 takes, before it is encoded.
const maxUserData = 16 << 10

// Create implements [providers.Driver].
func (d *Driver) Create(ctx context.Context, req providers.Request) (providers.Machine, error) {
	data, err := d.checkRequest(req)
	if err != nil {
		return providers.Machine{}, &providers.Error{Kind: providers.Rejected, Op: opCreate, Err: err}
	}
	a, err := d.account(ctx, opCreate)
	if err != nil {
		return providers.Machine{}, err
	}
	held, err := d.holdOf(ctx, req.Token)
	if err != nil {
		return providers.Machine{}, failure(opCreate, err)
	}
	if alive := held.alive(); len(alive) > 0 {
		return d.machine(alive[0], held.partsOf(aws.ToString(alive[0].InstanceId), true)), nil
	}
	if len(held.instances) > 0 { // bought and over: a token buys once
		return providers.Machine{}, failure(opCreate, ended(providers.Rejected, aws.ToString(held.instances[0].InstanceId)))
	}
	i, err := d.launch(ctx, a, req, data)
	d.notice(req.Offer, err, time.Now())
	if err != nil {
		return providers.Machine{}, d.clear(ctx, req.Token, failure(opCreate, err))
	}
	if i.state() == providers.StateDeleted {
		return providers.Machine{}, failure(opCreate, ended(providers.Rejected, aws.ToString(i.InstanceId)))
	}
	d.made.note(aws.ToString(i.InstanceId), struct{}{}, time.Now())
	return d.machine(i, nil), nil
}

// checkRequest refuses what EC2 would refuse, and returns the user data in a
// form that EC2 takes: cloud-init unpacks what is packed.
func (d *Driver) checkRequest(req providers.Request) ([]byte, error) {
	switch {
	case req.Installation != d.config.Installation:
		return nil, fmt.Errorf("request is of installation %q, this driver acts for %q", req.Installation, d.config.Installation)
	case req.Offer.CapacityType != onDemand:
		return nil, fmt.Errorf("capacity type %q: only %q is bought at EC2", req.Offer.CapacityType, onDemand)
	}
	data := req.UserData
	if len(data) > maxUserData {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed) // names no time: equal data are packed equally
		_, err := w.Write(data)
		if err = errors.Join(err, w.Close()); err != nil {
			return nil, err
		}
		if data = packed.Bytes(); len(data) > maxUserData {
			return nil, fmt.Errorf("user data of %d bytes, %d packed: at most %d", len(req.UserData), len(data), maxUserData)
		}
	}
	return data, checkMark(req)
}

// launch sends the one call that buys.
func (d *Driver) launch(ctx context.Context, a *account, req providers.Request, userData []byte) (instance, error) {
	subnet, ok := a.subnets[req.Offer.Zone]
	if !ok {
		return instance{}, &verdict{
			providers.Rejected, providers.ScopeZone,
			fmt.Errorf("none of the provider's subnets lies in zone %q: add one, or leave the zone out of the plan", req.Offer.Zone),
		}
	}
	image, err := d.image(ctx)
	if err != nil {
		return instance{}, err
	}
	in := &sdk.RunInstancesInput{
		ClientToken: aws.String(clientToken(req)), ImageId: image.ImageId, InstanceType: types.InstanceType(req.Offer.InstanceType),
		MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		UserData:                          aws.String(base64.StdEncoding.EncodeToString(userData)),
		InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate, // the dead-man's half that needs no cloud
		MetadataOptions: &types.InstanceMetadataOptionsRequest{
			HttpEndpoint: types.InstanceMetadataEndpointStateEnabled, HttpTokens: types.HttpTokensStateRequired,
			HttpPutResponseHopLimit: aws.Int32(1), // the host's own cloud-init, not the pods
			InstanceMetadataTags:    types.InstanceMetadataTagsStateDisabled,
		},
		BlockDeviceMappings: d.disks(image),
		// The subnet alone names the zone: with a zone in Placement, EC2 would
		// take the same client token again in another zone.
		NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{{
			DeviceIndex: aws.Int32(0), SubnetId: aws.String(subnet), Groups: d.config.SecurityGroups,
			DeleteOnTermination: aws.Bool(true), AssociatePublicIpAddress: aws.Bool(d.config.PublicAddress),
		}},
	}
	for _, kind := range []types.ResourceType{types.ResourceTypeInstance, types.ResourceTypeVolume, types.ResourceTypeNetworkInterface} {
		in.TagSpecifications = append(in.TagSpecifications, types.TagSpecification{ResourceType: kind, Tags: markOf(req).tags()})
	}
	out, err := d.api.runInstances(ctx, in)
	if err != nil {
		return instance{}, err
	}
	if len(out.Instances) != 1 || aws.ToString(out.Instances[0].InstanceId) == "" {
		return instance{}, fmt.Errorf("the cloud accepted the launch and named %d instances", len(out.Instances))
	}
	return instance{out.Instances[0], markOf(req)}, nil
}

// disks lays our will over the volumes of an image: all are encrypted and go
// with the instance.
func (d *Driver) disks(image types.Image) []types.BlockDeviceMapping {
	var all []types.BlockDeviceMapping
	for _, m := range image.BlockDeviceMappings {
		if m.Ebs == nil {
			continue
		}
		disk := &types.EbsBlockDevice{Encrypted: aws.Bool(true), DeleteOnTermination: aws.Bool(true), VolumeType: types.VolumeTypeGp3}
		if aws.ToString(m.DeviceName) == aws.ToString(image.RootDeviceName) {
			disk.VolumeSize = aws.Int32(d.rootGiB(image)) // its snapshot can't be named
		} else {
			disk.VolumeSize, disk.SnapshotId = m.Ebs.VolumeSize, m.Ebs.SnapshotId
		}
		all = append(all, types.BlockDeviceMapping{DeviceName: m.DeviceName, Ebs: disk})
	}
	return all
}

// rootGiB is the size of the root volume.
func (d *Driver) rootGiB(image types.Image) int32 {
	size := int32(d.config.DiskGiB)
	if size == 0 {
		size = defaultDiskGiB
	}
	for _, m := range image.BlockDeviceMappings {
		if m.Ebs != nil && aws.ToString(m.DeviceName) == aws.ToString(image.RootDeviceName) {
			size = max(size, aws.ToInt32(m.Ebs.VolumeSize))
		}
	}
	return size
}

// clear looks for what a refused launch has left and removes it. EC2 states that
// there is nothing; a look is cheaper than a leak. After an unknown outcome
// everything stays: an instance may be using it.
func (d *Driver) clear(ctx context.Context, token string, refused error) error {
	if !providers.KindOf(refused).Refusal() {
		return refused
	}
	left, err := d.holdOf(ctx, token)
	if err == nil {
		err = d.removeParts(ctx, left.parts)
	}
	for _, i := range left.alive() {
		err = errors.Join(err, fmt.Errorf("instance %s carries the token all the same", aws.ToString(i.InstanceId)))
	}
	for _, p := range left.parts {
		if p.instance != "" {
			err = errors.Join(err, fmt.Errorf("%s %s is attached to instance %s", p.Kind, p.ID, p.instance))
		}
	}
	if err == nil {
		return refused
	}
	return &providers.Error{
		Kind: providers.CleanupFailed, Scope: providers.ScopeAccount, Op: opCreate,
		Err: fmt.Errorf("%w; and what it may have left could not be removed: %w", refused, err),
	}
}
