package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// event is one line of "go test -json".
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// test runs the packages before "--", then what is left of the packages behind
// it, and prints a summary of both.
func test(ctx context.Context, args []string, out io.Writer) error {
	cut := slices.Index(args, "--")
	if cut < 0 {
		return errUsage
	}
	first, docs, err := list(ctx, args[:cut])
	if err != nil {
		return err
	}
	all, more, err := list(ctx, args[cut+1:])
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(all, func(p string) bool { return slices.Contains(first, p) })
	for name, doc := range more {
		docs[name] = doc
	}
	sum := newSummary(docs)
	for _, pass := range [][]string{first, rest} {
		if err := sum.pass(ctx, pass, out); err != nil {
			return err
		}
	}
	sum.print(out)
	if sum.failed > 0 {
		return errors.New("tests failed, see above")
	}
	return nil
}

// list expands patterns to package paths and what each package says of itself.
func list(ctx context.Context, patterns []string) (names []string, docs map[string]string, err error) {
	docs = map[string]string{}
	if len(patterns) == 0 {
		return nil, docs, nil
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{.ImportPath}}\t{{.Doc}}"}, patterns...)...)
	cmd.Stderr = os.Stderr
	raw, err := cmd.Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list packages %s: %w", strings.Join(patterns, " "), err)
	}
	for line := range strings.Lines(string(raw)) {
		name, doc, _ := strings.Cut(strings.TrimSpace(line), "\t")
		names = append(names, name)
		docs[name] = doc
	}
	return names, docs, nil
}

// pass runs one "go test" over pkgs and reads its events into s.
func (s *summary) pass(ctx context.Context, pkgs []string, out io.Writer) error {
	if len(pkgs) == 0 {
		return nil
	}
	// "make check" vets everything; a second, partial vet here would cost minutes.
	// Stories wait more than they compute: more of them than cores run at once.
	// Debug information would double the time of linking.
	args := append([]string{"test", "-json", "-vet=off", "-timeout", "25m", "-parallel", "4", "-ldflags=-s -w"}, pkgs...)
	cmd := exec.CommandContext(ctx, "go", args...)
	// Everything here is bound by two cores and not by memory: linkers, tests and
	// the processes that they start collect garbage less often.
	cmd.Env = append(os.Environ(), "GOGC=400")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("test: %w; install Go 1.26 and put it on PATH", err)
	}
	events := json.NewDecoder(stdout)
	for {
		var e event
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return errors.Join(fmt.Errorf("read the output of go test: %w", err), cmd.Wait())
		}
		s.add(e, out)
	}
	if err := cmd.Wait(); err != nil && s.failed == 0 {
		return fmt.Errorf("go test failed without naming a test: %w", err)
	}
	return ctx.Err()
}
