package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// fenced is said of every command that writes a ledger.
const fenced = "A controller that runs meanwhile is fenced off the\nledger by it; it ends and has to be started again."

// booking calls f as the leader of a ledger that exists. Whoever led before is
// fenced off.
func booking(ctx context.Context, file location, holder string, f func(l *ledger.Ledger, epoch int64) error) error {
	if l, err := ledger.Open(ctx, string(file), ledger.Options{ReadOnly: true}); err != nil {
		return err // it makes no ledger
	} else if err := l.Close(); err != nil {
		return err
	}
	l, err := ledger.Open(ctx, string(file), ledger.Options{Now: time.Now})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // what was written is committed
	epoch, err := l.BeginEpoch(ctx, holder)
	if err != nil {
		return err
	}
	return f(l, epoch)
}

// closeCommand ends a billing month.
func closeCommand(file *location) *cobra.Command {
	var month, zone, by string
	c := &cobra.Command{
		Use: "close", Short: "Close a month: its statements never change again", Args: noArgs,
		Long: `close ends a billing month when nothing in it is pending, or 72 hours after its end with what
pending bursts have reserved as the estimate. What is booked later (a late settlement, a
correction, usage that arrives late) is posted to the first month that is still open.
` + fenced,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *file == "" || month == "" || by == "" {
				return usageError{fmt.Errorf("ledger close: --ledger, --month and --by are needed")}
			}
			if _, err := quota.Month(zone, month); err != nil {
				return usageError{fmt.Errorf("ledger close: %w", err)}
			}
			return booking(cmd.Context(), *file, "ledger close by "+by, func(l *ledger.Ledger, epoch int64) error {
				done, err := l.CloseMonth(cmd.Context(), epoch, month, zone, by)
				if err != nil {
					return fmt.Errorf("ledger %s: %w", *file, err)
				}
				cmd.Printf("%s is closed, from %s until %s, by %s\n", done.Month, instant(done.Start), instant(done.End), by)
				for _, burst := range done.Pending {
					cmd.Printf("burst %s was not settled: its cost follows in the first open month\n", burst)
				}
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&month, "month", "", "local `MONTH`, as 2026-11")
	f.StringVar(&zone, "zone", quota.DefaultZone, "time `ZONE` of the month, the same for all months of a ledger")
	f.StringVar(&by, "by", "", "`ID` of the person who closes it")
	return c
}

// correctCommand books what a settled burst has really cost.
func correctCommand(file *location) *cobra.Command {
	var x quota.Correction
	var actual string
	var waive bool
	c := &cobra.Command{
		Use: "correct", Short: "Correct what a settled burst has cost: the old cost back, the new one posted", Args: noArgs,
		Long: `correct books what the provider really bills for a settled burst, in a person's name. No row is
changed: the whole of the old cost is taken back and the new one is posted, to the month of the
burst while that is open, else to the first open month. With --waive the operator pays for it.
` + fenced,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *file == "" || x.Burst == "" || actual == "" || x.By == "" || x.Reason == "" {
				return usageError{fmt.Errorf("ledger correct: --ledger, --burst, --actual, --by and --reason are needed")}
			}
			var err error
			if x.Actual, err = money.Parse(actual); err != nil {
				return usageError{fmt.Errorf("ledger correct: --actual: %w", err)}
			}
			if waive {
				x.Cause = quota.CauseProviderFault
			}
			return booking(cmd.Context(), *file, "ledger correct by "+x.By, func(l *ledger.Ledger, epoch int64) error {
				r, err := l.Correct(cmd.Context(), epoch, x)
				if err != nil {
					return fmt.Errorf("ledger %s: %w", *file, err)
				}
				cmd.Printf("row %d: burst %s now costs its tenant %s, the operator %s for faults and %s beyond its reservation\n", r.Seq, x.Burst, r.Spent, r.Waived, r.Overrun)
				return nil
			})
		},
	}
	f := c.Flags()
	f.StringVar(&x.Burst, "burst", "", "`UID` of the burst")
	f.StringVar(&actual, "actual", "", "`AMOUNT` that the provider bills, for example \"12.34 EUR\"")
	f.BoolVar(&waive, "waive", false, "the operator pays: the provider failed")
	f.StringVar(&x.By, "by", "", "`ID` of the person who corrects it")
	f.StringVar(&x.Reason, "reason", "", "`WHY`, for example the number of an invoice")
	return c
}
