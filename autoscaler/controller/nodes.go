package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/lifecycle"
	"spillway.dev/spillway/nodeagent/link"
)

// nodeBurst says which burst a node belongs to: the record of its purchase
// does, never its name or its word. A node that is no burst node is on-prem.
func nodeBurst(reader client.Reader) func(node string) (string, bool) {
	return func(node string) (string, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if !strings.HasPrefix(node, v1alpha1.NodePrefix) {
			err := reader.Get(ctx, types.NamespacedName{Name: node}, &corev1.Node{})
			return "", err == nil
		}
		sm := &infrav1.SpillwayMachine{}
		key := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: node}
		if err := reader.Get(ctx, key, sm); err != nil || sm.Status.GoneAt != nil {
			return "", false
		}
		return sm.Spec.Burst, true
	}
}

// listener hears the agents' reports: a burst node wakes its burst, an on-prem
// node's usage is booked here.
type listener struct {
	hub    *link.Hub
	client client.Reader
	ledger *treasury
	wake   chan<- event.GenericEvent
	log    *slog.Logger
}

func (l *listener) NeedLeaderElection() bool { return true }

// Start runs until the context ends.
func (l *listener) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case node := <-l.hub.Updates():
			if err := l.heard(ctx, node); err != nil && ctx.Err() == nil {
				l.log.Warn("report of a node is not dealt with; it comes again", "node", node, "error", err)
			}
		}
	}
}

func (l *listener) heard(ctx context.Context, node string) error {
	if !strings.HasPrefix(node, v1alpha1.NodePrefix) {
		return l.bookLocal(ctx, node)
	}
	sm := &infrav1.SpillwayMachine{}
	key := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: node}
	if err := l.client.Get(ctx, key, sm); err != nil {
		return client.IgnoreNotFound(err)
	}
	burst := &v1alpha1.Burst{}
	burst.Namespace, burst.Name = sm.Labels[v1alpha1.BurstNamespaceLabel], sm.Labels[v1alpha1.BurstNameLabel]
	select {
	case l.wake <- event.GenericEvent{Object: burst}:
	case <-ctx.Done():
	}
	return nil
}

// bookLocal books what an on-prem node measured, under the tenant of the pod's
// namespace. Work of no tenant is booked under the id "none".
func (l *listener) bookLocal(ctx context.Context, node string) error {
	report, _, ok := l.hub.Report(node)
	if !ok || len(report.Usage) == 0 {
		return nil
	}
	tenants := &v1alpha1.BurstTenantList{}
	if err := l.client.List(ctx, tenants); err != nil {
		return fmt.Errorf("list tenants: %w", err)
	}
	last := int64(0)
	for i := range report.Usage {
		u := &report.Usage[i]
		u.Node, u.Burst, u.Tenant = node, "", "none"
		for _, t := range tenants.Items {
			for _, ns := range t.Spec.Namespaces {
				if ns == u.Namespace {
					u.Tenant = t.Spec.ID
				}
			}
		}
		last = max(last, u.Seq)
	}
	if err := lifecycle.Booked(l.log, node, l.ledger.RecordUsage(ctx, report.Usage)); err != nil {
		return err
	}
	l.hub.Tell(node, link.Orders{UsageAck: last, UsageJournal: report.Journal})
	return nil
}

// tlsServer serves one address at the leader only.
type tlsServer struct {
	name   string
	server *http.Server
	log    *slog.Logger
}

func (s *tlsServer) NeedLeaderElection() bool { return true }

// Start listens until the context ends. The address may still be held by a
// leader that is on its way out, so a taken one is tried for a while.
func (s *tlsServer) Start(ctx context.Context) error {
	var l net.Listener
	var err error
	for patience := time.Now().Add(30 * time.Second); ; {
		var lc net.ListenConfig
		if l, err = lc.Listen(ctx, "tcp", s.server.Addr); err == nil {
			break
		}
		if time.Now().After(patience) || ctx.Err() != nil {
			return fmt.Errorf("%s: listen on %s: %w; free the port or choose another", s.name, s.server.Addr, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = s.server.Close() })
	defer stop()
	s.log.Info("listening", "server", s.name, "address", s.server.Addr)
	if err := s.server.ServeTLS(l, "", ""); ctx.Err() == nil {
		return fmt.Errorf("%s on %s: %w", s.name, s.server.Addr, err)
	}
	return nil
}
