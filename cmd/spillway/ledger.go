package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota/ledger"
)

// ledgerCommand holds all that reads a ledger file, and the few commands that
// write one. Reading opens the file for reading only: it books nothing and
// fences no controller off.
func ledgerCommand() *cobra.Command {
	file := new(string)
	c := group("ledger", "Read and check the quota and billing ledger",
		balanceCommand(file), budgetCommand(file), usageCommand(file), exposureCommand(file), statementCommand(file),
		exportCommand(file), importCommand(file), verifyCommand(file), acceptOverrunCommand(file))
	c.PersistentFlags().StringVar(file, "ledger", "", "ledger `FILE`")
	c.PersistentFlags().StringVar(file, "file", "", "ledger `FILE`") // its first name
	_ = c.PersistentFlags().MarkHidden("file")                       // it exists
	return c
}

// reading calls f with a ledger that is open for reading only.
func reading(cmd *cobra.Command, file string, f func(*ledger.Ledger) error) error {
	if file == "" {
		return usageError{fmt.Errorf("%s: --ledger is missing: name the ledger, for example demo-out/ledger.db", cmd.CommandPath())}
	}
	l, err := ledger.Open(cmd.Context(), file, ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // nothing was written
	return f(l)
}

// viewing is reading, at one moment of the ledger.
func viewing(cmd *cobra.Command, file string, f func(context.Context, *ledger.View) error) error {
	return reading(cmd, file, func(l *ledger.Ledger) error {
		return l.View(cmd.Context(), func(v *ledger.View) error { return f(cmd.Context(), v) })
	})
}

func verifyCommand(file *string) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "verify", Short: "Recompute the whole ledger from its journal", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return reading(cmd, *file, func(l *ledger.Ledger) error {
				report, err := l.Verify(cmd.Context())
				if err != nil {
					return err
				}
				if err := show(cmd, output, report, report.String()); err != nil {
					return err
				}
				if !report.OK {
					return fmt.Errorf("ledger %s is not sound: see the findings; stop spending until they are explained", *file)
				}
				return nil
			})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return c
}

func importCommand(file *string) *cobra.Command {
	return &cobra.Command{
		Use: "import EXPORT", Short: "Make a new ledger from an exported one, with the chain intact",
		Long: "import reads what \"ledger export\" wrote (- is standard input) into a ledger without rows, and\nverifies all of it before it keeps any of it. The new ledger ends with the same hash.",
		Args: exactly("the file of an export, or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if *file == "" {
				return usageError{fmt.Errorf("ledger import: --ledger is missing: name the file of the new ledger")}
			}
			from := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return fmt.Errorf("export: %w", err)
				}
				defer func() { _ = f.Close() }() // only read
				from = f
			}
			l, err := ledger.Open(cmd.Context(), *file, ledger.Options{Now: time.Now})
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }() // what was written is committed
			report, err := l.Import(cmd.Context(), from)
			if err != nil {
				return err
			}
			cmd.Printf("%d rows imported into %s, verified\nhead %s\n", report.Rows, *file, report.Head)
			return nil
		},
	}
}
