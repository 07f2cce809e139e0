package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

const (
	loopback = "127.0.0.1"
	// logTail is how much of a dead component's log its error shows.
	logTail  = 2048
	pollTime = 50 * time.Millisecond
)

// componentNames lists the components in the order of their start.
func componentNames() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// component is one running part.
type component struct {
	name    string
	log     string
	process *child.Process
}

// ports are the loopback ports of one attempt.
type ports struct{ etcd, peer, api int }

// choosePorts asks the kernel for free ports. Another process may take one
// before its component does; start then tries again with others.
func (c *ControlPlane) choosePorts() error {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	for _, port := range []*int{&c.ports.etcd, &c.ports.peer, &c.ports.api} {
		l, err := net.Listen("tcp", loopback+":0")
		if err != nil {
			return fmt.Errorf("find a free port on %s: %w", loopback, err)
		}
		listeners = append(listeners, l)
		*port = l.Addr().(*net.TCPAddr).Port
	}
	c.URL = fmt.Sprintf("https://%s:%d", loopback, c.ports.api)
	return nil
}

// run starts a component and watches over it.
func (c *ControlPlane) run(name string, args []string) error {
	path := filepath.Join(c.LogDir, name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("log of %s: %w", name, err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(c.BinDir, name), args...)
	cmd.Dir = c.config.Dir
	// A tenth less of a core for some memory more: it lives for minutes.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.config.Dir, "GOGC=400", "TMPDIR=" + os.TempDir()}
	cmd.Stdout, cmd.Stderr = log, log
	process, err := c.keeper.Start(cmd)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	part := &component{name: name, log: path, process: process}
	c.mu.Lock()
	c.running = append(c.running, part)
	died := c.died
	c.mu.Unlock()
	c.progress(name + " started")
	go func() {
		<-process.Done()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.stopping {
			died <- part.obituary()
		}
	}()
	return nil
}

// obituary says how a component ended, with the end of its log.
func (p *component) obituary() error {
	tail := lastBytes(p.log, logTail)
	var reason error = errEnded
	switch text := strings.ToLower(tail); {
	case strings.Contains(text, syscall.EADDRINUSE.Error()):
		reason = syscall.EADDRINUSE
	case strings.Contains(text, syscall.ENOSPC.Error()):
		reason = syscall.ENOSPC
	case p.process.ExitCode() == 128+int(syscall.SIGKILL):
		reason = errKilled
	}
	return fmt.Errorf("%s (status %d): %w; its whole log is %s and ends with:\n%s", p.name, p.process.ExitCode(), reason, p.log, tail)
}

var (
	errEnded  = errors.New("ended by itself")
	errKilled = errors.New("was killed; when nobody did it by hand, the machine may be out of memory")
)

// await polls cond until it holds, the component dies, the time is up, or ctx
// ends.
func (c *ControlPlane) await(ctx context.Context, name string, cond func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(pollTime)
	defer tick.Stop()
	for {
		last := cond(ctx)
		if last == nil {
			return nil
		}
		select {
		case err := <-c.died:
			return err
		case <-tick.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("%s is not ready after %v: see %s: %w", name, readyWait, filepath.Join(c.LogDir, name+".log"), last)
			}
			return fmt.Errorf("start of the control plane, waiting for %s: %w", name, context.Cause(ctx))
		}
	}
}

// lastBytes returns the end of a file in whole lines, or "" when it can't.
func lastBytes(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	start := max(0, size-n)
	b := make([]byte, size-start)
	if _, err := f.ReadAt(b, start); err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	if _, rest, ok := bytes.Cut(b, []byte("\n")); ok && start > 0 {
		b = rest
	}
	return string(b)
}
