package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// goal is a promise about one figure of one benchmark.
type goal struct {
	What      string  `json:"what"`      // for people
	Benchmark string  `json:"benchmark"` // its full name without the CPU suffix
	Metric    string  `json:"metric"`    // its unit as printed: ns/op, MB/s, reservations/s ...
	Better    string  `json:"better"`    // higher or lower
	Must      float64 `json:"must"`
	Aim       float64 `json:"aim"`
}

func (g goal) check() error {
	switch {
	case g.What == "" || g.Benchmark == "" || g.Metric == "":
		return fmt.Errorf("goal %q: what, benchmark and metric are needed", g.What)
	case g.Better != "higher" && g.Better != "lower":
		return fmt.Errorf("goal %q: better is higher or lower, not %q", g.What, g.Better)
	case g.Must <= 0:
		return fmt.Errorf("goal %q: must is %g: a goal that nothing can miss is none", g.What, g.Must)
	case !g.meets(g.Aim, g.Must):
		return fmt.Errorf("goal %q: the aim %g is easier than the must %g", g.What, g.Aim, g.Must)
	}
	return nil
}

// meets reports whether figure is at least as good as threshold.
func (g goal) meets(figure, threshold float64) bool {
	if g.Better == "higher" {
		return figure >= threshold
	}
	return figure <= threshold
}

// verdict is the outcome of one goal.
type verdict struct {
	goal
	figure   float64
	measured bool
	kept     bool
}

func (v verdict) String() string {
	word := map[bool]string{true: "PASS", false: "FAIL"}[v.kept]
	if !v.measured {
		return fmt.Sprintf("%s %s: not measured, benchmark %s gave no %s (must %g, aim %g)", word, v.What, v.Benchmark, v.Metric, v.Must, v.Aim)
	}
	note := ""
	if v.meets(v.figure, v.Aim) {
		note = ", aim met"
	}
	return fmt.Sprintf("%s %s: %.4g %s (must %g, aim %g%s)", word, v.What, v.figure, v.Metric, v.Must, v.Aim, note)
}

// judge holds the figures against the goals.
func judge(goals []goal, figures map[string][]float64) []verdict {
	var verdicts []verdict
	for _, g := range goals {
		v := verdict{goal: g}
		if runs := figures[g.Benchmark+" "+g.Metric]; len(runs) > 0 {
			v.figure, v.measured = median(runs), true
			v.kept = g.meets(v.figure, g.Must)
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// median of a non-empty list; of an even number the worse is unknown, so the
// mean of the middle two.
func median(runs []float64) float64 {
	sorted := slices.Sorted(slices.Values(runs))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// figures reads Go benchmark format: "benchmark metric" -> one value a run.
func figures(text []byte) map[string][]float64 {
	found := map[string][]float64{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		name := withoutCPUs(fields[0])
		for i := 2; i+1 < len(fields); i += 2 {
			value, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break
			}
			key := name + " " + fields[i+1]
			found[key] = append(found[key], value)
		}
	}
	return found
}

// withoutCPUs takes the "-2" off "BenchmarkReserve-2".
func withoutCPUs(name string) string {
	if i := strings.LastIndex(name, "-"); i > 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			return name[:i]
		}
	}
	return name
}
