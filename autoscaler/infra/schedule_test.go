package infra_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// schedules is how many fault schedules are tried, by seed.
const schedules = 1000

// TestFaultSchedules lives the lives of machines in virtual time, each seed
// another one: calls are lost on the way or back, the cloud fails in all its
// ways, its list lags, writes to the API server fail, the controller dies before
// or after any act and any write, and stays away for seconds or for days, while
// the sweeper outside goes on. In the end the cloud bills nothing, no token has
// ever made two machines, and the times that the controller has recorded cost
// what the cloud's own record costs.
//
// cases: H-1 kubernetes-sigs/karpenter#1448, D-16 cloudbase/garm#79, D-64
// skypilot-org/skypilot#2261
func TestFaultSchedules(t *testing.T) {
	const shards = 8 // each of them runs its seeds one after the other
	var mu sync.Mutex
	total := map[string]int{}
	t.Cleanup(func() {
		t.Logf("%d schedules: %v", schedules, total)
		for _, what := range []string{
			"killed", "away for days", "bought", "refused", "never bought", "swept outside", "write failed",
			"create lost request", "create lost response", "delete lost response", "list throttle", "extend server error",
		} {
			if total[what] < 10 {
				t.Errorf("the schedules hardly show %q: %d times", what, total[what])
			}
		}
	})
	for shard := range shards {
		t.Run(fmt.Sprintf("seeds %d and every %dth", shard, shards), func(t *testing.T) {
			t.Parallel()
			for seed := shard; seed < schedules; seed += shards {
				seen := oneSchedule(t, uint64(seed))
				mu.Lock()
				for what, n := range seen {
					total[what] += n
				}
				mu.Unlock()
			}
		})
	}
}

// oneSchedule lives one life and returns how often what happened.
func oneSchedule(t *testing.T, seed uint64) (seen map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("this is seed %d", seed)
			}
		}()
		s := newSchedule(t, seed)
		s.live()
		s.audit()
		seen = s.seen
	})
	return seen
}

// schedule is one seed's world: one machine's object, a cloud, a controller that
// is there or not, and the sweeper outside.
type schedule struct {
	*bench
	random *rand.Rand
	seen   map[string]int

	stormy bool               // faults happen
	kill   context.CancelFunc // of the present pass
	due    time.Time          // of the controller's next pass
	over   bool               // the burst is to end
	gone   bool               // the controller has let the object go
	work   time.Duration      // how long the machine is needed once it runs
	ran    time.Time
}

func newSchedule(t *testing.T, seed uint64) *schedule {
	s := &schedule{random: rand.New(rand.NewPCG(seed, 1)), seen: map[string]int{}, stormy: true, due: time.Now()}
	s.bench = &bench{t: t, clock: &clock{now: time.Now()}, permits: &permits{used: map[string]bool{}}}
	s.cloud = fake.New(fake.Config{
		Provider: "west", Region: "w1", Secrets: []string{secret}, Offers: []providers.Offer{offer()},
		Tokenless: s.chance(2),
		Timing:    fake.Timing{BootTakes: s.upTo(4 * time.Minute), DeleteTakes: s.upTo(2 * time.Minute), ListLag: s.upTo(55 * time.Second)},
	})
	t.Cleanup(s.cloud.Close)
	for _, effect := range []fake.Effect{fake.SoldOutLater, fake.BreaksLater, fake.VanishesLater, fake.HalfMade, fake.SoldOut} {
		if s.chance(12) {
			s.cloud.Script(fake.Fault{Op: "create", Effect: effect})
		}
	}
	if s.chance(4) {
		s.cloud.Script(fake.Fault{Op: "delete", Effect: fake.StuckDelete}, fake.Fault{Op: "list", Effect: fake.Incomplete})
	}
	odds := 2 + s.random.IntN(20)
	choose := fake.ByChance(
		s.random, odds, fake.Fault{Effect: fake.LostRequest}, fake.Fault{Effect: fake.LostResponse},
		fake.Fault{Effect: fake.ServerError}, fake.Fault{Effect: fake.ServerErrorAfter},
		fake.Fault{Effect: fake.Throttle, RetryAfter: 20 * time.Second}, fake.Fault{Effect: fake.Forbidden},
	)
	s.driver = providers.Wrap(
		fake.Dial("http://cloud", secret, installation, &http.Client{Transport: inProcess{s.cloud.Handler()}}),
		fake.Unreliable(func(c *providers.Call) fake.Fault {
			if !s.stormy {
				return fake.Fault{}
			}
			f := choose(c)
			s.seen[c.Op+" "+string(f.Effect)]++
			return f
		}),
	)
	s.client = fakeclient.NewClientBuilder().WithScheme(testScheme(t)).WithObjects(s.objects()...).
		WithStatusSubresource(&infrav1.SpillwayMachine{}).
		WithInterceptorFuncs(interceptor.Funcs{Patch: s.patch, SubResourcePatch: s.patchStatus}).Build()
	s.work = s.upTo(40 * time.Minute)
	s.boot()
	return s
}

// inProcess is a network without a socket: what is cut there is cut here.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (res *http.Response, err error) {
	w := httptest.NewRecorder()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	defer func() {
		if cut := recover(); cut != nil {
			res, err = nil, io.ErrUnexpectedEOF
		}
	}()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

func (s *schedule) chance(oneIn int) bool { return s.random.IntN(oneIn) == 0 }

func (s *schedule) upTo(d time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(d/time.Second)+1)) * time.Second
}

// boot starts a controller in a new epoch.
func (s *schedule) boot() {
	s.restart()
	s.rec.Now = time.Now
	s.rec.Timing = infra.Timing{Poll: 11 * time.Second, Watch: time.Minute}
	s.rec.Hook = func(context.Context, string) { s.mayDie(8) }
}

// mayDie kills the controller in the middle of a pass.
func (s *schedule) mayDie(oneIn int) bool {
	if !s.stormy || s.kill == nil || !s.chance(oneIn) {
		return false
	}
	s.kill()
	s.seen["killed"]++
	return true
}

var errAPI = errors.New("the API server does not answer")

// around lets a write fail before or after it is done, or the process die there.
func (s *schedule) around(ctx context.Context, write func() error) error {
	if s.mayDie(20) {
		return ctx.Err()
	}
	if s.stormy && s.kill != nil && s.chance(20) {
		s.seen["write failed"]++
		if s.chance(2) {
			return errAPI
		}
		return errors.Join(write(), errAPI)
	}
	err := write()
	s.mayDie(20)
	return err
}

func (s *schedule) patch(ctx context.Context, c client.WithWatch, obj client.Object, p client.Patch, opts ...client.PatchOption) error {
	return s.around(ctx, func() error { return c.Patch(ctx, obj, p, opts...) })
}

func (s *schedule) patchStatus(ctx context.Context, c client.Client, sub string, obj client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.around(ctx, func() error { return c.SubResource(sub).Patch(ctx, obj, p, opts...) })
}

// live goes through the whole life, first in the storm, then in calm weather.
func (s *schedule) live() {
	begin := time.Now()
	storm := begin.Add(20*time.Minute + s.upTo(time.Hour))
	sweep, check := begin.Add(s.upTo(10*time.Minute)), begin
	var calm time.Time
	for {
		next := slices.MinFunc([]time.Time{s.due, sweep, check}, time.Time.Compare)
		time.Sleep(time.Until(next))
		s.clock.step(time.Since(s.clock.Now()))
		now := time.Now()
		if s.stormy && now.After(storm) {
			s.stormy, calm = false, now
			s.cloud.Heal()
		}
		if !now.Before(check) { // the burst's reconciler lives in the same process
			check = now.Add(time.Minute)
			if now.Before(s.due) && s.due.Sub(now) > time.Hour {
				check = s.due
			}
			s.care()
		}
		if !now.Before(s.due) {
			s.pass()
			if s.gone = !slices.Contains(s.get().Finalizers, infrav1.MachineFinalizer); s.gone {
				s.due = now.Add(time.Hour)
			}
		}
		if !now.Before(sweep) {
			sweep = now.Add(10 * time.Minute)
			s.sweep(nil, infra.SweepRules{StampsOnly: true}, "swept outside")
			if s.due.Sub(now) < time.Hour {
				s.sweep(s.records, infra.DefaultSweepRules(), "swept inside")
			}
		}
		if !calm.IsZero() && now.Sub(calm) > time.Hour && s.gone {
			return
		}
		if now.Sub(begin) > 30*24*time.Hour {
			s.t.Errorf("no end after 30 days: %+v", s.get().Status)
			return
		}
	}
}

// pass is one look of the controller, with its deaths.
func (s *schedule) pass() {
	ctx, kill := context.WithCancel(s.t.Context())
	defer kill()
	s.kill = kill
	res, err := s.rec.Reconcile(ctx, request())
	s.kill = nil
	after := max(res.RequeueAfter, time.Second)
	switch {
	case ctx.Err() != nil:
		s.boot()
		after = time.Second + s.upTo(2*time.Minute)
		if s.chance(5) {
			s.seen["away for days"]++
			after = 24*time.Hour + s.upTo(72*time.Hour)
		}
	case err != nil && !apierrors.IsConflict(err) && !errors.Is(err, errAPI):
		s.t.Errorf("Reconcile: %v", err)
	case err == nil && res == (ctrl.Result{}):
		after = time.Minute // another write would wake it
	}
	s.due = time.Now().Add(after)
}

// care is what the rest of the controller does: it moves the wanted stamp while
// the machine is needed, and ends what has run for long enough, was refused, or
// did not come.
func (s *schedule) care() {
	if s.over {
		return
	}
	sm, now := s.get(), time.Now()
	reason, _ := infra.Refusal(sm)
	if s.ran.IsZero() && infra.Provisioned(sm) {
		s.ran = now
	}
	began := sm.Spec.Expires.Add(-25 * time.Minute)
	lost := s.ran.IsZero() && now.After(began.Add(20*time.Minute))
	if reason != "" || lost || !s.ran.IsZero() && now.Sub(s.ran) >= s.work || now.After(sm.Spec.Expires.Time) {
		s.over = true
		s.release()
		s.remove()
		return
	}
	if !s.ran.IsZero() && sm.Spec.Expires.Sub(now) < 15*time.Minute {
		change(s.bench, &infrav1.SpillwayMachine{}, name, func(sm *infrav1.SpillwayMachine) {
			sm.Spec.Expires = metav1.NewTime(now.Add(25 * time.Minute))
		})
	}
}

// sweep is one sweep. It may fail in the storm.
func (s *schedule) sweep(known func(context.Context) (infra.Records, error), rules infra.SweepRules, what string) {
	report, err := infra.Sweep(s.t.Context(), s.driver, known, rules, time.Now)
	if err != nil && !s.stormy {
		s.t.Errorf("sweep: %v", err)
	}
	s.seen[what] += len(report.Asked)
}

func (s *schedule) records(context.Context) (infra.Records, error) {
	known := infra.Records{Tokens: map[string]bool{}, Reservations: map[string]bool{}}
	if !s.gone {
		known.Tokens[token], known.Reservations["burst-uid"] = true, true
	}
	return known, nil
}

// audit compares the account with what was recorded.
func (s *schedule) audit() {
	for _, m := range s.cloud.Billing() {
		s.t.Errorf("still billed: %+v", m)
	}
	made := slices.DeleteFunc(s.cloud.Snapshot(), func(m providers.Machine) bool { return m.Token != token || s.halfMade(m) })
	status := s.get().Status
	switch {
	case len(made) > 1:
		s.t.Errorf("one token has made %d machines: %+v", len(made), made)
	case len(made) == 0:
		s.seen["never bought"]++
		if status.InstanceID != "" {
			s.t.Errorf("instance %s is recorded and was never made: %+v", status.InstanceID, status)
		}
	default:
		s.seen["bought"]++
		s.charge(status, made[0])
	}
	if c := meta.FindStatusCondition(status.Conditions, infra.Purchased); c != nil && c.Status == metav1.ConditionFalse {
		s.seen["refused"]++
	}
}

// halfMade reports whether no instance was ever made: parts alone have no meter.
func (s *schedule) halfMade(m providers.Machine) bool {
	calls := s.cloud.Calls()
	return !calls[slices.IndexFunc(calls, func(c fake.Call) bool { return c.ID == m.ID })].Done
}

// charge compares what the recorded times cost with what the cloud's own cost,
// by meters that start and round in different ways.
func (s *schedule) charge(status infrav1.SpillwayMachineStatus, m providers.Machine) {
	if status.InstanceID != m.ID || status.CreatedAt == nil || status.GoneAt == nil {
		s.t.Errorf("%s is recorded from %v to %v, the cloud has %+v", status.InstanceID, status.CreatedAt, status.GoneAt, m)
		return
	}
	ours := providers.Machine{Created: status.CreatedAt.Time, Deleted: status.GoneAt.Time}
	if status.StartedAt != nil {
		ours.Started = status.StartedAt.Time
	}
	for _, rule := range []providers.MeterRule{
		{}, {Start: providers.MeterStarted}, {Granularity: time.Minute, Minimum: 10 * time.Minute}, {Granularity: time.Hour, ClockAligned: true},
	} {
		bill := func(m providers.Machine) time.Duration {
			from, to := rule.Window(m, time.Now())
			return rule.Billed(from, to)
		}
		if got, want := bill(ours), bill(m); got != want {
			s.t.Errorf("by %+v the record costs %s, at the cloud it is %s:\nours   %+v\nclouds %+v", rule, got, want, ours, m)
		}
	}
}
