package main

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/providers/fake"
)

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}

// show prints text for people, or the value as JSON.
func show(cmd *cobra.Command, output string, value any, text string) error {
	switch output {
	case "json":
		data, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return err
		}
		cmd.Println(string(data))
	case "table":
		cmd.Println(strings.TrimRight(text, "\n"))
	default:
		return usageError{fmt.Errorf("%s: -o %q is unknown: say table or json", cmd.CommandPath(), output)}
	}
	return nil
}

func wipeCommand() *cobra.Command {
	var key, output string
	verify := &cobra.Command{
		Use: "verify CERTIFICATE", Short: "Check a wipe certificate against the installation's public key",
		Args: exactly("a certificate file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if key == "" {
				return usageError{fmt.Errorf("wipe verify: --key is missing: name the public key, certificate.pub of the installation")}
			}
			pub, err := publicKey(key)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(args[0])
			if err != nil {
				return fmt.Errorf("certificate: %w", err)
			}
			var signed wipe.SignedCertificate
			if err := json.Unmarshal(data, &signed); err != nil {
				return fmt.Errorf("certificate %s: %w", args[0], err)
			}
			c, err := wipe.VerifyCertificate(pub, signed)
			if err != nil {
				return fmt.Errorf("certificate %s: %w", args[0], err)
			}
			return show(cmd, output, c, c.Text())
		},
	}
	verify.Flags().StringVar(&key, "key", "", "public key `FILE`")
	verify.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return group("wipe", "Check wipe certificates", verify)
}

func exactly(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("%s needs %s; see %s --help", c.CommandPath(), what, c.CommandPath())}
		}
		return nil
	}
}

func publicKey(file string) (ed25519.PublicKey, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("public key %s: no PEM block in it", file)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("public key %s: %w", file, err)
	}
	pub, ok := parsed.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("public key %s: a %T, not an ed25519 key", file, parsed)
	}
	return pub, nil
}

func logsCommand() *cobra.Command {
	var dir, namespace string
	c := &cobra.Command{
		Use: "logs job/NAME", Short: "Show the logs of a burst Job whose machine is gone", Args: exactly("job/NAME or pod/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name, ok := strings.Cut(args[0], "/")
			if !ok || name == "" || kind != "job" && kind != "pod" || dir == "" {
				return usageError{fmt.Errorf("logs: say job/NAME or pod/NAME, and --records DIR, for example demo-out/records")}
			}
			pattern := name + ".log"
			if kind == "job" {
				pattern = name + "-*.log"
			}
			files, err := filepath.Glob(filepath.Join(dir, "*", "logs", namespace, pattern))
			if err != nil {
				return fmt.Errorf("logs: %w", err)
			}
			if len(files) == 0 {
				return fmt.Errorf("no logs of %s in namespace %s below %s: it did not burst, or its results are not home yet", args[0], namespace, dir)
			}
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					return fmt.Errorf("logs: %w", err)
				}
				cmd.Print(string(data))
			}
			return nil
		},
	}
	c.Flags().StringVar(&dir, "records", "", "records `DIR` of the controller")
	c.Flags().StringVarP(&namespace, "namespace", "n", "default", "namespace of the Job")
	return c
}

func sweepCommand() *cobra.Command {
	var endpoint, tokenFile, installation string
	c := &cobra.Command{
		Use: "sweep", Short: "Delete every machine past its stamp, with nothing but the cloud's credential", Args: noArgs,
		Long: "sweep lists one account and deletes what is past its expiry stamp. It needs no cluster\nand no ledger, so it works when both are gone. Run it from cron outside the cluster.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if endpoint == "" || tokenFile == "" {
				return usageError{fmt.Errorf("sweep: --endpoint and --token-file are needed")}
			}
			token, err := os.ReadFile(tokenFile)
			if err != nil {
				return fmt.Errorf("credential: %w", err)
			}
			driver := fake.Dial(endpoint, strings.TrimSpace(string(token)), installation, nil)
			rules := infra.DefaultSweepRules()
			rules.StampsOnly = true
			report, err := infra.Sweep(cmd.Context(), driver, nil, rules, time.Now)
			for _, d := range report.Asked {
				cmd.Printf("deleted %s of burst %s: %s since %s\n", d.Machine.ID, d.Machine.Burst, d.Reason, d.Machine.Expires.Format(time.RFC3339))
			}
			cmd.Printf("%d machines listed, %d deleted\n", report.Listed, len(report.Asked))
			return err
		},
	}
	c.Flags().StringVar(&endpoint, "endpoint", "", "`URL` of the cloud's API")
	c.Flags().StringVar(&tokenFile, "token-file", "", "`FILE` with the cloud's credential")
	c.Flags().StringVar(&installation, "installation", "spillway", "tag of our machines at the cloud")
	return c
}
