package conformance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"spillway.dev/spillway/providers"
)

// deletePromises are the law of leftovers at the end.
func deletePromises() []Promise {
	return []Promise{
		{"delete", "after a Delete and its time, the machine has left the list and nothing of it is billed, port and volume included", deleted},
		{"delete twice", "Delete may be repeated: nil while the end is under way, NotFound after it", deleteTwice},
		{"delete while starting", "a machine that has not started yet is deleted like any other", deleteEarly},
		// cases: D-13 openshift/installer#4083
		{"delete unknown", "Delete of an id that the cloud does not know is NotFound", deleteUnknown},
		{"delete foreign", "Delete and Extend of another installation's machine are NotFound and leave it untouched", deleteForeign},
		{"slow delete", "a machine stays in the list as long as anything of it is billed", slowDelete},
		{"lost delete", "a Delete whose answer was lost has an unknown outcome and may be repeated", lostDelete},
	}
}

func deleted(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Driver.Delete(ctx, m.ID); err != nil {
		return err
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

func deleteTwice(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Make(DeleteSlow); err != nil {
		return err
	}
	for i := range 2 {
		if err := w.Driver.Delete(ctx, m.ID); err != nil {
			return fmt.Errorf("call %d: %w", i+1, err)
		}
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	return mustBe(w.Driver.Delete(ctx, m.ID), providers.NotFound)
}

func deleteEarly(ctx context.Context, w World) error {
	m, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return err
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

func deleteUnknown(ctx context.Context, w World) error {
	return mustBe(w.Driver.Delete(ctx, "no-such-machine"), providers.NotFound)
}

func deleteForeign(ctx context.Context, w World) error {
	planted := foreign(w)
	planted.ID = w.Plant(planted)
	if err := mustBe(w.Driver.Delete(ctx, planted.ID), providers.NotFound); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := mustBe(w.Driver.Extend(ctx, planted.ID, planted.Expires.Add(time.Hour)), providers.NotFound); err != nil {
		return fmt.Errorf("extend: %w", err)
	}
	w.Pass()
	for _, m := range w.Audit() {
		if m.ID == planted.ID && m.State != providers.StateDeleting && m.Expires.Equal(planted.Expires) {
			return nil
		}
	}
	return errors.New("it is gone or changed")
}

func slowDelete(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Make(DeleteSlow); err != nil {
		return err
	}
	if err := w.Driver.Delete(ctx, m.ID); err != nil {
		return err
	}
	if err := auditIs(w, "tok-1", 1); err != nil {
		return fmt.Errorf("the lever does not work: %w", err)
	}
	return until(w, "the machine is gone", func() (bool, error) {
		list, err := listed(ctx, w, "tok-1") // first: what ends in between is no lie
		if err != nil {
			return false, err
		}
		billed := ofToken(w.Audit(), "tok-1")
		if len(list) == 0 && len(billed) > 0 {
			return false, fmt.Errorf("the list is empty while this is billed: %+v", billed)
		}
		return len(list) == 0, nil
	})
}

func lostDelete(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if err := w.Make(DeleteLost); err != nil {
		return err
	}
	if err := mustBe(w.Driver.Delete(ctx, m.ID), providers.OutcomeUnknown); err != nil {
		return err
	}
	if err := end(ctx, w, m); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

// stampPromises are about the expiry stamp.
func stampPromises() []Promise {
	return []Promise{
		{"stamp moves on", "Extend moves the expiry stamp to a later time, and List shows it", stampMoves},
		{"stamp never moves back", "Extend to an earlier time changes nothing and is no error", stampStays},
		{"stamp of the unknown", "Extend of an id that the cloud does not know is NotFound", stampUnknown},
		// cases: D-64 skypilot-org/skypilot#2261
		{"stamp at create", "a machine without an expiry stamp is never made", noStamp},
	}
}

func stampMoves(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	later := w.Request("tok-1").Expires.Add(30 * time.Minute)
	if err := w.Driver.Extend(ctx, m.ID, later); err != nil {
		return err
	}
	return stampIs(ctx, w, later)
}

func stampStays(ctx context.Context, w World) error {
	m, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	first := w.Request("tok-1").Expires
	if err := w.Driver.Extend(ctx, m.ID, first.Add(-5*time.Minute)); err != nil {
		return err
	}
	return stampIs(ctx, w, first)
}

func stampIs(ctx context.Context, w World, want time.Time) error {
	list, err := listed(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].Expires.Sub(want).Abs() >= time.Second {
		return fmt.Errorf("want one machine with stamp %s, listed is %+v", want, list)
	}
	return nil
}

func stampUnknown(ctx context.Context, w World) error {
	return mustBe(w.Driver.Extend(ctx, "no-such-machine", w.Request("tok-1").Expires), providers.NotFound)
}

func noStamp(ctx context.Context, w World) error {
	req := w.Request("tok-1")
	req.Expires = time.Time{}
	_, err := w.Driver.Create(ctx, req)
	if err := mustBe(err, providers.Rejected); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}
