// Package controlplane runs a real Kubernetes control plane on loopback ports:
// etcd, kube-apiserver, kube-controller-manager and kube-scheduler, as four
// child processes of one multi-call binary. For tests and the demo.
//
// It is strict where production is: RBAC and the Node authorizer, admission
// with NodeRestriction, bootstrap tokens, a certificate authority of its own
// that signs node certificates (by the CSR API or by [ControlPlane.SignNode]),
// mutual TLS between all parts, etcd included. It has no network, no DNS and
// no kubelets; package procnode brings nodes.
//
// Everything it writes lies under one folder. Nothing is left running when
// [ControlPlane.Stop] returns, nor when this process is killed.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/e2e/procnode/child"
)

const (
	// minFree is the disk space, in bytes, without which a start is refused:
	// etcd preallocates two 64 MB log segments and the logs need some room.
	minFree = 400 << 20
	// startAttempts bounds the tries with other ports when a port that was
	// free a moment ago is taken.
	startAttempts = 4
	// readyWait bounds each wait for a component that runs but isn't ready.
	readyWait = 3 * time.Minute
)

// Config says where the control plane finds its binary and keeps its files.
type Config struct {
	// BinDir is the folder that holds the multi-call binary "kube";
	// [FindBinDir] finds the repository's.
	BinDir string
	// Dir receives everything: bin, pki, etcd, logs, kubeconfigs. It is
	// created; a folder that already holds a control plane is refused.
	Dir string
	// Progress, when set, is told one short line for each fact of the start.
	Progress func(string)
	// Extender, when set, is the URL of a filter extender: the scheduler asks
	// it last, with the names of all nodes that its own filters let through.
	Extender string
	// Unmanaged leaves the controller manager out: nodes without a kubelet
	// keep their state, and nothing binds volumes or makes accounts.
	Unmanaged bool
	// Gates are features that are off by default, for every component. With any
	// of them the API server serves beta APIs too.
	Gates []string
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	// AdminConfig is a member of system:masters.
	AdminConfig *rest.Config
	// Kubeconfig is the path of the same as a file.
	Kubeconfig string
	// URL is the API server's, https://127.0.0.1:PORT.
	URL string
	// CACert and CAKey (PEM) are the cluster's authority: it signs the API
	// server's certificate and those of clients, nodes included.
	CACert, CAKey []byte
	// BinDir holds links named after the components, and kubectl.
	BinDir string
	// LogDir holds one NAME.log for each component.
	LogDir string

	config Config
	ca     *authority
	etcdCA *authority
	ports  ports
	keeper *child.Keeper
	died   chan error

	mu       sync.Mutex
	stopping bool
	running  []*component
}

// Start brings the control plane up and returns when it accepts work: the API
// server is ready, the controller manager has made the default service
// account, and the scheduler runs. On an error nothing is left running. Errors
// are sentences for a person: the thing, the reason, the remedy.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	c, err := prepare(config)
	if err != nil {
		return nil, plain(config.Dir, err)
	}
	for attempt := 1; ; attempt++ {
		err = c.start(ctx)
		if err == nil {
			return c, nil
		}
		stopErr := c.Stop()
		if attempt == startAttempts || !errors.Is(err, syscall.EADDRINUSE) || ctx.Err() != nil {
			return nil, plain(config.Dir, errors.Join(err, stopErr))
		}
		c.progress("a port was taken, trying others")
		c.reset()
	}
}

// prepare makes the folders, links, keys and certificates.
func prepare(config Config) (*ControlPlane, error) {
	dir, err := filepath.Abs(config.Dir)
	if err != nil {
		return nil, fmt.Errorf("control plane folder %s: %w", config.Dir, err)
	}
	config.Dir = dir
	c := &ControlPlane{
		config: config,
		BinDir: filepath.Join(dir, "bin"),
		LogDir: filepath.Join(dir, "logs"),
		died:   make(chan error, len(componentNames())),
	}
	if _, err := os.Stat(c.file("etcd")); err == nil {
		return nil, fmt.Errorf("the folder %s already holds a control plane: choose an empty one, or delete it", dir)
	}
	for _, sub := range []string{"bin", "pki", "logs", "etcd"} {
		if err := os.MkdirAll(c.file(sub), 0o700); err != nil {
			return nil, fmt.Errorf("control plane folder: %w", err)
		}
	}
	if err := checkSpace(dir); err != nil {
		return nil, err
	}
	if err := c.link(); err != nil {
		return nil, err
	}
	if err := c.makeCredentials(); err != nil {
		return nil, err
	}
	c.keeper = child.NewKeeper()
	return c, nil
}

// reset forgets a failed attempt, so that the next starts from nothing.
func (c *ControlPlane) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keeper = child.NewKeeper()
	c.died = make(chan error, len(componentNames()))
	c.stopping, c.running = false, nil
	_ = os.RemoveAll(c.file("etcd")) // etcd itself says so when it stays
}

// start runs the components in the order in which they need each other. The
// scheduler and the controller manager start after the API server is ready:
// started in the same second they wait ten for a ConfigMap.
func (c *ControlPlane) start(ctx context.Context) error {
	if err := c.choosePorts(); err != nil {
		return err
	}
	if err := c.writeKubeconfigs(); err != nil {
		return err
	}
	if err := c.run("etcd", c.etcdArgs()); err != nil {
		return err
	}
	if err := c.run("kube-apiserver", c.apiserverArgs()); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(c.AdminConfig)
	if err != nil {
		return fmt.Errorf("client for the API server: %w", err)
	}
	if err := c.await(ctx, "kube-apiserver", func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}); err != nil {
		return err
	}
	c.progress("API server ready at " + c.URL)
	if err := c.runManagers(); err != nil || c.config.Unmanaged {
		return err
	}
	if err := c.await(ctx, "kube-controller-manager", func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}); err != nil {
		return err
	}
	c.progress("controller manager and scheduler run")
	return nil
}

// runManagers starts what acts on the objects.
func (c *ControlPlane) runManagers() error {
	if !c.config.Unmanaged {
		if err := c.run("kube-controller-manager", c.managerArgs("kube-controller-manager")); err != nil {
			return err
		}
	}
	if c.config.Extender != "" {
		if err := os.WriteFile(c.file("scheduler.yaml"), c.schedulerConfig(), 0o600); err != nil {
			return fmt.Errorf("configuration of the scheduler: %w", err)
		}
	}
	return c.run("kube-scheduler", c.managerArgs("kube-scheduler"))
}

// Died receives an error when a component ends although nobody asked it to;
// the error holds the last lines of its log.
func (c *ControlPlane) Died() <-chan error { return c.died }

// Stop kills every component and waits until all are gone. A component that
// the kernel doesn't end within 5 seconds is named in the error. The files
// stay. Stop may be called again.
func (c *ControlPlane) Stop() error {
	c.mu.Lock()
	c.stopping = true
	running := c.running
	c.running = nil
	c.mu.Unlock()
	var errs []error
	for i := len(running) - 1; i >= 0; i-- {
		p := running[i]
		if !p.process.End(0) {
			errs = append(errs, fmt.Errorf("%s (process %d) did not end after SIGKILL: see its state in /proc/%d/status", p.name, p.process.PID(), p.process.PID()))
		}
	}
	c.keeper.Close()
	return errors.Join(errs...)
}

func (c *ControlPlane) file(elem ...string) string {
	return filepath.Join(append([]string{c.config.Dir}, elem...)...)
}

func (c *ControlPlane) progress(line string) {
	if c.config.Progress != nil {
		c.config.Progress(line)
	}
}

// plain turns the faults of the machine into a sentence with a remedy.
func plain(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("the disk under %s is full, free some space and start again: %w", dir, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("no right to write %s, choose another folder or change its owner: %w", dir, err)
	default:
		return err
	}
}

func checkSpace(dir string) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < minFree {
		return fmt.Errorf("only %d MiB are left and the control plane needs %d MiB: %w", free>>20, minFree>>20, syscall.ENOSPC)
	}
	return nil
}
