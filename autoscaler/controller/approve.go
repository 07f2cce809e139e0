package controller

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/autoscaler/lifecycle"
)

// certifiedBy is the annotation on a SpillwayMachine that names the one
// certificate request that its join token was spent on.
const certifiedBy = "infrastructure.spillway.dev/certified-by"

// approver signs one client certificate for each join token.
type approver struct {
	client client.Client
	reader client.Reader // past the cache: a token is spent once
	certs  kubernetes.Interface
	// settings say how long a join token lives.
	settings lifecycle.Settings
	now      func() time.Time
	log      *slog.Logger
}

func (a *approver) setup(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).Named("joinapprover").
		For(&certificatesv1.CertificateSigningRequest{}).
		Complete(a)
}

// Reconcile approves a request that a join token is worth. The spending is
// recorded first: a crash in between leaves a request that may be approved
// again, and never a second one.
func (a *approver) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	csr := &certificatesv1.CertificateSigningRequest{}
	if err := a.client.Get(ctx, req.NamespacedName, csr); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	node, ours := bootstrap.Ours(csr)
	if !ours || len(csr.Status.Conditions) > 0 {
		return ctrl.Result{}, nil
	}
	sm := &infrav1.SpillwayMachine{}
	if err := a.reader.Get(ctx, types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: node}, sm); err != nil {
		a.log.Warn("certificate request for a node that nobody expects", "request", csr.Name, "node", node)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !sm.DeletionTimestamp.IsZero() || sm.Status.GoneAt != nil {
		// cases: B-4 kubernetes-sigs/cluster-api#7237: it booted too late
		a.log.Warn("certificate request of a machine that is to go", "request", csr.Name, "node", node)
		return ctrl.Result{}, nil
	}
	deadline, err := a.deadline(ctx, sm)
	if err != nil {
		return ctrl.Result{}, err
	}
	want := bootstrap.Join{Node: node, Deadline: deadline, Certified: sm.Annotations[certifiedBy]}
	if err := bootstrap.ApproveCSR(csr, want, a.now()); err != nil {
		a.log.Warn("certificate request is not approved", "request", csr.Name, "node", node, "error", err)
		return ctrl.Result{}, nil
	}
	if want.Certified == "" {
		old := sm.DeepCopy()
		metav1.SetMetaDataAnnotation(&sm.ObjectMeta, certifiedBy, csr.Name)
		err := a.client.Patch(ctx, sm, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
		}
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("record that the join token of node %s is spent: %w", node, err)
		}
	}
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "SpillwayJoinToken",
		Message: "the join token of node " + node + " is worth this certificate",
	})
	if _, err := a.certs.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return ctrl.Result{}, fmt.Errorf("approve certificate request %s of node %s: %w", csr.Name, node, err)
	}
	return ctrl.Result{}, nil
}

// deadline is when the machine's join token ends. The API server turns an
// ended token away by itself; this holds for a request that is made in time and
// looked at late.
func (a *approver) deadline(ctx context.Context, sm *infrav1.SpillwayMachine) (time.Time, error) {
	p := &v1alpha1.BurstProvider{}
	if err := a.client.Get(ctx, types.NamespacedName{Name: sm.Spec.Provider}, p); err != nil {
		return time.Time{}, fmt.Errorf("join deadline of node %s: %w", sm.Name, err)
	}
	return a.settings.JoinBy(p, sm.CreationTimestamp.Time), nil
}
