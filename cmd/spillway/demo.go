package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/e2e/demo"
)

func demoCommand() *cobra.Command {
	var o demo.Options
	var output string
	c := &cobra.Command{
		Use: "demo", Short: "Show the whole way of one burst Job on this machine, with nothing left behind", Args: noArgs,
		Long: "demo starts a real control plane, two on-prem nodes, an S3 store and three clouds on this\nmachine, submits ordinary Jobs, and shows how one of them bursts. It needs no root and leaves\nnothing running. What is worth keeping lies in the output folder.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			if output != "table" && output != "json" {
				return usageError{fmt.Errorf("demo: -o %q is unknown: say table or json", output)}
			}
			o.JSON, o.Out, o.Exec = output == "json", cmd.OutOrStdout(), []string{self}
			if o.BinDir == "" {
				o.BinDir = filepath.Dir(self)
			}
			// Processes are started from it in folders of their own.
			if o.BinDir, err = filepath.Abs(o.BinDir); err != nil {
				return fmt.Errorf("demo: --bin: %w", err)
			}
			return demo.Run(cmd.Context(), o)
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	c.Flags().StringVar(&o.Dir, "dir", "demo-out", "output `DIR`; it is made anew")
	c.Flags().StringVar(&o.BinDir, "bin", "", "`DIR` with kube, crds and spillway-agent; default: beside this program")
	return c
}

func trainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "demo-train", Short: "The program of the demo's Jobs: logistic regression over plain S3", Hidden: true, Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return demo.Train(cmd.Context(), cmd.OutOrStdout()) },
	}
}
