package nodeagent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"spillway.dev/spillway/quota"
)

const (
	wholeDevice = 840              // the share of a device that one pod holds
	beatEvery   = 10 * time.Second // how much of an interval a crash can lose
)

// meter turns what the machine lists into usage: one record for each pod and
// device, from the pod's start or the last look without it to its end or the
// first look without it. It counts what was allocated, busy or not. At any
// moment one device is held by one pod at most.
type meter struct {
	journal *journal
	node    string
	burst   string
	since   func() time.Duration
	wall    func() time.Time

	looked   bool      // there was a good look in this process
	lastLook time.Time // or the last beat of the process before this one
}

// newMeter continues the journal. Intervals that another boot left open end at
// its last beat: nobody saw them after it.
func newMeter(j *journal, node, burst, boot string, since func() time.Duration, wall func() time.Time) (*meter, error) {
	m := &meter{journal: j, node: node, burst: burst, since: since, wall: wall}
	if j.boot.ID == boot {
		m.lastLook = j.beat
		return m, nil
	}
	for _, i := range m.sorted() {
		if err := m.close(i, later(i.Start, j.beat)); err != nil {
			return nil, err
		}
	}
	anchor := bootAnchor{ID: boot, Wall: wall().UTC().Round(0), Since: since()}
	return m, j.append(func(int64) entry { return entry{Boot: &anchor} })
}

// look takes in one listing. A listing that failed is not given to look: what
// was held stays held, and is never taken for nothing.
func (m *meter) look(pods []Pod, devices []Device) error {
	now := m.journal.boot.at(m.since())
	holders, finished := sortOut(shifted(pods, m.wall().Sub(now)))
	models := map[string]string{}
	for _, d := range devices {
		models[d.ID] = d.Model
	}
	if err := m.closeOver(now, holders, finished); err != nil {
		return err
	}
	if err := m.recordShort(now, holders, finished, models); err != nil {
		return err
	}
	for _, h := range inOrder(maps.Keys(holders)) {
		if _, open := m.journal.open[h]; open {
			continue
		}
		p := holders[h]
		i := interval{holding: h, Namespace: p.Namespace, Owner: p.Owner, Model: models[h.Device], Start: m.start(h, p, now)}
		if err := m.journal.append(func(int64) entry { return entry{Open: &i} }); err != nil {
			return err
		}
	}
	if err := m.forget(holders, finished); err != nil {
		return err
	}
	m.looked, m.lastLook = true, now
	return m.beat(now)
}

// shifted moves the times of pods, which the wall clock gave, by what it was
// stepped since the boot's anchor.
func shifted(pods []Pod, by time.Duration) []Pod {
	out := slices.Clone(pods)
	for i, p := range out {
		if !p.Started.IsZero() {
			out[i].Started = p.Started.Add(-by)
		}
		if !p.Finished.IsZero() {
			out[i].Finished = p.Finished.Add(-by)
		}
	}
	return out
}

// sortOut says who holds each device now, and which pods have ended. A pod
// that is still listed after its end holds nothing, and of two pods that claim
// one device the later one has it.
func sortOut(pods []Pod) (holders, finished map[holding]Pod) {
	holders, finished = map[holding]Pod{}, map[holding]Pod{}
	of := map[string]holding{} // device -> its holder so far
	byAge := slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(startOrder(a, b), cmp.Compare(a.UID, b.UID))
	})
	for _, p := range byAge {
		for _, device := range p.GPUs {
			h := holding{p.UID, device}
			if !p.Finished.IsZero() {
				finished[h] = p
				continue
			}
			if before, taken := of[device]; taken && before != h {
				delete(holders, before)
			}
			of[device] = h
			holders[h] = p
		}
	}
	return holders, finished
}

// startOrder puts pods that have not started behind those that have: they were
// admitted last.
func startOrder(a, b Pod) int {
	switch {
	case a.Started.IsZero() && b.Started.IsZero():
		return 0
	case a.Started.IsZero():
		return 1
	case b.Started.IsZero():
		return -1
	}
	return a.Started.Compare(b.Started)
}

// closeOver closes the intervals that nobody holds any more. An interval that
// was taken over from before a restart and whose pod is gone ends at the last
// beat: when it went is not known, and nobody pays for what nobody saw.
func (m *meter) closeOver(now time.Time, holders, finished map[holding]Pod) error {
	for _, i := range m.sorted() {
		if _, held := holders[i.holding]; held {
			continue
		}
		end := now
		if p, ok := finished[i.holding]; ok {
			end = earlier(later(p.Finished, m.lastLook), now) // it ran at the last look
		} else if !m.looked {
			end = m.lastLook
		} else if next, ok := heirOf(i.Device, holders); ok && next.Started.After(i.Start) {
			end = earlier(later(next.Started, m.lastLook), now) // it ran at the last look
		}
		if err := m.close(i, later(i.Start, end)); err != nil {
			return err
		}
	}
	return nil
}

func heirOf(device string, holders map[holding]Pod) (Pod, bool) {
	for h, p := range holders {
		if h.Device == device {
			return p, true
		}
	}
	return Pod{}, false
}

// start is when a pod that is seen for the first time began to hold a device:
// as it says itself, but not before the last look that did not show it, nor
// before the device's last holder let it go.
func (m *meter) start(h holding, p Pod, now time.Time) time.Time {
	start := now
	if !p.Started.IsZero() {
		start = earlier(p.Started, now)
	}
	start = later(start, m.lastLook)
	return later(start, earlier(m.journal.free[h.Device], now))
}

// recordShort records pods that began and ended between two looks. A pod that
// never started, such as one that the node refused, costs nothing.
func (m *meter) recordShort(now time.Time, holders, finished map[holding]Pod, models map[string]string) error {
	byAge := slices.SortedStableFunc(slices.Values(inOrder(maps.Keys(finished))), func(a, b holding) int {
		return startOrder(finished[a], finished[b])
	})
	for _, h := range byAge {
		p := finished[h]
		_, recorded := m.journal.done[h]
		_, held := holders[h] // another container of the pod goes on
		if recorded || held || p.Started.IsZero() {
			continue
		}
		i := interval{holding: h, Namespace: p.Namespace, Owner: p.Owner, Model: models[h.Device], Start: m.start(h, p, now)}
		if err := m.close(i, later(i.Start, earlier(p.Finished, now))); err != nil {
			return err
		}
	}
	return nil
}

// forget drops the memory of holdings whose pod is not listed any more.
func (m *meter) forget(holders, finished map[holding]Pod) error {
	for _, h := range inOrder(maps.Keys(m.journal.done)) {
		_, held := holders[h]
		_, over := finished[h]
		if held || over {
			continue
		}
		if err := m.journal.append(func(int64) entry { return entry{Forget: &h} }); err != nil {
			return err
		}
	}
	return nil
}

// beat notes now and then that all open intervals still held, and that nothing
// else did.
func (m *meter) beat(now time.Time) error {
	if now.Sub(m.journal.beat) < beatEvery {
		return nil
	}
	return m.journal.append(func(int64) entry { return entry{Beat: now} })
}

func (m *meter) close(i interval, end time.Time) error {
	err := m.journal.append(func(seq int64) entry {
		return entry{Close: &quota.Usage{
			Node: m.node, Boot: m.journal.boot.ID, Journal: m.journal.id, Seq: seq,
			Namespace: i.Namespace, PodUID: i.PodUID, Owner: i.Owner, Burst: m.burst,
			GPUModel: i.Model, Device: i.Device, Share: wholeDevice,
			Start: i.Start, End: end, Phase: "run", Source: "agent",
		}}
	})
	if err != nil {
		return fmt.Errorf("record usage of pod %s on device %s: %w", i.PodUID, i.Device, err)
	}
	return nil
}

// sorted returns the open intervals in an order that does not depend on maps.
func (m *meter) sorted() []interval {
	var out []interval
	for _, h := range inOrder(maps.Keys(m.journal.open)) {
		out = append(out, m.journal.open[h])
	}
	return out
}

func inOrder(seq func(yield func(holding) bool)) []holding {
	return slices.SortedFunc(seq, func(a, b holding) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.PodUID, b.PodUID))
	})
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
