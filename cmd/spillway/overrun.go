package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// acceptance is who answers for which overrun.
type acceptance struct{ currency, by, reason string }

// acceptOverrunCommand lets a person answer for cost beyond what was reserved,
// so that bursts may start again.
func acceptOverrunCommand(file *location) *cobra.Command {
	var a acceptance
	c := &cobra.Command{
		Use: "accept-overrun", Short: "Take an open overrun on the operator's account, in a person's name", Args: noArgs,
		Long: "accept-overrun lets bursts start again after a machine has cost more than was reserved for it:\na person answers for the difference. A controller that runs meanwhile is fenced off the\nledger by it; it ends and has to be started again.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *file == "" || a.currency == "" || a.by == "" || a.reason == "" {
				return usageError{fmt.Errorf("ledger accept-overrun: --ledger, --currency, --by and --reason are needed")}
			}
			open, err := a.open(cmd.Context(), *file)
			if err != nil {
				return err
			}
			if err := a.accept(cmd.Context(), *file); err != nil {
				return err
			}
			cmd.Printf("%s accepted by %s: %s\nbursts may start again; a controller that ran meanwhile has to be started again\n", open, a.by, a.reason)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&a.currency, "currency", "", "of the overrun, for example EUR")
	f.StringVar(&a.by, "by", "", "`ID` of the person who answers for it")
	f.StringVar(&a.reason, "reason", "", "`WHY` it came to be, for example a ticket")
	return c
}

// open is the overrun there is; it changes nothing, and makes no ledger.
func (a acceptance) open(ctx context.Context, file location) (money.Amount, error) {
	l, err := ledger.Open(ctx, string(file), ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		return money.Amount{}, err
	}
	defer func() { _ = l.Close() }() // nothing was written
	book, err := l.Book(ctx)
	if err != nil {
		return money.Amount{}, err
	}
	open := book.Overrun[money.Currency(a.currency)]
	if open.IsZero() {
		return open, fmt.Errorf("ledger %s has no open overrun in %s: nothing was changed", file, a.currency)
	}
	return open, nil
}

func (a acceptance) accept(ctx context.Context, file location) error {
	return booking(ctx, file, "ledger accept-overrun by "+a.by, func(l *ledger.Ledger, epoch int64) error {
		return l.AcceptOverrun(ctx, epoch, money.Currency(a.currency), a.by, a.reason)
	})
}
