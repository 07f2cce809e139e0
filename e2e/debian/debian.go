// Package debian installs Debian packages into a folder of their own and runs
// scripts above it, for tests that need a real server which only a distribution
// has. It needs root and an apt that can install Debian 12's packages.
//
// [Install] makes a root once, with debootstrap, and keeps it under a name that
// says all that it was made from. [Start] runs a script in namespaces of its
// own; services, files and processes of the host are never touched, and when
// the test ends, by whatever cause, the kernel ends everything in them.
//
// Vocabulary: a root is an installed folder; a recipe is the list of packages
// and the files that lie in the root's /etc/lab; what a script writes to its
// file descriptor 3 is told, line by line.
package debian

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

//go:embed install.sh
var files embed.FS

// Recipe is what a root is made from.
type Recipe struct {
	Name     string   // of the roots; one file name
	Packages []string // of Debian 12
	Files    fs.FS    // plain files, for /etc/lab
}

// Config says where a root lives.
type Config struct {
	Cache string // roots lie below it, owned by root, some hundred megabytes each
	Dir   string // of this run; Dir/install.log is written
	// Progress, if set, is told what is happening, one line at a time.
	Progress func(string)
}

// Install returns the root's absolute path, made now if it isn't there. Roots
// of other recipes under the same name are removed. The error names the log.
func Install(ctx context.Context, keeper *child.Keeper, r Recipe, c Config) (root string, err error) {
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("a Debian for %s: packages are installed into a folder, in namespaces: run it as root", r.Name)
	}
	cache, err := filepath.Abs(c.Cache)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, r.Name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // gives the lock back
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another installation: %w", err)
	}
	sum, err := r.checksum()
	if err != nil {
		return "", err
	}
	root = filepath.Join(cache, r.Name+"-"+sum)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	old, err := filepath.Glob(filepath.Join(cache, r.Name+"-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", fmt.Errorf("remove an earlier root: %w", err)
		}
	}
	return root, r.build(ctx, keeper, root, c)
}

// build installs into a folder beside root, which gets its name only when it is
// whole.
func (r Recipe) build(ctx context.Context, keeper *child.Keeper, root string, c Config) error {
	part, scripts := root+".part", filepath.Join(c.Dir, "recipe")
	if err := os.CopyFS(scripts, r.Files); err != nil {
		return err
	}
	install, err := files.ReadFile("install.sh")
	if err != nil {
		return err
	}
	script := filepath.Join(c.Dir, "install.sh")
	if err := os.WriteFile(script, install, 0o600); err != nil {
		return err
	}
	log := filepath.Join(c.Dir, "install.log")
	// The host's network stays: packages have to be downloaded.
	process, told, err := Start(keeper, log, syscall.CLONE_NEWNS|syscall.CLONE_NEWPID, script, slices.Concat([]string{part, scripts}, r.Packages)...)
	if err != nil {
		return err
	}
	for {
		select {
		case line, more := <-told:
			if more && c.Progress != nil {
				c.Progress("installing " + line)
			}
			if more {
				continue
			}
			<-process.Done()
			if code := process.ExitCode(); code != 0 {
				return fmt.Errorf("installation: status %d, the end of %s is:\n%s", code, log, LastLines(log))
			}
			return os.Rename(part, root)
		case <-ctx.Done():
			process.End(0)
			return fmt.Errorf("installation, see %s: %w", log, context.Cause(ctx))
		}
	}
}

// checksum names a root by all that it is made from.
func (r Recipe) checksum() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOARCH, r.Packages)
	for _, tree := range []fs.FS{files, r.Files} {
		err := fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := fs.ReadFile(tree, path)
			fmt.Fprintf(sum, "%s %d\n%s", path, len(text), text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

// Start starts a shell script as the first process of new namespaces (clone
// flags): with CLONE_NEWPID, all that it starts ends with it. What it writes to
// file descriptor 3 comes out of the channel line by line; the channel is closed
// when nobody can write there any more.
func Start(keeper *child.Keeper, log string, flags uintptr, path string, args ...string) (*child.Process, <-chan string, error) {
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
	process, err := keeper.Start(cmd)
	if err != nil {
		return nil, nil, errors.Join(err, read.Close())
	}
	told := make(chan string, 16) // nobody waits for a line after the last that matters
	go func() {
		defer close(told)
		defer func() { _ = read.Close() }()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			told <- lines.Text()
		}
	}()
	return process, told, nil
}

// LastLines is the end of a log, for error messages.
func LastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
