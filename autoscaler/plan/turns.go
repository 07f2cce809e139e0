package plan

import (
	"sort"
	"time"
)

const (
	// patience is the longest that a pod is planned to wait for its turn on a
	// machine of its own burst.
	patience = time.Hour
	// winding is how long a machine is expected to be billed behind its work:
	// results brought home, wipe, deletion.
	winding = 3 * time.Minute
)

// turns is how many pods may run one after the other in one place on a machine.
//
// What decides is time that is paid anyway. A provider that bills started hours
// is paid for an hour also when the pod on the machine ends after six minutes:
// the next ones run in what is left of it, and cost nothing. Nobody waits to save
// what would have to be paid otherwise, so where seconds are billed all pods run
// at once. Nor does one wait for longer than patience, or beyond the end that its
// owner has set.
func (r *run) turns(w *work, s *sale) int {
	most := w.queue()
	if most <= 1 {
		return 1
	}
	moving, _ := r.moving(w, s)
	boot := r.readyIn(s, moving)
	left := patience + w.maxRun
	if !w.EndsBy.IsZero() {
		left = min(left, w.EndsBy.Sub(r.Now)-boot)
	}
	billed := func(run time.Duration) time.Duration { return s.offer.Meter.Billed(r.Now, r.Now.Add(boot+run)) }
	paid := billed(w.maxRun)
	// The meter may count from the full hour on: what is left is found by asking it.
	most = min(most, int(left/w.maxRun))
	return max(1, sort.Search(most, func(n int) bool { return billed(time.Duration(n+1)*w.maxRun+winding) > paid }))
}

// queue is how many pods of the work could take turns: all, where they need not
// start together and each states when it is over; else one.
func (w *work) queue() int {
	if w.Together || w.Service || w.maxRun <= 0 {
		return 1
	}
	for _, p := range w.pods {
		if s := p.Spec.ActiveDeadlineSeconds; s == nil || Seconds(*s) > w.maxRun {
			return 1
		}
	}
	return len(w.pods)
}
