package ec2

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"spillway.dev/spillway/providers"
)

// Usage implements [providers.UsageReporter]. EC2 shows an instance for about an
// hour after its end, and says when the end was asked for: from then on it is
// not billed.
func (d *Driver) Usage(ctx context.Context, token string) (providers.Machine, error) {
	const op = "usage"
	if _, err := d.account(ctx, op); err != nil {
		return providers.Machine{}, err
	}
	found, err := d.describe(ctx, &sdk.DescribeInstancesInput{
		Filters: []types.Filter{tagged(keyInstallation, d.config.Installation), tagged(keyToken, token)}, MaxResults: aws.Int32(pageSize),
	})
	if err != nil {
		return providers.Machine{}, failure(op, err)
	}
	found = slices.DeleteFunc(found, func(i instance) bool {
		return i.mark.token != token || i.mark.installation != d.config.Installation
	})
	if len(found) == 0 {
		return providers.Machine{}, &providers.Error{
			Kind: providers.NotFound, Op: op, Err: fmt.Errorf("no instance of the last hour carries token %s", token),
		}
	}
	last := slices.MaxFunc(found, func(a, b instance) int { return aws.ToTime(a.LaunchTime).Compare(aws.ToTime(b.LaunchTime)) })
	m := d.machine(last, nil)
	if last.State != nil && last.State.Name == types.InstanceStateNameTerminated {
		m.Deleted = transition(aws.ToString(last.StateTransitionReason))
	}
	return m, nil
}

// transition reads the time out of a reason such as "User initiated (2026-03-01
// 10:00:05 GMT)". Where there is none, the zero time: whoever asked for the end
// has a time of his own.
func transition(reason string) time.Time {
	m := regexp.MustCompile(`\((\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}) (?:GMT|UTC)\)`).FindStringSubmatch(reason)
	if m == nil {
		return time.Time{}
	}
	t, err := time.Parse(time.DateTime, m[1])
	if err != nil {
		return time.Time{}
	}
	return t
}
