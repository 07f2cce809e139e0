package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// Pods is [Workload] and [Teller] over the API server.
type Pods struct {
	Client client.Client // the controller's own identity
	// Approver speaks as the approver: it may change tolerations of pods, bind
	// them, and nothing else.
	Approver kubernetes.Interface
	// Kubelets reads logs.
	Kubelets kubernetes.Interface
	Events   events.EventRecorder
}

// patchOp is one operation of a JSON patch (RFC 6902).
type patchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Admit implements [Workload]. The toleration has no effect of its own, so it
// covers NoSchedule and NoExecute; the default tolerations lose their time, so
// that no second copy starts while the node is out of reach.
func (p *Pods) Admit(ctx context.Context, b *v1alpha1.Burst, ref v1alpha1.PodReference) error {
	pod, err := p.Kubelets.CoreV1().Pods(b.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("pod %s is gone: %w", ref.Name, ErrPodChanged)
	}
	if err != nil {
		return fmt.Errorf("read pod %s before admission: %w", ref.Name, err)
	}
	if pod.UID != ref.UID || !pod.DeletionTimestamp.IsZero() {
		return fmt.Errorf("pod %s was replaced: %w", ref.Name, ErrPodChanged)
	}
	if tolerates(pod, string(b.UID)) {
		return nil
	}
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s was bound to %s: %w", ref.Name, pod.Spec.NodeName, ErrPodChanged)
	}
	body, err := json.Marshal(admission(pod, string(b.UID)))
	if err != nil {
		return fmt.Errorf("admit pod %s: %w", ref.Name, err)
	}
	_, err = p.Approver.CoreV1().Pods(b.Namespace).Patch(ctx, ref.Name, types.JSONPatchType, body, metav1.PatchOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("pod %s is gone: %w", ref.Name, ErrPodChanged)
	case err != nil:
		return fmt.Errorf("admit pod %s: %w", ref.Name, err)
	}
	return nil
}

func tolerates(pod *corev1.Pod, burst string) bool {
	for _, t := range pod.Spec.Tolerations {
		if t.Key == v1alpha1.BurstTaint && t.Value == burst {
			return true
		}
	}
	return false
}

// admission is the patch of one pod, guarded by its UID.
func admission(pod *corev1.Pod, burst string) []patchOp {
	ops := []patchOp{{"test", "/metadata/uid", string(pod.UID)}}
	for i, t := range pod.Spec.Tolerations {
		lost := t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
		if lost && t.TolerationSeconds != nil {
			ops = append(ops,
				patchOp{"test", fmt.Sprintf("/spec/tolerations/%d/key", i), t.Key},
				patchOp{"remove", fmt.Sprintf("/spec/tolerations/%d/tolerationSeconds", i), nil})
		}
	}
	ours := corev1.Toleration{Key: v1alpha1.BurstTaint, Operator: corev1.TolerationOpEqual, Value: burst}
	if len(pod.Spec.Tolerations) == 0 {
		return append(ops, patchOp{"add", "/spec/tolerations", []corev1.Toleration{ours}})
	}
	return append(ops, patchOp{"add", "/spec/tolerations/-", ours})
}

// Bind implements [Workload].
func (p *Pods) Bind(ctx context.Context, b *v1alpha1.Burst, ref v1alpha1.PodReference, node string) error {
	err := p.Approver.CoreV1().Pods(b.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: ref.Name, UID: ref.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind gang member %s to %s: %w", ref.Name, node, err)
	}
	return nil
}

// Logs implements [Workload].
func (p *Pods) Logs(ctx context.Context, namespace, pod string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return p.Kubelets.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(ctx)
}

// Tell implements [Workload]: the newest fact of a burst, on its owner.
func (p *Pods) Tell(ctx context.Context, b *v1alpha1.Burst) error {
	newest, text := story(b)
	if newest == "" {
		return nil
	}
	g := b.Spec.Gang
	owner := plan.Owner{APIVersion: g.APIVersion, Kind: g.Kind, Namespace: b.Namespace, Name: g.Name, UID: g.UID}
	return p.TellOwner(ctx, owner, "Burst"+newest, text)
}

// story is the newest fact of a burst and one sentence for the user.
func story(b *v1alpha1.Burst) (fact, text string) {
	for _, f := range append([]string{v1alpha1.Ending}, v1alpha1.Facts()...) {
		c := meta.FindStatusCondition(b.Status.Conditions, f)
		if c == nil {
			continue
		}
		fact, text = f, c.Message
		if c.Status == metav1.ConditionFalse {
			text = c.Reason + ": " + c.Message
		}
	}
	place := fmt.Sprintf("at %s (%s)", b.Spec.Offer.Provider, b.Spec.Offer.Country)
	cost := fmt.Sprintf("at most %s", b.Spec.Ceiling)
	if b.Status.Cost.Spent != "" {
		cost = fmt.Sprintf("cost %s", b.Status.Cost.Spent)
	}
	if fact == v1alpha1.Failed || fact == v1alpha1.Complete {
		text = fmt.Sprintf("%s, %s, %s: %s", fact, place, cost, text)
	} else if fact != "" {
		text = fmt.Sprintf("%s %s, %s", text, place, cost)
	}
	return fact, text
}

// TellOwner implements [Teller]. An owner that is gone needs no telling.
func (p *Pods) TellOwner(ctx context.Context, o plan.Owner, reason, message string) error {
	owner := &metav1.PartialObjectMetadata{}
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return fmt.Errorf("owner %s: %w", o, err)
	}
	owner.SetGroupVersionKind(gv.WithKind(o.Kind))
	if err := p.Client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, owner); err != nil {
		return client.IgnoreNotFound(err)
	}
	text := reason + ": " + message
	if owner.UID != o.UID || owner.Annotations[v1alpha1.StatusAnnotation] == text {
		return nil
	}
	old := owner.DeepCopy()
	if owner.Annotations == nil {
		owner.Annotations = map[string]string{}
	}
	owner.Annotations[v1alpha1.StatusAnnotation] = text
	if err := p.Client.Patch(ctx, owner, client.MergeFrom(old)); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("status annotation of %s: %w", o, err))
	}
	kind := corev1.EventTypeNormal
	if reason == "BurstRefused" || reason == "BurstFailed" || reason == "BurstWipeUnproven" {
		kind = corev1.EventTypeWarning
	}
	const longest = 1024 // of an event's note
	p.Events.Eventf(owner, nil, kind, reason, "Burst", "%.*s", longest, message)
	return nil
}
