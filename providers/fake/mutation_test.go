package fake_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/conformance"
	"spillway.dev/spillway/providers/fake"
)

// broken is a driver with some of its methods replaced by faulty ones.
type broken struct {
	providers.Driver
	offers func(context.Context) ([]providers.Offer, error)
	create func(context.Context, providers.Request) (providers.Machine, error)
	extend func(context.Context, string, time.Time) error
	remove func(context.Context, string) error
	list   func(context.Context) ([]providers.Machine, error)
	usage  func(context.Context, string) (providers.Machine, error)
}

func (b *broken) Offers(ctx context.Context) ([]providers.Offer, error) {
	if b.offers != nil {
		return b.offers(ctx)
	}
	return b.Driver.Offers(ctx)
}

func (b *broken) Create(ctx context.Context, r providers.Request) (providers.Machine, error) {
	if b.create != nil {
		return b.create(ctx, r)
	}
	return b.Driver.Create(ctx, r)
}

func (b *broken) Extend(ctx context.Context, id string, until time.Time) error {
	if b.extend != nil {
		return b.extend(ctx, id, until)
	}
	return b.Driver.Extend(ctx, id, until)
}

func (b *broken) Delete(ctx context.Context, id string) error {
	if b.remove != nil {
		return b.remove(ctx, id)
	}
	return b.Driver.Delete(ctx, id)
}

func (b *broken) List(ctx context.Context) ([]providers.Machine, error) {
	if b.list != nil {
		return b.list(ctx)
	}
	return b.Driver.List(ctx)
}

func (b *broken) Usage(ctx context.Context, token string) (providers.Machine, error) {
	if b.usage != nil {
		return b.usage(ctx, token)
	}
	return b.Driver.(providers.UsageReporter).Usage(ctx, token)
}

// mutation is one way to write a driver wrongly, and the promises that must
// notice.
type mutation struct {
	breaks  []string
	driver  func(world) *broken
	network http.RoundTripper
}

// cases: H-36 hashicorp/nomad reconcile_node_prop_test.go: every promise of the
// suite is seen to break, or it proves nothing.
func TestSuiteCatchesBrokenDrivers(t *testing.T) {
	promises := map[string]conformance.Promise{}
	unproven := map[string]bool{}
	for _, p := range conformance.Promises() {
		promises[p.Name], unproven[p.Name] = p, true
	}
	mutations := createMutations()
	maps.Copy(mutations, otherMutations())
	for name, m := range mutations {
		t.Run(name, func(t *testing.T) {
			for _, promise := range m.breaks {
				p, ok := promises[promise]
				if !ok {
					t.Fatalf("%q is no promise", promise)
				}
				delete(unproven, promise)
				network := m.network
				if network == nil {
					network = http.DefaultTransport
				}
				w := newWorld(t, network)
				if m.driver != nil {
					w.Driver = m.driver(w)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				err := p.Keep(ctx, w.World)
				cancel()
				if err == nil {
					t.Errorf("promise %q is said to be kept", promise)
				} else if !strings.Contains(err.Error(), p.Text) {
					t.Errorf("failure %q does not say the promise %q", err, p.Text)
				}
			}
		})
	}
	if left := slices.Sorted(maps.Keys(unproven)); len(left) > 0 {
		t.Errorf("no broken driver shows that these promises are tested: %q", left)
	}
}

func createMutations() map[string]mutation {
	return map[string]mutation{
		"a token of its own for every call": {
			breaks: []string{"equal tokens", "parallel", "lost response", "server error after success", "invisible list"},
			driver: func(w world) *broken {
				var calls atomic.Int64
				return &broken{Driver: w.Driver, create: func(ctx context.Context, r providers.Request) (providers.Machine, error) {
					token := r.Token
					r.Token = fmt.Sprintf("%s-%d", r.Token, calls.Add(1))
					r.Name = token
					m, err := w.Driver.Create(ctx, r)
					m.Token = token
					return m, err
				}}
			},
		},
		"one machine for every token": {
			breaks: []string{"different tokens"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, create: func(ctx context.Context, r providers.Request) (providers.Machine, error) {
					r.Token = "tok-1"
					return w.Driver.Create(ctx, r)
				}}
			},
		},
		"every failed create is sold out": {
			breaks: []string{
				"server error without success", "limit reached", "invalid", "throttled",
				"half made and stuck", "cancelled", "another installation", "stamp at create",
			},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, create: func(ctx context.Context, r providers.Request) (providers.Machine, error) {
					m, err := w.Driver.Create(ctx, r)
					if err != nil {
						err = &providers.Error{Kind: providers.SoldOut, Op: "create", Err: err}
					}
					return m, err
				}}
			},
		},
		"errors lose their type": {
			breaks: []string{"sold out at create"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, create: func(ctx context.Context, r providers.Request) (providers.Machine, error) {
					_, err := w.Driver.Create(ctx, r)
					return providers.Machine{}, errors.New(err.Error())
				}}
			},
		},
		"create waits until the machine runs": {
			breaks: []string{"no waiting"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, create: func(ctx context.Context, r providers.Request) (providers.Machine, error) {
					m, err := w.Driver.Create(ctx, r)
					if err != nil || m.State == providers.StateRunning {
						return m, err
					}
					return m, &providers.Error{Op: "create", Err: errors.New("still waiting")}
				}}
			},
		},
		"what a refused create left behind is not looked for": {
			breaks:  []string{"half made"},
			network: emptyLists{},
		},
	}
}

// emptyLists is a network on which every list looks empty.
type emptyLists struct{}

func (emptyLists) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/v1/machines") {
		_ = res.Body.Close()
		res.Body = io.NopCloser(strings.NewReader("[]"))
	}
	return res, err
}

func otherMutations() map[string]mutation {
	return map[string]mutation{
		"sold-out offers are hidden": {
			breaks: []string{"offers"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, offers: func(ctx context.Context) ([]providers.Offer, error) {
					all, err := w.Driver.Offers(ctx)
					return slices.DeleteFunc(all, func(o providers.Offer) bool { return o.SoldOut }), err
				}}
			},
		},
		"a failed list is an empty list": {
			breaks: []string{"broken list", "unauthorized"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, list: func(ctx context.Context) ([]providers.Machine, error) {
					all, err := w.Driver.List(ctx)
					if err != nil {
						return nil, nil
					}
					return all, nil
				}}
			},
		},
		"the list shows everybody's machines": {
			breaks: []string{"foreign machines"},
			driver: func(w world) *broken {
				others := fake.Dial(w.url, secret, installation+"-2", nil)
				return &broken{Driver: w.Driver, list: func(ctx context.Context) ([]providers.Machine, error) {
					mine, err := w.Driver.List(ctx)
					theirs, _ := others.List(ctx)
					return append(mine, theirs...), err
				}}
			},
		},
		"the list shows running machines only, untagged, and calls every fault a stock-out": {
			breaks: []string{"slow delete", "identity", "broken later", "sold out later", "slow list", "stamp moves on", "stamp never moves back"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, list: func(ctx context.Context) ([]providers.Machine, error) {
					all, err := w.Driver.List(ctx)
					all = slices.DeleteFunc(all, func(m providers.Machine) bool {
						return m.State != providers.StateRunning && m.State != providers.StateFailed
					})
					for i := range all {
						all[i].Tenant, all[i].Expires, all[i].Fault, all[i].FaultKind = "", time.Time{}, "", providers.SoldOut
						if all[i].State == providers.StateRunning && all[i].Started.After(all[i].Created.Add(4*time.Second)) {
							all[i].Token += " " // found by no token
						}
					}
					return all, err
				}}
			},
		},
		"delete says yes and does nothing": {
			breaks: []string{"delete", "delete twice", "delete while starting", "delete unknown", "lost delete", "usage"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, remove: func(context.Context, string) error { return nil }}
			},
		},
		"any failed delete means gone": {
			breaks: []string{"proxy"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, remove: func(ctx context.Context, id string) error {
					if err := w.Driver.Delete(ctx, id); err != nil {
						return &providers.Error{Kind: providers.NotFound, Op: "delete", Err: err}
					}
					return nil
				}}
			},
		},
		"delete does not ask whose machine it is": {
			breaks: []string{"delete foreign"},
			driver: func(w world) *broken {
				others := fake.Dial(w.url, secret, installation+"-2", nil)
				return &broken{Driver: w.Driver, remove: func(ctx context.Context, id string) error {
					if others.Delete(ctx, id) == nil {
						return &providers.Error{Kind: providers.NotFound, Op: "delete"}
					}
					return w.Driver.Delete(ctx, id)
				}}
			},
		},
		"extend never says no": {
			breaks: []string{"stamp of the unknown"},
			driver: func(w world) *broken {
				return &broken{Driver: w.Driver, extend: func(context.Context, string, time.Time) error { return nil }}
			},
		},
	}
}
