package main

import (
	"strings"
	"testing"
)

const printed = `goos: linux
BenchmarkReserve-2      10000   160000 ns/op   6000 reservations/s   12 B/op
BenchmarkReserve-2      10000   160000 ns/op   7000 reservations/s   12 B/op
BenchmarkReserve-2      10000   160000 ns/op   100 reservations/s   12 B/op
BenchmarkFit/512-nodes-2    100   900 ns/op
PASS
`

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		goal goal
		want string
	}{
		"the median decides, not the disturbed run": {
			goal{What: "x", Benchmark: "BenchmarkReserve", Metric: "reservations/s", Better: "higher", Must: 5000, Aim: 15000},
			"PASS x: 6000 reservations/s (must 5000, aim 15000)",
		},
		"a missed must fails": {
			goal{What: "x", Benchmark: "BenchmarkReserve", Metric: "reservations/s", Better: "higher", Must: 6001, Aim: 15000},
			"FAIL x: 6000 reservations/s (must 6001, aim 15000)",
		},
		"lower is better, and the aim is met": {
			goal{What: "x", Benchmark: "BenchmarkFit/512-nodes", Metric: "ns/op", Better: "lower", Must: 1000, Aim: 900},
			"PASS x: 900 ns/op (must 1000, aim 900, aim met)",
		},
		"a benchmark that did not run fails": {
			goal{What: "x", Benchmark: "BenchmarkGone", Metric: "ns/op", Better: "lower", Must: 1000, Aim: 900},
			"FAIL x: not measured, benchmark BenchmarkGone gave no ns/op (must 1000, aim 900)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judge([]goal{tt.goal}, figures([]byte(printed)))[0].String(); got != tt.want {
				t.Errorf("judge() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestGoalsAreRefused(t *testing.T) {
	tests := map[string]struct{ data, want string }{
		"an aim easier than the must": {`{"a":{"packages":["./x"],"goals":[{"what":"w","benchmark":"B","metric":"m","better":"lower","must":5,"aim":6}]}}`, "easier than the must"},
		"a must that nothing misses":  {`{"a":{"packages":["./x"],"goals":[{"what":"w","benchmark":"B","metric":"m","better":"lower","must":0,"aim":0}]}}`, "is none"},
		"a direction nobody knows":    {`{"a":{"packages":["./x"],"goals":[{"what":"w","benchmark":"B","metric":"m","better":"best","must":5,"aim":4}]}}`, "higher or lower"},
		"a misspelt field":            {`{"a":{"packages":["./x"],"goal":[]}}`, "unknown field"},
		"an area without packages":    {`{"a":{}}`, "names no packages"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := readGoals([]byte(tt.data)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("readGoals() = %v, want an error with %q", err, tt.want)
			}
		})
	}
	t.Run("our own are fine", func(t *testing.T) {
		areas, err := readGoals(goalsFile)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"planner", "providers", "ledger", "datasync", "agent", "sim"} {
			if _, ok := areas[name]; !ok {
				t.Errorf("area %s has no entry", name)
			}
		}
	})
}
