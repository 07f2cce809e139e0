package ec2fake_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	smithy "github.com/aws/smithy-go"
	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/providers/ec2/ec2fake"
)

// account is an account and the real SDK that speaks to it.
type account struct {
	*sdk.Client
	cloud *ec2fake.Cloud
	now   time.Time
	url   string
}

func newAccount(t *testing.T) *account {
	a := &account{now: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)}
	zones := []string{"eu-central-1a", "eu-central-1b"}
	a.cloud = ec2fake.New(ec2fake.Config{
		Account: "123456789012", Region: "eu-central-1", Keys: map[string]string{"AKID": "secret"}, VCPUs: 8,
		Subnets: []ec2fake.Subnet{{ID: "subnet-a", VPC: "vpc-1", Zone: zones[0]}, {ID: "subnet-b", VPC: "vpc-1", Zone: zones[1]}},
		Images:  []ec2fake.Image{{ID: "ami-1", Name: "node", Owner: "123456789012", Arch: "x86_64", RootDevice: "/dev/xvda", SizeGiB: 8}},
		Types:   []ec2fake.Type{{Name: "m7i.large", Arch: "x86_64", VCPUs: 2, MemoryMiB: 8192, Zones: zones}, {Name: "m8g.large", Arch: "arm64", VCPUs: 2, Zones: zones}},
		Now:     func() time.Time { return a.now }, Timing: ec2fake.Timing{BootTakes: 5 * time.Second, TerminateTakes: 5 * time.Second},
	})
	server := httptest.NewServer(a.cloud)
	t.Cleanup(server.Close)
	a.url = server.URL
	a.Client = a.with("AKID", "secret", "eu-central-1")
	return a
}

func (a *account) with(key, secret, region string) *sdk.Client {
	return sdk.New(sdk.Options{
		Region: region, BaseEndpoint: aws.String(a.url), Retryer: aws.NopRetryer{},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: key, SecretAccessKey: secret}, nil
		}),
	})
}

func launchInput(token string, change ...func(*sdk.RunInstancesInput)) *sdk.RunInstancesInput {
	in := &sdk.RunInstancesInput{
		ClientToken: aws.String(token), ImageId: aws.String("ami-1"), InstanceType: "m7i.large", MinCount: aws.Int32(1), MaxCount: aws.Int32(1),
		SubnetId: aws.String("subnet-a"),
	}
	for _, c := range change {
		c(in)
	}
	return in
}

func (a *account) launch(t *testing.T, in *sdk.RunInstancesInput) string {
	t.Helper()
	out, err := a.RunInstances(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return *out.Instances[0].InstanceId
}

// refused holds an error to the API's own code.
func refused(t *testing.T, err error, code string) {
	t.Helper()
	if api, ok := errors.AsType[smithy.APIError](err); !ok || api.ErrorCode() != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

// Only what was signed with the account's own key, for its region, is served.
func TestSignature(t *testing.T) {
	a := newAccount(t)
	if _, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ key, secret, region, code string }{
		{"AKID", "another", "eu-central-1", "AuthFailure"},
		{"AKIDX", "secret", "eu-central-1", "AuthFailure"},
		{"AKID", "secret", "eu-west-1", "SignatureDoesNotMatch"},
	} {
		_, err := a.with(tt.key, tt.secret, tt.region).DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{})
		refused(t, err, tt.code)
	}
}

// What an action does not take is refused, and a dry run does nothing.
func TestParameters(t *testing.T) {
	a := newAccount(t)
	_, err := a.RunInstances(t.Context(), launchInput("t", func(in *sdk.RunInstancesInput) { in.KeyName = aws.String("k") }))
	refused(t, err, "UnknownParameter")
	_, err = a.RunInstances(t.Context(), launchInput("t", func(in *sdk.RunInstancesInput) { in.DryRun = aws.Bool(true) }))
	refused(t, err, "DryRunOperation")
	for code, change := range map[string]func(*sdk.RunInstancesInput){
		"InvalidAMIID.Malformed":    func(in *sdk.RunInstancesInput) { in.ImageId = aws.String("node") },
		"InvalidAMIID.NotFound":     func(in *sdk.RunInstancesInput) { in.ImageId = aws.String("ami-9") },
		"InvalidSubnetID.NotFound":  func(in *sdk.RunInstancesInput) { in.SubnetId = aws.String("subnet-c") },
		"InvalidParameterValue":     func(in *sdk.RunInstancesInput) { in.InstanceType = "m8g.large" },
		"InvalidUserData.Malformed": func(in *sdk.RunInstancesInput) { in.UserData = aws.String("no base64") },
		"InvalidParameterCombination": func(in *sdk.RunInstancesInput) {
			in.NetworkInterfaces = []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: aws.Int32(0)}}
		},
	} {
		_, err := a.RunInstances(t.Context(), launchInput("t", change))
		refused(t, err, code)
	}
	if left := a.cloud.Existing(); len(left) != 0 {
		t.Errorf("refused launches have left %+v", left)
	}
}

// Client tokens: regional where the subnet names the zone, zonal where Placement
// does, bound to their parameters, and never good for a second machine.
func TestClientToken(t *testing.T) {
	a := newAccount(t)
	first := a.launch(t, launchInput("t"))
	if again := a.launch(t, launchInput("t")); again != first {
		t.Errorf("first %s, again %s", first, again)
	}
	_, err := a.RunInstances(t.Context(), launchInput("t", func(in *sdk.RunInstancesInput) { in.SubnetId = aws.String("subnet-b") }))
	refused(t, err, "IdempotentParameterMismatch")
	zonal := func(in *sdk.RunInstancesInput) {
		in.SubnetId, in.Placement = aws.String("subnet-b"), &types.Placement{AvailabilityZone: aws.String("eu-central-1b")}
	}
	if other := a.launch(t, launchInput("t", zonal)); other == first {
		t.Error("a zone of its own, and the same machine")
	}
	if _, err := a.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{first}}); err != nil {
		t.Fatal(err)
	}
	a.now = a.now.Add(6 * time.Second)
	_, err = a.RunInstances(t.Context(), launchInput("t"))
	refused(t, err, "IdempotentInstanceTerminated")
}

// The limit counts what runs, in vCPUs.
func TestLimit(t *testing.T) {
	a := newAccount(t)
	for _, token := range []string{"1", "2", "3", "4"} {
		a.launch(t, launchInput(token))
	}
	_, err := a.RunInstances(t.Context(), launchInput("5"))
	refused(t, err, "VcpuLimitExceeded")
}

// Values of filters are patterns, and a backslash makes them literal.
func TestFilters(t *testing.T) {
	a := newAccount(t)
	byOwner := map[string]string{}
	for _, owner := range []string{"ab", "a*", "abc"} {
		byOwner[owner] = a.launch(t, launchInput(owner, func(in *sdk.RunInstancesInput) {
			in.TagSpecifications = []types.TagSpecification{{
				ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("owner"), Value: aws.String(owner)}},
			}}
		}))
	}
	for pattern, want := range map[string][]string{
		"ab": {"ab"}, "a*": {"ab", "a*", "abc"}, "ab?": {"ab", "abc"}, `a\*`: {"a*"}, "*c": {"abc"}, "b": nil, "A*": nil,
	} {
		out, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{
			Filters: []types.Filter{{Name: aws.String("tag:owner"), Values: []string{pattern}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		var got, wanted []string
		for _, r := range out.Reservations {
			got = append(got, *r.Instances[0].InstanceId)
		}
		for _, owner := range want {
			wanted = append(wanted, byOwner[owner])
		}
		slices.Sort(wanted)
		if diff := cmp.Diff(wanted, got); diff != "" {
			t.Errorf("%s: %s", pattern, diff)
		}
	}
	_, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{Filters: []types.Filter{{Name: aws.String("mood"), Values: []string{"x"}}}})
	refused(t, err, "InvalidParameterValue")
}

// An instance goes through its states, is seen late, and stays visible for an
// hour after its end; its volume goes with it or stays, as it was told.
func TestLifeOfAnInstance(t *testing.T) {
	a := newAccount(t)
	a.cloud.Tune(ec2fake.Timing{BootTakes: 5 * time.Second, TerminateTakes: 5 * time.Second, ListLag: 3 * time.Second})
	id := a.launch(t, launchInput("t", func(in *sdk.RunInstancesInput) {
		in.BlockDeviceMappings = []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/sdb"), Ebs: &types.EbsBlockDevice{VolumeSize: aws.Int32(5)}}}
	}))
	state := func() types.InstanceStateName {
		t.Helper()
		out, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{id}})
		if err != nil {
			t.Fatal(err)
		}
		return out.Reservations[0].Instances[0].State.Name
	}
	_, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{id}})
	refused(t, err, "InvalidInstanceID.NotFound")
	_, err = a.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{"no-id"}})
	refused(t, err, "InvalidInstanceID.Malformed")
	var states []types.InstanceStateName
	for range 3 {
		a.now = a.now.Add(4 * time.Second)
		states = append(states, state())
		if len(states) == 2 {
			if _, err := a.TerminateInstances(t.Context(), &sdk.TerminateInstancesInput{InstanceIds: []string{id}}); err != nil {
				t.Fatal(err)
			}
			a.now = a.now.Add(time.Second)
		}
	}
	if diff := cmp.Diff([]types.InstanceStateName{"pending", "running", "terminated"}, states); diff != "" {
		t.Error(diff)
	}
	left := a.cloud.Existing()
	if len(left) != 1 || left[0].Kind != "volume" || left[0].State != "available" {
		t.Fatalf("left is %+v", left)
	}
	if _, err := a.DeleteVolume(t.Context(), &sdk.DeleteVolumeInput{VolumeId: aws.String(left[0].ID)}); err != nil {
		t.Error(err)
	}
	a.now = a.now.Add(time.Hour)
	_, err = a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{InstanceIds: []string{id}})
	refused(t, err, "InvalidInstanceID.NotFound")
}

// What is attached can't be deleted.
func TestAttached(t *testing.T) {
	a := newAccount(t)
	id := a.launch(t, launchInput("t"))
	for _, r := range a.cloud.Existing() {
		switch r.Kind {
		case "volume":
			_, err := a.DeleteVolume(t.Context(), &sdk.DeleteVolumeInput{VolumeId: aws.String(r.ID)})
			refused(t, err, "VolumeInUse")
		case "network-interface":
			_, err := a.DeleteNetworkInterface(t.Context(), &sdk.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String(r.ID)})
			refused(t, err, "InvalidParameterValue")
		}
	}
	a.now = a.now.Add(6 * time.Second)
	if err := a.cloud.PowerOff(id); err != nil {
		t.Fatal(err)
	}
	if got := a.cloud.Existing()[0].State; got != "stopped" {
		t.Errorf("a guest that shuts down leaves its instance %s: stop is the default", got)
	}
}

// Pages are bounded, their tokens opaque and of one action.
func TestPages(t *testing.T) {
	a := newAccount(t)
	_, err := a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{MaxResults: aws.Int32(4)})
	refused(t, err, "InvalidParameterValue")
	_, err = a.DescribeVolumes(t.Context(), &sdk.DescribeVolumesInput{NextToken: aws.String(base64.StdEncoding.EncodeToString([]byte("DescribeInstances/1")))})
	refused(t, err, "InvalidPaginationToken")
	_, err = a.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{MaxResults: aws.Int32(5), InstanceIds: []string{"i-1"}})
	refused(t, err, "InvalidParameterCombination")
}

func TestConsoleOutput(t *testing.T) {
	a := newAccount(t)
	id := a.launch(t, launchInput("t"))
	out, err := a.GetConsoleOutput(t.Context(), &sdk.GetConsoleOutputInput{InstanceId: aws.String(id)})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := base64.StdEncoding.DecodeString(*out.Output); err != nil || len(text) == 0 {
		t.Errorf("%q, %v", *out.Output, err)
	}
}
