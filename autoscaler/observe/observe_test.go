package observe

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
)

// TestNoStateFromCachesThatAreNotSynced: an empty cache would look like a
// cluster without room. cases: H-14 kubernetes/autoscaler#7419.
func TestNoStateFromCachesThatAreNotSynced(t *testing.T) {
	o := observer(&cluster{})
	o.Synced = func(context.Context) bool { return false }
	if _, err := o.State(t.Context()); err == nil {
		t.Error("State() answered before the caches were synced")
	}
	o = observer(&cluster{})
	o.Mirror.synced = []func() bool{func() bool { return true }, func() bool { return false }}
	if _, err := o.State(t.Context()); err == nil {
		t.Error("State() answered before the mirror had all pods")
	}
}

// shop is a driver that sells one thing, or fails.
type shop struct {
	providers.Driver
	asked int
	err   error
}

func (s *shop) Offers(context.Context) ([]providers.Offer, error) {
	s.asked++
	return []providers.Offer{{InstanceType: "g2"}}, s.err
}

func TestOfferBook(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	cloud := &shop{}
	book := &OfferBook{
		Drivers: func(context.Context, string) (providers.Driver, error) { return cloud, nil },
		Every:   time.Minute, Stale: 5 * time.Minute, Timeout: time.Second, Now: func() time.Time { return now },
		Log: slog.New(slog.DiscardHandler),
	}
	clouds := make([]v1alpha1.BurstProvider, 1)
	clouds[0].Name = "rhein"
	offers := func() int { return len(book.Offers(t.Context(), clouds)) }
	if n := offers() + offers(); n != 2 || cloud.asked != 1 {
		t.Errorf("asked twice within a minute: %d offers by %d calls, want 2 by 1", n, cloud.asked)
	}
	cloud.err = errors.New("the API is down")
	now = now.Add(2 * time.Minute)
	if n := offers(); n != 1 {
		t.Errorf("a cloud that fails once offers %d, want its last 1", n)
	}
	now = now.Add(4 * time.Minute)
	if n := offers(); n != 0 {
		t.Errorf("offers that nobody has confirmed for 6 minutes: %d, want 0", n)
	}
	cloud.err = nil
	now = now.Add(2 * time.Minute)
	if n := offers(); n != 1 {
		t.Errorf("a cloud that is back offers %d, want 1", n)
	}
}
