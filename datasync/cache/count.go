package cache

import (
	"maps"
	"sync"
	"sync/atomic"
)

// counters are the live form of [Stats].
type counters struct {
	hits, unasked, misses, passed, notModified, refused, damaged atomic.Int64
	bytesStaged, served, upstream                                atomic.Int64

	mu  sync.Mutex
	why map[string]int64
}

func (c *counters) notCached(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.why == nil {
		c.why = map[string]int64{}
	}
	if _, known := c.why[why]; !known && len(c.why) >= 64 {
		why = "other" // query names come from clients
	}
	c.why[why]++
}

func (c *counters) snapshot() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Stats{
		Hits: c.hits.Load(), Unasked: c.unasked.Load(), Misses: c.misses.Load(), Passed: c.passed.Load(),
		NotModified: c.notModified.Load(), Refused: c.refused.Load(), Damaged: c.damaged.Load(),
		BytesStaged: c.bytesStaged.Load(), BytesServed: c.served.Load(), BytesUpstream: c.upstream.Load(),
		NotCached: maps.Clone(c.why),
	}
}

// tally counts the bytes written to it.
type tally struct{ n *atomic.Int64 }

func (t tally) Write(p []byte) (int, error) {
	t.n.Add(int64(len(p)))
	return len(p), nil
}
