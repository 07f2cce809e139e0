// Command runner runs the go tool for the Makefile and makes its answer
// readable: a long build shows how far it is, and a test run ends with what
// each package covers and one line that counts.
//
// It adds no judgement of its own. A build or a test that fails under the go
// tool fails here with the same output; runner only counts and arranges.
// Exit status: 0 all good, 1 a build or a test failed, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage:
  runner build -o FILE [go build flags] PACKAGE   build with visible progress
  runner test FIRST... -- PACKAGES...             test FIRST, then the rest of PACKAGES
`

// errUsage marks a call that this program does not understand.
var errUsage = errors.New("wrong usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case err == nil:
	case errors.Is(err, errUsage):
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "runner:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	switch args[0] {
	case "build":
		return build(ctx, args[1:], os.Stdout)
	case "test":
		return test(ctx, args[1:], os.Stdout)
	}
	return errUsage
}
