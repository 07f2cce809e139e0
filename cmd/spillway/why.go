package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/inquiry"
	"spillway.dev/spillway/autoscaler/observe"
	"spillway.dev/spillway/autoscaler/plan"
)

// asking is where a question goes: to the controller of a cluster, or to a
// captured state.
type asking struct{ state, kubecontext, namespace, output string }

func (a *asking) flags(c *cobra.Command) {
	c.Flags().StringVar(&a.state, "state", "", "captured state `FILE`, instead of the controller")
	c.Flags().StringVar(&a.kubecontext, "context", "", "`NAME` of a context in the kubeconfig")
	c.Flags().StringVarP(&a.namespace, "namespace", "n", "", "`NAMESPACE` of what names none (default: that of the context)")
	c.Flags().StringVarP(&a.output, "output", "o", "table", "table or json")
}

// kubeconfig reads how to reach a cluster, and the namespace of its context.
func kubeconfig(kubecontext string) (config *rest.Config, namespace string, err error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubecontext})
	if config, err = loaded.ClientConfig(); err == nil {
		namespace, _, err = loaded.Namespace()
	}
	if err != nil {
		return nil, "", fmt.Errorf("kubeconfig: %w; set KUBECONFIG, or ask a captured state with --state", err)
	}
	return config, namespace, nil
}

// controller is the way to the cluster's controller.
func (a *asking) controller(cmd *cobra.Command) (*inquiry.Client, error) {
	config, namespace, err := kubeconfig(a.kubecontext)
	if err != nil {
		return nil, err
	}
	if a.namespace == "" {
		a.namespace = namespace
	}
	return inquiry.Dial(cmd.Context(), config, v1alpha1.SystemNamespace)
}

func whyCommand() *cobra.Command {
	var a asking
	c := &cobra.Command{
		Use: "why job/NAME", Aliases: []string{"explain"}, Short: "Say why work waits, where it runs or what was bought for it",
		Long: "Ask the controller why a Job (or pod, jobset, burst and others) waits, where it runs and what it\n" +
			"costs. It takes the right to get that very object, and no other. With --state a captured\n" +
			"state is decided on again; then the name may be left out, and all that waits is told.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, name := "", ""
			if len(args) == 1 {
				var ok bool
				if kind, name, ok = strings.Cut(args[0], "/"); !ok || kind == "" || name == "" {
					return usageError{fmt.Errorf("why: %q is no job/NAME, pod/NAME, jobset/NAME or burst/NAME", args[0])}
				}
			}
			if a.state != "" {
				return a.whyCaptured(cmd, kind, name)
			}
			if name == "" {
				return usageError{fmt.Errorf("why: say of what, as job/NAME; only a captured state (--state) can be asked about everything")}
			}
			controller, err := a.controller(cmd)
			if err != nil {
				return err
			}
			answer, err := controller.Why(cmd.Context(), kind, a.namespace, name)
			if err != nil {
				return fmt.Errorf("why %s: %w", args[0], err)
			}
			return show(cmd, a.output, answer, answer.Explain())
		},
	}
	a.flags(c)
	return c
}

func (a *asking) whyCaptured(cmd *cobra.Command, kind, name string) error {
	s, err := captured("why", a.state)
	if err != nil {
		return err
	}
	decided := plan.Decide(s)
	if name == "" {
		if len(decided.Decisions) == 0 {
			return fmt.Errorf("nothing waits in %s; jobs that run or have ended need no decision", a.state)
		}
		return show(cmd, a.output, decided, decided.Explain())
	}
	kind, _, _ = strings.Cut(kind, ".")
	subject := plan.Subject{Kind: strings.TrimSuffix(kind, "s"), Namespace: a.namespace, Name: name}
	if subject.Namespace == "" {
		subject.Namespace = "default"
	}
	answer := plan.About(s, decided, subject)
	return show(cmd, a.output, answer, answer.Explain())
}

// captured reads a state that a controller has captured.
func captured(command, file string) (plan.State, error) {
	var s plan.State
	if file == "" {
		return s, usageError{fmt.Errorf("%s: --state is missing: name a captured state, for example demo-out/state.json", command)}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return s, fmt.Errorf("captured state: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("captured state %s: %w", file, err)
	}
	return s, nil
}

func simulateCommand() *cobra.Command {
	var a asking
	var manifest string
	c := &cobra.Command{
		Use: "simulate", Short: "Say what would happen to a Job, and at what price, without submitting it", Args: noArgs,
		Long: "Decide on a manifest beside what waits now, as the controller would, and submit nothing. It takes\n" +
			"the right to create what the manifest holds.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if manifest == "" {
				return usageError{fmt.Errorf("simulate: -f is missing: name a manifest of work, or - for standard input")}
			}
			data, err := readManifest(cmd, manifest)
			if err != nil {
				return err
			}
			decided, err := a.simulated(cmd, manifest, data)
			if err != nil {
				return err
			}
			return show(cmd, a.output, decided, decided.Explain())
		},
	}
	c.Flags().StringVarP(&manifest, "filename", "f", "", "manifest `FILE` (YAML), - for standard input")
	a.flags(c)
	return c
}

func (a *asking) simulated(cmd *cobra.Command, manifest string, data []byte) (plan.Plan, error) {
	if a.state == "" {
		controller, err := a.controller(cmd)
		if err != nil {
			return plan.Plan{}, err
		}
		decided, err := controller.Simulate(cmd.Context(), a.namespace, data)
		if err != nil {
			return decided, fmt.Errorf("simulate %s: %w", manifest, err)
		}
		return decided, nil
	}
	s, err := captured("simulate", a.state)
	if err != nil {
		return plan.Plan{}, err
	}
	namespace := a.namespace
	if namespace == "" {
		namespace = "default"
	}
	imagined, err := observe.Imagine(data, namespace, &s)
	if err != nil {
		return plan.Plan{}, fmt.Errorf("manifest %s: %w", manifest, err)
	}
	return inquiry.Simulated(s, imagined), nil
}

func readManifest(cmd *cobra.Command, file string) ([]byte, error) {
	if file == "-" {
		data, err := io.ReadAll(cmd.InOrStdin())
		if err != nil {
			return nil, fmt.Errorf("manifest on standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return data, nil
}

func captureCommand() *cobra.Command {
	var a asking
	c := &cobra.Command{
		Use: "capture", Short: "Write the controller's newest state as JSON, without secrets, for why and simulate --state", Args: noArgs,
		Long: "Write what the controller decided on last: nodes, pods, offers, tenants, bursts and budgets. Values of\n" +
			"environment variables, commands, addresses and the like are left out. It takes the right to get\n" +
			"states.spillway.dev, as the ClusterRole spillway-capture gives it.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			controller, err := a.controller(cmd)
			if err != nil {
				return err
			}
			state, err := controller.State(cmd.Context())
			if err != nil {
				return fmt.Errorf("capture: %w", err)
			}
			cmd.Println(string(state))
			return nil
		},
	}
	c.Flags().StringVar(&a.kubecontext, "context", "", "`NAME` of a context in the kubeconfig")
	return c
}
