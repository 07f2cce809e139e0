package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

const secretsName = "secrets.json"

// noteSecrets keeps the names of the Secrets that go to the rented machine in
// use with the pods, before they are let in: the pods may be gone when it turns
// out that the wipe is not proven.
func (r *Reconciler) noteSecrets(ctx context.Context, b record, pods []v1alpha1.PodReference) error {
	if _, err := r.Records.Load(b.uid(), secretsName); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var names []string
	for _, ref := range pods {
		pod := &corev1.Pod{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: ref.Name}, pod)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read the Secrets of pod %s: %w", ref.Name, err)
		}
		names = append(names, secretsOf(&pod.Spec)...)
	}
	slices.Sort(names)
	data, err := json.Marshal(slices.Compact(names))
	if err != nil {
		return fmt.Errorf("keep the names of Secrets: %w", err)
	}
	return r.Records.Keep(b.uid(), secretsName, data)
}

// secretsOf names every Secret that a pod reads.
func secretsOf(s *corev1.PodSpec) (names []string) {
	for _, c := range append(slices.Clone(s.InitContainers), s.Containers...) {
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for _, v := range s.Volumes {
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
		if v.Projected == nil {
			continue
		}
		for _, src := range v.Projected.Sources {
			if src.Secret != nil {
				names = append(names, src.Secret.Name)
			}
		}
	}
	for _, s := range s.ImagePullSecrets {
		names = append(names, s.Name)
	}
	return names
}

// toRotate asks for the rotation of what may have stayed on a node.
func (r *Reconciler) toRotate(b record) string {
	data, err := r.Records.Load(b.uid(), secretsName)
	if errors.Is(err, fs.ErrNotExist) {
		return "" // nothing was let in
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(data, &names)
	}
	switch {
	case err != nil:
		return "; rotate every Secret that its pods read: " + err.Error()
	case len(names) == 0:
		return ""
	}
	return "; rotate what its pods held: Secrets " + strings.Join(names, ", ")
}
