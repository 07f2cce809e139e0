package world

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
	"spillway.dev/spillway/quota/money"
)

// Cloud is one account at one provider.
type Cloud struct {
	Name, Region, Country string
	Secret                string
	// Owner is who controls the provider, and whose law reaches it.
	Owner, OwnerCountry string
	SubjectTo           []string
	// Prices per hour by instance type; a type's name says its GPUs: g2, g4.
	Prices  map[string]string
	SoldOut []string // instance types
	Meter   providers.MeterRule
	// BootTakes and DeleteTakes are the cloud's own times.
	BootTakes, DeleteTakes time.Duration
}

// types are what every cloud sells; prices differ.
func types() map[string]providers.Offer {
	g := func(gpus int) providers.Offer {
		return providers.Offer{
			GPUs: gpus, GPUModel: "process-gpu", GPUResource: "nvidia.com/gpu", CapacityType: "on-demand",
			MilliCPU: 16000, MemoryMiB: 64 << 10, DiskGiB: 200, Arch: "amd64",
		}
	}
	return map[string]providers.Offer{"g2": g(2), "g4": g(4)}
}

func (w *World) startClouds(ctx context.Context) error {
	var clouds []*fake.Cloud
	for _, c := range w.Config.Clouds {
		cloud, err := c.open()
		if err != nil {
			return err
		}
		cloud.Boot = func(powered context.Context, m providers.Machine, userData []byte) {
			if err := w.Boot(powered, m, userData); err != nil {
				w.say("machine %s at %s: %v", m.ID, m.Provider, err)
			}
		}
		w.Clouds[c.Name] = cloud
		clouds = append(clouds, cloud)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("clouds: %w", err)
	}
	w.CloudsURL = "http://" + l.Addr().String()
	w.cloudServer = &http.Server{Handler: fake.Serve(clouds...), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = w.cloudServer.Serve(l) }() // ends with Close
	w.say("%d clouds sell machines at %s", len(clouds), w.CloudsURL)
	return nil
}

func (c Cloud) open() (*fake.Cloud, error) {
	cfg := fake.Config{
		Provider: c.Name, Region: c.Region, Country: c.Country, Secrets: []string{c.Secret},
		Timing: fake.Timing{BootTakes: c.BootTakes, DeleteTakes: c.DeleteTakes},
	}
	for name, offer := range types() {
		price, ok := c.Prices[name]
		if !ok {
			continue
		}
		rate, err := money.ParseRate(price)
		if err != nil {
			return nil, fmt.Errorf("cloud %s: price of %s: %w", c.Name, name, err)
		}
		offer.InstanceType, offer.Price, offer.Meter, offer.Seen = name, rate, c.Meter, time.Now()
		for _, sold := range c.SoldOut {
			offer.SoldOut = offer.SoldOut || sold == name
		}
		cfg.Offers = append(cfg.Offers, offer)
	}
	return fake.New(cfg), nil
}

// Boot is what a rented machine does when it is powered: it reads its user-data
// and becomes a process node. It returns when the power is off.
func (w *World) Boot(powered context.Context, m providers.Machine, userData []byte) error {
	dir := filepath.Join(w.Dir, "machines", m.Provider, m.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() { _ = os.Rename(dir, w.Attic(m)) }() // the disk outlives the machine
	join, err := bootstrap.ParseJoin(userData)
	if err != nil {
		return err
	}
	data, err := json.Marshal(join)
	if err != nil {
		return err
	}
	joinFile := filepath.Join(dir, "join.json")
	if err := os.WriteFile(joinFile, data, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(w.Attic(m)), 0o700); err != nil {
		return err
	}
	machine, err := procnode.Start(powered, procnode.Config{
		Exec: w.exec(NodeArg), Dir: dir, Join: joinFile, GPUDelay: time.Second,
		Agent: filepath.Join(w.BinDir, "spillway-agent"), Heartbeat: 5 * time.Second,
	})
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.machines[m.ID] = machine
	w.mu.Unlock()
	<-machine.Done()
	if powered.Err() != nil {
		return nil // the cloud has cut the power
	}
	return machine.Err()
}

// Attic is where the disk of a machine is kept after its end.
func (w *World) Attic(m providers.Machine) string {
	return filepath.Join(w.Dir, "attic", m.Provider+"-"+m.ID)
}

// Machine is the power cable of a rented machine; nil before it has booted.
func (w *World) Machine(id string) *procnode.Machine {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.machines[id]
}

// Billing is what all clouds still bill for, by their own lists.
func (w *World) Billing() []providers.Machine {
	var all []providers.Machine
	for _, c := range w.Clouds {
		all = append(all, c.Billing()...)
	}
	return all
}

// Bought is every machine that was ever made, by the clouds' own lists.
func (w *World) Bought() []providers.Machine {
	var all []providers.Machine
	for _, c := range w.Clouds {
		all = append(all, c.Snapshot()...)
	}
	return all
}

func (w *World) exec(arg string) []string {
	return append(w.Exec[:len(w.Exec):len(w.Exec)], arg)
}
