package lifecycle

import (
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// BenchmarkLife takes one burst after the other through its whole life, all ten
// steps, in virtual time: what a controller can carry, were its neighbours fast.
func BenchmarkLife(b *testing.B) {
	hours := 0.0
	for b.Loop() {
		life := newBench(b, 1, 1)
		life.serve()
		begun := life.now
		life.liveOn(2 * time.Hour)
		if !life.has(v1alpha1.Complete) {
			b.Fatalf("the burst did not complete: %v", life.facts())
		}
		hours += life.now.Sub(begun).Hours()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "bursts/s")
	b.ReportMetric(hours/b.Elapsed().Hours(), "x-real-time")
}
