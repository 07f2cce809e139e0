package conformance

import (
	"context"
	"fmt"

	"spillway.dev/spillway/providers"
)

// listPromises are about what the account shows.
func listPromises() []Promise {
	return []Promise{
		{"offers", "Offers lists what the account can buy, sold-out offers included, each under a key of its own", offers},
		{"identity", "a machine carries token, installation, burst, tenant, name and stamp from the first time it is listed", identity},
		{"slow list", "a new machine is listed at the latest after the list delay", slowList},
		{"broken list", "a list that ends in the middle is an error and never a shorter list", brokenList},
		{"foreign machines", "List shows this installation's machines only", foreignList},
		{"usage", "a driver that reports usage knows created, started and deleted also of a machine that is gone", usage},
	}
}

func offers(ctx context.Context, w World) error {
	list, err := w.Driver.Offers(ctx)
	if err != nil {
		return err
	}
	keys, soldOut := map[string]bool{}, false
	for _, o := range list {
		if keys[o.Key()] {
			return fmt.Errorf("two offers have the key %s", o.Key())
		}
		keys[o.Key()] = true
		soldOut = soldOut || o.SoldOut
		switch {
		case o.Provider == "" || o.Region == "" || o.InstanceType == "":
			return fmt.Errorf("offer %s lacks provider, region or type", o.Key())
		case o.GPUs < 1 || o.GPUResource == "":
			return fmt.Errorf("offer %s has no GPUs: %d %q", o.Key(), o.GPUs, o.GPUResource)
		case o.Price.NanoPerHour < 0 || (o.Price.NanoPerHour > 0 && o.Price.Currency == ""):
			return fmt.Errorf("offer %s has the price %+v", o.Key(), o.Price)
		case o.Seen.IsZero():
			return fmt.Errorf("offer %s does not say when it was seen", o.Key())
		}
		if err := o.Meter.Validate(); err != nil {
			return fmt.Errorf("offer %s: %w", o.Key(), err)
		}
	}
	if !keys[w.Request("tok-1").Offer.Key()] {
		return fmt.Errorf("the offer of the world's request is not among %d offers", len(list))
	}
	if !soldOut {
		return fmt.Errorf("the sold-out offer is not among %d offers", len(list))
	}
	return nil
}

func identity(ctx context.Context, w World) error {
	if _, err := buy(ctx, w, "tok-1"); err != nil {
		return err
	}
	list, err := listed(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	m, want := list[0], w.Request("tok-1")
	type tags struct{ token, installation, burst, tenant, name, provider, region, kind, expires string }
	const second = "2006-01-02T15:04:05Z"
	got := tags{m.Token, m.Installation, m.Burst, m.Tenant, m.Name, m.Provider, m.Region, m.InstanceType, m.Expires.UTC().Format(second)}
	o := want.Offer
	if asked := (tags{want.Token, want.Installation, want.Burst, want.Tenant, want.Name, o.Provider, o.Region, o.InstanceType, want.Expires.UTC().Format(second)}); got != asked {
		return fmt.Errorf("listed %+v, asked %+v", got, asked)
	}
	if m.Created.IsZero() || m.State == "" {
		return fmt.Errorf("created %s, state %q", m.Created, m.State)
	}
	return nil
}

func slowList(ctx context.Context, w World) error {
	if err := w.Make(ListLags); err != nil {
		return err
	}
	_, err := buy(ctx, w, "tok-1")
	return err
}

// cases: D-61 hcloud-k8s-ctl#91: a part of a list must not pass for the whole
func brokenList(ctx context.Context, w World) error {
	if _, err := buy(ctx, w, "tok-1"); err != nil {
		return err
	}
	if err := w.Make(ListBroken); err != nil {
		return err
	}
	list, err := w.Driver.List(ctx)
	if err == nil {
		return fmt.Errorf("got %d machines and no error", len(list))
	}
	return mustBe(err, providers.OutcomeUnknown)
}

func foreignList(ctx context.Context, w World) error {
	w.Plant(foreign(w))
	if _, err := buy(ctx, w, "tok-1"); err != nil {
		return err
	}
	list, err := w.Driver.List(ctx)
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.Installation != w.Request("tok-1").Installation {
			return fmt.Errorf("lists machine %s of installation %q", m.ID, m.Installation)
		}
	}
	return nil
}

// foreign is a machine of somebody else in the same account, whose name and
// token look like ours.
func foreign(w World) providers.Machine {
	req := w.Request("tok-1")
	return providers.Machine{
		Token: req.Token, Name: req.Name, Installation: req.Installation + "-2",
		Expires: req.Expires, InstanceType: req.Offer.InstanceType,
	}
}

func usage(ctx context.Context, w World) error {
	reporter, ok := w.Driver.(providers.UsageReporter)
	if !ok {
		return nil // an ability, not a duty
	}
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := until(w, "the machine runs", func() (bool, error) {
		list, err := listed(ctx, w, "tok-1")
		return len(list) > 0 && list[0].State == providers.StateRunning, err
	}); err != nil {
		return err
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	u, err := reporter.Usage(ctx, "tok-1")
	if err != nil {
		return err
	}
	if u.Created.IsZero() || u.Started.Before(u.Created) || u.Deleted.Before(u.Started) {
		return fmt.Errorf("created %s, started %s, deleted %s", u.Created, u.Started, u.Deleted)
	}
	_, err = reporter.Usage(ctx, "tok-2")
	return mustBe(err, providers.NotFound)
}
