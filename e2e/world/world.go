// Package world is a whole site on one machine: a real control plane with the
// chart applied, on-prem process nodes, an S3 store at home and one at the
// clouds, and several clouds whose machines are process nodes that join by the
// user-data they are given. For the demo and the whole-system tests.
//
// The promise: all of it is real but the hardware. What the world says about
// itself comes from outside the controller: the clouds' own lists, the stores'
// own logs, the disks of the machines, kept after their end in a folder that
// stands for what a provider could still read.
//
// Vocabulary: home is the data centre; a cloud is one account at one provider;
// the attic keeps the disks of machines that are gone.
package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	chart "spillway.dev/spillway/charts/spillway"
	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/e2e/objectstore"
	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/providers/fake"
)

// The arguments by which a program that builds a world is its children.
const (
	NodeArg  = "demo-node"
	StoreArg = "demo-store"
)

// Child runs the child that the arguments ask for; ok is false when they ask
// for none. A program that builds a world calls it before anything else.
func Child(args []string) (status int, ok bool) {
	if len(args) == 0 {
		return 0, false
	}
	switch args[0] {
	case procnode.InitArg:
		return procnode.PodInit(args[1:]), true
	case NodeArg:
		return procnode.Main(args[1:]), true
	case StoreArg:
		return objectstore.Main(args[1:]), true
	}
	return 0, false
}

// StoreHost is the name of the home store in the jobs' URLs.
const StoreHost = "s3.onprem.test"

// Config is what a world is built from.
type Config struct {
	// Dir receives everything; BinDir holds kube, crds and spillway-agent.
	Dir, BinDir string
	// Exec is the command of this program; [Child] is its first act.
	Exec []string
	// Nodes is the number of on-prem nodes with two GPUs each.
	Nodes int
	// Clouds are the accounts; see [Cloud].
	Clouds []Cloud
	// OpenStore starts the store that a name says in a folder of the world; the
	// first account owns its buckets. nil means versitygw.
	OpenStore func(ctx context.Context, name, dir string, accounts []Account) (Store, error)
	// Progress is told a short line for each fact.
	Progress func(string)
	// NewScheme makes the scheme of Client.
	NewScheme func() (*runtime.Scheme, error)
}

// World is a running site.
type World struct {
	Config
	ControlPlane *controlplane.ControlPlane
	Kube         kubernetes.Interface
	Client       client.Client // as administrator
	Home         Store
	Staging      Store
	Clouds       map[string]*fake.Cloud
	CloudsURL    string
	// Link and Gate are the addresses that are free for the controller.
	Link, Gate string

	cloudServer *http.Server
	nodes       []*procnode.Machine
	cancel      context.CancelFunc
	drawn       map[string]string            // secrets of the stores
	machines    map[string]*procnode.Machine // by instance id
	mu          sync.Mutex
}

// Start builds a world. What was started is stopped when it fails.
func Start(ctx context.Context, c Config) (*World, error) {
	w := &World{Config: c, Clouds: map[string]*fake.Cloud{}, machines: map[string]*procnode.Machine{}}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w.cancel = cancel
	for _, build := range []func(context.Context) error{w.startControlPlane, w.installChart, w.startStores} {
		if err := build(ctx); err != nil {
			return nil, errors.Join(err, w.Stop())
		}
	}
	var err error
	if w.Link, w.Gate, err = twoAddresses(); err != nil {
		return nil, errors.Join(err, w.Stop())
	}
	for _, build := range []func(context.Context) error{w.startClouds, w.startNodes} {
		if err := build(run); err != nil {
			return nil, errors.Join(err, w.Stop())
		}
	}
	return w, nil
}

func (w *World) say(format string, args ...any) {
	if w.Progress != nil {
		w.Progress(fmt.Sprintf(format, args...))
	}
}

func (w *World) startControlPlane(ctx context.Context) (err error) {
	w.ControlPlane, err = controlplane.Start(ctx, controlplane.Config{
		BinDir: w.BinDir, Dir: filepath.Join(w.Dir, "control-plane"), Progress: w.Progress,
	})
	if err != nil {
		return err
	}
	admin := w.ControlPlane.AdminConfig
	admin.QPS = -1 // a watcher that polls must not hold up the others
	if w.Kube, err = kubernetes.NewForConfig(admin); err != nil {
		return fmt.Errorf("API client: %w", err)
	}
	scheme, err := w.NewScheme()
	if err != nil {
		return err
	}
	if w.Client, err = client.New(admin, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("API client: %w", err)
	}
	return nil
}

// installChart does what `helm install` does, plus the kinds of Cluster API.
func (w *World) installChart(ctx context.Context) error {
	dyn, err := dynamic.NewForConfig(w.ControlPlane.AdminConfig)
	if err != nil {
		return fmt.Errorf("API client: %w", err)
	}
	kinds, err := chart.Read(os.DirFS(filepath.Join(w.BinDir, "crds")), "*.yaml")
	if err != nil {
		return fmt.Errorf("kinds of Cluster API: %w; run make build", err)
	}
	if len(kinds) == 0 {
		return fmt.Errorf("kinds of Cluster API: none in %s; run make build", filepath.Join(w.BinDir, "crds"))
	}
	if err := chart.ApplyObjects(ctx, dyn, kinds); err != nil {
		return fmt.Errorf("kinds of Cluster API: %w", err)
	}
	if err := chart.Apply(ctx, dyn); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := chart.WaitForGuards(ctx, dyn); err != nil {
		return fmt.Errorf("admission policies do not act: %w", err)
	}
	w.say("chart installed: kinds, roles, admission policies acting")
	return nil
}

// Stop ends everything and reports what did not end.
func (w *World) Stop() error {
	var problems []error
	w.cancel()
	for _, c := range w.Clouds {
		c.Close()
	}
	if w.cloudServer != nil {
		problems = append(problems, w.cloudServer.Close())
	}
	for _, n := range w.nodes {
		n.Kill()
	}
	for _, s := range []Store{w.Home, w.Staging} {
		if s != nil {
			problems = append(problems, s.Stop())
		}
	}
	if w.ControlPlane != nil {
		problems = append(problems, w.ControlPlane.Stop())
	}
	return errors.Join(problems...)
}

// twoAddresses finds two free loopback addresses.
func twoAddresses() (a, b string, err error) {
	var held []net.Listener
	for range 2 {
		var lc net.ListenConfig
		l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", fmt.Errorf("no free port on 127.0.0.1: %w", err)
		}
		held = append(held, l)
	}
	a, b = held[0].Addr().String(), held[1].Addr().String()
	return a, b, errors.Join(held[0].Close(), held[1].Close())
}
