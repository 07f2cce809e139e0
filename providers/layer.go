package providers

import (
	"context"
	"slices"
	"time"
)

// Call is one call of a driver, as a [Layer] sees it.
type Call struct {
	Op    string    // as in [Error]
	Token string    // of create and usage
	Offer string    // key of the offer, of create
	ID    string    // of extend and delete; of create once it has been answered
	Until time.Time // of extend, and the first stamp of create
}

// Changes reports whether the call asks the cloud for a change. What changes
// nothing may be repeated at will.
func (c *Call) Changes() bool { return c.Op == "create" || c.Op == "extend" || c.Op == "delete" }

// A Layer is laid around every call of a driver. It passes the call on with
// next, at once or later, once, again or not at all, and returns the caller's
// answer, which is nil or an [*Error]. Layers are called concurrently.
type Layer func(ctx context.Context, call *Call, next func(context.Context) error) error

// Wrap lays layers around a driver, the first one outermost. What the driver can
// do besides (see [UsageReporter]), it can still do, through the same layers.
func Wrap(d Driver, layers ...Layer) Driver {
	w := wrapped{d, layers}
	if reporter, ok := d.(UsageReporter); ok {
		return wrappedReporter{w, reporter}
	}
	return w
}

type wrapped struct {
	driver Driver
	layers []Layer
}

// call takes one call through all layers.
func (w wrapped) call(ctx context.Context, c *Call, next func(context.Context) error) error {
	for _, layer := range slices.Backward(w.layers) {
		inner := next
		next = func(ctx context.Context) error { return layer(ctx, c, inner) }
	}
	return next(ctx)
}

// answered is call for the calls that return a value: what was answered to a
// caller who is told of a failure is nobody's.
func answered[T any](ctx context.Context, w wrapped, c *Call, do func(context.Context) (T, error)) (T, error) {
	var answer T
	err := w.call(ctx, c, func(ctx context.Context) (err error) {
		answer, err = do(ctx)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// Offers implements [Driver].
func (w wrapped) Offers(ctx context.Context) ([]Offer, error) {
	return answered(ctx, w, &Call{Op: "offers"}, w.driver.Offers)
}

// Create implements [Driver].
func (w wrapped) Create(ctx context.Context, req Request) (Machine, error) {
	c := &Call{Op: "create", Token: req.Token, Offer: req.Offer.Key(), Until: req.Expires}
	return answered(ctx, w, c, func(ctx context.Context) (Machine, error) {
		m, err := w.driver.Create(ctx, req)
		c.ID = m.ID
		return m, err
	})
}

// Extend implements [Driver].
func (w wrapped) Extend(ctx context.Context, id string, until time.Time) error {
	return w.call(ctx, &Call{Op: "extend", ID: id, Until: until}, func(ctx context.Context) error {
		return w.driver.Extend(ctx, id, until)
	})
}

// Delete implements [Driver].
func (w wrapped) Delete(ctx context.Context, id string) error {
	return w.call(ctx, &Call{Op: "delete", ID: id}, func(ctx context.Context) error { return w.driver.Delete(ctx, id) })
}

// List implements [Driver].
func (w wrapped) List(ctx context.Context) ([]Machine, error) {
	return answered(ctx, w, &Call{Op: "list"}, w.driver.List)
}

// wrappedReporter keeps the optional ability.
type wrappedReporter struct {
	wrapped
	reporter UsageReporter
}

// Usage implements [UsageReporter].
func (w wrappedReporter) Usage(ctx context.Context, token string) (Machine, error) {
	return answered(ctx, w.wrapped, &Call{Op: "usage", Token: token}, func(ctx context.Context) (Machine, error) {
		return w.reporter.Usage(ctx, token)
	})
}
