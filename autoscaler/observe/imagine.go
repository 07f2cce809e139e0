package observe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	kyaml "sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/plan"
)

// Imagine turns manifests into the pending work that they would become at a
// time, if the scheduler found no place for them and their local chance were
// over. Nothing is submitted. Jobs and bare pods are understood; an error names
// the document and what is wrong with it. Objects without a namespace get the
// one given.
func Imagine(manifests []byte, namespace string, now time.Time) ([]plan.Gang, error) {
	var jobs []batchv1.Job
	var pods []corev1.Pod
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for n := 1; ; n++ {
		doc, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		if err := imagine(doc, namespace, now, &jobs, &pods); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	_, gangs := split(pods, nil, ownersOf(jobs))
	if len(gangs) == 0 {
		return nil, errors.New("nothing in it asks for a GPU: Spillway has no part in it")
	}
	return gangs, nil
}

// imagine adds the pods of one document.
func imagine(doc []byte, namespace string, now time.Time, jobs *[]batchv1.Job, pods *[]corev1.Pod) error {
	var kind metav1.TypeMeta
	if err := kyaml.Unmarshal(doc, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "v1 Pod":
		var pod corev1.Pod
		if err := kyaml.UnmarshalStrict(doc, &pod); err != nil {
			return err
		}
		return waiting(&pod, namespace, now, pods)
	case "batch/v1 Job":
		var job batchv1.Job
		if err := kyaml.UnmarshalStrict(doc, &job); err != nil {
			return err
		}
		if err := named(&job, "job", namespace, now); err != nil {
			return err
		}
		*jobs = append(*jobs, job)
		return firstPods(&job, now, pods)
	}
	return fmt.Errorf("kind %q of %q is not understood here: give a batch/v1 Job or a v1 Pod", kind.Kind, kind.APIVersion)
}

// firstPods adds the first pods that the Job controller would make.
func firstPods(job *batchv1.Job, now time.Time, pods *[]corev1.Pod) error {
	n := 1
	if job.Spec.Parallelism != nil {
		n = wanted(job)
	}
	if n > mostPods {
		return fmt.Errorf("job %s wants %d pods at once, more than %d can't be imagined here", job.Name, n, mostPods)
	}
	yes := true
	for i := range n {
		pod := corev1.Pod{ObjectMeta: *job.Spec.Template.ObjectMeta.DeepCopy(), Spec: *job.Spec.Template.Spec.DeepCopy()}
		pod.Namespace, pod.Name = job.Namespace, fmt.Sprintf("%s-%d", job.Name, i)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID, Controller: &yes}}
		if err := waiting(&pod, job.Namespace, now, pods); err != nil {
			return err
		}
	}
	return nil
}

// mostPods bounds what one manifest may ask of this machine's memory.
const mostPods = 10_000

// longAgo is before any local chance began.
const longAgo = 365 * 24 * time.Hour

// waiting makes a pod one that the scheduler has refused, with the defaults of
// the API server that decide where it fits.
func waiting(pod *corev1.Pod, namespace string, now time.Time, pods *[]corev1.Pod) error {
	if err := named(pod, "pod", namespace, now); err != nil {
		return err
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			r := &containers[i].Resources
			for name, q := range r.Limits {
				if _, stated := r.Requests[name]; stated {
					continue
				}
				if r.Requests == nil {
					r.Requests = corev1.ResourceList{}
				}
				r.Requests[name] = q
			}
		}
	}
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		LastTransitionTime: metav1.NewTime(now.Add(-longAgo)),
	}}}
	*pods = append(*pods, *pod)
	return nil
}

// named gives an object what the API server would.
func named(o metav1.Object, kind, namespace string, now time.Time) error {
	if o.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(namespace)
	}
	o.SetUID(types.UID("imagined/" + kind + "/" + o.GetNamespace() + "/" + o.GetName()))
	o.SetCreationTimestamp(metav1.NewTime(now.Add(-longAgo)))
	return nil
}
