// Package procnode is a whole machine in one process, for tests and the demo:
// a real Node object in a real cluster, with a small kubelet of ours that runs
// the pods bound to it as processes of this host. Jobs really read and write
// their data; only the walls between machines are thin.
//
// A process node is honest towards the cluster: it has its own node identity
// and is held to it by the Node authorizer and NodeRestriction. An on-prem node
// is given its certificate; a burst node gets join data ([link.Join]) and asks
// for a certificate with its bootstrap token, as a booting machine does.
//
// Words: the machine's folder (Config.Dir) holds all that the machine writes;
// disk/ in it is "the disk", what a provider could read after the machine is
// gone. The agent is spillway-agent, its companion, which talks to it over a
// Unix socket (the one that [nodeagent.Dial] opens) that stands for the kubelet's pod-resources API
// and the power button. Power off ends everything that the machine runs.
//
// What it is not: it runs commands, not images, so the image is reported and
// otherwise ignored. There are no volumes, probes, exec or limits; a pod that
// needs a volume or a sidecar is refused, not run wrongly. A pod sees the
// host's files, but its own /etc/hosts, processes and temporary folder where
// the kernel lets it ([Config.NoNamespaces] says what happens where not).
package procnode

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// Main runs a machine until it is powered off and returns the exit status: 0
// after power off (asked by the agent, SIGTERM or SIGINT), 1 after a failure,
// 2 for wrong usage. The flags are those of [Config]. The machine's console is
// standard error.
func Main(args []string) int {
	config, err := parse(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "process node: %v\n", err)
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := boot(ctx, config, os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "process node %s: %v\n", config.Name, err)
		return exitFailed
	}
	return 0
}

// boot is the life of one machine: lock, join, serve, register, work, power
// off. A signal that ends ctx is a power off in order, also while it joins.
func boot(ctx context.Context, config Config, console io.Writer) error {
	log := slog.New(slog.NewTextHandler(console, nil))
	config, err := complete(config)
	if err != nil {
		return err
	}
	unlock, err := lockDir(config.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	id, err := join(ctx, config, log)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := newNode(config, id, log)
	if err != nil {
		return err
	}
	defer n.powerOff()
	return n.live(ctx)
}
