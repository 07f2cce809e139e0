package ec2

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/ec2/ec2fake"
)

// What is launched is what the contract and the data rules need, word by word.
func TestLaunch(t *testing.T) {
	w := newWorld(t)
	w.buy("tok-1")
	r := w.cloud.Existing()[0]
	want := map[string]string{
		"Action": "RunInstances", "Version": "2016-11-15", "ImageId": "ami-1", "InstanceType": oneGPU, "MinCount": "1", "MaxCount": "1",
		"InstanceInitiatedShutdownBehavior":            "terminate",
		"MetadataOptions.HttpEndpoint":                 "enabled",
		"MetadataOptions.HttpTokens":                   "required",
		"MetadataOptions.HttpPutResponseHopLimit":      "1",
		"MetadataOptions.InstanceMetadataTags":         "disabled",
		"BlockDeviceMapping.1.DeviceName":              "/dev/xvda",
		"BlockDeviceMapping.1.Ebs.Encrypted":           "true",
		"BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
		"BlockDeviceMapping.1.Ebs.VolumeSize":          "200",
		"BlockDeviceMapping.1.Ebs.VolumeType":          "gp3",
		"NetworkInterface.1.DeviceIndex":               "0",
		"NetworkInterface.1.SubnetId":                  "subnet-a",
		"NetworkInterface.1.SecurityGroupId.1":         "sg-1",
		"NetworkInterface.1.DeleteOnTermination":       "true",
		"NetworkInterface.1.AssociatePublicIpAddress":  "false",
	}
	got := map[string]string{}
	for key, value := range r.Asked {
		if !strings.HasPrefix(key, "TagSpecification.") && key != "UserData" && key != "ClientToken" {
			got[key] = value
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if token := r.Asked["ClientToken"]; len(token) != 64 {
		t.Errorf("client token %q", token)
	}
	for _, r := range w.cloud.Existing() {
		tags := map[string]string{
			"Name": "spw-tok-1", "spillway-installation": installation, "spillway-token": "tok-1", "spillway-burst": "0b7c0f52-burst",
			"spillway-tenant": "team-vision", "spillway-type": oneGPU, "spillway-expires": "2026-03-01T20:00:00Z",
		}
		if diff := cmp.Diff(tags, r.Tags); diff != "" {
			t.Errorf("%s: %s", r.Kind, diff)
		}
	}
}

// Every volume of an image is encrypted and goes with its instance, and none is
// smaller than what it is made from.
func TestSecondDisk(t *testing.T) {
	w := newWorld(t)
	d := w.dial(func(c *Config) { c.Image = "ami-3" })
	m, err := d.Create(t.Context(), w.request("tok-1"))
	if err != nil {
		t.Fatal(err)
	}
	asked := w.cloud.Existing()[0].Asked
	for key, want := range map[string]string{
		"1.Ebs.VolumeSize": "300", "1.Ebs.SnapshotId": "", "1.Ebs.Encrypted": "true",
		"2.DeviceName": "/dev/sdb", "2.Ebs.VolumeSize": "50", "2.Ebs.SnapshotId": "snap-3-dev-sdb", "2.Ebs.Encrypted": "true",
	} {
		if got := asked["BlockDeviceMapping."+key]; got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second)
	if left := w.cloud.Existing(); len(left) != 0 {
		t.Errorf("left is %+v", left)
	}
}

// cases: D-35 ray-project/ray#57206, #49097: no stock is a server error, and is
// asked for once.
func TestSoldOutIsAskedOnce(t *testing.T) {
	w := newWorld(t)
	before := w.cloud.Calls("RunInstances")
	req := w.request("tok-1")
	req.Offer.InstanceType = eightGPUs
	_, err := w.Driver.Create(t.Context(), req)
	mustBe(t, err, providers.SoldOut)
	if n := w.cloud.Calls("RunInstances") - before; n != 1 {
		t.Errorf("asked %d times", n)
	}
	if !strings.Contains(err.Error(), "choosing eu-central-1b") {
		t.Errorf("the cloud's hint at other zones is lost: %v", err)
	}
}

// cases: D-36 ubicloud PR#5898, D-51 commonwarexyz/monorepo#2859: another zone
// is another launch.
func TestFallback(t *testing.T) {
	w := newWorld(t)
	first, second := w.request("tok-1"), w.request("tok-2")
	first.Offer.InstanceType, second.Offer.InstanceType = eightGPUs, eightGPUs
	second.Offer.Zone = "eu-central-1b"
	_, err := w.Driver.Create(t.Context(), first)
	mustBe(t, err, providers.SoldOut)
	m, err := w.Driver.Create(t.Context(), second)
	if err != nil || m.Zone != "eu-central-1b" {
		t.Fatalf("%+v, %v", m, err)
	}
	moved := first
	moved.Offer.Zone = "eu-central-1b"
	other := first
	other.Offer.InstanceType = oneGPU
	if a := clientToken(first); a == clientToken(moved) || a == clientToken(other) || a != clientToken(first) {
		t.Error("a client token does not cover type and zone")
	}
}

// cases: D-36: a token that was used with other parameters has bought something
// already; nothing is bought again.
func TestMismatch(t *testing.T) {
	w := newWorld(t)
	slow := times()
	slow.ListLag = 40 * time.Second
	w.cloud.Tune(slow)
	first := w.buy("tok-1")
	req := w.request("tok-1")
	req.UserData = []byte("#cloud-config\n# another token\n")
	_, err := w.Driver.Create(t.Context(), req)
	mustBe(t, err, providers.OutcomeUnknown)
	w.clock.step(time.Minute)
	m, err := w.Driver.Create(t.Context(), req)
	if err != nil || m.ID != first.ID || len(w.audit()) != 1 {
		t.Fatalf("got %q, %v with %d machines, want %q alone", m.ID, err, len(w.audit()), first.ID)
	}
}

// A token buys once: not again after its machine has ended, seen or not.
func TestTokenOfTheGone(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{3 * time.Second, 2 * time.Hour} {
		w.clock.step(wait)
		_, err := w.Driver.Create(t.Context(), w.request("tok-1"))
		mustBe(t, err, providers.Rejected)
		if n := len(w.audit()); n != 0 {
			t.Fatalf("%d machines after %s", n, wait)
		}
	}
}

// The tag of an ended machine counts where EC2's own token can't: it doesn't
// cover another zone.
func TestTokenOfTheGoneInAnotherZone(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second)
	moved := w.request("tok-1")
	moved.Offer.Zone = "eu-central-1b"
	_, err := w.Driver.Create(t.Context(), moved)
	mustBe(t, err, providers.Rejected)
}

func TestUserData(t *testing.T) {
	w := newWorld(t)
	long := w.request("tok-1")
	long.UserData = bytes.Repeat([]byte("#cloud-config\n"), 2000)
	if _, err := w.Driver.Create(t.Context(), long); err != nil {
		t.Errorf("%d bytes that pack well: %v", len(long.UserData), err)
	}
	noise := w.request("tok-2")
	noise.UserData = make([]byte, maxUserData+1)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise.UserData)
	_, err := w.Driver.Create(t.Context(), noise)
	mustBe(t, err, providers.Rejected)
}

// What can't be asked for is refused before the cloud is asked.
func TestRequestRefusals(t *testing.T) {
	w := newWorld(t)
	for name, change := range map[string]func(*providers.Request){
		"spot":            func(r *providers.Request) { r.Offer.CapacityType = "spot" },
		"no zone of ours": func(r *providers.Request) { r.Offer.Zone = "eu-central-1c" },
		"no name":         func(r *providers.Request) { r.Name = "" },
		"token":           func(r *providers.Request) { r.Token = "a/b" },
		"long tag":        func(r *providers.Request) { r.Tenant = strings.Repeat("x", maxTag+1) },
	} {
		t.Run(name, func(t *testing.T) {
			before := w.cloud.Calls("RunInstances")
			req := w.request("tok-1")
			change(&req)
			_, err := w.Driver.Create(t.Context(), req)
			mustBe(t, err, providers.Rejected)
			if w.cloud.Calls("RunInstances") != before {
				t.Error("a launch was sent")
			}
		})
	}
}

// A name means an image of the account itself: anybody can publish one of the
// same name.
func TestImageByName(t *testing.T) {
	w := newWorld(t)
	d := w.dial(func(c *Config) { c.Image = "gpu-node" })
	if _, err := d.Create(t.Context(), w.request("tok-1")); err != nil {
		t.Fatal(err)
	}
	if got := w.cloud.Existing()[0].Asked["ImageId"]; got != "ami-1" {
		t.Errorf("booted from %s", got)
	}
	for _, image := range []string{"gpu-*", "ami-9"} {
		d := w.dial(func(c *Config) { c.Image = image })
		_, err := d.Create(t.Context(), w.request("tok-2"))
		mustBe(t, err, providers.Rejected)
		if providers.ScopeOf(err) != providers.ScopeRegion {
			t.Errorf("image %s: a wrong setting reaches %s", image, providers.ScopeOf(err))
		}
	}
}

// Each code of the API reference means one thing, and what is not known means
// nothing.
func TestMeaning(t *testing.T) {
	for _, tt := range []struct {
		fault ec2fake.Fault
		kind  providers.Kind
		scope providers.Scope
	}{
		{noStock(), providers.SoldOut, providers.ScopeOffer},
		{internal(), providers.OutcomeUnknown, providers.ScopeOffer},
		// cases: D-42 kubernetes-sigs/karpenter#2275: a quota of one family stays there
		{ec2fake.Fault{Status: 400, Code: "VcpuLimitExceeded"}, providers.LimitReached, providers.ScopeOffer},
		{ec2fake.Fault{Status: 400, Code: "InsufficientFreeAddressesInSubnet"}, providers.LimitReached, providers.ScopeZone},
		{ec2fake.Fault{Status: 400, Code: "VolumeLimitExceeded"}, providers.LimitReached, providers.ScopeRegion},
		// cases: D-47 karpenter-provider-aws#7961
		{ec2fake.Fault{Status: 503, Code: "RequestLimitExceeded"}, providers.Throttled, providers.ScopeAccount},
		{ec2fake.Fault{Status: 503, Code: "Unavailable"}, providers.OutcomeUnknown, providers.ScopeOffer},
		{ec2fake.Fault{Status: 401, Code: "AuthFailure"}, providers.Unauthorized, providers.ScopeAccount},
		{ec2fake.Fault{Status: 403, Code: "UnauthorizedOperation"}, providers.Unauthorized, providers.ScopeAccount},
		{ec2fake.Fault{Status: 400, Code: "RequestExpired"}, providers.Unauthorized, providers.ScopeAccount},
		{ec2fake.Fault{Status: 400, Code: "Unsupported"}, providers.Rejected, providers.ScopeOffer},
		{ec2fake.Fault{Status: 400, Code: "InvalidGroup.NotFound"}, providers.Rejected, providers.ScopeRegion},
		{ec2fake.Fault{Status: 400, Code: "SomethingNew"}, providers.OutcomeUnknown, providers.ScopeOffer},
	} {
		t.Run(tt.fault.Code, func(t *testing.T) {
			w := newWorld(t)
			tt.fault.Action, tt.fault.Effect = "RunInstances", ec2fake.Refused
			w.cloud.Script(tt.fault)
			_, err := w.Driver.Create(t.Context(), w.request("tok-1"))
			mustBe(t, err, tt.kind)
			if got := providers.ScopeOf(err); got != tt.scope {
				t.Errorf("reaches %s, want %s", got, tt.scope)
			}
			if !strings.Contains(err.Error(), tt.fault.Code) {
				t.Errorf("the cloud's own words are lost: %v", err)
			}
		})
	}
}
