package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// ErrPodChanged is returned by [Workload.Admit] for a pod that is gone, bound
// or replaced: it must not be admitted any more.
var ErrPodChanged = errors.New("the approved pod has changed")

// admit hands the data key to the proven nodes and lets the approved pods in.
func (r *Reconciler) admit() []act {
	return []act{
		{fact: v1alpha1.KeyReleased, do: r.releaseKey},
		{fact: v1alpha1.PodsAdmitted, do: r.admitPods},
	}
}

// releaseKey waits for Staged: the order to the nodes names the manifest. The
// orders themselves are given by attend.
func (r *Reconciler) releaseKey(_ context.Context, b record) (outcome, error) {
	if !b.has(v1alpha1.Staged) {
		return outcome{wait: r.Settings.Poll}, nil
	}
	for _, node := range b.nodes() {
		report, _, ok := r.Nodes.Report(node)
		if !ok || !report.KeyHeld || report.Staged.ManifestSHA256 != b.Status.Data.ManifestSHA256 {
			return outcome{wait: r.Settings.Poll}, nil
		}
	}
	return outcome{message: "every node holds the data key, in memory only"}, nil
}

func (r *Reconciler) admitPods(ctx context.Context, b record) (outcome, error) {
	w, err := r.pending(ctx, b)
	if err != nil {
		return outcome{}, err
	}
	if reason, message := w.over(b); reason != "" {
		return outcome{end: reason, message: message}, nil
	}
	if err := r.noteSecrets(ctx, b, w.free); err != nil {
		return outcome{}, err
	}
	for _, ref := range w.free {
		err := r.Workload.Admit(ctx, b.Burst, ref)
		if errors.Is(err, ErrPodChanged) {
			return outcome{wait: r.Settings.Poll}, nil // look again: it may have been bound on-prem
		}
		if err != nil {
			return outcome{}, err
		}
	}
	if b.Spec.Gang.Together {
		if err := r.bindAll(ctx, b, w.free); err != nil {
			return outcome{}, err
		}
	}
	message := fmt.Sprintf("%d pods may run on the burst's nodes", len(w.free))
	if b.sliced() {
		message += fmt.Sprintf("; what still runs at %s is asked to stop, earlier if a budget runs out", r.stopsAt(b).UTC().Format(time.RFC3339))
	}
	return outcome{message: message}, nil
}

// bindAll places the members of a gang, largest first; the scheduler would take
// them one by one. Members that were bound before, by a call that was cut short
// or by the scheduler, take their room first.
func (r *Reconciler) bindAll(ctx context.Context, b record, refs []v1alpha1.PodReference) error {
	room := map[string]int64{}
	for _, n := range b.nodes() {
		room[n] = int64(b.Spec.Offer.GPUs)
	}
	var unbound []member
	for _, ref := range refs {
		pod := &corev1.Pod{}
		if err := r.Reader.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}, pod); err != nil {
			return fmt.Errorf("bind gang member %s: %w", ref.Name, err)
		}
		m := member{ref, gpusOf(pod, corev1.ResourceName(b.Spec.Offer.GPUResource))}
		if on := pod.Spec.NodeName; on != "" {
			room[on] -= m.gpus
			continue
		}
		unbound = append(unbound, m)
	}
	slices.SortStableFunc(unbound, func(x, y member) int { return cmp.Compare(y.gpus, x.gpus) })
	for _, m := range unbound {
		at := slices.IndexFunc(b.nodes(), func(n string) bool { return room[n] >= m.gpus })
		if at < 0 {
			return fmt.Errorf("gang member %s asks for %d GPUs, and no machine of the burst has them left", m.ref.Name, m.gpus)
		}
		node := b.nodes()[at]
		room[node] -= m.gpus
		if err := r.Workload.Bind(ctx, b.Burst, m.ref, node); err != nil {
			return err
		}
	}
	return nil
}

// member is a pod of a gang that has no node yet.
type member struct {
	ref  v1alpha1.PodReference
	gpus int64
}

func gpusOf(pod *corev1.Pod, name corev1.ResourceName) int64 {
	total := int64(0)
	for _, c := range pod.Spec.Containers {
		q := c.Resources.Limits[name]
		total += q.Value()
	}
	return total
}

// waiting is where the approved pods are before their admission.
type waiting struct {
	free            []v1alpha1.PodReference // wait still, or were let in already
	elsewhere, gone int
}

// pending looks where the approved pods are.
func (r *Reconciler) pending(ctx context.Context, b record) (w waiting, err error) {
	for _, ref := range b.Spec.Gang.Pods {
		pod := &corev1.Pod{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}, pod)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return w, fmt.Errorf("read pod %s: %w", ref.Name, err)
		case err != nil || pod.UID != ref.UID || !pod.DeletionTimestamp.IsZero():
			w.gone++
		case pod.Spec.NodeName != "" && !b.owns(pod.Spec.NodeName):
			w.elsewhere++
		default:
			w.free = append(w.free, ref)
		}
	}
	return w, nil
}

// over says why nothing is left to do for a burst, empty while there is. A
// gang is never split between places.
func (w waiting) over(b record) (reason, message string) {
	away := w.elsewhere + w.gone
	if len(w.free) > 0 && (!b.Spec.Gang.Together || away == 0) {
		return "", ""
	}
	message = fmt.Sprintf("of %d approved pods %d run at home and %d are deleted", len(b.Spec.Gang.Pods), w.elsewhere, w.gone)
	if w.elsewhere > 0 {
		return v1alpha1.EndServedLocally, message
	}
	return v1alpha1.EndWorkloadGone, message
}

// unneeded ends a burst whose work was deleted, or found its place at home,
// while the machine was still coming: nobody waits for its boot.
func (r *Reconciler) unneeded(ctx context.Context, b record) error {
	if b.ending() || b.has(v1alpha1.PodsAdmitted) {
		return nil
	}
	w, err := r.pending(ctx, b)
	if err != nil {
		return err
	}
	if reason, message := w.over(b); reason != "" {
		return r.save(ctx, b, func() { b.end(reason, message) })
	}
	return nil
}

// owns reports whether a node belongs to the burst.
func (b record) owns(node string) bool {
	for _, n := range b.nodes() {
		if n == node {
			return true
		}
	}
	return false
}
