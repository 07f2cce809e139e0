// Package child runs child processes that can't outlive their parent, for the
// test control plane and the process nodes.
//
// A [Keeper] owns one operating system thread and forks every child from it.
// The kernel kills a child when the thread that forked it ends, and the
// keeper's thread ends only with [Keeper.Close] or with the process itself,
// whatever ended it: return, panic, SIGKILL. (Forked from an ordinary
// goroutine, a child would die whenever the Go runtime retires a thread.)
//
// Each child leads its own process group, so Ctrl-C in a terminal reaches the
// parent only, and what is left of the group is killed when its leader ends.
// Grandchildren that leave the group and lose both ancestors are out of reach
// of this package; a process ID namespace is the way to hold those.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killWait is how long [Process.End] waits for the kernel to bury a process
// after SIGKILL; longer means that it hangs in an uninterruptible system call.
const killWait = 5 * time.Second

// pipeWait is how long the output of an ended child is still read, when the
// caller gave it a writer that is no file and something else holds the pipe.
const pipeWait = time.Second

// ErrClosed is returned by [Keeper.Start] after [Keeper.Close].
var ErrClosed = errors.New("the keeper of child processes is closed")

// Keeper forks children from one thread of its own. It is safe for concurrent
// use. A Keeper that is no longer used must be closed, or its thread stays.
type Keeper struct {
	starts chan start
	closed chan struct{}
	once   sync.Once
}

type start struct {
	cmd    *exec.Cmd
	result chan error
}

// NewKeeper returns a running Keeper.
func NewKeeper() *Keeper {
	k := &Keeper{starts: make(chan start), closed: make(chan struct{})}
	go k.fork()
	return k
}

// fork serves one start after the other. It never unlocks its thread, so the
// thread ends when this goroutine does.
func (k *Keeper) fork() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() { // the main thread never ends: occupy it and use another
		inner := make(chan struct{})
		go func() {
			defer close(inner)
			k.fork()
		}()
		<-inner
		runtime.UnlockOSThread()
		return
	}
	for {
		select {
		case s := <-k.starts:
			s.result <- s.cmd.Start()
		case <-k.closed:
			return
		}
	}
}

// Close ends the keeper's thread; children that still run get SIGKILL.
func (k *Keeper) Close() { k.once.Do(func() { close(k.closed) }) }

// Start starts cmd in its own process group. It keeps what the caller set in
// cmd.SysProcAttr and adds the group and the death signal. The caller must not
// call cmd.Wait: the returned Process does.
func (k *Keeper) Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = pipeWait
	}
	s := start{cmd: cmd, result: make(chan error, 1)}
	select {
	case k.starts <- s:
	case <-k.closed:
		return nil, fmt.Errorf("start %s: %w", cmd.Path, ErrClosed)
	}
	if err := <-s.result; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go p.bury()
	return p, nil
}

// Process is a started child.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex // held while a signal is sent, so that none hits a reused ID
	buried bool
}

// bury waits until the leader has ended, kills what is left of its group while
// the leader's ID still can't be reused, and reaps it.
func (p *Process) bury() {
	for unix.Waitid(unix.P_PID, p.PID(), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	p.mu.Lock()
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	_ = p.cmd.Wait() // the state says it all
	p.buried = true
	p.mu.Unlock()
	close(p.done)
}

// PID is the child's process ID and that of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended and is reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// State is how the child ended, or nil while it runs.
func (p *Process) State() *os.ProcessState {
	select {
	case <-p.done:
		return p.cmd.ProcessState
	default:
		return nil
	}
}

// ExitCode is the child's exit status, or 128 plus the signal that ended it,
// as shells say it; -1 while it runs.
func (p *Process) ExitCode() int {
	state := p.State()
	if state == nil {
		return -1
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// Signal sends sig to the leader only. A child that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) { p.kill(p.PID(), sig) }

// Kill sends SIGKILL to the whole group.
func (p *Process) Kill() { p.kill(-p.PID(), syscall.SIGKILL) }

func (p *Process) kill(pid int, sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.buried {
		_ = syscall.Kill(pid, sig)
	}
}

// End sends SIGTERM, waits for grace, sends SIGKILL to the group and waits for
// the end. A grace of zero goes straight to SIGKILL. It reports whether the
// child has ended; false means that the kernel could not end it in 5 seconds.
func (p *Process) End(grace time.Duration) bool {
	if grace > 0 {
		p.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return true
		case <-time.After(grace):
		}
	}
	p.Kill()
	select {
	case <-p.done:
		return true
	case <-time.After(killWait):
		return false
	}
}
