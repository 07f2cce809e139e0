// Package parity compares autoscaler/placement with a real kube-scheduler: it
// draws clusters and pods at random over all default filters, asks both which
// nodes a pod fits on, and expects the same set, for every draw.
//
// The scheduler's own answer for each node is read from a filter extender,
// which is handed all nodes that its filters let through. Objects are read back
// from the API server, so that both see the same defaults.
//
// Vocabulary: a draw is one pod against one drawn cluster; the seed of a
// cluster is printed with every difference and replays it (-seed).
package parity
