// Package demo tells the story of one burst Job on one machine, from an empty
// folder to a wipe certificate, and checks every promise from the outside.
//
// The cast: Job a fits at home and runs there; Job b has the same manifest and
// bursts, because a holds the GPUs; Job c would cost more than its tenant's
// budget; Job n belongs to a tenant that only observes; Job resident is a
// colleague's work that keeps the second node busy. Everything that the story
// claims at its end is read from outside the controller: the clouds' own
// lists, the stores' own files and logs, the disks that came back.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/procnode/child"
	"spillway.dev/spillway/e2e/world"
	"spillway.dev/spillway/providers"
)

// Options are the settings of a demo.
type Options struct {
	Dir    string // output folder; made anew
	BinDir string
	Exec   []string // this program
	Out    io.Writer
	JSON   bool // print the summary only, as JSON
}

// story is a demo while it runs.
type story struct {
	Options
	narrator
	world      *world.World
	keeper     *child.Keeper
	controller *child.Process
	summary    Summary
}

// Run tells the story. The error says which promise was broken, or what kept
// the story from being told.
func Run(ctx context.Context, o Options) error {
	quiet := klog.New(nil)
	ctrl.SetLogger(quiet)
	klog.SetLogger(quiet)
	dir, err := freshDir(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	if err := bounded(o.BinDir); err != nil {
		return err
	}
	s := &story{Options: o, keeper: child.NewKeeper()}
	s.narrator = narrator{out: o.Out, quiet: o.JSON, start: time.Now()}
	defer s.keeper.Close()
	err = s.tell(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted; nothing is left running")
	}
	return filledUp(dir, err)
}

// filledUp names the cause when a disk has run full in the middle: what fails
// then, fails with words of its own.
func filledUp(dir string, err error) error {
	const nearlyNothing = 16 << 20
	var fs unix.Statfs_t
	if err == nil || unix.Statfs(dir, &fs) != nil {
		return err
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < nearlyNothing {
		return fmt.Errorf("demo: the disk under %s has run full, %d MiB are left: free about 500 MiB and start again; what failed first: %w", dir, free>>20, err)
	}
	return err
}

// bounded says what is missing to run at all.
func bounded(bin string) error {
	for _, name := range []string{"kube", "crds", "spillway-agent"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Errorf("demo: %s is missing in %s; run make build", name, bin)
		}
	}
	return nil
}

// marker is in every folder that a demo made, so that nothing else is removed.
const marker = ".spillway-demo"

// freshDir makes the output folder anew. A folder that is not a demo's stays.
func freshDir(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("output folder: %w", err)
	}
	entries, err := os.ReadDir(abs)
	if err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(abs, marker)); err != nil {
			return "", fmt.Errorf("output folder %s holds something that no demo wrote; choose another with --dir", abs)
		}
		if err := os.RemoveAll(abs); err != nil {
			return "", fmt.Errorf("output folder: %w", err)
		}
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return "", fmt.Errorf("output folder: %w", err)
	}
	return abs, os.WriteFile(filepath.Join(abs, marker), nil, 0o644)
}

// tell is the story, chapter by chapter; what was started is stopped.
func (s *story) tell(ctx context.Context) (err error) {
	s.chapter("A data centre and three clouds, on this machine")
	if s.world, err = s.build(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	for _, c := range []struct {
		title string
		tell  func(context.Context) error
	}{
		{"Data at home, tenants, and the controller", s.settle},
		{"Job a runs at home", s.jobAtHome},
		{"Job b finds no room, and bursts", s.jobThatBursts},
		{"What it came to", s.account},
	} {
		s.chapter(c.title)
		if err := c.tell(ctx); err != nil {
			return err
		}
	}
	return s.verdict()
}

// build starts the world.
func (s *story) build(ctx context.Context) (*world.World, error) {
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", s.BinDir+string(os.PathListSeparator)+path); err != nil { // pods find spillway there
		return nil, err
	}
	second := providers.MeterRule{Start: providers.MeterCreated, Granularity: time.Second, Minimum: time.Minute}
	cloud := func(name, region, country, owner, ownerCountry, g2, g4 string) world.Cloud {
		return world.Cloud{
			Name: name, Region: region, Country: country, Secret: "secret-of-" + name, Owner: owner, OwnerCountry: ownerCountry,
			Prices: map[string]string{"g2": g2, "g4": g4}, Meter: second, BootTakes: 2 * time.Second, DeleteTakes: time.Second,
		}
	}
	stratus := cloud("stratus", "dub1", "IE", "Stratus Inc., Delaware", "US", "1.90 EUR", "3.70 EUR")
	stratus.SubjectTo = []string{"us-cloud-act"}
	nordlys := cloud("nordlys", "hel2", "FI", "Nordlys Oy", "FI", "2.40 EUR", "4.70 EUR")
	nordlys.SoldOut = []string{"g2", "g4"}
	rhein := cloud("rhein", "fra3", "DE", "Rhein Rechenzentrum GmbH", "DE", "2.90 EUR", "5.70 EUR")
	return world.Start(ctx, world.Config{
		Dir: filepath.Join(s.Dir, "world"), BinDir: s.BinDir, Exec: s.Exec, Nodes: 2,
		Clouds: []world.Cloud{stratus, nordlys, rhein}, Progress: s.fact, NewScheme: controller.Scheme,
	})
}

// close stops everything, whatever happened, and keeps what is worth it.
func (s *story) close() error {
	if s.controller != nil {
		s.controller.End(5 * time.Second)
	}
	err := s.world.Stop()
	for from, to := range map[string]string{"control-plane/logs": "logs/control-plane", "nodes": "logs/nodes"} {
		_ = copyLogs(filepath.Join(s.Dir, "world", from), filepath.Join(s.Dir, to)) // for the curious only
	}
	if s.summary.Burst != nil || err != nil {
		return errors.Join(err, os.RemoveAll(filepath.Join(s.Dir, "world")))
	}
	return nil // the story broke off: the world's files tell why
}
