package procnode

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// InitArg is the first argument by which a process node starts this same
// program as the first process of a pod. A program that runs [Main] must call
// [PodInit] with the arguments behind it, before anything else.
const InitArg = "pod-init"

const (
	initHosts  = "--hosts"
	initProbe  = "--probe"
	initStatus = 3 // descriptor on which pod-init says why the command doesn't start
)

// PodInit is the first process of a pod: it puts the pod's /etc/hosts and /proc
// in place, starts the command, passes signals on to it, reaps what the
// command left behind, and returns the command's exit status, or 128 plus the
// signal that ended it. When it ends, the kernel ends all that is left in the
// pod.
func PodInit(args []string) int {
	runtime.LockOSThread() // capabilities and the death signal are a thread's
	unix.CloseOnExec(initStatus)
	status := os.NewFile(initStatus, "status")
	err := podInit(args, status)
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	if err != nil {
		_, _ = fmt.Fprint(status, err) // the node puts it into the pod's status
		return startFailed
	}
	return 0
}

// exitCode is the end of the pod's command.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func podInit(args []string, status *os.File) error {
	if len(args) > 1 && args[0] == initHosts {
		if err := buildWalls(args[1]); err != nil {
			return err
		}
		args = args[2:]
	}
	switch {
	case len(args) == 1 && args[0] == initProbe:
		return nil
	case len(args) < 3 || args[0] != "--":
		return errors.New("started by hand: only a process node starts it")
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	pid, err := syscall.ForkExec(args[1], args[2:], &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", args[1], err)
	}
	_ = status.Close() // tells the node that the command runs
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // gone is fine
		}
	}()
	return reap(pid)
}

// reap waits for every child, the pod's orphans included, until main has ended.
func reap(main int) error {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for the pod's command: %w", err)
		case pid != main:
			continue
		case status.Signaled():
			return exitCode(128 + int(status.Signal()))
		default:
			return exitCode(status.ExitStatus())
		}
	}
}

// buildWalls makes the mounts of a pod, in its own mount namespace, and gives
// up the right to make any.
func buildWalls(hosts string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the pod's mounts its own: %w", err)
	}
	if err := unix.Mount(hosts, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the pod's /etc/hosts: %w", err)
	}
	// Where the host hides parts of /proc, the kernel refuses a new one. The
	// pod then sees the host's processes, and nothing else changes.
	_ = unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}
