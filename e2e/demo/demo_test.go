package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"spillway.dev/spillway/e2e/controlplane"
)

// running is the demo as a person starts it: the program that make build made.
type running struct {
	cmd      *exec.Cmd
	dir      string
	out, err bytes.Buffer
}

func start(t *testing.T) *running {
	t.Helper()
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "demo") // t.TempDir is too long for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir)
		}
	})
	r := &running{dir: filepath.Join(dir, "out")}
	r.cmd = exec.Command(filepath.Join(bin, "spillway"), "demo", "-o", "json", "--dir", r.dir)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.err
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.cmd.Process.Kill() }) // it has ended, or the test has failed
	return r
}

// wait waits for the end and returns the exit status.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	err := r.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// left are the processes that still name the demo's folder.
func (r *running) left(t *testing.T) (all []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		data, err := os.ReadFile(line)
		if err == nil && bytes.Contains(data, []byte(r.dir)) {
			all = append(all, fmt.Sprintf("%s: %s", line, bytes.ReplaceAll(data, []byte{0}, []byte{' '})))
		}
	}
	return all
}

// TestDemo is `make demo` on what is built: every promise is kept, and what is
// printed for machines is what lies in the folder.
func TestDemo(t *testing.T) {
	t.Parallel()
	r := start(t)
	if status := r.wait(t); status != 0 {
		t.Fatalf("exit status %d: %s\nlook into %s", status, r.err.String(), r.dir)
	}
	var s Summary
	if err := json.Unmarshal(r.out.Bytes(), &s); err != nil {
		t.Fatalf("-o json prints no summary: %v", err)
	}
	kept, err := os.ReadFile(filepath.Join(r.dir, "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(kept), bytes.TrimSpace(r.out.Bytes())) {
		t.Errorf("summary.json and what is printed differ:\n%s\n%s", kept, r.out.String())
	}
	if len(s.Promises) != 10 {
		t.Errorf("%d promises in the summary, want 10", len(s.Promises))
	}
	for n, p := range s.Promises {
		if kept := fmt.Sprint(p.Kept); kept != "true" && (n != "9" || kept != "not exercised") || p.Evidence == "" {
			t.Errorf("promise %s: kept %v, evidence %q", n, p.Kept, p.Evidence)
		}
	}
	if b := s.Burst; b == nil || b.Provider != "rhein" || b.Left != 0 || b.Cleartext != 0 || b.CachedBody != 0 || b.CachedGets == 0 || !b.Verified || b.Staged == 0 {
		t.Errorf("burst: %+v", b)
	}
	results := map[string]string{}
	for _, j := range s.Jobs {
		results[j.Name] = j.ResultSHA256
	}
	if results["a"] == "" || results["a"] != results["b"] || results["c"] != "" {
		t.Errorf("results %v: a and b must be equal, c must not have run", results)
	}
	for _, name := range []string{"state.json", "ledger.db", "certificate.json", "logs"} {
		if _, err := os.Stat(filepath.Join(r.dir, name)); err != nil {
			t.Errorf("what was to be kept is not: %v", err)
		}
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("still running: %s", strings.Join(left, "\n"))
	}
}

// TestInterrupt ends the demo at several moments, as Ctrl-C and as a kill do:
// nothing is left running.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		children int // that run when it is interrupted
		signal   syscall.Signal
	}{
		{"at once, perhaps before it can say a word", 0, syscall.SIGINT},
		{"while the control plane comes up", 2, syscall.SIGTERM},
		{"with the whole site up", 9, syscall.SIGINT},
		{"killed, with the whole site up", 9, syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t)
			for end := time.Now().Add(2 * time.Minute); len(r.left(t)) <= tt.children; time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d children never ran: %s", tt.children, r.err.String())
				}
			}
			if err := r.cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			status := r.wait(t)
			if tt.children > 0 && tt.signal != syscall.SIGKILL && (status != 1 || !strings.Contains(r.err.String(), "interrupted; nothing is left running")) {
				t.Errorf("exit status %d: %q", status, r.err.String())
			}
			var left []string
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if left = r.left(t); len(left) == 0 {
					return
				}
			}
			t.Errorf("still running: %s", strings.Join(left, "\n"))
		})
	}
}
