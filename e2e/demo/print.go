package demo

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// stepOf is the step of the design that a fact belongs to.
func stepOf(fact string) string {
	return map[string]string{
		v1alpha1.Reserved: "reserve", v1alpha1.StagingStarted: "stage", v1alpha1.Staged: "stage",
		v1alpha1.MachineRequested: "create", v1alpha1.MachineBought: "create", v1alpha1.NodeJoined: "join",
		v1alpha1.KeyReleased: "admit", v1alpha1.PodsAdmitted: "admit", v1alpha1.WorkDone: "watch",
		v1alpha1.ResultsHome: "collect", v1alpha1.Wiped: "wipe", v1alpha1.WipeUnproven: "wipe", v1alpha1.KeyDestroyed: "wipe",
		v1alpha1.MachineGone: "destroy", v1alpha1.Certified: "destroy", v1alpha1.Settled: "settle",
	}[fact]
}

// print shows the end of the story to people.
func (s *story) print() {
	b := s.summary.Burst
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) } // into memory
	row("\nTimeline of job b\t\t")
	start := s.summary.burst.CreationTimestamp.UTC()
	for _, step := range b.Steps {
		row("  +%.0fs\t%s\t%s", step.At.Sub(start).Seconds(), stepOf(step.Name), step.Name)
	}
	row("\nJobs\twhere\tseconds\tresult")
	for _, j := range s.summary.Jobs {
		row("  %s\t%s\t%.1f\t%.16s", j.Name, j.Where, j.Seconds, j.ResultSHA256)
	}
	row("\nMoney of job b\t")
	row("  reserved\t%s", b.Reserved)
	row("  spent\t%s\t%d billed seconds at %s", b.Spent, b.Billed, b.Provider)
	row("  released\t%s", b.Released)
	row("\nGPU-seconds of team-vision\t")
	row("  on-prem\t%d", b.OnPremSecs)
	row("  in the cloud\t%d", b.CloudSecs)
	row("\nData of job b\t")
	row("  staged\t%d bytes, as ciphertext", b.Staged)
	row("  read from the cache\t%d bytes\t%d times the store at home said 304 and sent %d bytes", b.Read, b.CachedGets, b.CachedBody)
	row("  returned\t%d bytes", b.Returned)
	row("  cleartext in the cloud\t%d bytes", b.Cleartext)
	row("  machines left\t%d", b.Left)
	_ = w.Flush() // into memory
	s.printf("%s\n%s\n", out.String(), b.report)
	s.printf("Certificate: %s (%s)\n\nPromises\n", b.Cert, b.CertLevel)
	for n := 1; n <= 10; n++ {
		p := s.summary.Promises[fmt.Sprint(n)]
		mark := map[any]string{true: "kept", false: "BROKEN"}[p.Kept]
		if mark == "" {
			mark = fmt.Sprint(p.Kept)
		}
		s.printf("  %2d  %-13s %s\n", n, mark, p.Evidence)
	}
	s.printf(`
What to look at next
  bin/spillway logs job/b -n %s --records %s     logs of a machine that is gone
  bin/spillway why --state %s                    why b was bought for
  bin/spillway get offers --state %s             the market that it was bought in
  bin/spillway ledger verify --file %s
  bin/spillway wipe verify --trust %s %s
  %s
`, visionNS, s.path("records"), s.path("state.json"), s.path("state.json"), s.path("ledger.db"), s.path("certificate.pub"), b.Cert, s.path("summary.json"))
}
