package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// treasury is the ledger in the hands of this leader. The epoch begins with
// the first call, which comes after the election; whoever led before is fenced
// from then on.
type treasury struct {
	ledger *ledger.Ledger
	holder string
	// fenced, when set, is told that another leader has begun an epoch. This
	// process can do nothing more with money and has to end: one that stayed
	// would keep the lead, and the ledger, to itself.
	fenced func(error)
	log    *slog.Logger

	mu      sync.Mutex
	epoch   int64
	budgets []quota.Budget
}

// asLeader makes one call in the epoch of this leader.
func (t *treasury) asLeader(ctx context.Context, call func(epoch int64) error) error {
	epoch, err := t.leads(ctx)
	if err != nil {
		return err
	}
	err = call(epoch)
	if errors.Is(err, quota.ErrStaleEpoch) && t.fenced != nil {
		t.fenced(err)
	}
	return err
}

func (t *treasury) leads(ctx context.Context) (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch == 0 {
		epoch, err := t.ledger.BeginEpoch(ctx, t.holder)
		if err != nil {
			return 0, fmt.Errorf("begin a leader epoch in the ledger: %w", err)
		}
		t.epoch = epoch
	}
	return t.epoch, nil
}

// Reserve implements lifecycle.Ledger.
func (t *treasury) Reserve(ctx context.Context, r quota.Reservation) (receipt quota.Receipt, err error) {
	err = t.asLeader(ctx, func(epoch int64) (err error) {
		receipt, err = t.ledger.Reserve(ctx, epoch, r)
		return err
	})
	return receipt, err
}

// Extend implements lifecycle.Ledger.
func (t *treasury) Extend(ctx context.Context, x quota.Extension) (receipt quota.Receipt, err error) {
	err = t.asLeader(ctx, func(epoch int64) (err error) {
		receipt, err = t.ledger.Extend(ctx, epoch, x.Burst, x.Key, x.More, x.Until)
		return err
	})
	return receipt, err
}

// Settle implements lifecycle.Ledger.
func (t *treasury) Settle(ctx context.Context, s quota.Settlement) (receipt quota.Receipt, err error) {
	err = t.asLeader(ctx, func(epoch int64) (err error) {
		receipt, err = t.ledger.Settle(ctx, epoch, s)
		return err
	})
	return receipt, err
}

// Account implements lifecycle.Ledger.
func (t *treasury) Account(ctx context.Context, burst string) (quota.Account, error) {
	return t.ledger.Account(ctx, burst)
}

// RecordUsage implements lifecycle.Ledger.
func (t *treasury) RecordUsage(ctx context.Context, u []quota.Usage) error {
	return t.asLeader(ctx, func(epoch int64) error { return t.ledger.RecordUsage(ctx, epoch, u) })
}

// Permit implements infra.Permits.
func (t *treasury) Permit(ctx context.Context, burst string, ordinal int) error {
	return t.asLeader(ctx, func(epoch int64) error { return t.ledger.Permit(ctx, epoch, burst, ordinal) })
}

// book brings the budgets of providers and tenants into the ledger and reads
// the book. A tenant with a budget that the ledger can't take has none until it
// is mended: its own bursts are refused, and nobody else's.
func (t *treasury) book(ctx context.Context, clouds []v1alpha1.BurstProvider, tenants []v1alpha1.BurstTenant) (quota.Book, error) {
	book, err := t.ledger.Book(ctx)
	if err != nil {
		return book, err
	}
	budgets := []quota.Budget{}
	for i := range clouds {
		if limit := clouds[i].Spec.Limits.SpendPerDay; limit != "" {
			budgets = append(budgets, dayBudget(clouds[i].Name, limit))
		}
	}
	for i := range tenants {
		own, err := budgetsOf(&tenants[i])
		if err == nil {
			_, _, err = book.SetBudgets(append(slices.Clone(budgets), own...))
		}
		if err != nil {
			t.log.Error("a tenant has no budget until this is mended", "tenant", tenants[i].Name, "error", err)
			continue
		}
		budgets = append(budgets, own...)
	}
	t.mu.Lock()
	same := t.budgets != nil && reflect.DeepEqual(t.budgets, budgets)
	t.mu.Unlock()
	if same {
		return book, nil
	}
	err = t.asLeader(ctx, func(epoch int64) error { return t.ledger.SetBudgets(ctx, epoch, budgets) })
	if err != nil {
		return book, fmt.Errorf("bring the budgets into the ledger: %w", err)
	}
	t.mu.Lock()
	t.budgets = budgets
	t.mu.Unlock()
	return t.ledger.Book(ctx)
}

// dayBudget bounds what is spent at a provider on one day, whoever pays. Its
// currency is part of the id: a budget's currency is final. A limit that is no
// amount lets nothing through.
func dayBudget(cloud string, limit v1alpha1.Money) quota.Budget {
	amount, err := money.Parse(string(limit))
	if err != nil {
		amount = money.Amount{Currency: "EUR"}
	}
	return quota.Budget{
		ID: fmt.Sprintf("provider/%s/day/%s", cloud, amount.Currency), Scope: quota.ScopeProvider, Subject: cloud,
		Window: quota.WindowDay, Zone: "Europe/Berlin", Limit: amount, Hard: true,
	}
}

// budgetsOf reads the budgets of a tenant. Their ids are tenant/budget.
func budgetsOf(t *v1alpha1.BurstTenant) ([]quota.Budget, error) {
	budgets := []quota.Budget{}
	for _, b := range t.Spec.Burst.Budgets {
		limit, err := money.Parse(string(b.Limit))
		if err != nil {
			return nil, fmt.Errorf("budget %s: limit: %w", b.Name, err)
		}
		budget := quota.Budget{
			ID: t.Spec.ID + "/" + b.Name, Scope: quota.ScopeTenant, Subject: t.Spec.ID,
			Window: quota.Window(b.Window), Zone: b.TimeZone, Limit: limit, Hard: b.Hard,
		}
		if budget.Window == quota.WindowFixed && b.Start != nil && b.End != nil {
			budget.Start, budget.End = b.Start.UTC(), b.End.UTC()
		}
		budgets = append(budgets, budget)
	}
	return budgets, nil
}
