// Command karpenter measures Spillway's planner beside karpenter's scheduler, on
// karpenter's own benchmark: its pods, its seed, its 400 instance types.
//
// The shape is that of BenchmarkScheduling in karpenter v1.14.1
// (pkg/controllers/provisioning/scheduling/scheduling_benchmark_test.go): of the
// pods a fifth each are plain, spread over zones, spread over hosts, drawn to
// one zone by their label, and kept off each other's hosts. Type number i has
// i+1 CPUs, 2(i+1) GiB and room for 10(i+1) pods, at a price that grows with it.
//
// How it maps on Spillway:
//
//   - Karpenter's pods have no owner, and may all share nodes. A machine that
//     Spillway rents serves one burst of one owner, so pods without an owner
//     would get a machine each. The pods are therefore those of one owner that
//     need not start together, as an Argo Workflow's: they may share machines,
//     and be split over several bursts of several types.
//   - Spillway buys for work that asks for GPUs only. Each pod asks for one, and
//     type number i has 10(i+1) of them, which is karpenter's room for pods
//     under another name. Karpenter gets the pods without it: ours has one more
//     resource to fit, and the limit of 110 pods to a machine beside.
//   - A burst is in one zone, at one price: 400 offers, not 400 times 5. In an
//     empty cluster a spread over zones asks no more of one zone than that.
//   - Karpenter keeps 0.1 CPU and 10 MiB of a machine for itself. Ours is told
//     the same of CPU, and no less of memory.
//
// What is timed: Solve alone of karpenter, as in its own benchmark, with a fresh
// scheduler each round; of Spillway all of plan.Decide, from a state to a plan.
// What is bought counts too: neither nodes nor their price may exceed
// karpenter's, whose price is that of the cheapest type left to each claim.
//
// Each round of a size is run one after the other, and the median counts. The
// exit status is 1 when a goal is missed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// must and aim are how many times karpenter's pods a second Spillway has to
// reach, and wants to.
const (
	must = 2
	aim  = 10
)

// outcome is what one planner made of the pods.
type outcome struct {
	took  time.Duration
	nodes int
	nano  int64 // price of an hour of all nodes, in billionths
}

func main() {
	rounds := flag.Int("rounds", 3, "how often each size is measured")
	only := flag.Int("pods", 0, "measure this size alone")
	flag.Parse()
	sizes := []int{500, 5_000, 10_000, 20_000}
	if *only > 0 {
		sizes = []int{*only}
	}
	missed, err := compare(context.Background(), sizes, *rounds)
	if err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
	if missed {
		os.Exit(1)
	}
}

func compare(ctx context.Context, sizes []int, rounds int) (missed bool, err error) {
	fmt.Printf("%8s  %28s  %28s  %s\n", "", "karpenter v1.14.1", "spillway", "")
	for _, size := range sizes {
		pods := diversePods(size)
		theirs, err := median(rounds, pods, func(pods []*corev1.Pod) (outcome, error) { return solve(ctx, pods) })
		if err != nil {
			return false, fmt.Errorf("karpenter on %d pods: %w", size, err)
		}
		ours, err := median(rounds, pods, decide)
		if err != nil {
			return false, fmt.Errorf("spillway on %d pods: %w", size, err)
		}
		times := float64(theirs.took) / float64(ours.took)
		verdict := "PASS"
		if times < must || ours.nodes > theirs.nodes || ours.nano > theirs.nano {
			verdict, missed = "FAIL", true
		}
		fmt.Printf("%8d  %s  %s  %5.1f times (must %d, aim %d)  %s\n", size, theirs.line(size), ours.line(size), times, must, aim, verdict)
	}
	return missed, nil
}

// line is pods a second, nodes, and the price of an hour.
func (o outcome) line(pods int) string {
	return fmt.Sprintf("%6.0f/s %5d nodes %9.2f", float64(pods)/o.took.Seconds(), o.nodes, float64(o.nano)/1e9)
}

func median(rounds int, pods []*corev1.Pod, run func([]*corev1.Pod) (outcome, error)) (outcome, error) {
	var all []outcome
	for range rounds {
		o, err := run(pods)
		if err != nil {
			return outcome{}, err
		}
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b outcome) int { return int(a.took - b.took) })
	return all[len(all)/2], nil
}
