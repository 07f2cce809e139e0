package nodeagent

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/nodeagent/link"
)

// However much a job writes, the report stays one that a hub takes: a node
// whose reports are refused would lose its lease, and the job its machine.
func TestResultsFitIntoAReport(t *testing.T) {
	parts := make([]datasync.Part, 10_000)
	for i := range parts {
		parts[i] = datasync.Part{Size: 5 << 20, SHA256: strings.Repeat("a", 64)}
	}
	tests := map[string]struct {
		n    int
		key  string
		part []datasync.Part
		some int // reported
	}{
		"none":                     {0, "k", nil, 0},
		"as many as go":            {link.MaxUploads, "k", nil, link.MaxUploads},
		"one more":                 {link.MaxUploads + 1, "k", nil, link.MaxUploads},
		"in very many parts":       {60, "k", parts, 60},
		"with names that are long": {3000, strings.Repeat("\u0001", 1000), nil, 1380},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var all []link.Upload
			for i := range tt.n {
				all = append(all, link.Upload{
					Bucket: "b", Key: fmt.Sprintf("%s%06d", tt.key, i), Size: 1, ETag: "e", Parts: tt.part, At: time.Unix(int64(i), 0).UTC(),
				})
			}
			some, left := reportable(all)
			if len(some) != tt.some || len(some)+left != tt.n {
				t.Errorf("%d reported and %d left, want %d of %d", len(some), left, tt.some, tt.n)
			}
			data, err := json.Marshal(some)
			if err != nil || len(data) > link.MaxBody/2+2 {
				t.Errorf("%d bytes, error %v", len(data), err)
			}
			if len(some) > 0 && some[0].At.Unix() != int64(tt.n-1) {
				t.Errorf("the first is of %v, want the newest", some[0].At)
			}
			if tt.part != nil && (some[0].Parts == nil || some[len(some)-1].Parts != nil) {
				t.Error("want the digests of parts for the newest, not for the oldest")
			}
		})
	}
}
