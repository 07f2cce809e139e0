// Package controller wires one controller process: the cycle, the burst
// reconciler, the infrastructure controller, the join approver, the link to
// the agents, the gate to the source store, and the ledger.
//
// The promise: everything that acts runs at the leader only, and everything
// that the leader does with money carries its epoch, so that one that has lost
// its lead can neither reserve nor buy. A process that loses its lead ends.
//
// Vocabulary: the data folder holds what must outlive the process (ledger,
// keys, records); the link is where agents dial in; the desk is where people ask; a dialer makes the driver
// of a provider from its object and its credential.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"k8s.io/client-go/rest"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/autoscaler/lifecycle"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/providers"
)

// Dialer makes the driver of one provider from its object and the data of its
// credentials Secret.
type Dialer func(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (providers.Driver, error)

// Config is what a controller process needs.
type Config struct {
	// REST reaches the API server as the controller's ServiceAccount.
	REST *rest.Config
	// DataDir holds keys, records, and the ledger when that is a file.
	DataDir string
	// Ledger is the ledger's file or PostgreSQL URL; ledger.db in DataDir when empty.
	Ledger string
	// Identity names this process in leader election and in the ledger.
	Identity string

	// ClusterName is the name of the Cluster object; Endpoint is host:port of
	// the API server as the clouds reach it; ClusterCA its certificate
	// authority, PEM; Kubeconfig is what Cluster API uses.
	ClusterName string
	Endpoint    string
	ClusterCA   []byte
	Kubeconfig  []byte
	// EmbeddedCAPI, when set, runs Cluster API's core reconcilers in this
	// process under the identity given. In production the stock manager runs.
	EmbeddedCAPI *rest.Config

	// Link and Gate are host:port to listen on, as the burst nodes reach them.
	Link, Gate string
	// People is host:port to listen on for those who ask, as the API server
	// reaches it: see package inquiry. Empty listens nowhere.
	People string
	// Store is the source store as this process reaches it; StoreAddress is
	// host:port as the jobs write it.
	Store        *url.URL
	StoreAddress string
	StoreRegion  string

	// StagingCaps bound what staging sends, by the time of day in StagingZone.
	StagingCaps []stager.Cap
	StagingZone *time.Location

	// Keys is where the key-encryption keys of bursts lie.
	KeyService KeyService

	// Dialers by the name of the driver.
	Dialers map[string]Dialer

	Planning plan.Settings
	Life     lifecycle.Settings
	Infra    infra.Timing
	Sweep    infra.SweepRules
	// CycleEvery and CycleIdle are how often decisions are made at the least,
	// and how long the cluster has to be quiet before one that was woken.
	CycleEvery, CycleIdle time.Duration
	OffersEvery           time.Duration
	SweepEvery            time.Duration
	// KeepBursts is how long a Burst stays after it is over; 0 means for ever.
	KeepBursts time.Duration
	// LeaseDuration of leader election; the others follow from it.
	LeaseDuration time.Duration

	// Metrics is host:port to serve metrics on; "0" serves none.
	Metrics string
	Version string
	Log     *slog.Logger

	// StepHook and InfraHook are for crash tests.
	StepHook  func(ctx context.Context, step, fact string)
	InfraHook func(ctx context.Context, act string)
}

// Defaults are the settings of an installation that states none.
func Defaults() Config {
	return Config{
		ClusterName: "onprem", Planning: plan.Defaults(), Life: lifecycle.DefaultSettings(), Sweep: infra.DefaultSweepRules(),
		CycleEvery: 10 * time.Second, CycleIdle: time.Second, OffersEvery: time.Minute, SweepEvery: time.Minute,
		KeepBursts:    30 * 24 * time.Hour,
		LeaseDuration: 15 * time.Second, Metrics: "0",
	}
}

// check names everything that is missing, at once.
func (c *Config) check() error {
	var missing []error
	for _, f := range []struct {
		name string
		ok   bool
	}{
		{"data folder", c.DataDir != ""},
		{"identity", c.Identity != ""},
		{"API endpoint for the clouds", c.Endpoint != ""},
		{"cluster CA", len(c.ClusterCA) > 0},
		{"link address", c.Link != ""},
		{"gate address", c.Gate != ""},
		{"source store", c.Store != nil && c.StoreAddress != ""},
		{"drivers", len(c.Dialers) > 0},
	} {
		if !f.ok {
			missing = append(missing, fmt.Errorf("controller: %s is not set", f.name))
		}
	}
	return errors.Join(missing...)
}

// oneClock gives the planner the times that the others keep: what it reserves
// for is then what can happen.
func (c *Config) oneClock() {
	p, l := &c.Planning, c.Life
	p.Buy, p.Ready, p.Collect, p.Wipe, p.DeadMan = l.BuyDeadline, l.ReadyDeadline, l.CollectDeadline, l.WipeDeadline, l.DeadMan
	p.Sweep = c.SweepEvery
}
