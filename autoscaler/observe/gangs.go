package observe

import (
	"cmp"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	"spillway.dev/spillway/autoscaler/policy"
)

// asksForGPU reports whether any container of a pod asks for a GPU resource.
func asksForGPU(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range containers {
			for name, q := range c.Resources.Limits {
				if !q.IsZero() && plan.IsGPU(name) {
					return true
				}
			}
		}
	}
	return false
}

// ownerKey names an owner. The UID alone would not do: a pod may state any, also
// that of another tenant's Job.
type ownerKey struct {
	namespace string
	uid       types.UID
}

func keyOf(o plan.Owner) ownerKey { return ownerKey{o.Namespace, o.UID} }

// owners knows the controllers of pods.
type owners struct{ jobs map[ownerKey]*batchv1.Job }

func ownersOf(jobs []batchv1.Job) owners {
	o := owners{jobs: make(map[ownerKey]*batchv1.Job, len(jobs))}
	for i := range jobs {
		o.jobs[ownerKey{jobs[i].Namespace, jobs[i].UID}] = &jobs[i]
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
	if job := o.jobs[keyOf(owner)]; job != nil {
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

// together reports whether an owner's pods must start together.
func (o owners) together(owner plan.Owner) bool {
	job := o.jobs[keyOf(owner)]
	return startsTogether(owner.Kind) || job != nil && job.Annotations[v1alpha1.GangAnnotation] == "true"
}

// gang describes the pending work of an owner by its pods.
func (o owners) gang(owner plan.Owner, pods ...*corev1.Pod) plan.Gang {
	g := stated(pods)
	g.Owner, g.Together = owner, o.together(owner)
	job := o.jobs[keyOf(owner)]
	if job == nil {
		return g
	}
	g.Created = job.CreationTimestamp.Time
	if g.Together {
		g.Size = wanted(job)
	}
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		g.Hold = &plan.Reason{Code: "JOB_SUSPENDED", Message: "the Job is suspended", Remedy: "resume it, or wait for its queue to admit it"}
	}
	if end, ok := jobEnd(job); ok {
		g.EndsBy = end
		if g.MaxRun == 0 {
			g.MaxRun = plan.Seconds(*job.Spec.ActiveDeadlineSeconds)
		}
	}
	return g
}

// wanted is how many pods a Job wants at one time: no more than it has
// completions left.
func wanted(job *batchv1.Job) int {
	if job.Spec.Parallelism == nil {
		return 0
	}
	n := *job.Spec.Parallelism
	if job.Spec.Completions != nil {
		n = min(n, *job.Spec.Completions-job.Status.Succeeded)
	}
	return int(max(n, 0))
}

// stated puts together what the pods of one owner state, in whatever order they
// come: all that any of them reads and writes, the highest data class, the
// longest run. The least important pod ranks them all: nobody may pay for it as
// for the others.
func stated(pods []*corev1.Pod) plan.Gang {
	var g plan.Gang
	var classes []string
	for i, pod := range pods {
		if created := pod.CreationTimestamp.Time; i == 0 || created.Before(g.Created) {
			g.Created = created
		}
		priority, class := int32(0), pod.Spec.PriorityClassName
		if pod.Spec.Priority != nil {
			priority = *pod.Spec.Priority
		}
		if i == 0 || priority < g.Priority || priority == g.Priority && class < g.PriorityClass {
			g.Priority, g.PriorityClass = priority, class
		}
		if s := pod.Spec.ActiveDeadlineSeconds; s != nil {
			g.MaxRun = max(g.MaxRun, plan.Seconds(*s))
		}
		if class := pod.Annotations[v1alpha1.DataClassAnnotation]; class != "" {
			classes = append(classes, class)
		}
		g.Inputs = append(g.Inputs, urls(pod.Annotations[v1alpha1.InputsAnnotation])...)
		g.Outputs = append(g.Outputs, urls(pod.Annotations[v1alpha1.OutputsAnnotation])...)
	}
	g.DataClass = highest(classes)
	g.Inputs, g.Outputs = each(g.Inputs), each(g.Outputs)
	return g
}

// highest returns the highest class; one that is no class goes before all
// others, so that policy refuses it.
func highest(classes []string) string {
	slices.Sort(classes)
	top := policy.Class("")
	for _, c := range classes {
		if top = policy.Highest(policy.Class(c), cmp.Or(top, policy.Class(c))); top == "" {
			return c
		}
	}
	return string(top)
}

// each returns the texts sorted, and every one once.
func each(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// jobEnd is when a Job's own deadline ends it: it counts from its start,
// whether or not its pods run.
func jobEnd(job *batchv1.Job) (time.Time, bool) {
	if job.Spec.ActiveDeadlineSeconds == nil || job.Status.StartTime == nil {
		return time.Time{}, false
	}
	return job.Status.StartTime.Add(plan.Seconds(*job.Spec.ActiveDeadlineSeconds)), true
}

// ends says by when bound pods are over because of their Job's deadline.
func (o owners) ends(pods []corev1.Pod) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for i := range pods {
		ref := metav1.GetControllerOf(&pods[i])
		if ref == nil {
			continue
		}
		if job := o.jobs[ownerKey{pods[i].Namespace, ref.UID}]; job != nil {
			if end, ok := jobEnd(job); ok {
				out[pods[i].UID] = end
			}
		}
	}
	return out
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
