package policy

import (
	"fmt"
	"iter"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// each asks a question about every pod; equal answers of several pods (the
// replicas of one template) are given once.
func each(pods []*corev1.Pod, ask func(*corev1.Pod) []Refusal) []Refusal {
	var all []Refusal
	for _, p := range pods {
		for _, r := range ask(p) {
			if !slices.Contains(all, r) {
				all = append(all, r)
			}
		}
	}
	return all
}

func containers(p *corev1.Pod) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// volumes refuses what exists on-prem only. A claim is never replaced by one of
// the same name elsewhere: that would be other data.
// cases: F32 admiralty#104, H10 kubernetes/autoscaler#3131, F36 kubernetes/autoscaler#4339
func volumes(w Work) []Refusal {
	return each(w.Pods, func(p *corev1.Pod) []Refusal {
		var all []Refusal
		for _, v := range p.Spec.Volumes {
			all = append(all, volume(w, p.Namespace, v)...)
		}
		return all
	})
}

func volume(w Work, namespace string, v corev1.Volume) []Refusal {
	switch {
	case v.Secret != nil, v.ConfigMap != nil, v.EmptyDir != nil, v.Projected != nil, v.DownwardAPI != nil:
		return nil
	case v.HostPath != nil:
		return refuse(HostPathForbidden, fmt.Sprintf("volume %q mounts the path %s of its node", v.Name, v.HostPath.Path),
			"use an emptyDir, or read the data from S3")
	case v.PersistentVolumeClaim != nil:
		return claim(w, namespace, v.PersistentVolumeClaim.ClaimName)
	}
	return refuse(VolumeNotBurstable, fmt.Sprintf("volume %q is of a kind that a burst node can't mount", v.Name),
		"read the data from S3 instead")
}

func claim(w Work, namespace, name string) []Refusal {
	const remedy = "read the data from S3 instead: volumes stay on-prem"
	pvc := w.Claims[namespace+"/"+name]
	switch {
	case pvc == nil:
		return refuse(PVCNotBurstable, fmt.Sprintf("claim %s is not known", name), remedy)
	case pvc.Spec.VolumeName == "":
		return refuse(PVCUnbound, fmt.Sprintf("claim %s is not bound: binding it on a burst node would make new storage in the cloud", name), remedy)
	}
	if pv := w.Volumes[pvc.Spec.VolumeName]; pv != nil && (pv.Spec.NodeAffinity != nil || pv.Spec.Local != nil) {
		return refuse(LocalPV, fmt.Sprintf("claim %s is bound to volume %s, which is reachable from certain on-prem nodes or zones only", name, pv.Name), remedy)
	}
	class := "no storage class"
	if pvc.Spec.StorageClassName != nil {
		class = "storage class " + *pvc.Spec.StorageClassName
	}
	return refuse(PVCNotBurstable, fmt.Sprintf("claim %s is bound to on-prem volume %s of %s", name, pvc.Spec.VolumeName, class), remedy)
}

func hostAccess(w Work) []Refusal {
	return each(w.Pods, func(p *corev1.Pod) []Refusal {
		var all []Refusal
		if p.Spec.HostNetwork || p.Spec.HostPID || p.Spec.HostIPC {
			all = append(all, refuse(HostNetwork, "the pod uses the network, processes or IPC of its node", "drop hostNetwork, hostPID and hostIPC")...)
		}
		for c := range containers(p) {
			if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
				all = append(all, refuse(PrivilegedForbidden, fmt.Sprintf("container %q is privileged: it could read the keys of its node", c.Name), "run it without privileged")...)
			}
			for _, port := range c.Ports {
				if port.HostPort != 0 && !p.Spec.HostNetwork {
					all = append(all, refuse(HostPort, fmt.Sprintf("container %q wants port %d of its node", c.Name, port.HostPort), "use a Service instead of a hostPort")...)
				}
			}
		}
		return all
	})
}

// wildcardTolerations keeps pods out that would tolerate the taint of any
// burst, also of another tenant.
func wildcardTolerations(w Work) []Refusal {
	return each(w.Pods, func(p *corev1.Pod) []Refusal {
		for _, t := range p.Spec.Tolerations {
			if t.Operator == corev1.TolerationOpExists && (t.Key == "" || t.Key == v1alpha1.BurstTaint) {
				return refuse(WildcardToleration, fmt.Sprintf("the toleration with key %q and operator Exists opens the nodes of every burst", t.Key),
					"name the keys that the pod has to tolerate")
			}
		}
		return nil
	})
}

func resourceClaims(w Work) []Refusal {
	return each(w.Pods, func(p *corev1.Pod) []Refusal {
		if len(p.Spec.ResourceClaims) == 0 {
			return nil
		}
		return refuse(DRAClaimUnsupported, fmt.Sprintf("the pod asks for devices by resource claim %q", p.Spec.ResourceClaims[0].Name),
			"ask for the GPUs as a resource of the container, such as nvidia.com/gpu")
	})
}
