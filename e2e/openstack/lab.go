// Package openstack runs a real OpenStack for tests: Keystone, Nova, Placement,
// Glance and Neutron from Debian's packages, with the hypervisor alone faked.
//
// [Start] needs root and an apt that can install Debian 12's packages. It
// unpacks them once into a folder of its own, and runs them on a throw-away layer
// above it in namespaces of their own: mounts, processes, host name and network.
// So services, ports and files of the host are never touched, several labs can
// stand side by side, and when the test ends, by whatever cause, the kernel ends
// everything that it started.
//
// Vocabulary: the root is the installed folder, kept between runs; a [Lab] is
// one running OpenStack above it; [Lab.Dial] is the only way into its network;
// a [Project] is one fresh account in it; an order makes its hypervisors
// misbehave; the [Proxy] makes the way to it misbehave.
package openstack

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"spillway.dev/spillway/e2e/procnode/child"
)

//go:embed lab
var files embed.FS

// Config says where a lab lives.
type Config struct {
	Cache string // roots lie below it, about 700 MB each, owned by root
	Dir   string // empty folder of this run; the services' logs lie in Dir/logs
	// Progress, if set, is told what is happening, one line at a time.
	Progress func(string)
}

// Lab is a running OpenStack. Everything in it ends with this process, or with
// [Lab.Stop].
type Lab struct {
	config Config
	keeper *child.Keeper // its thread outlives every other: the death signal is a thread's
	boot   *child.Process
	net    *os.File // the lab's network namespace
	admin  *Admin
	ids    map[string]string // of flavors, the image and the inner network, by name
}

// namespaces of a running lab. An installation keeps the host's network: it
// has to download.
const (
	installing = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID
	running    = installing | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
)

// Start returns a lab that serves, furnished with flavors, an image and
// networks. The error names the log to look at.
func Start(ctx context.Context, config Config) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("openstack lab: it installs packages into a folder and makes namespaces: run it as root")
	}
	l := &Lab{config: config, keeper: child.NewKeeper(), ids: map[string]string{}}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("openstack lab: %w", err), l.Stop())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) error {
	work, logs := filepath.Join(l.config.Dir, "work"), filepath.Join(l.config.Dir, "logs")
	for _, d := range []string{work, logs} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// The database and the queue write their logs as users of their own.
	if err := os.Chmod(logs, 0o1777); err != nil {
		return err
	}
	root, err := l.install(ctx)
	if err != nil {
		return err
	}
	l.say("starting the services")
	process, told, err := l.script(filepath.Join(logs, "boot.log"), running, filepath.Join(root, "etc/lab/boot.sh"), root, work, logs)
	if err != nil {
		return err
	}
	l.boot = process
	if l.net, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", process.PID())); err != nil {
		return err
	}
	select {
	case line := <-told:
		if line != "ready" {
			return l.obituary(line)
		}
	case <-ctx.Done():
		return fmt.Errorf("its services did not come up, see %s: %w", logs, context.Cause(ctx))
	}
	l.admin = newAdmin(l)
	return l.furnish(ctx)
}

// Stop ends everything and waits until it is gone. It may be called again.
func (l *Lab) Stop() error {
	defer l.keeper.Close()
	if l.net != nil {
		defer func() { _ = l.net.Close() }()
	}
	if l.boot != nil && !l.boot.End(0) {
		return fmt.Errorf("openstack lab: process %d does not end", l.boot.PID())
	}
	return nil
}

// install returns the folder with the packages, made now if need be.
func (l *Lab) install(ctx context.Context) (root string, err error) {
	cache, err := filepath.Abs(l.config.Cache)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "openstack.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // gives the lock back
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another installation: %w", err)
	}
	sum, err := checksum()
	if err != nil {
		return "", err
	}
	root = filepath.Join(cache, "openstack-"+sum)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	old, err := filepath.Glob(filepath.Join(cache, "openstack-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("remove an earlier root: %w", err)
		}
	}
	return root, l.build(ctx, root)
}

// build installs into a folder beside root, which gets its name only when it is
// whole.
func (l *Lab) build(ctx context.Context, root string) error {
	part := root + ".part"
	scripts := filepath.Join(l.config.Dir, "scripts")
	if err := os.MkdirAll(scripts, 0o755); err != nil {
		return err
	}
	lab, err := fs.Sub(files, "lab")
	if err != nil {
		return err
	}
	if err := os.CopyFS(scripts, lab); err != nil {
		return err
	}
	log := filepath.Join(l.config.Dir, "logs", "install.log")
	process, told, err := l.script(log, installing, filepath.Join(scripts, "install.sh"), part, scripts)
	if err != nil {
		return err
	}
	for {
		select {
		case line, more := <-told:
			if more {
				l.say("installing, " + line)
				continue
			}
			<-process.Done()
			if code := process.ExitCode(); code != 0 {
				return fmt.Errorf("installation: status %d, the end of %s is:\n%s", code, log, lastLines(log))
			}
			return os.Rename(part, root)
		case <-ctx.Done():
			process.End(0)
			return fmt.Errorf("installation, see %s: %w", log, context.Cause(ctx))
		}
	}
}

// script starts a shell script in namespaces of its own. What it writes to file
// descriptor 3 comes out of the channel, which is closed when nobody can write
// there any more.
func (l *Lab) script(log string, flags uintptr, path string, args ...string) (*child.Process, <-chan string, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = out.Close() }()
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = write.Close() }()
	cmd := exec.Command("/bin/sh", slices.Concat([]string{path}, args)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = out, out, []*os.File{write}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	process, err := l.keeper.Start(cmd)
	if err != nil {
		_ = read.Close()
		return nil, nil, err
	}
	told := make(chan string, 16) // nobody waits for a name after the start
	go func() {
		defer close(told)
		defer func() { _ = read.Close() }()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	return process, told, nil
}

// obituary names the service that has ended, with the end of its log.
func (l *Lab) obituary(line string) error {
	name, died := strings.CutPrefix(line, "died ")
	if !died {
		name = "boot"
	}
	log := filepath.Join(l.config.Dir, "logs", name+".log")
	return fmt.Errorf("%s has ended, the end of %s is:\n%s", name, log, lastLines(log))
}

// Order tells the fake hypervisors what to do to the next machines: "abort",
// "spawn N" or "destroy N" (seconds). Orders wear off one by one; the empty
// order forgets all.
func (l *Lab) Order(line string) error {
	path := fmt.Sprintf("/proc/%d/root/run/lab-orders", l.boot.PID())
	if line == "" {
		return os.WriteFile(path, nil, 0o600)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return err
}

func (l *Lab) say(line string) {
	if l.config.Progress != nil {
		l.config.Progress(line)
	}
}

// checksum names a root by all that it is made from.
func checksum() (string, error) {
	sum := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
		return err
	})
	fmt.Fprint(sum, runtime.GOARCH)
	return hex.EncodeToString(sum.Sum(nil))[:16], err
}

// lastLines is the end of a log, for error messages.
func lastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
