package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/autoscaler/policy"
	"spillway.dev/spillway/quota/money"
)

func getCommand() *cobra.Command {
	return group("get", "Show what Spillway knows", getOffersCommand())
}

func getOffersCommand() *cobra.Command {
	var state, kubecontext, tenant, output string
	c := &cobra.Command{
		Use: "offers", Short: "Show the market: who sells what, at what price, and which data may go there", Args: noArgs,
		Long: "Show the market as the BurstProviders of the cluster state it, or as a captured state holds it.\n" +
			"CLASSES are the data classes that at least one tenant (or the one given) may send there.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := marketState(cmd.Context(), "get offers", state, kubecontext)
			if err != nil {
				return err
			}
			list, err := plan.Market(s, tenant)
			if err != nil {
				return err
			}
			return showOffers(cmd, output, list, s.Now)
		},
	}
	c.Flags().StringVar(&state, "state", "", "captured state `FILE`, instead of the cluster")
	c.Flags().StringVar(&kubecontext, "context", "", "`NAME` of a context in the kubeconfig")
	c.Flags().StringVar(&tenant, "tenant", "", "`NAME` of a BurstTenant: what may it buy?")
	c.Flags().StringVarP(&output, "output", "o", "table", "table, json or csv")
	return c
}

// marketState reads providers and tenants: from a file, or from the cluster
// with the rights of the person who asks.
func marketState(ctx context.Context, command, file, kubecontext string) (plan.State, error) {
	if file != "" {
		return captured(command, file)
	}
	s := plan.State{Now: time.Now().UTC()}
	config, _, err := kubeconfig(kubecontext)
	if err != nil {
		return s, err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return s, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return s, fmt.Errorf("%s: %w", config.Host, err)
	}
	clouds, tenants := &v1alpha1.BurstProviderList{}, &v1alpha1.BurstTenantList{}
	for _, list := range []client.ObjectList{clouds, tenants} {
		if err := c.List(ctx, list); err != nil {
			return s, fmt.Errorf("%s: %w", config.Host, err)
		}
	}
	s.Providers, s.Tenants = clouds.Items, tenants.Items
	for i := range s.Providers {
		offers, err := observe.SeenOffers(&s.Providers[i])
		if err != nil {
			return s, err
		}
		s.Offers = append(s.Offers, offers...)
	}
	return s, nil
}

func showOffers(cmd *cobra.Command, output string, list []plan.Listing, now time.Time) error {
	head := []string{"PROVIDER", "REGION", "ZONE", "TYPE", "CAPACITY", "GPUS", "MODEL", "PRICE/H", "AVAILABLE", "AGE", "CLASSES"}
	switch output {
	case "json":
		data, err := json.MarshalIndent(list, "", "  ")
		if err != nil {
			return err
		}
		cmd.Println(string(data))
	case "csv":
		w := csv.NewWriter(cmd.OutOrStdout())
		_ = w.Write(head) // Error reports it
		for _, l := range list {
			_ = w.Write(row(l, now))
		}
		w.Flush()
		return w.Error()
	case "table":
		if len(list) == 0 {
			cmd.Println("No provider has an offer: connect one (kubectl get burstproviders tells whether it answers).")
			return nil
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, strings.Join(head, "\t"))
		for _, l := range list {
			_, _ = fmt.Fprintln(w, strings.Join(row(l, now), "\t"))
		}
		return w.Flush()
	default:
		return usageError{fmt.Errorf("%s: -o %q is unknown: say table, json or csv", cmd.CommandPath(), output)}
	}
	return nil
}

// row is one offer in the order of the columns.
func row(l plan.Listing, now time.Time) []string {
	price, available, classes := "unknown", "yes", make([]string, 0, len(l.Classes))
	if !l.Offer.Price.IsZero() {
		price = money.Amount{Nano: l.Offer.Price.NanoPerHour, Currency: l.Offer.Price.Currency}.String()
	}
	if l.Reason != nil {
		available = l.Reason.Message
	}
	for _, c := range l.Classes {
		classes = append(classes, string(c))
	}
	if len(classes) == 0 {
		classes = append(classes, barred(l))
	}
	age := "unknown"
	if !l.Offer.Seen.IsZero() {
		age = now.Sub(l.Offer.Seen).Round(time.Second).String()
	}
	return []string{
		l.Offer.Provider, l.Offer.Region, dash(l.Offer.Zone), l.Offer.InstanceType, dash(l.Offer.CapacityType),
		strconv.Itoa(l.Offer.GPUs), l.Offer.GPUModel, price, available, age, strings.Join(classes, ","),
	}
}

// barred says in one word why no data may go to an offer: a rule about the
// offer before the lack of a rule for a class.
func barred(l plan.Listing) string {
	code := plan.Code("")
	for _, c := range policy.Classes() {
		if why, told := l.Barred[c]; told && (code == "" || code == policy.DataClassForbidsCloud) {
			code = why.Code
		}
	}
	return strings.TrimSuffix("none: "+string(code), ": ")
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
