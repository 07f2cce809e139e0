package plan_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/providers"
)

// sweep is 50 independent pods of one GPU that end by themselves after six
// minutes at the latest.
func (g given) sweep(pods int) given {
	return g.gang("sweep", 1).times(pods).runsFor(6 * time.Minute)
}

// runsFor makes each pod of the gang that was added last state its end.
func (g given) runsFor(d time.Duration) given {
	return g.pods(func(p *corev1.Pod) {
		s := int64(d / time.Second)
		p.Spec.ActiveDeadlineSeconds = &s
	}).work(func(w *plan.Gang) { w.MaxRun = d })
}

// billedBy is the meter and the boot time of the provider that was added last.
func (g given) billedBy(unit, boot time.Duration) given {
	return g.seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) {
		p.Spec.Join.BootTime.Duration, o.Meter = boot, providers.MeterRule{Granularity: unit}
	})
}

// Pods take turns in time that is paid anyway, and in no other.
func TestTurns(t *testing.T) {
	cloud := site().offer("ovh", 1, "1 EUR").billedBy(time.Hour, 3*time.Minute)
	for _, c := range []struct {
		name     string
		g        given
		machines int32
		turns    int32
	}{
		{"a sweep at a cloud that bills started hours", cloud.sweep(50), 6, 9},
		{"fewer than fit into the hour", cloud.sweep(4), 1, 4},
		{"a slow boot leaves less of the hour", site().offer("ovh", 1, "1 EUR").billedBy(time.Hour, 20*time.Minute).sweep(50), 9, 6},
		{"billed by the second, nobody waits", site().offer("ovh", 1, "1 EUR").sweep(10), 10, 0},
		{"billed by the month, nobody waits for longer than an hour", site().budget("vision-month", "10000 EUR").offer("ovh", 1, "1 EUR").billedBy(720*time.Hour, 3*time.Minute).sweep(50), 5, 10},
		{"several GPUs in a machine", site().offer("ovh", 4, "1 EUR").billedBy(time.Hour, 3*time.Minute).sweep(50), 2, 7},
		{"a gang starts together", cloud.sweep(10).together(), 10, 0},
		{"who does not say when a pod ends waits for nobody", cloud.gang("sweep", 1).times(10), 10, 0},
		{"the owner's deadline ends the queue", cloud.sweep(10).work(func(w *plan.Gang) { w.EndsBy = now().Add(16 * time.Minute) }), 5, 2},
		{"runs that fill the hour", cloud.gang("long", 1).times(3).runsFor(40 * time.Minute), 3, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := plan.Decide(c.g.s)
			bursts := p.Bursts()
			if len(bursts) != 1 {
				t.Fatalf("%d bursts, want 1:\n%s", len(bursts), p.Explain())
			}
			if b := bursts[0]; b.Machines != c.machines || b.Turns != c.turns {
				t.Errorf("%d machines and %d turns, want %d and %d:\n%s", b.Machines, b.Turns, c.machines, c.turns, p.Explain())
			}
		})
	}
}

// The life of a burst reaches to the end of the last turn.
func TestTurnsAreInTheBounds(t *testing.T) {
	cloud := site().offer("ovh", 1, "1 EUR").billedBy(time.Hour, 3*time.Minute)
	one, nine := plan.Decide(cloud.sweep(1).s).Bursts()[0], plan.Decide(cloud.sweep(9).s).Bursts()[0]
	more := 8 * 6 * time.Minute
	if nine.Machines != 1 || nine.MaxRun-one.MaxRun != more || nine.Deadline.Sub(one.Deadline) != more || nine.Until.Sub(one.Until) != more {
		t.Errorf("nine turns on %d machines run for %s until %s, one for %s until %s", nine.Machines, nine.MaxRun, nine.Until, one.MaxRun, one.Until)
	}
	if one.Expected != nine.Expected {
		t.Errorf("one pod is expected to cost %s, nine in the same hour %s", one.Expected, nine.Expected)
	}
	if nine.Ceiling.Nano <= one.Ceiling.Nano {
		t.Errorf("nine turns may cost %s at most, one %s", nine.Ceiling, one.Ceiling)
	}
}

// Turns never make a plan dearer, whatever the meter: not what is expected, and
// not what it may cost at most. Run one after the other as seated, all pods are
// over in the time that is planned.
func TestTurnsCostNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		minutes := func(label string, least, most int) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(t, label)) * time.Minute
		}
		gpus := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "gpus")
		g := site().budget("vision-month", "100000 EUR").offer("ovh", gpus, "1 EUR").seller(func(p *v1alpha1.BurstProvider, o *providers.Offer) {
			p.Spec.Join.BootTime.Duration = minutes("boot", 1, 30)
			o.Meter = providers.MeterRule{Granularity: minutes("unit", 1, 90), Minimum: minutes("minimum", 0, 90), ClockAligned: rapid.Bool().Draw(t, "aligned")}
		}).later(minutes("now", 0, 59)).gang("sweep", 1).times(rapid.IntRange(1, 16).Draw(t, "pods")).runsFor(minutes("run", 1, 90))
		turned, at := plan.Decide(g.s).Bursts()[0], plan.Decide(g.together().s).Bursts()[0]
		if turned.Expected.Nano > at.Expected.Nano || turned.Ceiling.Nano > at.Ceiling.Nano {
			t.Errorf("in turns %s and at most %s, all at once %s and at most %s", turned.Expected, turned.Ceiling, at.Expected, at.Ceiling)
		}
		seated := map[int32]int{}
		for _, seat := range turned.Pods {
			seated[seat.Machine]++
		}
		run := time.Duration(*g.s.Gangs[0].Pods[0].Spec.ActiveDeadlineSeconds) * time.Second
		for m, n := range seated {
			if takes := time.Duration((n+gpus-1)/gpus) * run; takes > turned.MaxRun {
				t.Errorf("machine %d is busy for %s, planned are %s", m, takes, turned.MaxRun)
			}
		}
	})
}
