package child_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

// TestMain lets the test binary play the parent that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "parent" {
		parent(os.Args[2])
	}
	os.Exit(m.Run())
}

// parent starts a child that writes its process ID to file, and waits for ever.
func parent(file string) {
	k := child.NewKeeper()
	if _, err := k.Start(exec.Command("sh", "-c", "echo $$ >"+file+".new && mv "+file+".new "+file+" && exec sleep 300")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func TestChildDiesWithItsParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(os.Args[0], "parent", file)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	until(t, "the child has written its process ID", func() bool {
		b, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		return err == nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	until(t, "the child of the killed parent is gone", func() bool { return !alive(pid) })
}

func TestProcess(t *testing.T) {
	k := child.NewKeeper()
	defer k.Close()
	tests := map[string]struct {
		script string
		grace  time.Duration
		want   int
	}{
		"SIGTERM is enough for a child that obeys":      {script: "exec sleep 300", grace: time.Minute, want: 128 + int(syscall.SIGTERM)},
		"SIGKILL follows for a child that does not":     {script: "trap '' TERM; touch ready; while :; do sleep 1; done", grace: time.Millisecond, want: 128 + int(syscall.SIGKILL)},
		"an exit status chosen by the child is kept":    {script: "trap 'exit 7' TERM; touch ready; while :; do sleep 0.01; done", grace: time.Minute, want: 7},
		"no grace is SIGKILL at once":                   {script: "exec sleep 300", want: 128 + int(syscall.SIGKILL)},
		"a child that ended by itself is ended already": {script: "exit 3", grace: time.Minute, want: 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", tt.script)
			cmd.Dir = t.TempDir()
			p, err := k.Start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(tt.script, "ready") {
				until(t, "the child has set its trap", func() bool {
					_, err := os.Stat(filepath.Join(cmd.Dir, "ready"))
					return err == nil
				})
			}
			if tt.want == 3 {
				<-p.Done()
			}
			if !p.End(tt.grace) {
				t.Fatal("End() = false, want true")
			}
			if got := p.ExitCode(); got != tt.want {
				t.Errorf("ExitCode() = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestGroupEndsWithItsLeader(t *testing.T) {
	k := child.NewKeeper()
	defer k.Close()
	file := filepath.Join(t.TempDir(), "pid")
	p, err := k.Start(exec.Command("sh", "-c", "sleep 300 & echo $! >"+file))
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the orphan in the group is gone", func() bool { return !alive(pid) })
}

func TestClosedKeeper(t *testing.T) {
	k := child.NewKeeper()
	p, err := k.Start(exec.Command("sleep", "300"))
	if err != nil {
		t.Fatal(err)
	}
	k.Close()
	k.Close()
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Error("Close() left a child running")
	}
	if _, err := k.Start(exec.Command("true")); !errors.Is(err, child.ErrClosed) {
		t.Errorf("Start() after Close() = %v, want ErrClosed", err)
	}
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// until polls cond and fails the test when it is not met in 10 seconds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
