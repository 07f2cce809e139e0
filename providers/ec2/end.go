package ec2

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// List implements [providers.Driver].
func (d *Driver) List(ctx context.Context) ([]providers.Machine, error) {
	const op = "list"
	if _, err := d.account(ctx, op); err != nil {
		return nil, err
	}
	held, err := d.hold(ctx)
	if err != nil {
		return nil, failure(op, err)
	}
	return d.machines(held), nil
}

// Delete implements [providers.Driver].
func (d *Driver) Delete(ctx context.Context, id string) error {
	const op = "delete"
	if _, err := d.account(ctx, op); err != nil {
		return err
	}
	if token, ok := strings.CutPrefix(id, leftover); ok {
		return failure(op, d.deleteLeftover(ctx, token))
	}
	i, err := d.own(ctx, id)
	if err != nil {
		return failure(op, err)
	}
	held, err := d.holdOf(ctx, i.mark.token)
	if err != nil {
		return failure(op, err)
	}
	return failure(op, d.remove(ctx, i, held))
}

// remove asks for the end of an instance, then of the parts that nothing holds;
// parts that are attached go with their instance. What fails with parts never
// keeps the instance.
func (d *Driver) remove(ctx context.Context, i instance, held holding) error {
	id := aws.ToString(i.InstanceId)
	var err error
	switch i.state() {
	case providers.StateDeleted:
		if len(held.parts) == 0 {
			return ended(providers.NotFound, id)
		}
	case providers.StateDeleting: // asked for
	case providers.StateFailed:
		err = d.forget(ctx, id)
	default:
		_, err = d.api.terminateInstances(ctx, &sdk.TerminateInstancesInput{InstanceIds: []string{id}})
		err = unsettled(err)
	}
	if slices.ContainsFunc(held.alive(), func(other instance) bool { return aws.ToString(other.InstanceId) != id }) {
		return err // a duplicate goes; what is free may be the other's
	}
	return errors.Join(err, d.removeParts(ctx, held.parts))
}

// forget lets the entry of a failed launch leave the list: it costs nothing. The
// tag tells other processes; where EC2 takes none on what has terminated, this
// process remembers by itself until EC2 has forgotten.
func (d *Driver) forget(ctx context.Context, id string) error {
	err := d.tag(ctx, id, tag(keyEnded, providers.Stamp(time.Now())))
	switch kind, _ := meaning(codeOf(err)); {
	case err == nil, codeOf(err) != "" && kind != providers.Throttled && kind != providers.Unauthorized:
		d.over.note(id, struct{}{}, time.Now())
		return nil
	default:
		return err
	}
}

// deleteLeftover removes the parts of a token of which no instance lives.
func (d *Driver) deleteLeftover(ctx context.Context, token string) error {
	held, err := d.holdOf(ctx, token)
	if err != nil {
		return err
	}
	if alive := held.alive(); len(alive) > 0 {
		return fmt.Errorf("instance %s carries token %s: delete it by its own id", aws.ToString(alive[0].InstanceId), token)
	}
	if len(held.parts) == 0 {
		return &verdict{providers.NotFound, providers.ScopeOffer, fmt.Errorf("nothing carries token %s", token)}
	}
	return d.removeParts(ctx, held.parts)
}

// removeParts deletes the parts that are attached to nothing.
func (d *Driver) removeParts(ctx context.Context, parts []part) error {
	var failed []error
	for _, p := range parts {
		if p.instance != "" || p.going {
			continue
		}
		var err error
		if p.Kind == kindVolume {
			_, err = d.api.deleteVolume(ctx, &sdk.DeleteVolumeInput{VolumeId: aws.String(p.ID)})
		} else {
			_, err = d.api.deleteInterface(ctx, &sdk.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(p.ID)})
		}
		if err != nil && !gone(err) {
			failed = append(failed, fmt.Errorf("%s %s: %w", p.Kind, p.ID, err))
		}
	}
	return errors.Join(failed...)
}

// own returns an instance of this installation. One of another is not found: it
// is none of ours, and it stays untouched. One that was made a moment ago may be
// unknown to the cloud, which proves nothing.
// cases: D-39 karpenter#371, #4165
func (d *Driver) own(ctx context.Context, id string) (instance, error) {
	found, err := d.describe(ctx, &sdk.DescribeInstancesInput{InstanceIds: []string{id}})
	switch kind, _ := meaning(codeOf(err)); {
	case kind == providers.NotFound:
		if _, fresh := d.made.read(id, time.Now()); fresh {
			return instance{}, &verdict{err: fmt.Errorf("instance %s was made just now and is not visible yet: %w", id, err)}
		}
		return instance{}, err
	case err != nil:
		return instance{}, err
	}
	for _, i := range found {
		if aws.ToString(i.InstanceId) == id && i.mark.installation == d.config.Installation {
			return i, nil
		}
	}
	return instance{}, &verdict{providers.NotFound, providers.ScopeOffer, fmt.Errorf("instance %s belongs to somebody else", id)}
}

// Extend implements [providers.Driver].
func (d *Driver) Extend(ctx context.Context, id string, until time.Time) error {
	const op = "extend"
	done, err := d.turn(ctx, id)
	if err != nil {
		return failure(op, err)
	}
	defer done()
	if _, err := d.account(ctx, op); err != nil {
		return err
	}
	i, err := d.own(ctx, id)
	switch {
	case err != nil:
		return failure(op, err)
	case i.state() == providers.StateDeleted:
		return failure(op, ended(providers.NotFound, id))
	case !until.After(i.mark.expires):
		return nil
	}
	if last, ok := d.stamps.read(id, time.Now()); ok && !until.After(last) {
		return nil // tags may lag behind what was written
	}
	if err := d.tag(ctx, id, tag(keyExpires, providers.Stamp(until))); err != nil {
		return failure(op, err)
	}
	d.stamps.note(id, until, time.Now())
	return nil
}

// tag writes a tag of an instance that was seen.
func (d *Driver) tag(ctx context.Context, id string, t types.Tag) error {
	_, err := d.api.createTags(ctx, &sdk.CreateTagsInput{Resources: []string{id}, Tags: []types.Tag{t}})
	return unsettled(err)
}

// unsettled keeps a not-found about an instance that was seen a moment ago from
// passing for its end: one part of the cloud knows more than another.
func unsettled(err error) error {
	if kind, _ := meaning(codeOf(err)); kind == providers.NotFound {
		return &verdict{err: err}
	}
	return err
}
