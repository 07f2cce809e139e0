package observe

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// atOnce bounds how many inputs are weighed at one time.
const atOnce = 4

// Scales know how much inputs are: how many bytes a burst would have to move. To
// find that out takes a listing of the store, which can be long: decisions never
// wait for it. What is not known yet is found out meanwhile, and the next cycle
// has it. All fields but Wake are needed.
type Scales struct {
	// Need lists inputs of a tenant and adds up their bytes.
	Need func(ctx context.Context, tenant *v1alpha1.BurstTenant, inputs []string) (int64, error)
	// Every is how long a weight holds, Again how soon one that could not be
	// found out is sought again, Timeout how long a listing may take.
	Every, Again, Timeout time.Duration
	Now                   func() time.Time
	Log                   *slog.Logger
	// Wake, if set, is called when something more is known.
	Wake func()

	mu      sync.Mutex
	known   map[string]*weight
	running int
}

// weight is what was found out of some inputs.
type weight struct {
	bytes         *int64 // the last that was found, if ever
	sought        time.Time
	asked         time.Time
	failed, going bool
}

// Weigh says how much inputs of a tenant are, as far as it is known; nil where it
// is not. It does not wait.
func (s *Scales) Weigh(ctx context.Context, tenant *v1alpha1.BurstTenant, inputs []string) *int64 {
	key := tenant.Name + "\x00" + strings.Join(slices.Sorted(slices.Values(inputs)), "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Now()
	w := s.known[key]
	if w == nil {
		if s.known == nil {
			s.known = map[string]*weight{}
		}
		s.drop(now)
		w = &weight{}
		s.known[key] = w
	}
	w.asked = now
	holds := s.Every
	if w.failed {
		holds = s.Again
	}
	if !w.going && s.running < atOnce && (w.sought.IsZero() || now.Sub(w.sought) >= holds) {
		w.going = true
		s.running++
		go s.seek(context.WithoutCancel(ctx), w, tenant.DeepCopy(), slices.Clone(inputs))
	}
	return w.bytes
}

// drop forgets what nobody has asked for lately.
func (s *Scales) drop(now time.Time) {
	for key, w := range s.known {
		if !w.going && now.Sub(w.asked) > 2*s.Every {
			delete(s.known, key)
		}
	}
}

func (s *Scales) seek(ctx context.Context, w *weight, tenant *v1alpha1.BurstTenant, inputs []string) {
	ctx, stop := context.WithTimeout(ctx, s.Timeout)
	defer stop()
	bytes, err := s.Need(ctx, tenant, inputs)
	if err != nil {
		s.Log.Warn("how much inputs are could not be found out; plans say so, and it is tried again", "tenant", tenant.Name, "inputs", inputs, "error", err)
	}
	s.mu.Lock()
	s.running--
	w.going, w.failed, w.sought = false, err != nil, s.Now()
	news := err == nil && (w.bytes == nil || *w.bytes != bytes)
	if news {
		w.bytes = &bytes
	}
	s.mu.Unlock()
	if news && s.Wake != nil {
		s.Wake()
	}
}

// weigh puts the weights of their inputs on gangs whose tenant is known.
func (o *Observer) weigh(ctx context.Context, s *plan.State) {
	if o.Scales == nil {
		return
	}
	payers := map[string]*v1alpha1.BurstTenant{}
	for i := range s.Tenants {
		for _, namespace := range s.Tenants[i].Spec.Namespaces {
			payers[namespace] = &s.Tenants[i]
		}
	}
	for i := range s.Gangs {
		g := &s.Gangs[i]
		if t := payers[g.Owner.Namespace]; t != nil && len(g.Inputs) > 0 {
			g.InputBytes = o.Scales.Weigh(ctx, t, g.Inputs)
		}
	}
}
