package plan

import (
	"errors"
	"math"
	"time"

	"spillway.dev/spillway/quota/money"
)

// Seconds is n seconds; where that overflows, the longest time there is.
func Seconds(n int64) time.Duration {
	const longest = time.Duration(math.MaxInt64)
	if n > int64(longest/time.Second) {
		return longest
	}
	return time.Duration(n) * time.Second
}

// longestRun is the longest run that is planned for. It keeps the arithmetic of
// a burst's life, and the days and months that its money touches, in range.
const longestRun = 366 * 24 * time.Hour

// times are the moments that a burst's money and evidence have to reach.
type times struct {
	ready    time.Time // GPUs are expected
	deadline time.Time // the work is ended, whatever happens
	until    time.Time // the last machine is proven gone, at the latest
	first    time.Time // the same, if no lease follows the first one
	// worst is the longest that the cloud's meter can run, usual what it runs
	// when all goes as planned.
	worst, usual time.Duration
}

// timesFor adds up the life of a burst at the provider of an offer. Every wait
// that the burst may have to sit out with a machine on the meter is in worst:
// staging that started late, a slow boot, the whole run, results and wipe, and
// then the ways in which a machine ends when everybody has died. Pods that take
// turns run one after the other.
func (r *run) timesFor(w *work, s *sale, turns int, moving *Moving) times {
	boot, ready := r.readyIn(s, moving), r.Settings.Ready
	if s.provider != nil {
		ready = positive(s.provider.Spec.Join.ReadyDeadline.Duration, ready)
	}
	set, running := r.Settings, time.Duration(turns)*w.maxRun
	start := set.Staging + set.Buy + ready // of the last machine, at the latest
	before := start + running
	behind := max(set.Collect, set.Wipe) + set.DeadMan + set.Sweep + set.Delete
	return times{
		ready:    r.Now.Add(boot),
		deadline: r.Now.Add(before),
		until:    r.Now.Add(before + behind),
		first:    r.Now.Add(start + behind),
		worst:    before + behind,
		usual:    boot + running,
	}
}

// bootOf is the time from the decision to ready GPUs that is expected.
func (r *run) bootOf(s *sale) time.Duration {
	if s.provider == nil {
		return r.Settings.Boot
	}
	return positive(s.provider.Spec.Join.BootTime.Duration, r.Settings.Boot)
}

// readyIn is the time until its work can begin: machines boot while inputs are moved.
func (r *run) readyIn(s *sale, moving *Moving) time.Duration {
	if moving == nil {
		return r.bootOf(s)
	}
	return max(r.bootOf(s), moving.Takes)
}

// weight is how much its inputs are, as [trip] has it.
func (w *work) weight() int64 {
	switch {
	case len(w.Inputs) == 0:
		return -2
	case w.InputBytes == nil:
		return -1
	}
	return *w.InputBytes
}

// positive is own where it is a time at all; the reconciler reads it alike.
func positive(own, otherwise time.Duration) time.Duration {
	if own > 0 {
		return own
	}
	return otherwise
}

// price works out what all bursts of a sized candidate cost.
func (r *run) price(w *work, c *candidate) *Reason {
	for i, b := range c.bursts() {
		if why := r.priceOne(w, b); why != nil {
			return why
		}
		if i == 0 {
			c.whole.ceiling, c.whole.expected = c.ceiling, c.expected
			continue
		}
		ceiling, err := c.whole.ceiling.Add(b.ceiling)
		expected, err2 := c.whole.expected.Add(b.expected)
		if err := errors.Join(err, err2); err != nil {
			return outOfRange(err)
		}
		c.whole.ceiling, c.whole.expected = ceiling, expected
	}
	return nil
}

func outOfRange(err error) *Reason {
	return refusal(Reason{
		Code: CeilingOutOfRange, Message: "its ceiling can't be worked out: " + err.Error(), Remedy: "check the provider's prices and the run time",
	})
}

// priceOne works out the ceiling and the expected bill of one burst.
func (r *run) priceOne(w *work, c *candidate) *Reason {
	if c.leg = r.legOf(w, c.sale, c.turns); c.leg.why != nil {
		return c.leg.why
	}
	var err error
	for _, sum := range []struct {
		of  *money.Amount
		one money.Amount
	}{{&c.ceiling, c.leg.ceiling}, {&c.first, c.leg.first}, {&c.expected, c.leg.expected}} {
		if *sum.of, err = sum.one.Mul(int64(c.machines)); err != nil {
			return outOfRange(err)
		}
	}
	if c.leg.moving != nil {
		if c.expected, err = c.expected.Add(c.leg.moving.Cost); err != nil {
			return outOfRange(err)
		}
	}
	return nil
}

// legOf is what one machine of an offer costs when its pods take so many turns.
func (r *run) legOf(w *work, s *sale, turns int) *leg {
	if known := &w.journey.legs[s.place]; known.turns == turns {
		return known
	}
	l := r.newLeg(w, s, turns)
	return &l
}

// newLeg prices one machine by the provider's meter rule.
// cases: H1 kubernetes-sigs/karpenter PR#3217
func (r *run) newLeg(w *work, s *sale, turns int) leg {
	moving, why := r.moving(w, s)
	l := leg{turns: turns, times: r.timesFor(w, s, turns, moving), moving: moving, why: why}
	if why != nil {
		return l
	}
	meter := s.offer.Meter
	var err error
	if l.ceiling, err = billed(s, meter.Worst(l.times.worst)); err == nil {
		l.first, err = billed(s, meter.Worst(l.times.first.Sub(r.Now)))
	}
	if err == nil {
		l.expected, err = billed(s, meter.Billed(r.Now, r.Now.Add(l.times.usual)))
	}
	if err != nil {
		l.why = outOfRange(err)
	}
	return l
}

// billed prices a metered time on one machine. Parts of a second count as a whole
// one.
func billed(s *sale, d time.Duration) (money.Amount, error) {
	seconds := int64(d / time.Second)
	if d%time.Second != 0 {
		seconds++
	}
	return s.offer.Price.For(seconds, money.Whole)
}
