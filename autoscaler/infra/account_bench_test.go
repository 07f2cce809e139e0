package infra_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// BenchmarkSweep lists an account of 2,000 machines over an API that takes 50
// ms for each call, finds the few that have to go, and asks for their end.
func BenchmarkSweep(b *testing.B) {
	const fleet, expired, latency = 2000, 20, 50 * time.Millisecond
	cloud := fake.New(fake.Config{Provider: "far", Region: "r1", Country: "DE", Secrets: []string{"secret"}})
	now := time.Now()
	known := infra.Records{Tokens: map[string]bool{}}
	plant := func(expires time.Time, n int) {
		for i := range n {
			m := providers.Machine{Token: fmt.Sprintf("token-%d", i), Installation: "bench", Burst: "b", Created: now.Add(-time.Hour), Expires: expires}
			known.Tokens[m.Token] = true
			cloud.Plant(m)
		}
	}
	plant(now.Add(time.Hour), fleet-expired)
	var calls atomic.Int64
	api := fake.Serve(cloud)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		time.Sleep(latency)
		api.ServeHTTP(w, r)
	}))
	b.Cleanup(server.Close)
	driver := fake.Dial(server.URL+"/far", "secret", "bench", nil)
	for b.Loop() {
		plant(now.Add(-time.Minute), expired)
		report, err := infra.Sweep(b.Context(), driver, func(context.Context) (infra.Records, error) { return known, nil }, infra.DefaultSweepRules(), time.Now)
		if err != nil {
			b.Fatal(err)
		}
		if report.Listed != fleet || len(report.Asked) != expired {
			b.Fatalf("%d machines listed and %d deleted, want %d and %d", report.Listed, len(report.Asked), fleet, expired)
		}
	}
	b.ReportMetric(float64(calls.Load())/float64(b.N), "calls/sweep")
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/sweep")
}
