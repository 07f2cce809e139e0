package stager

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Cap bounds what all stagings together may send, at certain hours of each day.
type Cap struct {
	From, To       time.Duration // of the wall clock, since midnight; To is not part of it; From behind To goes over midnight
	BytesPerSecond int64
}

// minCap is the least that a cap may leave: a store gives up on an upload that
// hardly moves.
const minCap = 1 << 20

// Check says what is wrong with a cap.
func (c Cap) Check() error {
	const day = 24 * time.Hour
	switch {
	case c.From < 0 || c.To < 0 || c.From >= day || c.To > day || c.From == c.To:
		return fmt.Errorf("a cap from %v to %v: give two different times of a day, from 00:00 to 24:00", c.From, c.To)
	case c.BytesPerSecond < minCap:
		return fmt.Errorf("a cap of %d bytes per second: give %d or more, since uploads that hardly move are given up by stores", c.BytesPerSecond, minCap)
	}
	return nil
}

func (c Cap) holds(clock time.Duration) bool {
	if c.From < c.To {
		return c.From <= clock && clock < c.To
	}
	return c.From <= clock || clock < c.To
}

// pacer keeps all stagings of a process within the caps, together. Its zero
// value has none.
type pacer struct {
	caps []Cap
	zone *time.Location
	now  func() time.Time

	mu   sync.Mutex
	free time.Time // when what was let through is through
}

// rate is the lowest cap that holds at a time; 0 means that none does.
func (p *pacer) rate(at time.Time) int64 {
	at = at.In(p.zone)
	clock := time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute + time.Duration(at.Second())*time.Second
	lowest := int64(0)
	for _, c := range p.caps {
		if c.holds(clock) && (lowest == 0 || c.BytesPerSecond < lowest) {
			lowest = c.BytesPerSecond
		}
	}
	return lowest
}

// pass waits until n bytes may go.
func (p *pacer) pass(ctx context.Context, n int) error {
	wait := p.book(int64(n))
	if wait <= 0 {
		return nil
	}
	turn := time.NewTimer(wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// book takes the next n bytes of the line and returns how long until they are
// through.
func (p *pacer) book(n int64) time.Duration {
	if len(p.caps) == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	rate := p.rate(now)
	if rate == 0 {
		p.free = time.Time{}
		return 0
	}
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(n) * time.Second / time.Duration(rate))
	return p.free.Sub(now)
}
