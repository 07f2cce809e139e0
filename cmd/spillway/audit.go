package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"spillway.dev/spillway/autoscaler/policy"
)

func auditCommand() *cobra.Command {
	return group("audit", "Check what Spillway's decisions rest on", auditProvidersCommand())
}

func auditProvidersCommand() *cobra.Command {
	var state, kubecontext, output string
	c := &cobra.Command{
		Use: "providers", Short: "List what is stated about each provider's law, certificates and agreement, and whether it counts", Args: noArgs,
		Long: "List every statement of the BurstProviders that data rules rest on, with its evidence. A statement\n" +
			"that does not count (STATE says why) closes the provider for the data that needs it: all data that\n" +
			"is not public needs proven legal facts and a processing agreement. It counts again once the\n" +
			"BurstProvider names a link, a date of review and an expiry that hold until a burst's end.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := marketState(cmd.Context(), "audit providers", state, kubecontext)
			if err != nil {
				return err
			}
			papers := policy.Audit(s.Providers, s.Now)
			return paperTable(papers, s.Now).print(cmd, output, papers)
		},
	}
	c.Flags().StringVar(&state, "state", "", "captured state `FILE`, instead of the cluster")
	c.Flags().StringVar(&kubecontext, "context", "", "`NAME` of a context in the kubeconfig")
	c.Flags().StringVarP(&output, "output", "o", "table", "table, json or csv")
	return c
}

func paperTable(papers []policy.Paper, now time.Time) *table {
	t := &table{
		columns: []string{"provider", "statement", "says", "reviewed", "expires", "state", "evidence"},
		empty:   "No provider is connected: there is nothing to audit.",
	}
	flaws := 0
	for _, p := range papers {
		state := "counts, " + daysLeft(p.Expires.Sub(now))
		if p.Flaw != "" {
			state, flaws = p.Flaw, flaws+1
		}
		t.add(p.Provider, p.Kind, p.Says, date(p.Reviewed), date(p.Expires), state, dash(p.Link))
	}
	if flaws > 0 {
		t.note = fmt.Sprintf("%d of %d statements do not count; data that needs one of them does not go to that provider.", flaws, len(papers))
	}
	return t
}

// daysLeft counts whole days; evidence in its last one has 0 left.
func daysLeft(left time.Duration) string {
	if days := int(left / (24 * time.Hour)); days != 1 {
		return fmt.Sprintf("%d days left", days)
	}
	return "1 day left"
}

func date(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.DateOnly)
}
