// Command benchgoals measures one area of Spillway and holds it to its goals.
//
// It runs the area's Go benchmarks, writes what they print, unchanged, to a
// file, and ends with one line a goal: PASS or FAIL, the figure, the threshold
// that must be kept (must) and the one that is wanted (aim). Areas and goals
// are data: goals.json. Exit status: 0 every must is kept, 1 one is missed or a
// benchmark failed, 2 wrong usage.
//
// A figure is the median of its runs, so that one disturbed run decides
// nothing. A goal whose benchmark did not run is missed.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
)

//go:embed goals.json
var goalsFile []byte

// area is what one "make bench" measures.
type area struct {
	Packages []string `json:"packages"`
	Goals    []goal   `json:"goals"`
}

// runs is how often each benchmark is repeated.
const runs = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: benchgoals AREA FILE")
		os.Exit(2)
	}
	if err := run(ctx, os.Args[1], os.Args[2], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name, file string, out io.Writer) error {
	areas, err := readGoals(goalsFile)
	if err != nil {
		return err
	}
	chosen, known := areas[name]
	if !known {
		return fmt.Errorf("area %q is unknown: choose one of %s", name, strings.Join(slices.Sorted(maps.Keys(areas)), ", "))
	}
	text, err := measure(ctx, chosen.Packages, out)
	if err != nil {
		return fmt.Errorf("measure %s: %w", name, err)
	}
	verdicts := judge(chosen.Goals, figures(text))
	var report strings.Builder
	missed := 0
	for _, v := range verdicts {
		fmt.Fprintln(&report, v)
		if !v.kept {
			missed++
		}
	}
	if err := os.WriteFile(file, append(text, report.String()...), 0o644); err != nil {
		return fmt.Errorf("keep the figures: %w", err)
	}
	fmt.Fprint(out, "\n", report.String())
	if missed > 0 {
		return fmt.Errorf("%d of %d goals of %s missed", missed, len(verdicts), name)
	}
	return nil
}

// readGoals parses the goals and refuses what could never fail.
func readGoals(data []byte) (map[string]area, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	areas := map[string]area{}
	if err := decoder.Decode(&areas); err != nil {
		return nil, fmt.Errorf("goals.json: %w", err)
	}
	for name, a := range areas {
		if len(a.Packages) == 0 {
			return nil, fmt.Errorf("goals.json: area %s names no packages", name)
		}
		for _, g := range a.Goals {
			if err := g.check(); err != nil {
				return nil, fmt.Errorf("goals.json: area %s: %w", name, err)
			}
		}
	}
	return areas, nil
}

// measure runs the benchmarks of packages, shows what they print and returns it.
func measure(ctx context.Context, packages []string, out io.Writer) ([]byte, error) {
	args := append([]string{"test", "-run", "^$", "-bench", ".", "-benchmem", "-count", strconv.Itoa(runs), "-timeout", "30m"}, packages...)
	var text bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stdout = io.MultiWriter(out, &text)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	return text.Bytes(), nil
}
