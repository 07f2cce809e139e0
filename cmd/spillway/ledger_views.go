package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

const outputs = "table, json or csv"

// number is an amount without its currency, which has a column of its own.
func number(a money.Amount) string {
	return strings.TrimSuffix(a.String(), " "+string(a.Currency))
}

// instant is a moment for people and programs.
func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func balanceCommand(file *location) *cobra.Command {
	var output string
	c := &cobra.Command{
		Use: "balance", Short: "Show the balance of every account, debits less credits", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				s, err := v.State(ctx)
				if err != nil {
					return err
				}
				t := table{
					columns: []string{"account", ">balance", "currency"},
					empty:   fmt.Sprintf("ledger %s moves no money: all of its accounts are at 0.00", *file),
				}
				for _, b := range s.Balances {
					t.add(string(b.Account), number(b.Balance), string(b.Balance.Currency))
				}
				return t.print(cmd, output, s.Balances)
			})
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "table", outputs)
	return c
}

func budgetCommand(file *location) *cobra.Command {
	var output, at string
	c := &cobra.Command{
		Use: "budget", Short: "Show every budget in its current window: limit, spent, reserved, free", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			moment, err := momentOf(cmd, at)
			if err != nil {
				return err
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				s, err := v.State(ctx)
				if err != nil {
					return err
				}
				standings, err := s.Book.Standings(moment)
				if err != nil {
					return err
				}
				t := table{
					columns: []string{"budget", "scope", "subject", "window", "kind", ">limit", ">spent", ">reserved", ">free", "currency"},
					empty:   fmt.Sprintf("ledger %s has no budget for %s: nothing can be reserved", *file, instant(moment)),
				}
				for _, b := range standings {
					kind := "soft"
					if b.Budget.Hard {
						kind = "hard"
					}
					t.add(b.Budget.ID, string(b.Budget.Scope), b.Budget.Subject, b.Window.ID, kind, number(b.Budget.Limit),
						number(b.Spent), number(b.Reserved), number(b.Free), string(b.Budget.Limit.Currency))
				}
				return t.print(cmd, output, append([]quota.Standing{}, standings...)) // never null
			})
		},
	}
	c.Flags().StringVar(&at, "at", "", "windows of this `TIME`, as 2026-11-02T10:00:00Z; default: now")
	c.Flags().StringVarP(&output, "output", "o", "table", outputs)
	return c
}

// momentOf reads a time that a person gave; nothing is now.
func momentOf(cmd *cobra.Command, text string) (time.Time, error) {
	if text == "" {
		return time.Now().UTC(), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, usageError{fmt.Errorf("%s: --at %q is no time: write it like 2026-11-02T10:00:00Z", cmd.CommandPath(), text)}
	}
	return at.UTC(), nil
}

func usageCommand(file *location) *cobra.Command {
	var output, month, zone string
	var f quota.UsageFilter
	c := &cobra.Command{
		Use: "usage", Short: "Show GPU time by tenant, workload, place, model and phase", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if month != "" {
				p, err := quota.Month(zone, month)
				if err != nil {
					return usageError{fmt.Errorf("%s: %w", cmd.CommandPath(), err)}
				}
				f.From, f.Until = p.Start, p.End
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				pods, err := v.Usage(ctx, f)
				if err != nil {
					return err
				}
				all := byWorkload(pods)
				t := table{
					columns: []string{"tenant", "namespace", "owner", "place", "model", "phase", ">gpu hours", ">share seconds"},
					empty:   fmt.Sprintf("ledger %s has no usage of this kind", *file),
				}
				for _, u := range all {
					place := quota.OnPrem
					if u.Burst != "" {
						place = "burst " + u.Burst
					}
					t.add(u.Tenant, u.Namespace, u.Owner, place, u.GPUModel, u.Phase, thousandths(u.ShareSeconds), strconv.FormatInt(u.ShareSeconds, 10))
				}
				return t.print(cmd, output, all)
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.Tenant, "tenant", "", "only of the tenant with this `ID`")
	fl.StringVar(&f.Namespace, "namespace", "", "only of this `NAMESPACE`")
	fl.StringVar(&f.Burst, "burst", "", "only of the burst with this `UID`")
	fl.StringVar(&month, "month", "", "only in this local `MONTH`, as 2026-11")
	fl.StringVar(&zone, "zone", quota.DefaultZone, "time `ZONE` of the month")
	fl.StringVarP(&output, "output", "o", "table", outputs)
	return c
}

// byWorkload adds up the pods of each workload; the order stays.
func byWorkload(pods []quota.UsageTotal) []quota.UsageTotal {
	all := []quota.UsageTotal{}
	index := make(map[quota.UsageTotal]int)
	for _, u := range pods {
		k := u
		k.PodUID, k.Node, k.Source, k.ShareSeconds = "", "", "", 0
		i, known := index[k]
		if !known {
			i = len(all)
			index[k] = i
			all = append(all, k)
		}
		all[i].ShareSeconds += u.ShareSeconds
	}
	return all
}

// thousandths writes GPU-hours with three decimals, rounded half up.
func thousandths(shareSeconds int64) string {
	const unit = 3600 * money.Whole / 1000
	n := (shareSeconds + unit/2) / unit
	return fmt.Sprintf("%d.%03d", n/1000, n%1000)
}

func exposureCommand(file *location) *cobra.Command {
	var output, at string
	var bursts bool
	c := &cobra.Command{
		Use: "exposure", Short: "Show the open liability now: what unsettled bursts can still cost, and open overruns", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			moment, err := momentOf(cmd, at)
			if err != nil {
				return err
			}
			return viewing(cmd, *file, func(ctx context.Context, v *ledger.View) error {
				s, err := v.State(ctx)
				if err != nil {
					return err
				}
				x, err := quota.Expose(moment, accountsOf(s), s.Accepted)
				if err != nil {
					return err
				}
				return exposureTable(*file, x, bursts).print(cmd, output, x)
			})
		},
	}
	c.Flags().BoolVar(&bursts, "bursts", false, "one line for each burst")
	c.Flags().StringVar(&at, "at", "", "call bursts late at this `TIME`, as 2026-11-02T10:00:00Z; default: now")
	c.Flags().StringVarP(&output, "output", "o", "table", outputs)
	return c
}

func accountsOf(s ledger.State) []quota.Account {
	all := make([]quota.Account, len(s.Accounts))
	for i, r := range s.Accounts {
		all[i] = r.Account
	}
	return all
}

func exposureTable(file location, x quota.Exposure, bursts bool) *table {
	t := &table{empty: fmt.Sprintf("ledger %s has nothing open: every burst is settled, and no overrun waits for acceptance", file)}
	t.columns = []string{"tenant", "provider", ">bursts", ">late", ">can still cost", ">may grow by", ">overrun", "currency", "ends at the latest"}
	late := 0
	for _, e := range x.Totals {
		late += e.Late
		t.add(e.Tenant, e.Provider, strconv.Itoa(e.Bursts), strconv.Itoa(e.Late), number(e.Pending), number(e.MayGrow), number(e.Overrun),
			string(e.Pending.Currency), instant(e.Until))
	}
	if bursts {
		t = &table{empty: fmt.Sprintf("ledger %s has no open burst: every burst is settled", file)}
		t.columns = []string{"burst", "tenant", "project", "provider", "state", ">can still cost", ">may grow by", "currency", "ends at the latest", "late"}
		for _, b := range x.Bursts {
			t.add(b.Burst, b.Tenant, b.Project, b.Provider, string(b.State), number(b.Pending), number(b.MayGrow),
				string(b.Pending.Currency), instant(b.Until), yesNo(b.Late))
		}
	}
	if late > 0 {
		t.note = fmt.Sprintf("%d late: past the end that was reserved for, and not proven gone. What they cost beyond it is booked at their settlement.", late)
	}
	return t
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
