package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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
	// Owners reads past the cache. An owner's kind is the user's word: a cache
	// of a kind that may not be listed would be waited for without end.
	Owners client.Reader
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

// mostLog is how much of a container's log is kept, its end.
const mostLog = 16 << 20

// Logs implements [Workload]. Each container of several has a heading.
func (p *Pods) Logs(ctx context.Context, namespace, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	pods := p.Kubelets.CoreV1().Pods(namespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, c := range pod.Spec.Containers {
		if !begun(pod, c.Name) {
			continue // the kubelet has no log of it, and says so with an error
		}
		body, err := pods.GetLogs(name, &corev1.PodLogOptions{Container: c.Name}).Stream(ctx)
		if err != nil {
			return nil, err
		}
		log, err := tail(body, mostLog)
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", c.Name, err)
		}
		if len(pod.Spec.Containers) > 1 {
			all = fmt.Appendf(all, "==> %s <==\n", c.Name)
		}
		all = append(all, log...)
	}
	return all, nil
}

// begun reports whether a container has ever run.
func begun(pod *corev1.Pod, name string) bool {
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name == name {
			return c.State.Waiting == nil || c.RestartCount > 0 || c.LastTerminationState.Terminated != nil
		}
	}
	return pod.Spec.NodeName != ""
}

// tail reads a stream to its end and returns the last bytes of it.
func tail(body io.ReadCloser, most int) (_ []byte, err error) {
	defer func() { err = errors.Join(err, body.Close()) }()
	var kept []byte
	for piece := make([]byte, 64<<10); ; {
		n, err := body.Read(piece)
		kept = append(kept, piece[:n]...)
		if len(kept) > 2*most {
			kept = append(kept[:0], kept[len(kept)-most:]...)
		}
		if errors.Is(err, io.EOF) {
			return kept[max(0, len(kept)-most):], nil
		}
		if err != nil {
			return nil, err
		}
	}
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

// story is the newest fact of a burst and one sentence for the user. Of facts of
// one second the later one in a burst's life is the newest; that it is ending
// may come between any two.
func story(b *v1alpha1.Burst) (fact, text string) {
	var newest metav1.Time
	for _, f := range append([]string{v1alpha1.Ending}, v1alpha1.Facts()...) {
		c := meta.FindStatusCondition(b.Status.Conditions, f)
		if c == nil || c.LastTransitionTime.Before(&newest) {
			continue
		}
		fact, text, newest = f, c.Message, c.LastTransitionTime
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

// TellOwner implements [Teller]. An owner that is gone needs no telling, and
// one that may not be annotated hears the event alone.
func (p *Pods) TellOwner(ctx context.Context, o plan.Owner, reason, message string) error {
	owner := &metav1.PartialObjectMetadata{}
	gv, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return fmt.Errorf("owner %s: %w", o, err)
	}
	owner.SetGroupVersionKind(gv.WithKind(o.Kind))
	if o.Kind == "Pod" && gv == corev1.SchemeGroupVersion { // nobody but the approver may change pods
		owner.Namespace, owner.Name, owner.UID = o.Namespace, o.Name, o.UID
		p.event(owner, reason, message)
		return nil
	}
	reader := p.Owners
	if o.Kind == "Job" && gv == batchv1.SchemeGroupVersion {
		reader = p.Client // every cycle asks for them, and they are always cached
	}
	err = reader.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, owner)
	switch {
	case apierrors.IsForbidden(err) || meta.IsNoMatchError(err):
		owner.Namespace, owner.Name, owner.UID = o.Namespace, o.Name, o.UID
		p.event(owner, reason, message)
		return nil
	case err != nil:
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
	if err := p.Client.Patch(ctx, owner, client.MergeFrom(old)); err != nil && !apierrors.IsForbidden(err) {
		return client.IgnoreNotFound(fmt.Errorf("status annotation of %s: %w", o, err))
	}
	p.event(owner, reason, message)
	return nil
}

// event tells the owner; the recorder joins repetitions to one series.
func (p *Pods) event(owner *metav1.PartialObjectMetadata, reason, message string) {
	kind := corev1.EventTypeNormal
	if reason == "BurstRefused" || reason == "BurstFailed" || reason == "BurstWipeUnproven" {
		kind = corev1.EventTypeWarning
	}
	const longest = 1024 // of an event's note
	p.Events.Eventf(owner, nil, kind, reason, "Burst", "%.*s", longest, message)
}
