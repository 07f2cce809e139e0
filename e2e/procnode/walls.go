package procnode

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/e2e/procnode/child"
)

// walls say what a pod doesn't share with its host.
type walls int

const (
	noWalls   walls = iota // a plain process
	userWalls              // mount and process ID namespaces inside a user namespace
	rootWalls              // the same without a user namespace, for root
)

func (w walls) String() string {
	return [...]string{"none", "user namespace", "namespaces"}[w]
}

const capSysAdmin = 21 // for the mounts of pod-init; dropped before the command

func (w walls) attributes() *syscall.SysProcAttr {
	if w == noWalls {
		return &syscall.SysProcAttr{}
	}
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	if w == userWalls { // everyone keeps the own user and group ID
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
		a.AmbientCaps = []uintptr{capSysAdmin}
	}
	return a
}

// probeWalls tries which walls the kernel lets this process build.
func (n *node) probeWalls() walls {
	if n.config.NoNamespaces {
		n.log.Warn("pods run without namespaces, as asked: they share /etc/hosts, the store is reached through HTTP_PROXY", "proxy", n.proxy())
		return noWalls
	}
	hosts := filepath.Join(n.config.Dir, "hosts")
	err := writeFile(hosts, n.hosts("probe"))
	for _, w := range []walls{rootWalls, userWalls} {
		if err != nil || w == rootWalls && os.Geteuid() != 0 {
			continue
		}
		cmd := exec.Command(n.exe, InitArg, initHosts, hosts, initProbe)
		cmd.SysProcAttr = w.attributes()
		p, refused := n.startReporting(cmd)
		if refused == nil {
			if <-p.Done(); p.ExitCode() == 0 {
				return w
			}
			refused = fmt.Errorf("exit status %d", p.ExitCode())
		}
		n.log.Info("this kind of namespaces is not to be had", "kind", w.String(), "error", refused)
	}
	n.log.Warn("pods run without namespaces, the kernel refuses them: they share /etc/hosts, the store is reached through HTTP_PROXY", "proxy", n.proxy())
	return noWalls
}

// hosts is the /etc/hosts of a pod: itself, and the store where this machine
// has it. No other name of the host is passed on.
func (n *node) hosts(pod string, aliases ...corev1.HostAlias) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# written by the process node %s\n127.0.0.1 localhost\n::1 localhost\n%s %s\n", n.config.Name, address, pod)
	if n.config.StoreHost != "" && n.config.StoreAddr != "" {
		fmt.Fprintf(&b, "%s %s\n", n.config.StoreAddr, n.config.StoreHost)
	}
	for _, a := range aliases {
		fmt.Fprintf(&b, "%s %s\n", a.IP, strings.Join(a.Hostnames, " "))
	}
	return b.Bytes()
}

// proxy is where pods without an own /etc/hosts find the store, or "".
func (n *node) proxy() string {
	if n.walls != noWalls || n.config.StoreAddr == "" || n.config.storePort == "" {
		return ""
	}
	return "http://" + net.JoinHostPort(n.config.StoreAddr, n.config.storePort)
}

// launch starts a container's command and returns when it runs. The command is
// the only child of pod-init, this program in another role.
func (n *node) launch(pod *corev1.Pod, c *container, env environment) (*child.Process, error) {
	if len(env.argv) == 0 {
		return nil, fmt.Errorf("container %s has no command: a process node runs commands, not images; set command in the pod", c.spec.Name)
	}
	dir, hosts := n.workDir(pod, c.spec), n.podDir(pod, "hosts")
	for _, d := range []string{n.podDir(pod, "work", c.spec.Name), n.podDir(pod, "tmp")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("folder of the pod: %w", err)
		}
	}
	if err := writeFile(hosts, n.hosts(pod.Name, pod.Spec.HostAliases...)); err != nil {
		return nil, err
	}
	path, err := lookup(env.argv[0], env.path, dir)
	if err != nil {
		return nil, err
	}
	logPath := n.logPath(pod, c.spec.Name, c.Restarts)
	if err := os.MkdirAll(filepath.Dir(logPath), 0o700); err != nil {
		return nil, fmt.Errorf("folder of the pod's log: %w", err)
	}
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the pod's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	args := []string{InitArg}
	if n.walls != noWalls {
		args = append(args, initHosts, hosts)
	}
	cmd := exec.Command(n.exe, append(append(args, "--", path), env.argv...)...)
	cmd.SysProcAttr = n.walls.attributes()
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env.env, log, log
	return n.startReporting(cmd)
}

// startReporting starts pod-init and waits until it says on descriptor 3 that
// its command runs (it closes the pipe) or why not (it writes first).
func (n *node) startReporting(cmd *exec.Cmd) (*child.Process, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe to the pod: %w", err)
	}
	defer func() { _ = r.Close() }()
	cmd.ExtraFiles = []*os.File{w}
	p, err := n.keeper.Start(cmd)
	_ = w.Close()
	if err != nil {
		return nil, err
	}
	why, err := io.ReadAll(r)
	if err == nil && len(why) == 0 {
		return p, nil
	}
	p.Kill()
	<-p.Done()
	if err != nil {
		return nil, fmt.Errorf("start of the command: %w", err)
	}
	return nil, fmt.Errorf("start of the command: %s", why)
}

// lookup finds a command: absolute, relative to dir, or in PATH.
func lookup(command, path, dir string) (string, error) {
	candidates := []string{command}
	if !strings.Contains(command, "/") {
		candidates = nil
		for _, d := range filepath.SplitList(path) {
			candidates = append(candidates, filepath.Join(d, command))
		}
	}
	for _, candidate := range candidates {
		if !filepath.IsAbs(candidate) {
			candidate = filepath.Join(dir, candidate)
		}
		if info, err := os.Stat(candidate); err == nil && !info.IsDir() && info.Mode()&0o111 != 0 {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("command %q not found on this machine (PATH %s): use an absolute path or install it", command, path)
}
