package world

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// DataDir is the controller's data folder.
func (w *World) DataDir() string { return filepath.Join(w.Dir, "controller") }

// FakeDialer is the driver "fake" for a controller's Dialers.
func FakeDialer(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (providers.Driver, error) {
	if p.Spec.Endpoint == "" || len(credential["token"]) == 0 {
		return nil, fmt.Errorf("provider %s: the fake driver needs spec.endpoint and the key token in its credentials Secret", p.Name)
	}
	return fake.Dial(p.Spec.Endpoint, string(credential["token"]), installation, nil), nil
}

// Installation is the tag of the world's machines at its clouds.
const Installation = "demo"

// Controller is the configuration of a controller of this world, with times
// that fit a demo: seconds where an installation has minutes.
func (w *World) Controller(ctx context.Context, identity string, log *slog.Logger) (controller.Config, error) {
	c := controller.Defaults()
	var err error
	if c.REST, err = w.ControlPlane.ServiceAccountConfig(ctx, v1alpha1.SystemNamespace, v1alpha1.ControllerAccount); err != nil {
		return c, err
	}
	if c.Kubeconfig, err = os.ReadFile(w.ControlPlane.Kubeconfig); err != nil {
		return c, fmt.Errorf("kubeconfig for Cluster API: %w", err)
	}
	if c.Store, err = url.Parse(w.Home.URL()); err != nil {
		return c, fmt.Errorf("home store: %w", err)
	}
	c.EmbeddedCAPI = w.ControlPlane.AdminConfig
	c.DataDir, c.Identity, c.Log, c.Version = w.DataDir(), identity, log, "demo"
	c.Endpoint, c.ClusterCA = strings.TrimPrefix(w.ControlPlane.URL, "https://"), w.ControlPlane.CACert
	c.Link, c.Gate, c.StoreAddress = w.Link, w.Gate, w.StoreAddress()
	c.Dialers = map[string]controller.Dialer{"fake": FakeDialer}
	c.CycleEvery, c.CycleIdle, c.OffersEvery, c.SweepEvery = time.Second, 300*time.Millisecond, 2*time.Second, 5*time.Second
	c.Planning.Debounce, c.Planning.Boot = time.Second, 8*time.Second
	c.Planning.Backoff = 2 * time.Second
	c.Life.Installation = Installation
	c.Life.Waived = []string{"swap"} // the host's: a process node can't switch it off
	c.Life.BuyDeadline, c.Life.JoinDeadline, c.Life.ReadyDeadline = time.Minute, time.Minute, 90*time.Second
	c.Life.Poll = 500 * time.Millisecond
	c.Infra.Poll, c.Infra.LookAgain, c.Infra.Watch, c.Infra.Trouble = 300*time.Millisecond, 2*time.Second, 2*time.Second, time.Second
	return c, nil
}
