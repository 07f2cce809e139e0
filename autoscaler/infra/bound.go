package infra

import (
	"context"
	"time"

	"spillway.dev/spillway/providers"
)

// Bound is a layer that gives every call of a driver a time limit: a cloud that
// takes a connection and never answers must not hold up the others.
func Bound(limit time.Duration) providers.Layer {
	return func(ctx context.Context, _ *providers.Call, next func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return next(ctx)
	}
}
