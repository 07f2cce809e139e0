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
func (r *run) timesFor(w *work, s *sale, turns int) times {
	boot, ready := r.bootOf(s), r.Settings.Ready
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

// priceOne works out the ceiling and the expected bill of one burst by the
// provider's meter rule.
// cases: H1 kubernetes-sigs/karpenter PR#3217
func (r *run) priceOne(w *work, c *candidate) *Reason {
	c.times = r.timesFor(w, c.sale, c.turns)
	c.ready = c.times.ready.Sub(r.Now)
	var err error
	if c.ceiling, err = billed(c, c.offer.Meter.Worst(c.times.worst)); err == nil {
		c.first, err = billed(c, c.offer.Meter.Worst(c.times.first.Sub(r.Now)))
	}
	if err == nil {
		c.expected, err = billed(c, c.offer.Meter.Billed(r.Now, r.Now.Add(c.times.usual)))
	}
	if err != nil {
		return outOfRange(err)
	}
	return nil
}

// billed prices a metered time on every machine of the candidate. Parts of a
// second count as a whole one.
func billed(c *candidate, d time.Duration) (money.Amount, error) {
	seconds := int64(d / time.Second)
	if d%time.Second != 0 {
		seconds++
	}
	one, err := c.offer.Price.For(seconds, money.Whole)
	if err != nil {
		return money.Amount{}, err
	}
	return one.Mul(int64(c.machines))
}
