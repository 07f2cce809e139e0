package placement

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
)

// Created asks the API server's own quota admission whether it would let pods of
// one namespace be created, one after the other. It returns how many it would,
// the quotas of the namespace as they are then, and in its words why not the
// next one, empty when all may be. Quotas of other namespaces don't count.
func Created(quotas []corev1.ResourceQuota, pods []*corev1.Pod) (n int, after []corev1.ResourceQuota, why string) {
	evaluator := core.NewPodEvaluator(nil, nil) // the clock is for pods that are being deleted
	kind, resource := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	for _, p := range pods {
		if after == nil {
			for _, q := range quotas {
				if q.Namespace == p.Namespace {
					after = append(after, q)
				}
			}
		}
		fresh := *p
		fresh.DeletionTimestamp = nil // the API server takes none from who creates a pod
		ask := admission.NewAttributesRecord(&fresh, nil, kind, p.Namespace, p.Name, resource, "", admission.Create, nil, false, nil)
		next, err := resourcequota.CheckRequest(after, ask, evaluator, nil)
		if err != nil {
			return n, after, reasonIn(err)
		}
		n, after = n+1, next
	}
	return n, after, ""
}

// reasonIn leaves out of a refusal which pod it is about: a controller makes
// another one each time that it tries.
func reasonIn(err error) string {
	if _, reason, ok := strings.Cut(err.Error(), " is forbidden: "); ok {
		return reason
	}
	return err.Error()
}
