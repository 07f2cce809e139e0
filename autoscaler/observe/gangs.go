package observe

import (
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// gpuVendors are the domains of extended resources that mean a GPU, whole or
// in parts (nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu).
func gpuVendors() []string {
	return []string{"nvidia.com/", "amd.com/gpu", "gpu.intel.com/", "habana.ai/"}
}

// asksForGPU reports whether any container of a pod asks for a GPU resource.
func asksForGPU(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for name, q := range c.Resources.Limits {
				if !q.IsZero() && slices.ContainsFunc(gpuVendors(), func(v string) bool { return strings.HasPrefix(string(name), v) }) {
					return true
				}
			}
		}
	}
	return false
}

// owners knows the controllers of pods.
type owners struct{ jobs map[types.UID]*batchv1.Job }

func ownersOf(jobs []batchv1.Job) owners {
	o := owners{jobs: make(map[types.UID]*batchv1.Job, len(jobs))}
	for i := range jobs {
		o.jobs[jobs[i].UID] = &jobs[i]
	}
	return o
}

// top climbs from a pod to its top controller. A Job's own controller (JobSet,
// CronJob and others) counts unless it makes Jobs that are independent.
func (o owners) top(pod *corev1.Pod) plan.Owner {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return plan.Owner{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	}
	owner := ownerOf(pod.Namespace, ref)
	if job := o.jobs[ref.UID]; job != nil {
		if above := metav1.GetControllerOf(job); above != nil && above.Kind != "CronJob" {
			return ownerOf(pod.Namespace, above)
		}
	}
	return owner
}

func ownerOf(namespace string, ref *metav1.OwnerReference) plan.Owner {
	return plan.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: namespace, Name: ref.Name, UID: ref.UID}
}

// startsTogether are the kinds whose pods are useless one by one.
func startsTogether(kind string) bool {
	return slices.Contains([]string{"JobSet", "TrainJob", "PyTorchJob", "MPIJob", "TFJob", "JAXJob", "RayCluster", "RayJob"}, kind)
}

// gang describes the pending work of an owner by one of its pods.
func (o owners) gang(owner plan.Owner, pod *corev1.Pod) plan.Gang {
	g := plan.Gang{
		Owner: owner, Created: pod.CreationTimestamp.Time, PriorityClass: pod.Spec.PriorityClassName,
		Together:  startsTogether(owner.Kind),
		DataClass: pod.Annotations[v1alpha1.DataClassAnnotation],
		Inputs:    urls(pod.Annotations[v1alpha1.InputsAnnotation]),
		Outputs:   urls(pod.Annotations[v1alpha1.OutputsAnnotation]),
	}
	if pod.Spec.Priority != nil {
		g.Priority = *pod.Spec.Priority
	}
	if s := pod.Spec.ActiveDeadlineSeconds; s != nil {
		g.MaxRun = time.Duration(*s) * time.Second
	}
	job := o.jobs[owner.UID]
	if job == nil {
		return g
	}
	g.Created = job.CreationTimestamp.Time
	g.Together = g.Together || job.Annotations[v1alpha1.GangAnnotation] == "true"
	if g.Together && job.Spec.Parallelism != nil {
		g.Size = int(*job.Spec.Parallelism)
	}
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		g.Hold = &plan.Reason{Code: "JOB_SUSPENDED", Message: "the Job is suspended", Remedy: "resume it, or wait for its queue to admit it"}
	}
	if end, ok := jobEnd(job); ok {
		g.EndsBy = end
		if g.MaxRun == 0 {
			g.MaxRun = time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
		}
	}
	return g
}

// jobEnd is when a Job's own deadline ends it: it counts from its start,
// whether or not its pods run.
func jobEnd(job *batchv1.Job) (time.Time, bool) {
	if job.Spec.ActiveDeadlineSeconds == nil || job.Status.StartTime == nil {
		return time.Time{}, false
	}
	return job.Status.StartTime.Add(time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second), true
}

// ends says by when bound pods are over because of their Job's deadline.
func (o owners) ends(pods []corev1.Pod) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for i := range pods {
		ref := metav1.GetControllerOf(&pods[i])
		if ref == nil || o.jobs[ref.UID] == nil {
			continue
		}
		if end, ok := jobEnd(o.jobs[ref.UID]); ok {
			out[pods[i].UID] = end
		}
	}
	return maps.Clone(out)
}

func urls(annotation string) []string {
	var out []string
	for part := range strings.SplitSeq(annotation, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
