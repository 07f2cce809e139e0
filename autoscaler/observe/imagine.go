package observe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	kyaml "sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/plan"
)

// Imagine turns manifests into the pending work that they would become in a
// state, if the scheduler found no place for them and their local chance were
// over. Nothing is submitted. The quotas of the namespaces hold as for others. It understands pods and the kinds whose pods
// follow from the manifest alone (Job, JobSet, the v1 training jobs, RayCluster,
// Deployment and others); an error names the document and what is wrong with
// it. Objects without a namespace get the one given.
func Imagine(manifests []byte, namespace string, s *plan.State) ([]plan.Gang, error) {
	table, err := NewTable()
	if err != nil {
		return nil, err
	}
	d := dream{table: table, namespace: namespace, now: s.Now}
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
		if err := d.read(doc); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	owned := newOwners(table, d.jobs)
	for _, x := range d.owners {
		owned.add(x)
	}
	_, gangs := split(d.pods, nil, owned)
	if len(gangs) == 0 {
		return nil, errors.New("nothing in it asks for a GPU: Spillway has no part in it")
	}
	slices.SortFunc(gangs, func(a, b plan.Gang) int { return strings.Compare(a.Owner.String(), b.Owner.String()) })
	quotas := newQuotas(s.Cluster.Quotas)
	for i := range gangs {
		quotas.charge(&gangs[i])
	}
	return gangs, nil
}

// dream is what manifests would become.
type dream struct {
	table     Table
	namespace string
	now       time.Time
	jobs      []batchv1.Job
	owners    []*object
	pods      []*corev1.Pod
}

// read adds what one document would become.
func (d *dream) read(doc []byte) error {
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
		return d.pod(pod)
	case "batch/v1 Job":
		var job batchv1.Job
		if err := kyaml.UnmarshalStrict(doc, &job); err != nil {
			return err
		}
		return d.job(job)
	}
	var fields map[string]any
	if err := kyaml.Unmarshal(doc, &fields); err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: fields}
	owner := plan.Owner{APIVersion: kind.APIVersion, Kind: kind.Kind}
	if d.table.group(owner) != nil {
		return d.group(u)
	}
	k := d.table.of(owner)
	if k == nil || len(k.Pods)+len(k.Jobs) == 0 {
		return fmt.Errorf("kind %q of %q is not understood here, its pods don't follow from the manifest: give the pods or Jobs that it makes", kind.Kind, kind.APIVersion)
	}
	return d.owner(k, u)
}

// group adds a group that pods may name.
func (d *dream) group(u *unstructured.Unstructured) error {
	if err := d.named(u, u.GetKind()); err != nil {
		return err
	}
	d.owners = append(d.owners, fromFields(u.GroupVersionKind(), u))
	return nil
}

// owner adds an owner with the first pods and Jobs that its controller would
// make.
func (d *dream) owner(k *Kind, u *unstructured.Unstructured) error {
	if err := d.named(u, k.Kind); err != nil {
		return err
	}
	x := fromFields(u.GroupVersionKind(), u)
	d.owners = append(d.owners, x)
	err := d.each(x, k.Pods, func(name string, template any) error {
		var t corev1.PodTemplateSpec
		if err := strictly(template, &t); err != nil {
			return err
		}
		return d.pod(podOf(x.Owner, name, t))
	})
	if err != nil {
		return err
	}
	return d.each(x, k.Jobs, func(name string, template any) error {
		var t batchv1.JobTemplateSpec
		if err := strictly(template, &t); err != nil {
			return err
		}
		job := batchv1.Job{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
		job.Namespace, job.Name, job.OwnerReferences = x.Namespace, name, controlledBy(x.Owner)
		return d.job(job)
	})
}

// each calls add once for every thing of the counts, with its name.
func (d *dream) each(x *object, counts []Count, add func(name string, template any) error) error {
	for _, c := range counts {
		for n, thing := range c.each(x.fields) {
			if n > mostPods-len(d.pods) {
				return fmt.Errorf("%s %s wants %d pods at once, more than %d can't be imagined here", x.Kind, x.Name, n, mostPods)
			}
			for i := range n {
				name := strings.Join(slices.DeleteFunc([]string{x.Name, thing.name, strconv.Itoa(i)}, func(s string) bool { return s == "" }), "-")
				if err := add(name, first(thing.value, c.Template)); err != nil {
					return fmt.Errorf("%s.%s of %s %s: %w", c.Of, c.Template, x.Kind, x.Name, err)
				}
			}
		}
	}
	return nil
}

// strictly reads a part of a manifest; a field that nobody knows is an error.
func strictly(part, into any) error {
	data, err := json.Marshal(part)
	if err != nil {
		return err
	}
	return kyaml.UnmarshalStrict(data, into)
}

// job adds a Job and the first pods that the Job controller would make.
func (d *dream) job(job batchv1.Job) error {
	if err := d.named(&job, "Job"); err != nil {
		return err
	}
	d.jobs = append(d.jobs, job)
	n := wanted(&job)
	if n > mostPods-len(d.pods) {
		return fmt.Errorf("job %s wants %d pods at once, more than %d can't be imagined here", job.Name, n, mostPods)
	}
	owner := plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: job.UID}
	for i := range n {
		if err := d.pod(podOf(owner, fmt.Sprintf("%s-%d", job.Name, i), *job.Spec.Template.DeepCopy())); err != nil {
			return err
		}
	}
	return nil
}

func podOf(owner plan.Owner, name string, t corev1.PodTemplateSpec) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	pod.Namespace, pod.Name, pod.OwnerReferences = owner.Namespace, name, controlledBy(owner)
	return pod
}

func controlledBy(owner plan.Owner) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID, Controller: &yes}}
}

// mostPods bounds what manifests may ask of this machine's memory.
const mostPods = 10_000

// longAgo is before any local chance began.
const longAgo = 365 * 24 * time.Hour

// pod adds a pod that the scheduler has refused, with the defaults of the API
// server that decide where it fits.
func (d *dream) pod(pod corev1.Pod) error {
	if err := d.named(&pod, "Pod"); err != nil {
		return err
	}
	requesting(&pod)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		LastTransitionTime: metav1.NewTime(d.now.Add(-longAgo)),
	}}}
	d.pods = append(d.pods, &pod)
	return nil
}

// requesting has a pod ask for what it limits, as the API server does.
func requesting(pod *corev1.Pod) {
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
}

// named gives an object what the API server would.
func (d *dream) named(o metav1.Object, kind string) error {
	if o.GetName() == "" {
		return errors.New("metadata.name is missing")
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(d.namespace)
	}
	o.SetUID(types.UID("imagined/" + strings.ToLower(kind) + "/" + o.GetNamespace() + "/" + o.GetName()))
	o.SetCreationTimestamp(metav1.NewTime(d.now.Add(-longAgo)))
	return nil
}
