// Command spillway is the one binary for people and for the control plane: the
// demo, the controller, and the commands that read what a burst left behind.
//
// Every command ends with status 0 when it did what was asked, 1 when it could
// not, with one sentence that says why and what to do, and 2 for wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/e2e/world"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is wrong usage: the person has to type something else.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func main() {
	if status, child := world.Child(os.Args[1:]); child {
		os.Exit(status)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx)
	stop()
	os.Exit(status)
}

func run(ctx context.Context) int {
	err := root().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "spillway: %v\n", err)
	if _, usage := errors.AsType[usageError](err); usage {
		return exitUsage
	}
	return exitFailed
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "spillway",
		Short: "Run GPU Jobs that don't fit at home on European clouds, metered, encrypted and bounded",
		Args:  noArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors: true, SilenceUsage: true,
	}
	c.CompletionOptions.HiddenDefaultCmd = true
	c.SetOut(os.Stdout) // without, what commands print goes to stderr
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.AddCommand(demoCommand(), trainCommand(), controllerCommand(), preflightCommand(), sweepCommand(), ledgerCommand(), wipeCommand(),
		keysCommand(), logsCommand(), whyCommand(), simulateCommand(), captureCommand(), reportCommand(), getCommand(), auditCommand())
	return c
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s: unknown command or argument %q; see %s --help", c.CommandPath(), args[0], c.CommandPath())}
	}
	return nil
}

// group is a command that only holds others.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(children...)
	return c
}
