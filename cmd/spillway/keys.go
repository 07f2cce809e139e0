package main

import (
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/datasync/transit"
)

// keySettings says in the configuration file where key-encryption keys lie.
type keySettings struct {
	Service   string `json:"service"`   // files (the default), secrets, or transit
	Address   string `json:"address"`   // https URL of the Vault or OpenBao
	Mount     string `json:"mount"`     // of its transit engine; empty means transit
	Namespace string `json:"namespace"` // empty means none
	Prefix    string `json:"prefix"`    // of the keys' names; empty means spillway-
	TokenFile string `json:"tokenFile"` // renewed by the controller, read anew for every request
	CAFile    string `json:"caFile"`    // PEM; empty means the system's authorities
}

// service turns the settings into the controller's own.
func (s keySettings) service() (controller.KeyService, error) {
	switch s.Service {
	case "", "files":
		return controller.KeyService{}, nil
	case "secrets":
		return controller.KeyService{Secrets: true}, nil
	case "transit":
	default:
		return controller.KeyService{}, fmt.Errorf("keys: service %q is unknown: say files, secrets or transit", s.Service)
	}
	t := transit.Config{Address: s.Address, Mount: s.Mount, Namespace: s.Namespace, Prefix: s.Prefix, TokenFile: s.TokenFile}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return controller.KeyService{}, fmt.Errorf("keys: authority of the key service: %w", err)
		}
		if t.CA = x509.NewCertPool(); !t.CA.AppendCertsFromPEM(pem) {
			return controller.KeyService{}, fmt.Errorf("keys: %s holds no certificate in PEM", s.CAFile)
		}
	}
	_, err := transit.New(t)
	return controller.KeyService{Transit: &t}, err
}

// keyCommand is what all commands on keys are told.
type keyCommand struct{ config, by, reason, output string }

func keysCommand() *cobra.Command {
	k := &keyCommand{}
	c := group("keys", "Look after the data keys of bursts", k.check(), k.destroy(), k.rotate(), k.acts())
	f := c.PersistentFlags()
	f.StringVar(&k.config, "config", "", "the controller's configuration `FILE`")
	f.StringVarP(&k.output, "output", "o", "table", "table or json")
	return c
}

// acting adds the flags of a command that changes something.
func (k *keyCommand) acting(c *cobra.Command) *cobra.Command {
	c.Flags().StringVar(&k.by, "by", "", "`ID` of the person who acts")
	c.Flags().StringVar(&k.reason, "reason", "", "`WHY`, for example a ticket")
	return c
}

// custody opens the custody for a person, or for somebody who only reads.
func (k *keyCommand) custody(cmd *cobra.Command, acts bool) (*stager.Custody, error) {
	if k.config == "" || acts && (k.by == "" || k.reason == "") {
		need := "--config is"
		if acts {
			need = "--config, --by and --reason are"
		}
		return nil, usageError{fmt.Errorf("%s: %s needed", strings.TrimPrefix(cmd.CommandPath(), "spillway "), need)}
	}
	data, err := os.ReadFile(k.config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	var s settings
	if err := yaml.UnmarshalStrict(data, &s); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", k.config, err)
	}
	if s.DataDir == "" {
		return nil, fmt.Errorf("configuration %s: dataDir is not set", k.config)
	}
	config := controller.Config{DataDir: s.DataDir}
	if config.KeyService, err = s.Keys.service(); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", k.config, err)
	}
	if config.KeyService.Secrets { // the others need no cluster
		if config.REST, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
			return nil, fmt.Errorf("kubeconfig %q: %w", s.Kubeconfig, err)
		}
	}
	return controller.Custody(config, k.by, k.reason)
}

func (k *keyCommand) check() *cobra.Command {
	return k.acting(&cobra.Command{
		Use: "check", Short: "Make a key at the key service, destroy it, and say whether that is proven", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := k.custody(cmd, true)
			if err != nil {
				return err
			}
			trial := "check-" + rand.Text()
			key, err := c.Create(cmd.Context(), trial)
			if err != nil {
				return err
			}
			key.Destroy()
			return k.end(cmd, c, trial)
		},
	})
}

func (k *keyCommand) destroy() *cobra.Command {
	return k.acting(&cobra.Command{
		Use: "destroy burst/UID", Short: "Destroy the data key of a burst now, for good, in a person's name", Args: exactly("burst/UID"),
		Long: "destroy ends the data key of a burst, whether it runs or not: nothing that was sealed under it\ncan be read again, here or anywhere. A machine that holds the key in memory keeps it until it is\nwiped. It works beside a controller that runs, and in its place when there is none.",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := k.custody(cmd, true)
			if err != nil {
				return err
			}
			return k.end(cmd, c, strings.TrimPrefix(args[0], "burst/"))
		},
	})
}

// end destroys a key and shows the evidence.
func (k *keyCommand) end(cmd *cobra.Command, c *stager.Custody, burst string) error {
	d, err := c.Destroy(cmd.Context(), burst)
	if err != nil {
		return err
	}
	return show(cmd, k.output, d, evidence(d))
}

// evidence writes a destruction for people.
func evidence(d stager.Destruction) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) // a Builder takes all
	}
	line("burst", "%s", d.Burst)
	line("key", "%s: %s", d.KEK.ID, d.String())
	line("how", "%s", d.Method)
	line("canary", "opened before: %t; refused after: %t; a living key still opened: %t", d.Canary.Opened, d.Canary.Refused, d.Canary.LiveOpened)
	for _, doubt := range d.Doubts {
		line("doubt", "%s", doubt)
	}
	if d.AuditRef != "" {
		line("audit", "the key service's own record: %s", d.AuditRef)
	}
	if d.KEK.Beyond != "" {
		line("not covered", "%s", d.KEK.Beyond)
	}
	_ = w.Flush()
	return b.String()
}

func (k *keyCommand) rotate() *cobra.Command {
	return k.acting(&cobra.Command{
		Use: "rotate burst/UID", Short: "Wrap the data key of a burst anew and destroy what unwrapped the old copy", Args: exactly("burst/UID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := k.custody(cmd, true)
			if err != nil {
				return err
			}
			burst := strings.TrimPrefix(args[0], "burst/")
			if err := c.Rotate(cmd.Context(), burst); err != nil {
				return err
			}
			cmd.Printf("the data key of burst %s is wrapped anew; copies of the old wrapping open nothing any more\n", burst)
			return nil
		},
	})
}

func (k *keyCommand) acts() *cobra.Command {
	return &cobra.Command{
		Use: "acts", Short: "Show who made, rotated and destroyed which key, and check that record", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := k.custody(cmd, false)
			if err != nil {
				return err
			}
			acts, err := c.Acts()
			if err != nil {
				return err
			}
			var b strings.Builder
			w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(w, "AT\tACT\tBURST\tBY\tOUTCOME\tREASON") // a Builder takes all
			for _, a := range acts {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", a.At.Format("2006-01-02T15:04:05Z"), a.Act, a.Burst, a.By, a.Outcome, a.Reason)
			}
			_ = w.Flush()
			return show(cmd, k.output, acts, b.String())
		},
	}
}
