// Command spillway-agent is the agent on a node: on a burst node it serves the
// burst's data, keeps its lease and wipes it; on every node it counts usage.
//
// It reads the join data, speaks to the controller with the node's own client
// certificate and to the machine through a socket, and logs JSON to stderr.
// It exits with 0 when it ended in order (told to, or the machine is going
// off), 1 on a failure and 2 on wrong usage.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"spillway.dev/spillway/nodeagent"
	"spillway.dev/spillway/nodeagent/link"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	join, cert, key, state, front, pods string
	onPrem                              bool
}

const usage = `usage: spillway-agent --join FILE --client-cert FILE --client-key FILE --state DIR --pods SOCKET [--front ADDR:PORT | --on-prem]
`

// run is main with its surroundings as arguments. It returns the exit code.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "spillway-agent: %v\n%s", err, usage) //nolint:errcheck // nowhere left to say it
		return 2
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil))
	agent, err := prepare(o, log)
	if err != nil {
		log.Error("the agent does not start", "error", err.Error())
		return 1
	}
	log.Info("the agent has started", "version", version(), "on_prem", o.onPrem)
	if err := agent.Run(ctx); err != nil {
		log.Error("the agent has failed", "error", err.Error())
		return 1
	}
	log.Info("the agent has ended in order")
	return 0
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("spillway-agent", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.join, "join", "", "`FILE` with the join data")
	fs.StringVar(&o.cert, "client-cert", "", "`FILE` with the node's client certificate, read again for every connection")
	fs.StringVar(&o.key, "client-key", "", "`FILE` with its key")
	fs.StringVar(&o.state, "state", "", "`DIR` of the agent on the machine's disk")
	fs.StringVar(&o.front, "front", "", "`ADDR:PORT` at which jobs reach the store")
	fs.StringVar(&o.pods, "pods", "", "`SOCKET` of the machine: a path or an http URL")
	fs.BoolVar(&o.onPrem, "on-prem", false, "report usage only: no lease, no key, no front")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fs.SetOutput(stderr)
			fmt.Fprint(stderr, usage) //nolint:errcheck // nowhere left to say it
			fs.PrintDefaults()
		}
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	for _, need := range []struct{ flag, value string }{
		{"join", o.join}, {"client-cert", o.cert}, {"client-key", o.key}, {"state", o.state}, {"pods", o.pods},
	} {
		if need.value == "" {
			return o, fmt.Errorf("--%s is missing", need.flag)
		}
	}
	if (o.front == "") != o.onPrem {
		return o, errors.New("give --front on a burst node, or --on-prem")
	}
	return o, nil
}

// prepare reads everything that the flags name and makes the agent.
func prepare(o options, log *slog.Logger) (*nodeagent.Agent, error) {
	if err := nodeagent.Harden(); err != nil {
		log.Warn("the agent's memory is not kept out of core dumps", "error", err.Error())
	}
	data, err := os.ReadFile(o.join)
	if err != nil {
		return nil, fmt.Errorf("read join data: %w", err)
	}
	join, err := link.ParseJoin(data)
	if err != nil {
		return nil, err
	}
	certificate := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("read the node's client certificate: %w", err)
		}
		return &c, nil
	}
	if _, err := certificate(); err != nil { // the lease counts from the boot on, also of a node that never joins
		log.Warn("the controller is not spoken to until the kubelet has its certificate", "error", err.Error())
	}
	machine, err := nodeagent.Dial(o.pods)
	if err != nil {
		return nil, err
	}
	return nodeagent.New(nodeagent.Config{
		Join: join, OnPrem: o.onPrem, State: o.state, Front: o.front, Version: version(),
		Machine: machine, Certificate: certificate, Log: log,
	})
}

// version is what the build says of itself.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}
