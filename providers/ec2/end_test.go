package ec2

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/ec2/ec2fake"
)

// The guest's own shutdown ends the bill: the dead-man's half that needs neither
// controller nor cloud API.
func TestShutdownOfTheGuest(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	w.clock.step(6 * time.Second)
	if err := w.cloud.PowerOff(m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second)
	if list := w.list(); len(list) != 0 || len(w.audit()) != 0 {
		t.Errorf("listed %+v, billed %+v", list, w.audit())
	}
}

// What outlives its instance is listed, with the id of a leftover, until it is
// deleted. cases: D-1 family, notes on EBS without DeleteOnTermination
func TestPartsThatStay(t *testing.T) {
	w := newWorld(t)
	w.cloud.Script(ec2fake.Fault{Action: "RunInstances", Effect: ec2fake.KeepsParts})
	m := w.buy("tok-1")
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second)
	list := w.list()
	if len(list) != 1 || list[0].ID != "leftover:tok-1" || list[0].State != providers.StateLeftover || len(list[0].Parts) != 2 {
		t.Fatalf("listed %+v", list)
	}
	if list[0].Expires.IsZero() || list[0].InstanceType != oneGPU || list[0].Zone != "eu-central-1a" {
		t.Errorf("a sweeper can't tell what it is: %+v", list[0])
	}
	// Its instance's id leads there as well, while EC2 still shows it.
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if list := w.list(); len(list) != 0 || len(w.cloud.Existing()) != 0 {
		t.Errorf("listed %+v, there %+v", list, w.cloud.Existing())
	}
	mustBe(t, w.Driver.Delete(t.Context(), m.ID), providers.NotFound)
	mustBe(t, w.Driver.Delete(t.Context(), list[0].ID), providers.NotFound)
}

// Two machines of one token: the first one that goes leaves alone what may be the
// other's. cases: D-4 kubernetes-sigs/cluster-api-provider-openstack#2088
func TestDuplicate(t *testing.T) {
	w := newWorld(t)
	w.cloud.Script(ec2fake.Fault{Action: "RunInstances", Effect: ec2fake.KeepsParts})
	m := w.buy("tok-1")
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second) // volume and interface are free now
	twin := m
	twin.InstanceType = oneGPU
	ids := []string{w.plant(twin), w.plant(twin)}
	for n, want := range []int{2, 0} {
		if err := w.Driver.Delete(t.Context(), ids[n]); err != nil {
			t.Fatal(err)
		}
		w.clock.step(3 * time.Second)
		free := 0
		for _, r := range w.cloud.Existing() {
			if r.Instance == "" && r.Tags[keyToken] == "tok-1" && r.Kind != "instance" {
				free++
			}
		}
		if free != want {
			t.Errorf("%d free parts after delete %d, want %d", free, n+1, want)
		}
	}
}

// A leftover without a token names nothing: it must not stand for everything.
func TestLeftoverOfNothing(t *testing.T) {
	w := newWorld(t)
	w.cloud.Script(ec2fake.Fault{Action: "RunInstances", Effect: ec2fake.KeepsParts})
	m := w.buy("tok-1")
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(3 * time.Second)
	for _, id := range []string{leftover, leftover + "*", leftover + "tok-?"} {
		mustBe(t, w.Driver.Delete(t.Context(), id), providers.NotFound)
	}
	if len(w.cloud.Existing()) != 2 {
		t.Errorf("there is %+v", w.cloud.Existing())
	}
}

// cases: D-61 hcloud-k8s-ctl#91: more machines than one page has.
func TestEveryPage(t *testing.T) {
	w := newWorld(t)
	for n := range 5 {
		w.buy(fmt.Sprintf("tok-%d", n))
	}
	list := w.list()
	if len(list) != 5 {
		t.Fatalf("%d machines listed", len(list))
	}
	for _, m := range list {
		if len(m.Parts) != 2 {
			t.Errorf("machine %s has the parts %+v", m.ID, m.Parts)
		}
	}
}

// cases: D-17 kubernetes/kops#6650: filters are patterns to EC2, and an
// installation may be called like one.
func TestPatterns(t *testing.T) {
	w := newWorld(t)
	w.buy("tok-1")
	for _, name := range []string{"spillway-*", "spillway-tes?", "*", `spillway\-test`} {
		d := w.dial(func(c *Config) { c.Installation = name })
		req := w.request("tok-1")
		req.Installation = name
		if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
			t.Fatalf("installation %q lists %+v, %v", name, list, err)
		}
		m, err := d.Create(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		list, err := d.List(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != m.ID {
			t.Errorf("installation %q lists %+v, %v", name, list, err)
		}
	}
}

// One wrong subnet stops purchases, and no deletion.
func TestOneSubnetIsMissing(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	d := w.dial(func(c *Config) { c.Subnets = []string{"subnet-gone", "subnet-b"} })
	_, err := d.Offers(t.Context())
	mustBe(t, err, providers.Rejected)
	if !strings.Contains(err.Error(), `"subnet-gone"`) {
		t.Errorf("the refusal does not name the subnet: %v", err)
	}
	if list, err := d.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := d.Delete(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
}

// An empty list of a stranger's account proves nothing.
func TestAnotherAccount(t *testing.T) {
	w := newWorld(t)
	d := w.dial(func(c *Config) { c.Subnets = []string{"subnet-elsewhere"} })
	if list, err := d.List(t.Context()); err == nil {
		t.Errorf("listed %+v", list)
	}
	if err := d.Delete(t.Context(), "i-0123456789abcdef0"); err == nil || providers.KindOf(err) == providers.NotFound {
		t.Errorf("delete says %v", err)
	}
}

// cases: D-39 karpenter#371, #4165: not found right after a create is no end.
func TestNotVisibleYet(t *testing.T) {
	w := newWorld(t)
	slow := times()
	slow.ListLag = 40 * time.Second
	w.cloud.Tune(slow)
	m := w.buy("tok-1")
	mustBe(t, w.Driver.Delete(t.Context(), m.ID), providers.OutcomeUnknown)
	mustBe(t, w.Driver.Extend(t.Context(), m.ID, m.Expires.Add(time.Hour)), providers.OutcomeUnknown)
	w.clock.step(time.Minute)
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Error(err)
	}
}

// A proxy's page is no answer about an instance, whatever its status.
func TestGatewayOnTheWay(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	for _, action := range []string{"DescribeInstances", "DescribeVolumes", "TerminateInstances"} {
		w.cloud.Script(ec2fake.Fault{Action: action, Effect: ec2fake.Gateway})
		mustBe(t, w.Driver.Delete(t.Context(), m.ID), providers.OutcomeUnknown)
	}
}

// One part of EC2 may not know yet what another has just shown.
func TestNotFoundAfterSeen(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	lost := ec2fake.Fault{Effect: ec2fake.Refused, Status: 400, Code: "InvalidInstanceID.NotFound", Message: "The instance ID does not exist"}
	for action, call := range map[string]func() error{
		"TerminateInstances": func() error { return w.Driver.Delete(t.Context(), m.ID) },
		"CreateTags":         func() error { return w.Driver.Extend(t.Context(), m.ID, m.Expires.Add(time.Hour)) },
	} {
		lost.Action = action
		w.cloud.Script(lost)
		mustBe(t, call(), providers.OutcomeUnknown)
	}
}

// A stamp is whole seconds, and none of them ends a lease early.
func TestStampIsRoundedUp(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	if err := w.Driver.Extend(t.Context(), m.ID, m.Expires.Add(time.Hour+time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if got, want := w.list()[0].Expires, m.Expires.Add(time.Hour+time.Second); !got.Equal(want) {
		t.Errorf("the stamp is %s, want %s", got, want)
	}
}

// A stamp never moves back, also when tags lag behind what was written.
func TestStampWhileTagsLag(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	slow := times()
	slow.TagLag = 20 * time.Second
	w.cloud.Tune(slow)
	for _, later := range []time.Duration{2 * time.Hour, time.Hour} {
		if err := w.Driver.Extend(t.Context(), m.ID, m.Expires.Add(later)); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.step(time.Minute)
	if got, want := w.list()[0].Expires, m.Expires.Add(2*time.Hour); !got.Equal(want) {
		t.Errorf("the stamp is %s, want %s", got, want)
	}
}

// A failed launch costs nothing, and its entry leaves the list once its end was
// asked for, though EC2 shows it for another hour: also to another process.
func TestFailedLaunchIsForgotten(t *testing.T) {
	w := newWorld(t)
	w.cloud.Script(ec2fake.Fault{Action: "RunInstances", Effect: ec2fake.FailsLater, Code: "Client.VolumeLimitExceeded", Message: "Volume limit exceeded"})
	m := w.buy("tok-1")
	w.clock.step(6 * time.Second)
	list := w.list()
	if len(list) != 1 || list[0].State != providers.StateFailed || list[0].FaultKind != providers.LimitReached {
		t.Fatalf("listed %+v", list)
	}
	again, err := w.Driver.Create(t.Context(), w.request("tok-1"))
	if err != nil || again.ID != m.ID || again.State != providers.StateFailed {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	other := w.dial(func(*Config) {})
	if list, err := other.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
	mustBe(t, other.Delete(t.Context(), m.ID), providers.NotFound)
}

// Where EC2 takes no tag on what has terminated, the entry leaves the list all the
// same; where it wants to be left alone, the delete is repeated.
func TestFailedLaunchThatTakesNoTag(t *testing.T) {
	w := newWorld(t)
	w.cloud.Script(ec2fake.Fault{Action: "RunInstances", Effect: ec2fake.FailsLater, Code: "Server.InternalError", Message: "Internal error on launch"})
	m := w.buy("tok-1")
	w.clock.step(6 * time.Second)
	w.cloud.Script(
		ec2fake.Fault{Action: "CreateTags", Effect: ec2fake.Refused, Status: 503, Code: "RequestLimitExceeded", Message: "Request limit exceeded."},
		ec2fake.Fault{Action: "CreateTags", Effect: ec2fake.Refused, Status: 400, Code: "IncorrectInstanceState", Message: "The instance has terminated"},
	)
	mustBe(t, w.Driver.Delete(t.Context(), m.ID), providers.Throttled)
	if list := w.list(); len(list) != 1 {
		t.Fatalf("listed %+v", list)
	}
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	if list := w.list(); len(list) != 0 {
		t.Errorf("listed %+v", list)
	}
}

// The cloud's own record of the end is the moment at which it was asked for.
func TestUsage(t *testing.T) {
	w := newWorld(t)
	m := w.buy("tok-1")
	w.clock.step(10 * time.Minute)
	asked := w.clock.Now()
	if err := w.Driver.Delete(t.Context(), m.ID); err != nil {
		t.Fatal(err)
	}
	w.clock.step(30 * time.Second)
	u, err := w.Driver.(*Driver).Usage(t.Context(), "tok-1")
	if err != nil || !u.Deleted.Equal(asked) || !u.Created.Equal(m.Created) {
		t.Errorf("used from %s to %s, %v; want %s to %s", u.Created, u.Deleted, err, m.Created, asked)
	}
	w.clock.step(time.Hour)
	_, err = w.Driver.(*Driver).Usage(t.Context(), "tok-1")
	mustBe(t, err, providers.NotFound)
	if got := transition("Server.SpotInstanceTermination"); !got.IsZero() {
		t.Errorf("a time out of nothing: %s", got)
	}
}

// A part that is seen before its instance belongs to a machine in the making:
// no leftover, and nothing that may be deleted.
func TestPartBeforeItsInstance(t *testing.T) {
	d := newWorld(t).dial(func(*Config) {})
	m := markOf(newWorld(t).request("tok-1"))
	h := holding{parts: []part{{Part: providers.Part{Kind: kindVolume, ID: "vol-1"}, mark: m, instance: "i-1"}}}
	list := d.machines(h)
	if len(list) != 1 || list[0].ID != "i-1" || list[0].State != "" {
		t.Errorf("shown %+v", list)
	}
	if err := d.removeParts(t.Context(), h.parts); err != nil {
		t.Errorf("an attached volume was to be deleted: %v", err)
	}
}
