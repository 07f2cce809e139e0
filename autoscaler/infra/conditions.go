package infra

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/providers"
)

// Condition types of a SpillwayMachine.
const (
	// Ready is Cluster API's condition: the machine runs. Its message is shown
	// to people and carries the cloud's own words.
	Ready = "Ready"
	// Paused is Cluster API's condition.
	Paused = "Paused"
	// Purchased is the purchase alone: True once the cloud has confirmed it,
	// False for ever with the reason of a refusal, Unknown in between.
	Purchased = "Purchased"
)

// Reasons of condition Ready.
const (
	ReasonWaitingForMachine   = "WaitingForMachine"   // no owner yet
	ReasonWaitingForCluster   = "WaitingForCluster"   // Cluster not provisioned
	ReasonWaitingForBootstrap = "WaitingForBootstrap" // user-data not there yet
	ReasonBuying              = "Buying"              // see Purchased
	ReasonBooting             = "Booting"             // bought, not running yet
	ReasonRunning             = "Running"             // the only one with status True
	ReasonPoweredOff          = "PoweredOff"          // stopped; most clouds bill on
	ReasonMissing             = "Missing"             // the list does not show it; looked at again before it counts
	ReasonCloudTrouble        = "CloudTrouble"        // calls fail; the message has the kind
	ReasonHeldByGate          = "HeldByGate"          // deletion waits for the pre-terminate hook
	ReasonDeleting            = "Deleting"            // the cloud was asked
	ReasonCleanupBlocked      = "CleanupBlocked"      // cannot delete, still billing
	ReasonGone                = "Gone"                // the cloud shows nothing of it
)

// Reasons of condition Purchased while it is Unknown or True.
const (
	ReasonIntended       = "Intended"       // written down, nothing asked
	ReasonAsking         = "Asking"         // a create may be under way since the transition time
	ReasonOutcomeUnknown = "OutcomeUnknown" // a create may have happened
	ReasonNotDone        = "NotDone"        // the cloud said "not now": throttled or unauthorized
	ReasonBought         = "Bought"         // the create was answered
	ReasonListed         = "Listed"         // and the cloud's list has shown it
)

// Reasons of condition Purchased when it is False: refusals, for ever. They
// become the reasons why the burst ends.
const (
	RefusedSoldOut       = v1alpha1.EndSoldOut       // take another offer
	RefusedLimitReached  = v1alpha1.EndLimitReached  // a person must raise our limit at the cloud
	RefusedRejected      = v1alpha1.EndRejected      // the request can never succeed as written
	RefusedCleanupFailed = v1alpha1.EndCleanupFailed // and something billable is left: stop buying there
	RefusedNoReservation = v1alpha1.EndNoReservation // the ledger has no open reservation
	RefusedTooLate       = v1alpha1.EndTooLate       // nothing was asked before its stamp passed
	RefusedBroken        = v1alpha1.EndBroken        // accepted, then the cloud gave up
	RefusedVanished      = v1alpha1.EndVanished      // bought, then gone without our doing
)

// Refusal returns the reason and the cloud's own words when the attempt is
// over; without a refusal the reason is empty and the message says what is
// awaited. A refused machine may still cost money until it is gone.
func Refusal(sm *infrav1.SpillwayMachine) (reason, message string) {
	c := meta.FindStatusCondition(sm.Status.Conditions, Purchased)
	if c != nil && c.Status == metav1.ConditionFalse {
		return c.Reason, c.Message
	}
	if c := meta.FindStatusCondition(sm.Status.Conditions, Ready); c != nil {
		return "", c.Message
	}
	return "", ""
}

// Provisioned reports whether the machine has run; once true, it stays so.
func Provisioned(sm *infrav1.SpillwayMachine) bool {
	i := sm.Status.Initialization
	return i != nil && i.Provisioned != nil && *i.Provisioned
}

func refused(sm *infrav1.SpillwayMachine) bool {
	reason, _ := Refusal(sm)
	return reason != ""
}

// refusalOf names the refusal for a kind that ends the attempt.
func refusalOf(k providers.Kind) string {
	switch k {
	case providers.SoldOut:
		return RefusedSoldOut
	case providers.LimitReached:
		return RefusedLimitReached
	case providers.Rejected:
		return RefusedRejected
	case providers.CleanupFailed:
		return RefusedCleanupFailed
	default:
		return RefusedBroken
	}
}

// set writes one condition. The transition time moves when status or reason
// change: both looks after an unknown outcome count from it.
func (p *pass) set(kind string, status metav1.ConditionStatus, reason, message string) {
	message = strings.TrimSpace(message) // clouds end their words in blanks
	next := metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(p.now), ObservedGeneration: p.sm.Generation,
	}
	for i, c := range p.sm.Status.Conditions {
		if c.Type != kind {
			continue
		}
		if c.Status == status && c.Reason == reason {
			next.LastTransitionTime = c.LastTransitionTime
		}
		p.sm.Status.Conditions[i] = next
		return
	}
	p.sm.Status.Conditions = append(p.sm.Status.Conditions, next)
}

// touch moves the transition time of a condition to now.
func (p *pass) touch(kind string) {
	if c := meta.FindStatusCondition(p.sm.Status.Conditions, kind); c != nil {
		c.LastTransitionTime = metav1.NewTime(p.now)
	}
}

func (p *pass) notReady(reason, message string) {
	p.set(Ready, metav1.ConditionFalse, reason, message)
}

// refuse ends the attempt for ever.
func (p *pass) refuse(reason, message string) {
	p.set(Purchased, metav1.ConditionFalse, reason, message)
	p.notReady(reason, message)
}

// purchase returns the reason of condition Purchased and how long ago it was
// set; an empty reason means that nothing was written down yet.
func (p *pass) purchase() (reason string, age time.Duration) {
	c := meta.FindStatusCondition(p.sm.Status.Conditions, Purchased)
	if c == nil {
		return "", 0
	}
	return c.Reason, p.now.Sub(c.LastTransitionTime.Time)
}

// paused keeps Cluster API's condition. The cost guard does not stop with it:
// the sweeper and the stamp know no pause.
func (p *pass) paused(cl *clusterv1.Cluster) bool {
	_, annotated := p.sm.Annotations[clusterv1.PausedAnnotation]
	if annotated || (cl.Spec.Paused != nil && *cl.Spec.Paused) {
		p.set(Paused, metav1.ConditionTrue, "Paused", "Cluster or object is paused: nothing is bought; what is deleted still ends")
		return true
	}
	p.set(Paused, metav1.ConditionFalse, "NotPaused", "")
	return false
}

// ensureFinalizer writes the finalizer before anything outside happens.
func (p *pass) ensureFinalizer(ctx context.Context) (added bool, err error) {
	old := p.sm.DeepCopy()
	if !controllerutil.AddFinalizer(p.sm, infrav1.MachineFinalizer) {
		return false, nil
	}
	if err := p.patch(ctx, old); err != nil {
		return false, fmt.Errorf("add finalizer to SpillwayMachine %s: %w", p.sm.Name, err)
	}
	return true, nil
}

// patch writes metadata and spec, and keeps the status of this pass.
func (p *pass) patch(ctx context.Context, old *infrav1.SpillwayMachine) error {
	status := p.sm.Status.DeepCopy()
	err := p.Client.Patch(ctx, p.sm, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	p.saved.ResourceVersion = p.sm.ResourceVersion
	p.sm.Status = *status
	return err
}

// save writes the status when it differs from what the API server has. With
// fence, it fails when anybody has written the object since it was read: two
// controllers never both go on to a purchase.
func (p *pass) save(ctx context.Context, fence bool) error {
	if equality.Semantic.DeepEqual(p.saved.Status, p.sm.Status) {
		return nil
	}
	var patch client.Patch
	if fence {
		patch = client.MergeFromWithOptions(p.saved, client.MergeFromWithOptimisticLock{})
	} else {
		patch = client.MergeFrom(p.saved)
	}
	err := p.Client.Status().Patch(ctx, p.sm, patch)
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("record status of SpillwayMachine %s: %w", p.sm.Name, err))
	}
	p.saved = p.sm.DeepCopy()
	return nil
}
