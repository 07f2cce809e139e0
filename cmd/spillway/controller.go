package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/world"
)

// settings is the controller's configuration file.
type settings struct {
	Kubeconfig   string `json:"kubeconfig"`
	DataDir      string `json:"dataDir"`
	Ledger       string `json:"ledger"` // file or PostgreSQL URL; ledger.db in dataDir when empty
	Identity     string `json:"identity"`
	Installation string `json:"installation"`
	ClusterName  string `json:"clusterName"`
	Endpoint     string `json:"endpoint"`  // host:port of the API server as the clouds reach it
	ClusterCA    string `json:"clusterCA"` // file, PEM
	// CAPIKubeconfig is the file that Cluster API reaches the cluster with.
	CAPIKubeconfig string `json:"capiKubeconfig"`
	// EmbeddedCAPI runs Cluster API's core reconcilers in this process, as the
	// identity of CAPIKubeconfig; for demos only.
	EmbeddedCAPI bool         `json:"embeddedCAPI"`
	Link         string       `json:"link"`
	Gate         string       `json:"gate"`
	People       string       `json:"people"` // host:port for those who ask, as the API server reaches it
	Store        string       `json:"store"`
	StoreAddress string       `json:"storeAddress"`
	StoreRegion  string       `json:"storeRegion"`
	Metrics      string       `json:"metrics"`
	Keys         keySettings  `json:"keys"`
	Staging      lineSettings `json:"staging"`
	// Waived are evidence gates of the agent that may fail, by name.
	Waived []string          `json:"waived"`
	Times  map[string]string `json:"times"` // see times
}

// times are the settings of time by their names in the configuration file.
func times(c *controller.Config) map[string]*time.Duration {
	return map[string]*time.Duration{
		"debounce": &c.Planning.Debounce, "burstAfter": &c.Planning.BurstAfter, "boot": &c.Planning.Boot,
		"backoff": &c.Planning.Backoff, "cycle": &c.CycleEvery, "idle": &c.CycleIdle, "offers": &c.OffersEvery, "sweep": &c.SweepEvery,
		"leader": &c.LeaseDuration, "keepBursts": &c.KeepBursts, "stagingPatience": &c.Life.StagingPatience, "buyDeadline": &c.Life.BuyDeadline, "joinDeadline": &c.Life.JoinDeadline,
		"readyDeadline": &c.Life.ReadyDeadline, "lease": &c.Life.LeaseTime, "leaseEvery": &c.Life.LeaseEvery, "leaseStop": &c.Life.LeaseStop,
		"collectDeadline": &c.Life.CollectDeadline, "wipeDeadline": &c.Life.WipeDeadline, "poll": &c.Life.Poll, "bench": &c.Life.Bench,
		"machinePoll": &c.Infra.Poll, "machineLookAgain": &c.Infra.LookAgain, "machineWatch": &c.Infra.Watch, "machineTrouble": &c.Infra.Trouble,
	}
}

func controllerCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "controller", Short: "Run the controller: plan, buy, stage, meter, wipe, settle", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("controller: --config is missing: name the configuration file")}
			}
			config, err := readSettings(file, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return controller.Run(cmd.Context(), config)
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	return c
}

func preflightCommand() *cobra.Command {
	var file, output string
	c := &cobra.Command{
		Use: "preflight", Short: "Check what a controller needs before it starts, and change nothing", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError{fmt.Errorf("preflight: --config is missing: name the controller's configuration file")}
			}
			config, err := readSettings(file, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			findings, err := controller.Preflight(cmd.Context(), config)
			if err != nil {
				return err
			}
			var table strings.Builder
			w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
			wrong := 0
			for _, f := range findings {
				word := "ok"
				if !f.OK {
					word = "WRONG"
					wrong++
				}
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", word, f.Check, f.Detail) // a Builder takes all
			}
			_ = w.Flush()
			if err := show(cmd, output, findings, table.String()); err != nil {
				return err
			}
			if wrong > 0 {
				return fmt.Errorf("preflight: %d of %d checks failed: a controller would not start", wrong, len(findings))
			}
			return nil
		},
	}
	c.Flags().StringVar(&file, "config", "", "configuration `FILE` (YAML)")
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func readSettings(file string, console io.Writer) (controller.Config, error) {
	c := controller.Defaults()
	data, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	var s settings
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		return c, fmt.Errorf("configuration %s: %w", file, err)
	}
	known := times(&c)
	for name, value := range s.Times {
		to, ok := known[name]
		if !ok {
			return c, fmt.Errorf("configuration %s: times: %q is no setting", file, name)
		}
		if *to, err = time.ParseDuration(value); err != nil || *to <= 0 {
			return c, fmt.Errorf("configuration %s: times: %s: %q is no positive duration such as 30s", file, name, value)
		}
	}
	c.Log = slog.New(slog.NewJSONHandler(console, nil))
	klog.SetSlogLogger(c.Log)
	ctrl.SetLogger(klog.Background())
	c.DataDir, c.Ledger, c.Identity, c.Link, c.Gate, c.People = s.DataDir, s.Ledger, s.Identity, s.Link, s.Gate, s.People
	c.Endpoint, c.StoreAddress, c.StoreRegion = s.Endpoint, s.StoreAddress, s.StoreRegion
	c.Dialers = map[string]controller.Dialer{
		"fake": world.FakeDialer, "openstack": controller.DialOpenStack, "ec2": controller.DialEC2,
	}
	c.Version, c.Life.Waived = version(), s.Waived
	if c.KeyService, err = s.Keys.service(); err != nil {
		return c, fmt.Errorf("configuration %s: %w", file, err)
	}
	if c.StagingCaps, c.StagingZone, err = s.Staging.caps(); err != nil {
		return c, fmt.Errorf("configuration %s: staging: %w", file, err)
	}
	for _, o := range []struct{ to, value *string }{
		{&c.ClusterName, &s.ClusterName}, {&c.Metrics, &s.Metrics}, {&c.Life.Installation, &s.Installation},
	} {
		if *o.value != "" {
			*o.to = *o.value
		}
	}
	return c, connect(&c, s)
}

// connect reads what the configuration only names.
func connect(c *controller.Config, s settings) (err error) {
	if c.REST, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		return fmt.Errorf("kubeconfig %q: %w", s.Kubeconfig, err)
	}
	if c.ClusterCA, err = os.ReadFile(s.ClusterCA); err != nil {
		return fmt.Errorf("cluster CA: %w", err)
	}
	if c.Kubeconfig, err = os.ReadFile(s.CAPIKubeconfig); err != nil {
		return fmt.Errorf("kubeconfig for Cluster API: %w", err)
	}
	if s.EmbeddedCAPI {
		if c.EmbeddedCAPI, err = clientcmd.BuildConfigFromFlags("", s.CAPIKubeconfig); err != nil {
			return fmt.Errorf("kubeconfig for Cluster API: %w", err)
		}
	}
	if c.Store, err = url.Parse(s.Store); err != nil {
		return fmt.Errorf("source store: %w", err)
	}
	return nil
}
