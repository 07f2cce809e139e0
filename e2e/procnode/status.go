package procnode

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// keepTelling writes every change of the status until ctx ends.
func (w *worker) keepTelling(ctx context.Context) {
	for {
		w.tell(ctx)
		select {
		case <-w.dirty:
		case <-ctx.Done():
			return
		}
	}
}

// tell writes the status as it is now, as often as it takes.
func (w *worker) tell(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.patch(ctx)
		if err == nil {
			return
		}
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or another pod of that name
			w.gone()
			return
		}
		if ctx.Err() == nil {
			w.node.log.Warn("pod status not written, trying again", "pod", w.pod.Namespace+"/"+w.pod.Name, "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(apiRetry):
		}
	}
}

func (w *worker) patch(ctx context.Context) error {
	patch, err := mergePatch(w.pod.UID, w.status())
	if err != nil {
		return err
	}
	_, err = w.node.client.CoreV1().Pods(w.pod.Namespace).Patch(ctx, w.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// deleteObject ends the deletion that the API server began.
func (w *worker) deleteObject(ctx context.Context) {
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(w.pod.UID))
	for ctx.Err() == nil {
		err := w.node.client.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, *options)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		w.node.log.Warn("pod not deleted, trying again", "pod", w.pod.Namespace+"/"+w.pod.Name, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(apiRetry):
		}
	}
}

// status is the pod's status as this machine sees it.
func (w *worker) status() corev1.PodStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := corev1.PodStatus{
		Phase: corev1.PodPending, Reason: w.reason, Message: w.message,
		HostIP: address, HostIPs: []corev1.HostIP{{IP: address}},
		PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		StartTime: &w.start,
	}
	initialized, ready := true, w.phase == ""
	for _, c := range w.containers {
		status := c.status()
		if c.init {
			s.InitContainerStatuses = append(s.InitContainerStatuses, status)
			initialized = initialized && c.ended() && c.Exit == 0
			continue
		}
		s.ContainerStatuses = append(s.ContainerStatuses, status)
		ready = ready && status.Ready
		if !c.Started.IsZero() || c.Restarts > 0 {
			s.Phase = corev1.PodRunning
		}
	}
	if w.phase != "" {
		s.Phase = w.phase
	}
	why := ""
	switch s.Phase {
	case corev1.PodSucceeded:
		why = "PodCompleted"
	case corev1.PodFailed:
		why = "PodFailed"
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
	}
	s.Conditions = []corev1.PodCondition{
		w.condition(corev1.PodInitialized, initialized || s.Phase == corev1.PodSucceeded, why),
		w.condition(corev1.ContainersReady, ready, why),
		w.condition(corev1.PodReady, ready, why),
	}
	return s
}

// condition keeps the time of the last change.
func (w *worker) condition(kind corev1.PodConditionType, holds bool, why string) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: why, LastTransitionTime: metav1.Now()}
	if holds {
		c.Status, c.Reason = corev1.ConditionTrue, ""
	} else if why == "" {
		c.Reason = "ContainersNotReady"
	}
	if old, ok := w.conditions[kind]; ok && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	w.conditions[kind] = c
	return c
}
