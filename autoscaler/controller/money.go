package controller

import (
	"context"
	"fmt"
	"reflect"
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

	mu      sync.Mutex
	epoch   int64
	budgets []quota.Budget
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
func (t *treasury) Reserve(ctx context.Context, r quota.Reservation) (quota.Receipt, error) {
	epoch, err := t.leads(ctx)
	if err != nil {
		return quota.Receipt{}, err
	}
	return t.ledger.Reserve(ctx, epoch, r)
}

// Settle implements lifecycle.Ledger.
func (t *treasury) Settle(ctx context.Context, s quota.Settlement) (quota.Receipt, error) {
	epoch, err := t.leads(ctx)
	if err != nil {
		return quota.Receipt{}, err
	}
	return t.ledger.Settle(ctx, epoch, s)
}

// Account implements lifecycle.Ledger.
func (t *treasury) Account(ctx context.Context, burst string) (quota.Account, error) {
	return t.ledger.Account(ctx, burst)
}

// RecordUsage implements lifecycle.Ledger.
func (t *treasury) RecordUsage(ctx context.Context, u []quota.Usage) error {
	epoch, err := t.leads(ctx)
	if err != nil {
		return err
	}
	return t.ledger.RecordUsage(ctx, epoch, u)
}

// Permit implements infra.Permits.
func (t *treasury) Permit(ctx context.Context, burst string, ordinal int) error {
	epoch, err := t.leads(ctx)
	if err != nil {
		return err
	}
	return t.ledger.Permit(ctx, epoch, burst, ordinal)
}

// book brings the tenants' budgets into the ledger and reads the book.
func (t *treasury) book(ctx context.Context, tenants []v1alpha1.BurstTenant) (quota.Book, error) {
	budgets, err := budgetsOf(tenants)
	if err != nil {
		return quota.Book{}, err
	}
	epoch, err := t.leads(ctx)
	if err != nil {
		return quota.Book{}, err
	}
	t.mu.Lock()
	same := t.budgets != nil && reflect.DeepEqual(t.budgets, budgets)
	t.mu.Unlock()
	if !same {
		if err := t.ledger.SetBudgets(ctx, epoch, budgets); err != nil {
			return quota.Book{}, fmt.Errorf("bring the budgets into the ledger: %w", err)
		}
		t.mu.Lock()
		t.budgets = budgets
		t.mu.Unlock()
	}
	return t.ledger.Book(ctx)
}

// budgetsOf reads the budgets of all tenants. Their ids are tenant/budget.
func budgetsOf(tenants []v1alpha1.BurstTenant) ([]quota.Budget, error) {
	budgets := []quota.Budget{}
	for _, t := range tenants {
		for _, b := range t.Spec.Burst.Budgets {
			limit, err := money.Parse(string(b.Limit))
			if err != nil {
				return nil, fmt.Errorf("tenant %s, budget %s: limit: %w", t.Name, b.Name, err)
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
	}
	return budgets, nil
}
