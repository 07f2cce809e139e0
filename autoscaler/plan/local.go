package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/placement"
)

// fitsNow places what fits on-prem. A gang fits whole or not at all; of
// independent pods some may stay and the others go on to the next question.
func (r *run) fitsNow(w *work) (Decision, bool) {
	answer, err := r.cluster.Fit(placement.Ask{Batch: w.batch, Together: w.Together, Nodes: &r.onPrem})
	if err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	if answer.OK() {
		nodes := make([]string, 0, len(answer.Placed))
		for _, p := range answer.Placed {
			nodes = append(nodes, p.Node)
		}
		slices.Sort(nodes)
		return w.decision(Wait, Reason{
			Code: FitsLocally, Message: "it fits now on " + strings.Join(slices.Compact(nodes), ", "), Remedy: "wait for the scheduler",
		}), true
	}
	w.misfit = answer.Misfit[0].String()
	if !w.Together {
		r.only(w, answer.Misfit)
	}
	return Decision{}, false
}

// only leaves those of the pods that have no place.
func (r *run) only(w *work, misfits []placement.Misfit) {
	if len(misfits) == len(w.pods) {
		return
	}
	pods := make([]*corev1.Pod, len(misfits))
	for i, m := range misfits {
		pods[i] = m.Pod
	}
	r.left(w, pods)
}

// split keeps a gang in one place: with a member bound on-prem the others wait
// for on-prem.
func (r *run) split(w *work) (Decision, bool) {
	if !w.Together || w.Bound == 0 {
		return Decision{}, false
	}
	return w.decision(Wait, Reason{
		Code: GangSplit, Message: fmt.Sprintf("%d of its members run on-prem; a gang is never split between places", w.Bound),
		Remedy: "wait for on-prem, or restart the whole gang",
	}), true
}

// localChance waits until burstAfter is over.
func (r *run) localChance(w *work) (Decision, bool) {
	if over := w.since.Add(r.burstAfter(w)); over.After(r.Now) {
		return w.until(over, Wait, Reason{
			Code: LocalChance, Message: fmt.Sprintf("on-prem has until %s, %s after it became unschedulable (%s)", clock(over), short(r.burstAfter(w)), w.misfit),
			Remedy: "wait, or lower burstAfter of the tenant",
		}), true
	}
	return Decision{}, false
}

func (r *run) burstAfter(w *work) time.Duration {
	if own := w.tenant.Spec.Burst.BurstAfter.Duration; own > 0 {
		return own
	}
	return r.Settings.BurstAfter
}

// localSoon waits when on-prem is expected to be free within the local horizon:
// the larger of burstAfter and the time that the burst would need to be ready.
// Of independent pods those that will fit stay, and an offer is sought for the
// others alone.
func (r *run) localSoon(w *work) (Decision, bool) {
	ready := r.Settings.Boot
	if len(w.candidates) > 0 {
		ready = w.candidates[0].leg.times.ready.Sub(r.Now)
	}
	horizon := r.Now.Add(max(r.burstAfter(w), ready))
	freed, placed, err := r.freeAt(w, horizon)
	if err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	if w.localAt = freed; freed.IsZero() || freed.After(horizon) {
		return r.partSoon(w, horizon, ready)
	}
	if err := r.take(placed); err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	return w.soon(freed, ready), true
}

func (w *work) soon(freed time.Time, ready time.Duration) Decision {
	return w.until(freed, Wait, Reason{
		Code: WaitingLocalETA, Message: fmt.Sprintf("running work on-prem ends by %s and leaves room; a burst would need %s to be ready", clock(freed), short(ready)),
		Remedy: "wait",
	})
}

// partSoon leaves those of several independent pods at home that will fit there
// by the horizon, and asks the market again for the others.
func (r *run) partSoon(w *work, horizon time.Time, ready time.Duration) (Decision, bool) {
	if w.Together || len(w.pods) == 1 {
		return Decision{}, false
	}
	soon := r.endingsBy(horizon)
	if soon == 0 {
		return Decision{}, false
	}
	scope, err := r.cluster.Scope(w.batch)
	if err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	answer, err := r.afterwards(placement.Ask{Batch: w.batch, Nodes: &r.onPrem}, w.needs, scope, soon)
	if err == nil {
		err = r.take(answer.Placed)
	}
	if err != nil {
		return w.decision(Refuse, undecidable(err)), true
	}
	switch {
	case answer.OK():
		return w.soon(r.ends[soon-1].at, ready), true
	case len(answer.Placed) == 0:
		return Decision{}, false
	}
	r.only(w, answer.Misfit)
	w.refusals, w.candidates = nil, nil
	if d, settled := r.shopping(w); settled {
		return d, true
	}
	return r.localSoon(w)
}

// take keeps seats for pods that wait for running work to end: the nodes now
// hold more than they can, so that no later gang counts on the same room.
func (r *run) take(seats []placement.Placed) error {
	for _, p := range seats {
		if err := r.cluster.AddPod(p.Pod, p.Node); err != nil {
			return err
		}
	}
	return nil
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// short writes a duration without zero parts: 5m instead of 5m0s.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
