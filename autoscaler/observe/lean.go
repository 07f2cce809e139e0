package observe

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// mostForms bounds how many lists are shared at one time.
const mostForms = 10_000

// LeanPods takes from pods what is never read, before a cache keeps them. Of one
// that runs at home only the room that it takes counts, what rules say about it,
// and whose it is; and pods of one template take that room alike, so that they
// share what says so. All other pods stay whole, but for who wrote which field:
// they may be bought for, and what they read goes with them. The zero LeanPods
// is ready, and safe for concurrent use.
type LeanPods struct {
	mu       sync.Mutex
	asking   forms[corev1.Container]
	statuses forms[corev1.ContainerStatus]
}

// forms are lists by what they say, each kept once.
type forms[T any] map[string][]T

// Transform is for the options of a cache.
func (l *LeanPods) Transform(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	pod.ManagedFields = nil
	if node := pod.Spec.NodeName; node == "" || strings.HasPrefix(node, v1alpha1.NodePrefix) {
		return pod, nil
	}
	spec, status := &pod.Spec, &pod.Status
	spec.HostAliases, spec.DNSConfig, spec.EphemeralContainers, spec.ImagePullSecrets = nil, nil, nil, nil
	spec.Volumes = counted(spec.Volumes)
	spec.Containers, spec.InitContainers = l.containers(spec.Containers), l.containers(spec.InitContainers)
	status.Message, status.HostIPs, status.PodIPs = "", nil, nil
	status.EphemeralContainerStatuses = nil
	status.ContainerStatuses, status.InitContainerStatuses = l.given(status.ContainerStatuses), l.given(status.InitContainerStatuses)
	return pod, nil
}

// counted are the volumes that a rule counts or compares: those that only bring
// files are not.
func counted(volumes []corev1.Volume) (kept []corev1.Volume) {
	for _, v := range volumes {
		if v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.EmptyDir == nil && v.DownwardAPI == nil {
			kept = append(kept, v)
		}
	}
	return kept
}

// asking is what containers ask of their node, and how they are told apart.
func asking(containers []corev1.Container) (out []corev1.Container) {
	for _, c := range containers {
		out = append(out, corev1.Container{Name: c.Name, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy, ResizePolicy: c.ResizePolicy})
	}
	return out
}

// having is what containers were given, where that may differ from what they
// ask for.
func having(statuses []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for _, s := range statuses {
		if s.Resources != nil || len(s.AllocatedResources) > 0 {
			out = append(out, corev1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources})
		}
	}
	return out
}

// containers are what counts of containers, equal ones as one list.
func (l *LeanPods) containers(all []corev1.Container) []corev1.Container {
	all = asking(all)
	key, err := (&corev1.PodSpec{Containers: all}).Marshal()
	if err != nil || all == nil {
		return all
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asking.shared(key, all)
}

// given are what counts of the states of containers, equal ones as one list.
func (l *LeanPods) given(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	all = having(all)
	key, err := (&corev1.PodStatus{ContainerStatuses: all}).Marshal()
	if err != nil || all == nil {
		return all
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.statuses.shared(key, all)
}

// shared returns the list that is kept for what another one says.
func (f *forms[T]) shared(key []byte, list []T) []T {
	if like, known := (*f)[string(key)]; known {
		return like
	}
	if *f == nil || len(*f) == mostForms {
		*f = forms[T]{} // pods go on to hold what they share
	}
	(*f)[string(key)] = list
	return list
}
