package stories

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
)

// killPoints are the places right behind every outside act of every step.
func killPoints() []string {
	return []string{
		"reserve/" + v1alpha1.Reserved,
		"stage/" + v1alpha1.StagingStarted, "stage/" + v1alpha1.Staged,
		"create/" + v1alpha1.MachineRequested, "infra/" + infra.ActPermit, "infra/" + infra.ActCreate, "create/" + v1alpha1.MachineBought,
		"join/" + v1alpha1.NodeJoined,
		"admit/" + v1alpha1.KeyReleased, "infra/" + infra.ActExtend, "admit/" + v1alpha1.PodsAdmitted,
		"watch/" + v1alpha1.WorkDone,
		"collect/" + v1alpha1.ResultsHome,
		"wipe/" + v1alpha1.Wiped, "wipe/" + v1alpha1.KeyDestroyed,
		"infra/" + infra.ActDelete, "infra/" + infra.ActGone, "destroy/" + v1alpha1.MachineGone, "destroy/" + v1alpha1.Certified,
		"settle/" + v1alpha1.Settled, "settle/" + v1alpha1.Complete,
	}
}

// TestCrash kills the controller right behind every outside act and restarts
// it. Promise 9: after the restart there is one machine, one charge, one wipe.
// cases: H-1 kubernetes-sigs/karpenter#1448, F16 karpenter-provider-hetzner PR#53.
func TestCrash(t *testing.T) {
	t.Parallel()
	points := killPoints()
	t.Run("before the work", func(t *testing.T) { crash(t, points[:len(points)/2]) })
	t.Run("from the work on", func(t *testing.T) { crash(t, points[len(points)/2:]) })
}

// crash plays every kill point on one stage.
func crash(t *testing.T, points []string) {
	s := newStage(t, nil)
	undisturbed := s.undisturbed()
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "step\tkill point\tmachines\tleft\tcharges\tcertificates\tresult")
	for i, point := range points {
		t.Run(strings.ReplaceAll(point, "/", " "), func(t *testing.T) {
			s := s.on(t)
			job := fmt.Sprintf("crash-%d", i)
			k := &killer{point: point}
			first := s.start("first", k.strike)
			s.submit(job, 1)
			s.until(patience, "kill point "+point, k.struck)
			first.stop()
			second := s.start("second", nil)
			s.until(patience, "Job "+job+" to finish after a kill at "+point, func() bool { return s.finished(job) })
			second.stop()
			got := s.count(job)
			step, fact, _ := strings.Cut(point, "/")
			_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%.12s\n", step, fact, got.machines, got.billing, got.charges, got.certificates, got.result)
			if want := (tally{machines: 1, charges: 1, certificates: 1, result: undisturbed}); got != want {
				t.Errorf("after a kill at %s: %+v, want %+v", point, got, want)
			}
		})
	}
	_ = w.Flush()
	t.Logf("\n%s", table.String())
}

// undisturbed runs one Job without any kill and returns its result.
func (s *stage) undisturbed() string {
	s.t.Helper()
	c := s.start("undisturbed", nil)
	s.submit("undisturbed", 1)
	s.until(patience, "an undisturbed burst", func() bool { return s.finished("undisturbed") })
	c.stop()
	if got := s.count("undisturbed"); got.machines != 1 || got.billing != 0 || got.charges != 1 || got.certificates != 1 || got.result == "" {
		s.t.Fatalf("undisturbed: %+v", got)
	}
	return s.result("undisturbed")
}
