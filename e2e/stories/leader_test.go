package stories

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/autoscaler/infra"
)

// cable is the network of one controller to the API server; it can be cut.
type cable struct {
	next http.RoundTripper
	cut  *atomic.Bool
}

var errCut = errors.New("the network is cut")

func (c cable) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, errCut
	}
	return c.next.RoundTrip(r)
}

// TestLeaderChange cuts the leader's network to the API server at the moment
// in which it holds a permit and has not bought yet, lets another controller
// take the lead, and then lets the first one go on. Leader election alone does
// not fence: the ledger's epoch and the token at the cloud do.
func TestLeaderChange(t *testing.T) {
	var cut atomic.Bool
	stalled, goOn := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	s := newStage(t, func(c *controller.Config) {
		c.LeaseDuration = 4 * time.Second
		if c.Identity != "first" {
			return
		}
		c.EmbeddedCAPI = rest.CopyConfig(c.EmbeddedCAPI) // the test's own stays whole
		for _, config := range []*rest.Config{c.REST, c.EmbeddedCAPI} {
			config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return cable{rt, &cut} })
		}
		hook := c.InfraHook
		c.InfraHook = func(ctx context.Context, act string) {
			if act == infra.ActPermit && once.CompareAndSwap(false, true) {
				cut.Store(true)
				close(stalled)
				<-goOn // a long pause, as of a machine that swaps
			}
			hook(ctx, act)
		}
	})
	first := s.start("first", nil)
	s.submit("handover", 1)
	select {
	case <-stalled:
	case <-time.After(patience):
		t.Fatal("the first controller never came to its permit")
	}
	second := s.start("second", nil)
	s.until(patience, "the second controller to buy", func() bool { return len(s.Bought()) > 0 })
	close(goOn)
	s.until(patience, "the Job to finish under the second controller", func() bool { return s.finished("handover") })
	first.stop()
	second.stop()
	got := s.count("handover")
	if got.machines != 1 || got.billing != 0 || got.charges != 1 || got.certificates != 1 || got.result == "" {
		t.Errorf("after a change of the lead: %+v, want one machine, none left, one charge, one certificate and the result", got)
	}
	for _, b := range s.bursts("handover") {
		if !has(b, v1alpha1.Complete) {
			t.Errorf("burst %s did not complete: %+v", b.Name, b.Status.Conditions)
		}
	}
}
