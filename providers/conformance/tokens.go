package conformance

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"spillway.dev/spillway/providers"
)

// tokenPromises are the law of tokens.
func tokenPromises() []Promise {
	return []Promise{
		{"equal tokens", "calls of Create with equal tokens yield one machine", equalTokens},
		{"different tokens", "calls of Create with different tokens yield different machines", differentTokens},
		// cases: D-38 hashicorp/terraform-provider-aws#27543
		{"lost response", "a Create whose answer was lost has an unknown outcome, and the same token yields the same one machine", func(ctx context.Context, w World) error {
			return createAgain(ctx, w, CreateLost)
		}},
		// cases: H-2, D-16 cloudbase/garm#79
		{"server error after success", "a Create that was done and answered with a server error has an unknown outcome, and the same token yields the same one machine", func(ctx context.Context, w World) error {
			return createAgain(ctx, w, CreateErrorAfter)
		}},
		{"server error without success", "a Create that met a server error has an unknown outcome, whether or not it was done, and may be repeated", func(ctx context.Context, w World) error {
			return createAgain(ctx, w, CreateError)
		}},
		{"parallel", "20 parallel Creates with one token yield one machine, and all of them say which", parallel},
		// cases: D-39 karpenter#371, #4165
		{"invisible list", "a Create repeated while the list does not show the machine yet yields the same one machine", invisible},
		{"another installation", "a Create for another installation than the driver's is rejected and makes nothing", otherInstallation},
		{"no waiting", "Create returns without waiting for the machine to boot", noWaiting},
	}
}

func equalTokens(ctx context.Context, w World) error {
	first, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return err
	}
	second, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return err
	}
	if first.ID == "" || first.ID != second.ID {
		return fmt.Errorf("first machine %q, second %q", first.ID, second.ID)
	}
	return auditIs(w, "tok-1", 1)
}

func differentTokens(ctx context.Context, w World) error {
	// the second token begins with the first: no match by prefix
	first, err := buy(ctx, w, "tok-1")
	if err != nil {
		return err
	}
	second, err := buy(ctx, w, "tok-10")
	if err != nil {
		return err
	}
	if first.ID == second.ID {
		return fmt.Errorf("both are machine %q", first.ID)
	}
	if err := auditIs(w, "tok-1", 1); err != nil {
		return err
	}
	return auditIs(w, "tok-10", 1)
}

func createAgain(ctx context.Context, w World, trouble Trouble) error {
	if err := w.Make(trouble); err != nil {
		return err
	}
	_, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err := mustBe(err, providers.OutcomeUnknown); err != nil {
		return err
	}
	before := slices.DeleteFunc(ofToken(w.Audit(), "tok-1"), func(m providers.Machine) bool {
		return m.State == providers.StateLeftover // parts that were made ahead of the instance: it may still come
	})
	m, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return fmt.Errorf("repeated: %w", err)
	}
	if len(before) > 0 && before[0].ID != m.ID {
		return fmt.Errorf("machine %q was made first, the repeated call says %q", before[0].ID, m.ID)
	}
	return auditIs(w, "tok-1", 1)
}

func parallel(ctx context.Context, w World) error {
	const callers = 20
	ids, errs := make([]string, callers), make([]error, callers)
	var group sync.WaitGroup
	for i := range callers {
		group.Go(func() {
			m, err := w.Driver.Create(ctx, w.Request("tok-1"))
			ids[i], errs[i] = m.ID, err
		})
	}
	group.Wait()
	for i := range callers {
		if errs[i] != nil {
			return fmt.Errorf("caller %d: %w", i, errs[i])
		}
		if ids[i] != ids[0] {
			return fmt.Errorf("caller 0 got machine %q, caller %d got %q", ids[0], i, ids[i])
		}
	}
	return auditIs(w, "tok-1", 1)
}

func invisible(ctx context.Context, w World) error {
	if err := w.Make(ListLags); err != nil {
		return err
	}
	first, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return err
	}
	if list, err := listed(ctx, w, "tok-1"); err != nil || len(list) > 0 {
		return fmt.Errorf("the lever does not work: listed %d, %w", len(list), err)
	}
	second, err := w.Driver.Create(ctx, w.Request("tok-1"))
	if err != nil {
		return err
	}
	if first.ID != second.ID {
		return fmt.Errorf("first machine %q, second %q", first.ID, second.ID)
	}
	return auditIs(w, "tok-1", 1)
}

func otherInstallation(ctx context.Context, w World) error {
	req := w.Request("tok-1")
	req.Installation += "-other"
	_, err := w.Driver.Create(ctx, req)
	if err := mustBe(err, providers.Rejected); err != nil {
		return err
	}
	return auditIs(w, "tok-1", 0)
}

func noWaiting(ctx context.Context, w World) error {
	if err := w.Make(NeverBoots); err != nil {
		return err
	}
	_, err := w.Driver.Create(ctx, w.Request("tok-1"))
	return err // a driver that waits runs into the suite's own deadline
}
