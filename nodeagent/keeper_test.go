package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/nodeagent/link"
)

// deadMan is a node in virtual time: the controller's clock is the bubble's,
// the node's wall clock is whatever skew says.
type deadMan struct {
	start   time.Time
	slept   atomic.Int64  // what Since counts beyond the bubble's timers, in nanoseconds
	release chan struct{} // lets calls go that hang

	stopHangs, wipeHangs bool
	wipeTakes            time.Duration
	offFails, offHangs   int

	mu                    sync.Mutex
	stopped, wiped, isOff []time.Duration // when each was called; isOff when it worked
	kept                  Kept
}

func newDeadMan() *deadMan {
	return &deadMan{start: time.Now(), release: make(chan struct{})}
}

func (d *deadMan) since() time.Duration { return time.Since(d.start) + time.Duration(d.slept.Load()) }

// calls returns a copy of a list of calls.
func (d *deadMan) calls(list *[]time.Duration) []time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(*list)
}

func (d *deadMan) note(list *[]time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*list = append(*list, d.since())
}

func (d *deadMan) Stop(context.Context, string) error {
	d.note(&d.stopped)
	if d.stopHangs {
		<-d.release
	}
	return errors.New("a pod still runs")
}

func (d *deadMan) Wipe(ctx context.Context, _ string) error {
	d.note(&d.wiped)
	if d.wipeHangs {
		<-d.release
	}
	select {
	case <-time.After(d.wipeTakes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *deadMan) PowerOff(context.Context, string) error {
	d.mu.Lock()
	fails, hangs := d.offFails > 0, d.offHangs > 0
	if hangs {
		d.offHangs--
	} else if fails {
		d.offFails--
	}
	d.mu.Unlock()
	if hangs {
		<-d.release
	}
	if hangs || fails {
		return errors.New("the button is stuck")
	}
	d.note(&d.isOff)
	return nil
}

// keep returns a keeper that lives by a first lease.
func (d *deadMan) keep(soft, hard time.Duration, wallSkew time.Duration) *Keeper {
	l := d.lease(1, soft, hard)
	l.Issued = d.start
	d.kept = FirstLease("boot", l, link.SignedLease{}, d.since(), time.Now().Add(wallSkew))
	return NewKeeper(d.kept, d.since, d, d.saved)
}

func (d *deadMan) saved(k Kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept = k
}

// left is what an agent that is started again finds.
func (d *deadMan) left() Kept {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kept
}

func (d *deadMan) lease(serial int64, soft, hard time.Duration) link.Lease {
	return link.Lease{Burst: "b", Node: "n", Serial: serial, Soft: d.start.Add(soft), Hard: d.start.Add(hard)}
}

// hear lets a lease arrive now, whose request left `ago` before.
func (d *deadMan) hear(k *Keeper, l link.Lease, ago time.Duration) bool {
	return k.Offer(l, link.SignedLease{}, d.since()-ago, time.Now())
}

// live runs the keeper in a bubble until it ends.
func live(t *testing.T, set func(*deadMan), script func(*deadMan, *Keeper), soft, hard, skew time.Duration) (*deadMan, error) {
	t.Helper()
	var d *deadMan
	var err error
	synctest.Test(t, func(*testing.T) {
		d = newDeadMan()
		defer synctest.Wait()
		defer close(d.release)
		if set != nil {
			set(d)
		}
		k := d.keep(soft, hard, skew)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if script != nil {
			go script(d, k)
		}
		err = k.Run(ctx)
	})
	return d, err
}

func within(t *testing.T, what string, at []time.Duration, from, to time.Duration) {
	t.Helper()
	if len(at) == 0 || at[0] < from || at[0] > to {
		t.Errorf("%s at %v, want first within %v and %v", what, at, from, to)
	}
}

const (
	softAt = 10 * time.Minute
	hardAt = 20 * time.Minute
)

func TestDeadMan(t *testing.T) {
	tests := map[string]struct {
		set    func(*deadMan)
		script func(*deadMan, *Keeper)
		skew   time.Duration
		soft   time.Duration // expected, softAt when zero
		hard   time.Duration
	}{
		"the controller is gone for good": {},
		"stopping hangs":                  {set: func(d *deadMan) { d.stopHangs = true }},
		"wiping hangs":                    {set: func(d *deadMan) { d.wipeHangs = true }},
		"wiping takes longer than there is time": {
			set: func(d *deadMan) { d.wipeTakes = time.Hour },
		},
		"everything hangs, and the power button works late": {
			set: func(d *deadMan) { d.stopHangs, d.wipeHangs, d.offHangs = true, true, 4 },
		},
		"a wall clock that is a day behind does not extend the first lease": {skew: -24 * time.Hour},
		"a renewal moves both ends": {
			script: func(d *deadMan, k *Keeper) {
				time.Sleep(5 * time.Minute)
				d.hear(k, d.lease(2, 30*time.Minute, 40*time.Minute), 0)
			},
			soft: 30 * time.Minute, hard: 40 * time.Minute,
		},
		"a lower serial is ignored": {
			script: func(d *deadMan, k *Keeper) {
				time.Sleep(time.Minute)
				d.hear(k, d.lease(7, softAt, hardAt), 0)
				d.hear(k, d.lease(6, 5*time.Hour, 6*time.Hour), 0)
				d.hear(k, d.lease(7, 5*time.Hour, 6*time.Hour), 0)
			},
		},
		"a reply that was held up in the network does not extend the lease": {
			script: func(d *deadMan, k *Keeper) {
				time.Sleep(9 * time.Minute)
				l := d.lease(2, softAt, hardAt)
				k.Offer(l, link.SignedLease{}, 0, d.start) // asked and answered at once, arrived now
			},
		},
		"contact after soft moves hard, but the pods stay stopped": {
			script: func(d *deadMan, k *Keeper) {
				time.Sleep(15 * time.Minute)
				d.hear(k, d.lease(2, time.Hour, 2*time.Hour), 0)
			},
			hard: 2 * time.Hour,
		},
		"contact after hard is too late": {
			script: func(d *deadMan, k *Keeper) {
				time.Sleep(hardAt + 10*time.Second)
				d.hear(k, d.lease(2, time.Hour, 2*time.Hour), 0)
			},
			set: func(d *deadMan) { d.wipeTakes = time.Minute },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.soft == 0 {
				tt.soft = softAt
			}
			if tt.hard == 0 {
				tt.hard = hardAt
			}
			d, err := live(t, tt.set, tt.script, softAt, hardAt, tt.skew)
			if err != nil {
				t.Errorf("Run: %v", err)
			}
			within(t, "pods asked to stop", d.stopped, tt.soft, tt.soft)
			within(t, "wiped", d.wiped, tt.hard, tt.hard)
			within(t, "off", d.isOff, tt.hard, tt.hard+OffBy)
			if !d.left().Drained {
				t.Error("a restarted agent would not know that soft has passed")
			}
		})
	}
}

func TestDeadManGivesUpLoudly(t *testing.T) {
	d, err := live(t, func(d *deadMan) { d.offFails = 10_000 }, nil, softAt, hardAt, 0)
	if err == nil || len(d.isOff) > 0 {
		t.Fatalf("Run = %v, off at %v, want an error for the service manager", err, d.isOff)
	}
}

func TestPodsAreAskedAgain(t *testing.T) {
	d, _ := live(t, nil, nil, softAt, hardAt, 0)
	if n := len(d.stopped); n < 100 {
		t.Errorf("asked %d times in 10 minutes while pods kept running, want about every %v", n, stopAgain)
	}
}

// A machine that slept through its ends acts on waking, although no timer ran.
func TestSleepCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadMan()
		k := d.keep(softAt, hardAt, 0)
		done := make(chan error, 1)
		go func() { done <- k.Run(t.Context()) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		d.slept.Store(int64(2 * time.Hour))
		time.Sleep(lookAtClock)
		synctest.Wait()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		within(t, "off", d.isOff, 2*time.Hour, 2*time.Hour+time.Minute+10*time.Second)
	})
}

func TestExpiredAtStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadMan()
		time.Sleep(time.Hour)
		k := d.keep(softAt, hardAt, 0)
		if got := k.Phase(); got != Ending {
			t.Errorf("Phase = %v, want %v: work must not start on an expired lease", got, Ending)
		}
		if err := k.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		within(t, "wiped", d.wiped, time.Hour, time.Hour)
		within(t, "off", d.isOff, time.Hour, time.Hour+OffBy)
	})
}

// A restarted agent goes on counting the same lease, whatever its wall clock
// says now, and does not forget that soft has passed.
func TestRestartKeepsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadMan()
		k := d.keep(softAt, hardAt, 0)
		d.hear(k, d.lease(5, softAt, hardAt), 0)
		time.Sleep(softAt + time.Minute)
		k.Phase()
		again := NewKeeper(d.left(), d.since, d, d.saved)
		if again.Phase() != Draining || again.Serial() != 5 {
			t.Errorf("after a restart: phase %v, serial %d", again.Phase(), again.Serial())
		}
		if soft, hard := again.Left(); soft != -time.Minute || hard != hardAt-softAt-time.Minute {
			t.Errorf("after a restart: %v and %v left", soft, hard)
		}
	})
}

// Pods that were told to stop do not come back: neither contact nor a restart
// makes a draining node work again, and an ending node hears nobody.
func TestPhaseOnlyRises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadMan()
		k := d.keep(softAt, hardAt, 0)
		time.Sleep(softAt)
		if !d.hear(k, d.lease(2, time.Hour, 2*time.Hour), 0) || k.Phase() != Draining {
			t.Errorf("a renewal after soft: phase %v, want it taken and %v", k.Phase(), Draining)
		}
		again := NewKeeper(d.left(), d.since, d, d.saved)
		if again.Phase() != Draining {
			t.Errorf("after a restart: phase %v, want %v", again.Phase(), Draining)
		}
		time.Sleep(2 * time.Hour)
		if d.hear(again, d.lease(3, 5*time.Hour, 6*time.Hour), 0) || again.Serial() != 2 {
			t.Error("a renewal after hard was taken")
		}
	})
}

// event is one thing that happens to a node in a random schedule.
type event struct {
	at      time.Duration
	serial  int64
	soft    time.Duration // from at on, in the controller's lease
	more    time.Duration // hard - soft
	ago     time.Duration // network and held request
	restart bool
}

func (e event) String() string {
	return fmt.Sprintf("{at %v serial %d soft +%v hard +%v ago %v restart %t}", e.at, e.serial, e.soft, e.soft+e.more, e.ago, e.restart)
}

func drawEvent(t *rapid.T) event {
	seconds := func(name string, lo, hi int) time.Duration {
		return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Second
	}
	return event{
		at: seconds("at", 1, 3600), serial: rapid.Int64Range(1, 6).Draw(t, "serial"),
		soft: seconds("soft", -60, 1800), more: seconds("more", 0, 900),
		ago: seconds("ago", 0, 40), restart: rapid.IntRange(0, 9).Draw(t, "restart") == 0,
	}
}

// TestEverySchedule lets leases arrive in any order with any delay, restarts
// the agent, breaks the calls, and finds: stopped by soft, wiped at hard, off
// two minutes later, by the controller's own clock.
func TestEverySchedule(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		events := rapid.SliceOfN(rapid.Custom(drawEvent), 0, 12).Draw(rt, "events")
		slices.SortFunc(events, func(a, b event) int { return int(a.at - b.at) })
		skew := time.Duration(rapid.IntRange(-86400, 0).Draw(rt, "skew")) * time.Second
		stopHangs, wipeHangs := rapid.Bool().Draw(rt, "stopHangs"), rapid.Bool().Draw(rt, "wipeHangs")
		wipeTakes := time.Duration(rapid.IntRange(0, 300).Draw(rt, "wipe")) * time.Second
		offHangs := rapid.IntRange(0, 4).Draw(rt, "offHangs")
		breaks := func(d *deadMan) {
			d.stopHangs, d.wipeHangs, d.wipeTakes, d.offHangs = stopHangs, wipeHangs, wipeTakes, offHangs
		}
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = playSchedule(t, events, skew, breaks) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// playSchedule returns what went wrong, or nothing.
func playSchedule(t *testing.T, events []event, skew time.Duration, breaks func(*deadMan)) string {
	d := newDeadMan()
	defer synctest.Wait()
	defer close(d.release)
	breaks(d)
	k := d.keep(softAt, hardAt, skew)
	run := func(k *Keeper) (context.CancelFunc, chan error) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		return cancel, done
	}
	cancel, done := run(k)
	defer func() { cancel() }()
	soft, hard, serial, anchored := softAt, hardAt, int64(1), false
	for _, e := range events {
		time.Sleep(e.at - d.since())
		synctest.Wait()
		if len(d.calls(&d.wiped)) > 0 {
			break
		}
		if e.restart {
			cancel()
			<-done
			k = NewKeeper(d.left(), d.since, d, d.saved)
			cancel, done = run(k)
			continue
		}
		l := d.lease(e.serial, e.at+e.soft, e.at+e.soft+e.more)
		d.hear(k, l, e.ago)
		if e.serial > serial || (e.serial == serial && !anchored) {
			if len(d.calls(&d.stopped)) == 0 {
				soft = e.at + max(0, e.soft)
			}
			hard, serial, anchored = e.at+max(0, e.soft+e.more), e.serial, true
		}
	}
	err := <-done
	return judge(d, err, soft, hard)
}

// longestWait is the longest time that an event's request was under way.
const longestWait = 40 * time.Second

// judge allows acts to come early by the time that a request was under way,
// never late. A lease that had ended when it arrived is acted on at once.
func judge(d *deadMan, err error, soft, hard time.Duration) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	late := func(at []time.Duration, by time.Duration) bool { return len(at) == 0 || at[0] > by }
	switch {
	case err != nil:
		return fmt.Sprintf("Run: %v", err)
	case hard > soft+longestWait && late(d.stopped, soft):
		return fmt.Sprintf("pods asked to stop at %v, soft was %v", d.stopped, soft)
	case late(d.wiped, hard) || d.wiped[0] < hard-longestWait:
		return fmt.Sprintf("wiped at %v, hard was %v", d.wiped, hard)
	case late(d.isOff, hard+OffBy):
		return fmt.Sprintf("off at %v, hard was %v", d.isOff, hard)
	}
	return ""
}
