package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/focus"
	"spillway.dev/spillway/quota/ledger"
)

// export is what to write, and how.
type export struct{ format, profile, view, operator, tenant, month, zone string }

func exportCommand(file *location) *cobra.Command {
	var x export
	c := &cobra.Command{
		Use: "export", Short: "Write the whole journal as JSON lines, or a month as FOCUS", Args: noArgs,
		Long: `export writes to standard output.

--format journal (the default) is the whole ledger as JSON lines: "ledger import" makes the
same ledger of it, with the same hashes.

--format focus is one month as a Cost and Usage dataset of FOCUS 1.4 (--profile 1.2 for older
tools) in CSV. It carries one of two views, never both: what tenants are charged (--view
tenant) or what providers charge (--view provider). Never add the two up. --format
focus-schema is the description of its columns in JSON; it needs no ledger.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case x.format != "journal" && x.format != "focus" && x.format != "focus-schema":
				return usageError{fmt.Errorf("ledger export: --format %q is unknown: say journal, focus or focus-schema", x.format)}
			case x.format == "focus-schema":
				return x.refused(focus.WriteSchema(cmd.OutOrStdout(), focus.Version(x.profile)))
			case x.format == "focus" && x.month == "":
				return usageError{fmt.Errorf("ledger export: --month is missing: FOCUS is written by the month, as 2026-11")}
			case x.format == "focus" && x.operator == "" && x.view == string(focus.ViewTenant):
				return usageError{fmt.Errorf("ledger export: --operator is missing: name the unit that charges the tenants; FOCUS wants it in every row")}
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				out := bufio.NewWriter(cmd.OutOrStdout())
				write := v.Export
				if x.format == "focus" {
					write = func(ctx context.Context, w io.Writer) error { return x.focus(ctx, cmd, v, w) }
				}
				if err := write(ctx, out); err != nil {
					return err
				}
				return out.Flush()
			})
		},
	}
	f := c.Flags()
	f.StringVar(&x.format, "format", "journal", "journal, focus or focus-schema")
	f.StringVar(&x.profile, "profile", string(focus.V14), "`VERSION` of FOCUS: 1.4 or 1.2")
	f.StringVar(&x.view, "view", string(focus.ViewTenant), "whose charges: tenant or provider")
	f.StringVar(&x.operator, "operator", "", "legal `NAME` of the unit that charges the tenants")
	f.StringVar(&x.tenant, "tenant", "", "only bursts of the tenant with this `ID`")
	f.StringVar(&x.month, "month", "", "local `MONTH` to write, as 2026-11")
	f.StringVar(&x.zone, "zone", quota.DefaultZone, "time `ZONE` of the month")
	return c
}

// focus writes the month, and says on standard error what is not in it yet.
func (x export) focus(ctx context.Context, cmd *cobra.Command, v *ledger.View, w io.Writer) error {
	month, err := quota.Month(x.zone, x.month)
	if err != nil {
		return usageError{fmt.Errorf("ledger export: %w", err)}
	}
	s, err := stateOf(ctx, v, x.month, x.zone)
	if err != nil {
		return err
	}
	accounts := slices.DeleteFunc(s.Accounts, func(r quota.Receipt) bool { return x.tenant != "" && r.Reservation.Tenant != x.tenant })
	usage, err := v.UsageHours(ctx, x.tenant, month.Start.Truncate(time.Hour), month.End.Truncate(time.Hour))
	if err != nil {
		return err
	}
	err = focus.Write(w, focus.Export{
		Version: focus.Version(x.profile), View: focus.View(x.view), Operator: x.operator, Month: month, Accounts: accounts, Usage: usage,
	})
	open := 0
	for _, r := range accounts {
		if r.State != quota.Settled && r.Reservation.From.Before(month.End) && r.Until.After(month.Start) {
			open++
		}
	}
	if open > 0 && err == nil {
		cmd.PrintErrf("unsettled bursts of %s: %d; they are not in this export: write it again when \"ledger exposure\" shows none\n", month.ID, open)
	}
	return x.refused(err)
}

// refused tells wrong usage from what went wrong.
func (x export) refused(err error) error {
	if errors.Is(err, focus.ErrUnknown) {
		return usageError{fmt.Errorf("ledger export: %w", err)}
	}
	return err
}
