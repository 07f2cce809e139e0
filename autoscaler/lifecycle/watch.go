package lifecycle

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/providers"
)

// watch waits until the work is finished, failed, or out of time. A running
// pod keeps the machine, whatever else happens.
func (r *Reconciler) watch() []act {
	endless := func(b record) bool {
		justTold := b.at(v1alpha1.PodsAdmitted).After(r.stopsAt(b).Add(-announced))
		return b.sliced() && !justTold && !b.has(v1alpha1.WorkDone)
	}
	return []act{
		{fact: v1alpha1.StopAnnounced, do: r.announceStop, due: endless},
		{fact: v1alpha1.WorkDone, do: r.workDone},
	}
}

// announced is how long ahead the user is told again when work that has no end
// of its own is stopped.
const announced = 30 * time.Minute

// stopsAt is when the last lease that the burst may have asks its pods to stop.
func (r *Reconciler) stopsAt(b record) time.Time { return b.Spec.Deadline.Add(-r.Settings.LeaseStop) }

// announceStop holds nothing up; it comes back when it is time.
func (r *Reconciler) announceStop(_ context.Context, b record) (outcome, error) {
	at := r.stopsAt(b)
	if ahead := at.Add(-announced).Sub(b.now); ahead > 0 {
		return outcome{pass: ahead}, nil
	}
	return outcome{message: fmt.Sprintf("what still runs at %s is asked to stop: its ceiling of %s is used up then; keep what it has so far", at.UTC().Format(time.RFC3339), b.Spec.Ceiling)}, nil
}

func (r *Reconciler) workDone(ctx context.Context, b record) (outcome, error) {
	t, err := r.look(ctx, b)
	if err != nil {
		return outcome{}, err
	}
	switch {
	case b.now.After(b.Spec.Deadline.Time):
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndOutOfTime, message: fmt.Sprintf("the deadline %s has passed", b.Spec.Deadline.UTC().Format(time.RFC3339))}, nil
	case b.now.After(b.Status.Lease.Hard.Time):
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndMachineLost, message: "the last lease has run out: the node has ended itself"}, r.bench(ctx, b, v1alpha1.EndMachineLost)
	case t.running+t.waiting > 0:
		lost, err := r.lostMachine(ctx, b)
		if err != nil || lost == "" {
			return outcome{wait: r.Settings.Poll}, err
		}
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndMachineLost, message: lost}, r.bench(ctx, b, v1alpha1.EndMachineLost)
	case t.succeeded == 0 && t.failed == 0:
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndWorkloadGone, message: "the approved pods are deleted"}, nil
	case t.failed > 0 && !b.now.Before(r.stopsAt(b)):
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndOutOfTime, message: fmt.Sprintf("%d of %d pods had not finished at %s and were stopped", t.failed, t.failed+t.succeeded, r.stopsAt(b).UTC().Format(time.RFC3339))}, nil
	case t.failed > 0 && !b.now.Before(b.Status.Lease.Soft.Time):
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndMachineLost, message: fmt.Sprintf("the lease was not renewed and its node stopped the pods at %s", b.Status.Lease.Soft.UTC().Format(time.RFC3339))}, nil
	case t.failed > 0:
		return outcome{status: metav1.ConditionFalse, reason: v1alpha1.EndWorkFailed, message: fmt.Sprintf("%d of %d pods failed", t.failed, t.failed+t.succeeded)}, nil
	}
	return outcome{reason: v1alpha1.EndSucceeded, message: fmt.Sprintf("%d pods finished", t.succeeded)}, nil
}

// tally counts the approved pods by where they are.
type tally struct{ waiting, running, succeeded, failed int }

func (r *Reconciler) look(ctx context.Context, b record) (tally, error) {
	var t tally
	for _, ref := range b.Spec.Gang.Pods {
		pod := &corev1.Pod{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}, pod)
		if client.IgnoreNotFound(err) != nil {
			return t, fmt.Errorf("read pod %s: %w", ref.Name, err)
		}
		if err != nil || pod.UID != ref.UID || pod.Spec.NodeName != "" && !b.owns(pod.Spec.NodeName) {
			continue
		}
		b.place(pod)
		switch {
		case pod.Status.Phase == corev1.PodSucceeded:
			t.succeeded++
		case pod.Status.Phase == corev1.PodFailed:
			t.failed++
		case pod.Spec.NodeName == "":
			t.waiting++
		default:
			t.running++
		}
	}
	return t, nil
}

// place keeps where a pod was seen and when it ran: the pod itself goes with
// its node.
func (b record) place(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	seen := v1alpha1.PlacedPod{Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Phase: string(pod.Status.Phase)}
	for _, c := range pod.Status.ContainerStatuses {
		switch state := c.State; {
		case state.Running != nil:
			seen.Started = &state.Running.StartedAt
		case state.Terminated != nil:
			seen.Started, seen.Finished = &state.Terminated.StartedAt, &state.Terminated.FinishedAt
		}
	}
	for i, p := range b.Status.Placed {
		if p.UID == pod.UID {
			seen.Logs = p.Logs
			b.Status.Placed[i] = seen
			return
		}
	}
	b.Status.Placed = append(b.Status.Placed, seen)
}

// lostMachine says which machine the cloud does not have any more (cases: B-17
// kubernetes-sigs/cluster-api-provider-openstack#1741), or does not run.
func (r *Reconciler) lostMachine(ctx context.Context, b record) (string, error) {
	views, err := r.Machines.Read(ctx, b.UID)
	if err != nil {
		return "", err
	}
	for _, v := range views {
		if words := lost(v); words != "" {
			b.keepTimes(v)
			return fmt.Sprintf("machine %s at %s %s", v.Name, b.Spec.Offer.Provider, words), nil
		}
	}
	return "", nil
}

// lost says what has become of a machine that can't work any more.
func lost(v capi.View) string {
	switch {
	case v.Refusal != "":
		return fmt.Sprintf("is lost: %s: %s", v.Refusal, v.Message)
	case !v.Gone.IsZero():
		return "is gone"
	case v.State == string(providers.StateStopped):
		return "has powered off"
	}
	return ""
}
