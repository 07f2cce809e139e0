// Package nodeagent is the agent on a node: it says what the node is, counts
// who holds its devices, serves a burst's data, and ends the node when its
// time is over.
//
// # Words
//
//   - lease: how long a burst node may live without the controller, with a
//     soft and a hard end ([link.Lease]). Kept on a clock that nobody can set.
//   - dead-man: what happens at the ends, with or without the controller: at
//     soft the pods are stopped, at hard the node is wiped and powered off.
//   - evidence: one thing read on the node that speaks for its readiness. The
//     agent gives evidence, the controller judges.
//   - journal: the file of usage records. A record is an interval in which one
//     pod held one device, whatever it did with it.
//   - front: the S3 front that jobs talk to ([cache.Front]).
//   - vault: the one place where the agent keeps the burst's data key.
//
// # Promise
//
// A node whose controller is gone for good has its pods asked to stop by soft,
// and is wiped and off by hard plus two minutes, in every schedule: also when
// stopping, wiping or the network hang, and whatever the wall clock does. The
// data key is in memory only. A usage record that was written survives a kill
// and is sent until it is acknowledged. The proof of a wipe shows each step
// as it went.
//
// On-prem the same agent reports readiness and usage, and has no lease, no
// key and no front.
package nodeagent

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
)

const (
	lookAtPods  = time.Second      // how often the machine is asked who holds devices
	lookAround  = 10 * time.Second // how often evidence and devices are read anew
	stageAgain  = 5 * time.Second  // pause after a failed try to fill the cache
	orderGrace  = 30 * time.Second // what pods get between SIGTERM and SIGKILL
	lastWord    = 3 * time.Second  // how long the last report may take before power off
	frontGrace  = 5 * time.Second  // for requests in flight when the agent ends in order
	sealedArea  = "sealed"         // folder below State with all that is sealed
	keptFile    = "lease.json"
	sessionFile = "session.json"
)

// Config is what an agent needs. Since, Wall and Boot have their defaults in
// SinceBoot, time.Now and BootID.
type Config struct {
	Join    link.Join
	OnPrem  bool   // usage and readiness only: no lease, no key, no front
	State   string // folder of the agent, on the machine's disk
	Front   string // address:port that jobs reach the store at
	Version string
	Machine Machine
	// Certificate returns the node's client certificate, fresh each time.
	Certificate func() (*tls.Certificate, error)
	Log         *slog.Logger

	Since func() time.Duration
	Wall  func() time.Time
	Boot  string
}

// Agent is one run of the agent on one node.
type Agent struct {
	config  Config
	keeper  *Keeper // nil on-prem
	journal *journal
	meter   *meter
	looker  looker
	client  *link.Client
	pods    neighbours

	vault     *vault
	canary    *canary
	front     front
	listener  *listener
	hpke      []byte
	proofKey  ed25519.PrivateKey
	stageWork chan struct{}
	staging   staging
	wipeOnce  sync.Mutex     // held while the node is wiped
	wipes     sync.WaitGroup // wipes that were ordered

	mu      sync.Mutex
	nodeKey *link.NodeKey // nil once the data key was opened
	session session
	earlier bool // an agent process before this one held the key
	clock   link.Offset
	ready   link.Ready
	devices []Device
	drained bool
	stage   *link.Stage
	staged  string // digest of the manifest that the cache is filled from
	problem string
	wiping  bool
	told    int64 // replies heard, for the last word
}

// session is what a restarted agent must know of the process before it.
type session struct {
	KeyReceived  bool              `json:"keyReceived"`
	KeyDestroyed bool              `json:"keyDestroyed"` // in order, by the process that held it
	WipeBegun    bool              `json:"wipeBegun"`
	Proof        *wipe.SignedProof `json:"proof,omitempty"`    // of a finished wipe
	ProofKey     []byte            `json:"proofKey,omitempty"` // that verifies Proof
}

// New prepares an agent: its folder, its journal, its lease and its keys. It
// talks to nobody yet.
func New(c Config) (*Agent, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.State, 0o700); err != nil {
		return nil, fmt.Errorf("make the agent's folder: %w: choose another --state", err)
	}
	a := &Agent{config: c, stageWork: make(chan struct{}, 1), staging: staging{forbidden: make(chan struct{})}}
	var err error
	if a.journal, err = openJournal(c.State); err != nil {
		return nil, err
	}
	if a.journal.lost > 0 {
		c.Log.Error("usage journal was damaged; a copy was kept beside it if the disk had room", "lost_bytes", a.journal.lost)
	}
	if a.meter, err = newMeter(a.journal, c.Join.NodeName, c.Join.Burst, c.Boot, c.Since, c.Wall); err != nil {
		return nil, err
	}
	a.looker = looker{machine: c.Machine, state: c.State, proc: "/proc", onPrem: c.OnPrem, wall: c.Wall}
	if !c.OnPrem {
		if err := a.newBurstNode(); err != nil {
			return nil, err
		}
	}
	return a, a.newClient()
}

func (c *Config) fill() error {
	if c.Since == nil {
		c.Since = SinceBoot
	}
	if c.Wall == nil {
		c.Wall = time.Now
	}
	if c.Boot == "" {
		id, err := BootID()
		if err != nil {
			return err
		}
		c.Boot = id
	}
	if c.OnPrem {
		c.Join.Burst = ""
	} else if c.Join.Burst == "" {
		return errors.New("join data names no burst: start an on-prem node's agent with --on-prem")
	}
	return nil
}

// newBurstNode prepares what only a burst node has.
func (a *Agent) newBurstNode() error {
	c := a.config
	kept, err := a.loadLease()
	if err != nil {
		return err
	}
	a.keeper = NewKeeper(kept, c.Since, a, a.saveLease)
	if err := a.loadSession(); err != nil {
		return err
	}
	if a.vault, err = newVault(); err != nil {
		return err
	}
	if a.nodeKey, err = link.NewNodeKey(); err != nil {
		return err
	}
	a.hpke = a.nodeKey.Public()
	if _, a.proofKey, err = ed25519.GenerateKey(rand.Reader); err != nil {
		return fmt.Errorf("make the proof key: %w", err)
	}
	a.canary = &canary{path: filepath.Join(a.area(), "canary"), burst: c.Join.Burst}
	a.looker.keyLock, a.looker.resource, a.looker.devices = a.vault.locked, c.Join.GPUResource, c.Join.GPUs
	a.pods.proc = "/proc"
	a.front, err = newFront(c, a.area(), &a.pods)
	return err
}

func (a *Agent) newClient() error {
	c := a.config
	cas := x509.NewCertPool()
	if !cas.AppendCertsFromPEM(c.Join.ControllerCA) {
		return errors.New("join data: controllerCA holds no certificate: render it again from the burst")
	}
	a.client = link.NewClient(link.ClientConfig{
		Controller: c.Join.Controller, ControllerCA: cas, Certificate: c.Certificate,
		Report: a.report, Heard: a.heard, Failed: a.notHeard, Since: c.Since, Wall: c.Wall,
	})
	return nil
}

// Run works until the machine goes off or ctx ends. It returns nil when the
// agent ended in order: told to, or with the machine going off.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, a.end()) }()
	ctx, stop := context.WithCancel(ctx)
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	begin := func(loop func(context.Context)) {
		loops.Go(func() { loop(ctx) })
	}
	if a.keeper == nil {
		begin(a.watchPods)
		begin(a.watchNode)
		a.client.Run(ctx)
		return nil
	}
	failed := make(chan error, 1)
	switch phase := a.keeper.Phase(); {
	case phase != Working:
		a.config.Log.Error("the lease has ended before the agent started: no work is begun", "phase", phase.String())
	case a.session.WipeBegun:
		a.config.Log.Error("the node was wiped before the agent started: no work is begun")
	default:
		if a.listener, err = listen(a.config.Front, a.front); err != nil {
			return err
		}
		failed = a.listener.failed
	}
	begin(a.watchPods)
	begin(a.watchNode)
	begin(a.client.Run)
	begin(a.fillCache)
	begin(func(ctx context.Context) { a.watchFront(ctx, failed) })
	err = a.keeper.Run(ctx)
	if errors.Is(err, context.Canceled) {
		a.config.Log.Info("the agent was told to end; the lease is not watched any more")
		return nil
	}
	return err
}

// area is the folder with everything sealed.
func (a *Agent) area() string { return filepath.Join(a.config.State, sealedArea) }

// watchFront says why the front ended when nobody asked for it.
func (a *Agent) watchFront(ctx context.Context, failed <-chan error) {
	select {
	case <-ctx.Done():
	case err := <-failed:
		if !a.isWiping() {
			a.trouble("the S3 front has ended", err)
		}
	}
}

// end leaves nothing open: the front gives way, the key is overwritten, the
// journal is closed.
func (a *Agent) end() error {
	a.wipes.Wait()
	var errs []error
	if a.listener != nil {
		ctx, done := context.WithTimeout(context.Background(), frontGrace)
		defer done()
		if a.listener.server.Shutdown(ctx) != nil {
			errs = append(errs, a.listener.server.Close())
		}
	}
	if a.vault != nil {
		_, received := a.vault.has()
		errs = append(errs, a.vault.close())
		if received && !a.earlier && !a.isWiping() { // what an earlier process left behind stays said
			errs = append(errs, a.remember(func(s *session) { s.KeyDestroyed = true }))
		}
	}
	return errors.Join(append(errs, a.journal.close())...)
}
