package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway.dev/spillway/providers"
)

// refusalPromises are the law of leftovers at create, and what a cloud's no
// means.
func refusalPromises() []Promise {
	return []Promise{
		{"sold out at create", "a Create refused for lack of stock is SoldOut and leaves nothing behind", func(ctx context.Context, w World) error {
			return refusedAs(ctx, w, CreateSoldOut, providers.SoldOut, 0)
		}},
		{"limit reached", "a Create refused by our limit at the cloud is LimitReached, not SoldOut, and leaves nothing behind", func(ctx context.Context, w World) error {
			return refusedAs(ctx, w, CreateLimit, providers.LimitReached, 0)
		}},
		{"invalid", "a Create that can never succeed is Rejected and leaves nothing behind", func(ctx context.Context, w World) error {
			return refusedAs(ctx, w, CreateInvalid, providers.Rejected, 0)
		}},
		// cases: D-1 kubernetes-sigs/cluster-api-provider-openstack#1404, B-13 #701
		{"half made", "what a refused Create has left behind is removed before it returns", func(ctx context.Context, w World) error {
			return refusedAs(ctx, w, CreateHalfMade, providers.SoldOut, 0)
		}},
		// cases: D-68 skypilot-org/skypilot PR#2990
		{"half made and stuck", "a Create that leaves something behind says CleanupFailed, and List shows the leftover until it is gone", halfStuck},
		// cases: D-25, H-5 stackitcloud/machine-controller-manager-provider-stackit PR#96
		{"sold out later", "a machine that was accepted and then found without stock is listed as failed, with the cloud's words and as SoldOut, and costs nothing once deleted", func(ctx context.Context, w World) error {
			return failsLater(ctx, w, SoldOutLater, providers.SoldOut)
		}},
		{"broken later", "a machine that failed for a reason nobody knows is never taken for sold out", func(ctx context.Context, w World) error {
			return failsLater(ctx, w, BreaksLater, providers.OutcomeUnknown)
		}},
	}
}

func refusedAs(ctx context.Context, w World, trouble Trouble, kind providers.Kind, left int) error {
	if err := w.Make(trouble); err != nil {
		return err
	}
	_, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err := mustBe(err, kind); err != nil {
		return err
	}
	if !kind.Refusal() {
		return fmt.Errorf("kind %s is no refusal", kind)
	}
	return auditIs(w, "tok-1", left)
}

func halfStuck(ctx context.Context, w World) error {
	if err := refusedAs(ctx, w, CreateHalfStuck, providers.CleanupFailed, 1); err != nil {
		return err
	}
	list, err := listed(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].ID == "" {
		return fmt.Errorf("the leftover is billed, but listed is %+v", list)
	}
	if err := end(ctx, w, list[0]); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

func failsLater(ctx context.Context, w World, trouble Trouble, kind providers.Kind) error {
	if err := w.Make(trouble); err != nil {
		return err
	}
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	err = until(w, "the machine is listed as failed", func() (bool, error) {
		list, err := listed(ctx, w, "tok-1")
		if err != nil || len(list) == 0 {
			return false, err
		}
		m = list[0]
		return m.State == providers.StateFailed, nil
	})
	if err != nil {
		return err
	}
	if m.Fault == "" || m.FaultKind != kind {
		return fmt.Errorf("fault %q of kind %s, want the cloud's words and kind %s", m.Fault, m.FaultKind, kind)
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

// errorPromises are the law of the zero Kind.
func errorPromises() []Promise {
	return []Promise{
		{"throttled", "a throttled call is Throttled, was not done, and says how long to wait", throttled},
		{"unauthorized", "a refused credential is Unauthorized on every call, never NotFound or an empty list", unauthorized},
		{"proxy", "a 404 that is not the API's own is never NotFound: the machine may be there", proxy},
		{"cancelled", "a call returns soon after its context ends, as OutcomeUnknown, with the context's error inside", cancelled},
	}
}

// cases: H-33 prometheus/alertmanager#2111, D-65 skypilot-org/skypilot#4392
func throttled(ctx context.Context, w World) error {
	if err := w.Make(CreateThrottled); err != nil {
		return err
	}
	_, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err := mustBe(err, providers.Throttled); err != nil {
		return err
	}
	if got := providers.RetryAfterOf(err); got != 7*time.Second {
		return fmt.Errorf("the cloud asked for 7s of silence, the error says %s", got)
	}
	if err := auditIs(w, "tok-1", 0); err != nil {
		return err
	}
	_, err = buy(ctx, w, "tok-1")
	return err
}

func unauthorized(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Make(Unauthorized); err != nil {
		return err
	}
	_, offersErr := w.Driver.Offers(ctx)
	_, createErr := w.Driver.Create(ctx, w.Request("tok-2"))
	_, listErr := w.Driver.List(ctx)
	calls := map[string]error{
		"offers": offersErr, "create": createErr, "list": listErr,
		"extend": w.Driver.Extend(ctx, m.ID, m.Expires.Add(time.Hour)),
		"delete": w.Driver.Delete(ctx, m.ID),
	}
	for name, err := range calls {
		if err := mustBe(err, providers.Unauthorized); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return auditIs(w, "tok-1", 1)
}

func proxy(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Make(DeleteGatewayError); err != nil {
		return err
	}
	return mustBe(w.Driver.Delete(ctx, m.ID), providers.OutcomeUnknown)
}

func cancelled(ctx context.Context, w World) error {
	if err := w.Make(CreateHangs); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := w.Driver.Create(short, w.Request("tok-1"))
		answer <- err
	}()
	select {
	case err := <-answer:
		if err := mustBe(err, providers.OutcomeUnknown); err != nil {
			return err
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("errors.Is does not find the context's error in %w", err)
		}
		return nil
	case <-time.After(10 * time.Second): // far beyond the promised second, for slow test machines
		return errors.New("no answer 10 s after the context's end")
	}
}
