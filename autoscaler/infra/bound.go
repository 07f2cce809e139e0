package infra

import (
	"context"
	"time"

	"spillway.dev/spillway/providers"
)

// Bound gives every call of a driver a time limit: a cloud that takes a
// connection and never answers must not hold up the others.
func Bound(d providers.Driver, limit time.Duration) providers.Driver {
	b := bounded{d, limit}
	if reporter, ok := d.(providers.UsageReporter); ok {
		return boundedReporter{b, reporter}
	}
	return b
}

type bounded struct {
	driver providers.Driver
	limit  time.Duration
}

// Offers implements [providers.Driver].
func (b bounded) Offers(ctx context.Context) ([]providers.Offer, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.driver.Offers(ctx)
}

// Create implements [providers.Driver].
func (b bounded) Create(ctx context.Context, req providers.Request) (providers.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.driver.Create(ctx, req)
}

// Extend implements [providers.Driver].
func (b bounded) Extend(ctx context.Context, id string, until time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.driver.Extend(ctx, id, until)
}

// Delete implements [providers.Driver].
func (b bounded) Delete(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.driver.Delete(ctx, id)
}

// List implements [providers.Driver].
func (b bounded) List(ctx context.Context) ([]providers.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.driver.List(ctx)
}

// boundedReporter keeps the optional ability.
type boundedReporter struct {
	bounded
	reporter providers.UsageReporter
}

// Usage implements [providers.UsageReporter].
func (b boundedReporter) Usage(ctx context.Context, token string) (providers.Machine, error) {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	return b.reporter.Usage(ctx, token)
}
