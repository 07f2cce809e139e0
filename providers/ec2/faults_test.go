package ec2

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/providers/ec2/ec2fake"
)

// Whatever fails on the way, and wherever the process dies, a token is worth one
// machine, and a caller that deletes what is listed until nothing is listed
// leaves nothing.
func TestAnyFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		c := &careless{world: w, rt: rt, driver: w.dial(func(*Config) {}), made: map[string]map[string]bool{}, over: map[string]bool{}}
		for range rapid.IntRange(5, 30).Draw(rt, "steps") {
			c.step()
			c.look()
		}
		c.sweep()
	})
}

// careless is a caller that meets faults and goes on.
type careless struct {
	*world
	rt     *rapid.T
	driver *Driver
	made   map[string]map[string]bool // ids of instances by token
	over   map[string]bool            // tokens whose end was asked for
}

func (c *careless) step() {
	ctx := c.t.Context()
	token := rapid.SampledFrom([]string{"tok-1", "tok-10"}).Draw(c.rt, "token")
	switch rapid.SampledFrom([]string{"fault", "fault", "create", "create", "delete", "extend", "crash", "wait", "lag"}).Draw(c.rt, "step") {
	case "fault":
		c.cloud.Script(c.fault())
	case "create":
		if !c.over[token] {
			_, _ = c.driver.Create(ctx, c.request(token)) // what fails is met again
		}
	case "delete", "extend":
		list, err := c.driver.List(ctx)
		if err != nil {
			return
		}
		for _, m := range list {
			if m.Token != token {
				continue
			}
			_ = c.driver.Extend(ctx, m.ID, m.Expires.Add(time.Minute))
			if rapid.Bool().Draw(c.rt, "delete it") {
				c.over[token] = true
				_ = c.driver.Delete(ctx, m.ID)
			}
		}
	case "crash":
		c.driver = c.dial(func(*Config) {})
	case "wait":
		c.clock.step(time.Duration(rapid.IntRange(1, 90).Draw(c.rt, "seconds")) * time.Second)
	case "lag":
		slow := times()
		slow.ListLag = time.Duration(rapid.IntRange(0, 50).Draw(c.rt, "lag")) * time.Second
		slow.TagLag = slow.ListLag / 2
		c.cloud.Tune(slow)
	}
}

// fault draws what may happen to a call.
func (c *careless) fault() ec2fake.Fault {
	f := rapid.SampledFrom([]ec2fake.Fault{
		noStock(), internal(),
		{Effect: ec2fake.Refused, Status: 503, Code: "RequestLimitExceeded", Message: "Request limit exceeded."},
		{Effect: ec2fake.ErrorAfter},
		{Effect: ec2fake.Lost},
		{Effect: ec2fake.Cut},
		{Effect: ec2fake.Gateway},
		{Effect: ec2fake.KeepsParts},
		{Effect: ec2fake.FailsLater, Code: "Server.InternalError", Message: "Internal error on launch"},
		{Effect: ec2fake.Leaves, Status: 500, Code: "InsufficientInstanceCapacity", Message: "No capacity."},
	}).Draw(c.rt, "fault")
	f.Action = "RunInstances"
	if f.Effect != ec2fake.KeepsParts && f.Effect != ec2fake.FailsLater && f.Effect != ec2fake.Leaves {
		f.Action = rapid.SampledFrom([]string{
			"RunInstances", "TerminateInstances", "DescribeInstances", "DescribeVolumes", "DescribeNetworkInterfaces", "DescribeSubnets",
			"CreateTags", "DeleteVolume", "DeleteNetworkInterface",
		}).Draw(c.rt, "action")
	}
	return f
}

// look counts the instances that each token has ever had.
func (c *careless) look() {
	for _, r := range c.cloud.Existing() {
		if r.Kind != "instance" {
			continue
		}
		token := r.Tags[keyToken]
		if c.made[token] == nil {
			c.made[token] = map[string]bool{}
		}
		if c.made[token][r.ID] = true; len(c.made[token]) > 1 {
			c.rt.Fatalf("token %s has bought %d machines", token, len(c.made[token]))
		}
	}
}

// sweep deletes what is listed until two lists, a list delay apart, are empty.
func (c *careless) sweep() {
	ctx, empty := c.t.Context(), 0
	for range 60 {
		list, err := c.driver.List(ctx)
		switch {
		case err != nil:
		case len(list) > 0:
			empty = 0
			for _, m := range list {
				_ = c.driver.Delete(ctx, m.ID)
			}
		default:
			if empty++; empty == 2 {
				if left := c.cloud.Existing(); len(left) > 0 {
					c.rt.Fatalf("nothing is listed, and this is left: %+v", left)
				}
				return
			}
		}
		c.clock.step(time.Minute)
	}
	c.rt.Fatal("the list never became empty")
}
