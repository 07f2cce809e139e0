package link

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// BenchmarkHubSync is one agent's turn at the hub: a report of changed
// readiness over mTLS, checked, kept, and answered at once.
func BenchmarkHubSync(b *testing.B) {
	w := newWorld(b)
	cert := w.cluster.node("node-a")
	client := w.http(&cert)
	r := report(b, "node-a", "burst-1")
	for b.Loop() {
		r.KeyHeld = !r.KeyHeld
		resp, err := client.Post(w.server.URL+SyncPath, "application/json", bytes.NewReader(body(b, r)))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			b.Fatalf("status %s", resp.Status)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "syncs/s")
}
