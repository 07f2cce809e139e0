package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// summary gathers what a test run did, by package.
type summary struct {
	docs           map[string]string // package path -> first sentence of its comment
	results        map[string]*result
	build          map[string][]string // package path -> messages of the compiler
	passed, failed int
}

// result is the outcome of one package. Only the innermost subtests count, so
// a table of ten rows is ten tests, not eleven.
type result struct {
	state   string // "ok", "FAIL" or "none" (no test files)
	seconds float64
	output  map[string][]string // test -> what it printed
	verdict map[string]string   // test -> pass, fail or skip
}

func newSummary(docs map[string]string) *summary {
	return &summary{docs: docs, results: map[string]*result{}, build: map[string][]string{}}
}

// add takes one event and prints a line when a package is done.
func (s *summary) add(e event, out io.Writer) {
	if e.Action == "build-output" {
		s.build[e.ImportPath] = append(s.build[e.ImportPath], e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	r := s.results[e.Package]
	if r == nil {
		r = &result{output: map[string][]string{}, verdict: map[string]string{}}
		s.results[e.Package] = r
	}
	switch e.Action {
	case "output":
		r.output[e.Test] = append(r.output[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test != "" {
			r.verdict[e.Test] = e.Action
			return
		}
		s.finish(e, r, out)
	}
}

func (s *summary) finish(e event, r *result, out io.Writer) {
	r.state = map[string]string{"pass": "ok", "fail": "FAIL", "skip": "none"}[e.Action]
	r.seconds = e.Elapsed
	passed, failed, _ := r.count()
	if e.Action == "fail" && failed == 0 {
		failed = 1 // did not build, panicked or timed out
	}
	s.passed += passed
	s.failed += failed
	if r.state != "none" {
		fmt.Fprintf(out, "%-4s  %s  (%.1f s)\n", r.state, short(e.Package), r.seconds)
	}
	if e.FailedBuild != "" {
		r.output[""] = append(r.output[""], s.build[e.FailedBuild]...)
	}
}

// count counts the tests that have no subtests.
func (r *result) count() (passed, failed int, skipped []string) {
	for _, name := range slices.Sorted(maps.Keys(r.verdict)) {
		if r.hasChild(name) {
			continue
		}
		switch r.verdict[name] {
		case "pass":
			passed++
		case "fail":
			failed++
		case "skip":
			skipped = append(skipped, name)
		}
	}
	return passed, failed, skipped
}

func (r *result) hasChild(name string) bool {
	for other := range r.verdict {
		if strings.HasPrefix(other, name+"/") {
			return true
		}
	}
	return false
}

// print writes the table, the skipped tests with their reasons, the output of
// what failed, and the closing line.
func (s *summary) print(out io.Writer) {
	fmt.Fprintf(out, "\nWhat the tests cover\n\n")
	names := slices.Sorted(maps.Keys(s.results))
	for _, name := range names {
		r := s.results[name]
		if r.state == "none" {
			continue
		}
		passed, failed, _ := r.count()
		fmt.Fprintf(out, "%-4s %4d passed %3d failed %6.1f s  %-26s %s\n", r.state, passed, failed, r.seconds, short(name), s.covers(name))
	}
	for _, name := range names {
		_, _, skipped := s.results[name].count()
		for _, test := range skipped {
			fmt.Fprintf(out, "\nskipped %s %s: %s", short(name), test, reason(s.results[name].output[test]))
		}
	}
	for _, name := range names {
		s.results[name].printFailures(short(name), out)
	}
	fmt.Fprintf(out, "\n%d passed, %d failed\n", s.passed, s.failed)
}

func (r *result) printFailures(pkg string, out io.Writer) {
	if r.state != "FAIL" {
		return
	}
	fmt.Fprintf(out, "\nFAIL %s\n", pkg)
	for _, test := range slices.Sorted(maps.Keys(r.output)) {
		if test != "" && r.verdict[test] == "pass" || r.verdict[test] == "skip" {
			continue
		}
		fmt.Fprint(out, strings.Join(r.output[test], ""))
	}
}

// covers is the package's own first sentence without its name.
func (s *summary) covers(name string) string {
	doc := s.docs[name]
	for _, lead := range []string{"Package ", "Command "} {
		if rest, ok := strings.CutPrefix(doc, lead); ok {
			_, doc, _ = strings.Cut(rest, " ")
		}
	}
	return clause(strings.TrimSuffix(doc, "."))
}

// clause is a sentence cut where a breath is taken, to fit a line of the table.
func clause(sentence string) string {
	const width = 100
	if len(sentence) <= width {
		return sentence
	}
	if cut := strings.LastIndexAny(sentence[:width], ",:;"); cut > width/3 {
		return sentence[:cut]
	}
	cut := strings.LastIndex(sentence[:width], " ")
	return sentence[:cut+1] + "..."
}

// short is the package path inside the module.
func short(name string) string { return strings.TrimPrefix(name, "spillway.dev/spillway/") }

// reason is the last line that a skipped test printed before its verdict.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			return line
		}
	}
	return "no reason given"
}
