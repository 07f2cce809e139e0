package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/quota/money"
)

func reportCommand() *cobra.Command {
	var state, kubecontext, since, output string
	c := &cobra.Command{
		Use: "report", Short: "Sum up what mode Observe would have bought, tenant by tenant", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			back, err := age(since)
			if err != nil {
				return usageError{fmt.Errorf("report: --since %q: %w", since, err)}
			}
			s, err := marketState(cmd.Context(), "report", state, kubecontext)
			if err != nil {
				return err
			}
			all, err := plan.Observations(s.Tenants, s.Now.Add(-back))
			if err != nil {
				return err
			}
			return observations(all, since).print(cmd, output, all)
		},
	}
	c.Flags().StringVar(&since, "since", "7d", "how far to look back: `TIME` as 7d, 36h or 90m")
	c.Flags().StringVar(&state, "state", "", "captured state `FILE`, instead of the cluster")
	c.Flags().StringVar(&kubecontext, "context", "", "`NAME` of a context in the kubeconfig")
	c.Flags().StringVarP(&output, "output", "o", "table", "table, json or csv")
	return c
}

// age reads a time span that may be in days.
func age(text string) (time.Duration, error) {
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, fmt.Errorf("say a number of days, as 7d")
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("say a time as 7d, 36h or 90m")
	}
	return d, nil
}

func observations(all []plan.Observation, since string) *table {
	t := &table{
		columns: []string{"tenant", "mode", ">would burst", ">expected", ">at most", ">saved waiting"},
		empty:   "There is no tenant: create a BurstTenant.",
	}
	var full []string
	for _, o := range all {
		saved := strings.TrimSuffix(o.SavedWaiting.Round(time.Minute).String(), "0s")
		switch {
		case o.Bursts == 0:
			saved = "-"
		case o.Unknown == o.Bursts:
			saved = "unknown"
		case o.Unknown > 0:
			saved = fmt.Sprintf("%s, unknown of %d", saved, o.Unknown)
		}
		t.add(o.Tenant, o.Mode, strconv.Itoa(o.Bursts), amounts(o.Expected), amounts(o.Ceilings), saved)
		if o.Full {
			full = append(full, o.Tenant)
		}
	}
	if len(full) > 0 {
		t.note = fmt.Sprintf("The record of %s does not reach back %s: there was more.", strings.Join(full, ", "), since)
	}
	return t
}

func amounts(sums []money.Amount) string {
	if len(sums) == 0 {
		return "-"
	}
	texts := make([]string, len(sums))
	for i, a := range sums {
		texts[i] = a.String()
	}
	return strings.Join(texts, " + ")
}
