// Package ceph runs a real Ceph Object Gateway for tests: a monitor, an OSD on a
// file, and radosgw from Debian's packages, with the S3 clients of the same
// distribution beside them.
//
// [Start] needs root and an apt that can install Debian 12's packages, which it
// does once, into a folder of its own. The daemons run in namespaces of their
// own, but for the network: they listen on free ports of 127.0.0.1. When the
// test ends, by whatever cause, the kernel ends everything that was started.
//
// Vocabulary: a [Lab] is one running cluster with one gateway; a client is a
// program of the same Debian, run by [Lab.Run].
package ceph

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"spillway.dev/spillway/e2e/debian"
	"spillway.dev/spillway/e2e/procnode/child"
)

//go:embed lab
var files embed.FS

// Config says where a lab lives.
type Config struct {
	Cache string // roots lie below it, about 1 GB each, owned by root
	Dir   string // empty folder of this run; the daemons' logs lie in Dir/logs
	Name  string // under which the gateway also reads bucket.NAME as a bucket
	Users []User
	// Progress, if set, is told what is happening, one line at a time.
	Progress func(string)
}

// User is an account of the gateway without any right of its own in the
// buckets of others.
type User struct{ Name, AccessKey, SecretKey string }

// Lab is a running gateway. Everything in it ends with this process, or with
// [Lab.Stop].
type Lab struct {
	config Config
	keeper *child.Keeper // its thread outlives every other: the death signal is a thread's
	boot   *child.Process
	addr   string
}

// Start returns a lab that serves and knows its users. The error names the log
// to look at.
func Start(ctx context.Context, config Config) (*Lab, error) {
	l := &Lab{config: config, keeper: child.NewKeeper()}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("ceph lab: %w", err), l.Stop())
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
	lab, err := fs.Sub(files, "lab")
	if err != nil {
		return err
	}
	root, err := debian.Install(ctx, l.keeper, debian.Recipe{Name: "ceph", Packages: packages(), Files: lab},
		debian.Config{Cache: l.config.Cache, Dir: logs, Progress: l.config.Progress})
	if err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	l.addr = net.JoinHostPort("127.0.0.1", ports[2])
	const flags = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	args := append([]string{root, work, logs}, append(ports, l.config.Name)...)
	process, told, err := debian.Start(l.keeper, filepath.Join(logs, "boot.log"), flags, filepath.Join(root, "etc/lab/boot.sh"), args...)
	if err != nil {
		return err
	}
	l.boot = process
	select {
	case line := <-told:
		if line != "ready" {
			return obituary(line, logs)
		}
	case <-ctx.Done():
		return fmt.Errorf("its daemons did not come up, see %s: %w", logs, context.Cause(ctx))
	}
	for _, u := range l.config.Users {
		_, err := l.Run(ctx, nil, "radosgw-admin", "user", "create", "--uid", u.Name, "--display-name", u.Name, "--access-key", u.AccessKey, "--secret-key", u.SecretKey)
		if err != nil {
			return err
		}
	}
	return nil
}

// packages are the gateway and what it stands on, and the clients.
func packages() []string {
	return []string{
		"radosgw", "ceph-mon", "ceph-osd", "ceph-common",
		"awscli", "s3cmd", "rclone", "python3-boto3", "ca-certificates",
	}
}

// obituary names the daemon that has ended, with the end of its log.
func obituary(line, logs string) error {
	log := filepath.Join(logs, "boot.log")
	if name, died := strings.CutPrefix(line, "died "); died {
		log = filepath.Join(logs, name+".out")
	}
	return fmt.Errorf("%s, the end of %s is:\n%s", line, log, debian.LastLines(log))
}

// Addr is host:port of the gateway.
func (l *Lab) Addr() string { return l.addr }

// URL is http://Addr.
func (l *Lab) URL() string { return "http://" + l.addr }

// Run runs a program of the lab's Debian to its end and returns what it wrote.
// The program sees the lab's files and the host's network; [Lab.File] says where
// its files lie for others. The error holds what it said.
func (l *Lab) Run(ctx context.Context, env []string, args ...string) (string, error) {
	var out, said bytes.Buffer
	enter := []string{"--target", fmt.Sprint(l.boot.PID()), "--mount", "--pid", "--uts", "--ipc", "--root", "--wd", "--"}
	cmd := exec.Command("nsenter", slices.Concat(enter, args)...)
	cmd.Env = slices.Concat([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"}, env)
	cmd.Stdout, cmd.Stderr = &out, &said
	process, err := l.keeper.Start(cmd)
	if err != nil {
		return "", fmt.Errorf("ceph lab: %w", err)
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.End(0)
	}
	if code := process.ExitCode(); code != 0 {
		return out.String(), fmt.Errorf("ceph lab: %s: status %d: %s", strings.Join(args, " "), code, strings.TrimSpace(said.String()))
	}
	return out.String(), nil
}

// File is the path, for this process, of a file that the lab's programs see at
// path.
func (l *Lab) File(path string) string { return filepath.Join(l.root(), path) }

func (l *Lab) root() string { return fmt.Sprintf("/proc/%d/root", l.boot.PID()) }

// Stop ends everything and waits until it is gone. It may be called again.
func (l *Lab) Stop() error {
	defer l.keeper.Close()
	if l.boot != nil && !l.boot.End(0) {
		return fmt.Errorf("ceph lab: process %d does not end", l.boot.PID())
	}
	return nil
}

// freePorts finds n free ports of 127.0.0.1.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("no free port on 127.0.0.1: %w", err)
		}
		defer func() { _ = l.Close() }()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
