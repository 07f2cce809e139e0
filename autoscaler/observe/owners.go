package observe

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// ownerKey names an owner. The UID alone would not do: a pod may state any, also
// that of another tenant's Job.
type ownerKey struct {
	namespace string
	uid       types.UID
}

func keyOf(o plan.Owner) ownerKey { return ownerKey{o.Namespace, o.UID} }

// object is one owner, or one group that pods name.
type object struct {
	plan.Owner
	metav1.Object
	kind   *Kind          // nil for a group
	job    *batchv1.Job   // set for Jobs alone
	fields map[string]any // nil where the metadata is enough
}

// groupKey names a group as pods do: by its kind, its namespace and its name.
type groupKey struct {
	schema.GroupKind
	namespace, name string
}

// owners knows the controllers of pods, and the groups that pods name.
type owners struct {
	table   Table
	objects map[ownerKey]*object
	jobs    map[ownerKey][]*batchv1.Job // by their controller
	groups  map[groupKey]*object
	watched map[schema.GroupKind]bool
	ways    map[wayKey]*way
	volumes volumes
	quotas  quotas
}

// wayKey is what ways depend on: equal for all pods of one controller and group.
type wayKey struct {
	ownerKey
	group string
}

// way is the climb from a pod to the owner of its gang.
type way struct {
	owner             plan.Owner
	together, service bool
	path              []*object // the owners on it that are known, lowest first
	group             *object   // the group that the pod names
	of                *group    // its kind
	size              int       // of the gang, where its pods state it
	// lost names an owner or group on the way that ought to be known and is not.
	lost string
	// why is set when an owner on the way holds all pods below it.
	why *plan.Reason
}

func newOwners(t Table, jobs []batchv1.Job) *owners {
	o := &owners{
		table: t, objects: map[ownerKey]*object{}, jobs: map[ownerKey][]*batchv1.Job{}, groups: map[groupKey]*object{},
		watched: map[schema.GroupKind]bool{}, ways: map[wayKey]*way{},
	}
	for i := range jobs {
		job := &jobs[i]
		o.add(&object{
			Owner:  plan.Owner{APIVersion: "batch/v1", Kind: "Job", Namespace: job.Namespace, Name: job.Name, UID: job.UID},
			Object: job, job: job,
		})
		if above := metav1.GetControllerOfNoCopy(job); above != nil {
			key := ownerKey{job.Namespace, above.UID}
			o.jobs[key] = append(o.jobs[key], job)
		}
	}
	return o
}

// add takes an object of a kind or of a group of the table; others are left out.
func (o *owners) add(x *object) {
	if g := o.table.group(x.Owner); g != nil {
		o.groups[groupKey{g.GroupKind, x.Namespace, x.Name}] = x
		o.watched[g.GroupKind] = true
		return
	}
	if x.kind = o.table.of(x.Owner); x.kind != nil {
		o.objects[keyOf(x.Owner)] = x
	}
}

// of climbs from a pod to the owner of its gang.
func (o *owners) of(pod *corev1.Pod) *way {
	owner := plan.Owner{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	marked := o.mark(pod)
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil && !leads(pod, marked) {
		owner = ownerOf(pod.Namespace, ref)
	}
	of, name := o.named(pod)
	key := wayKey{keyOf(owner), name}
	w := o.ways[key]
	if w == nil {
		w = o.climb(owner)
		if marked != nil {
			w.together, w.service = w.together || marked.Together, w.service || marked.Service
			size, _ := number(pod.Annotations[marked.MemberSize])
			w.size = int(min(size, most))
		}
		o.join(w, of, name)
		w.why = w.held()
		o.ways[key] = w
	}
	return w
}

// mark is the kind whose annotation a pod carries, nil for most.
func (o *owners) mark(pod *corev1.Pod) *Kind {
	for _, k := range o.table.marked {
		if pod.Annotations[k.MemberSize] != "" {
			return k
		}
	}
	return nil
}

// leads reports whether the gang of a marked pod is named after it.
func leads(pod *corev1.Pod, marked *Kind) bool {
	if marked == nil {
		return false
	}
	label, value, ok := cutCondition(marked.Leader)
	return ok && pod.Labels[label] == value
}

// longestClimb bounds the climb: owners that own each other end it.
const longestClimb = 8

// climb goes from an owner to its controllers as far as the table says. A kind
// that the table does not have takes independent pods only: it may make
// several gangs.
func (o *owners) climb(owner plan.Owner) *way {
	w := &way{}
	for range longestClimb {
		w.owner = owner
		k, x := o.table.of(owner), o.objects[keyOf(owner)]
		if k == nil {
			return w
		}
		w.together, w.service = w.together || k.Together, w.service || k.Service
		if x == nil || x.kind != k {
			if k.Through || k.Together && k.whole() {
				w.lost = owner.Kind + " " + owner.Name
			}
			return w
		}
		w.path = append(w.path, x)
		w.together = w.together || x.job != nil && x.job.Annotations[v1alpha1.GangAnnotation] == "true"
		above := metav1.GetControllerOfNoCopy(x)
		if !k.Through || above == nil {
			return w
		}
		next := ownerOf(owner.Namespace, above)
		if up := o.table.of(next); up == nil && w.together || up != nil && up.Apart {
			return w
		}
		owner = next
	}
	return w
}

func ownerOf(namespace string, ref *metav1.OwnerReference) plan.Owner {
	return plan.Owner{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: namespace, Name: ref.Name, UID: ref.UID}
}

// named is the group that a pod says it belongs to, an empty name for none.
// Labels and annotations count where the kind that they speak of is served.
func (o *owners) named(pod *corev1.Pod) (*group, string) {
	for i := range o.table.groups {
		g := &o.table.groups[i]
		if s := pod.Spec.SchedulingGroup; len(g.keys) == 0 && s != nil && s.PodGroupName != nil {
			return g, *s.PodGroupName
		}
		if !o.watched[g.GroupKind] {
			continue
		}
		for _, key := range g.keys {
			for _, from := range []map[string]string{pod.Labels, pod.Annotations} {
				if name := from[key]; name != "" {
					return g, name
				}
			}
		}
	}
	return nil, ""
}

// join makes pods that name a group one gang. A group that their own owner
// made, and one inside a larger gang, stay the owner's; any other is the gang
// itself.
func (o *owners) join(w *way, of *group, name string) {
	if of == nil {
		return
	}
	x := o.groups[groupKey{of.GroupKind, w.owner.Namespace, name}]
	if x == nil {
		w.lost = of.Kind + " " + name
		return
	}
	w.group, w.of = x, of
	if sum(x.fields, of.size) == 0 || w.together {
		return
	}
	w.together = true
	if maker := metav1.GetControllerOfNoCopy(x); maker == nil || maker.UID != w.owner.UID {
		w.owner = x.Owner
	}
}

// sized is what tells the size of the gang: the highest owner on the way that
// does, or else the group.
func (w *way) sized() *object {
	for i := len(w.path) - 1; i >= 0; i-- {
		if x := w.path[i]; x.job != nil || len(x.kind.Pods)+len(x.kind.Jobs) > 0 {
			return x
		}
	}
	return w.group
}

// wants is how many members an object wants at one time, as pods that it makes
// itself and as those of its Jobs, which count for themselves.
func (o *owners) wants(x *object, of *group) (pods, jobs int) {
	switch {
	case x.job != nil:
		return 0, wanted(x.job)
	case x.kind == nil:
		return sum(x.fields, of.size), 0
	}
	if len(x.kind.Jobs) == 0 { // a Job of it is one of the pods that it counts
		return sum(x.fields, x.kind.Pods), 0
	}
	made := o.jobs[keyOf(x.Owner)]
	for _, job := range made {
		jobs += wanted(job)
	}
	if missing := sum(x.fields, x.kind.Jobs) - len(made); missing > 0 && !holdsAny(x.fields, x.kind.Staged) {
		jobs += missing
	}
	return sum(x.fields, x.kind.Pods), jobs
}

// wanted is how many pods a Job wants at one time: no more than it has
// completions left.
func wanted(job *batchv1.Job) int {
	n := int32(1)
	if job.Spec.Parallelism != nil {
		n = *job.Spec.Parallelism
	}
	if job.Spec.Completions != nil {
		n = min(n, *job.Spec.Completions-job.Status.Succeeded)
	}
	return int(max(n, 0))
}

// suspended reports whether an owner keeps its pods from existing.
func (x *object) suspended() bool {
	if x.job != nil {
		return x.job.Spec.Suspend != nil && *x.job.Spec.Suspend && x.job.Status.CompletionTime == nil
	}
	held, _ := first(x.fields, x.kind.Suspended).(bool)
	return held
}

// asks reports whether a template somewhere in an owner asks for a GPU.
func (x *object) asks() bool {
	if x.job != nil {
		return asksForGPU(&x.job.Spec.Template.Spec)
	}
	return asksSomewhere(x.fields["spec"])
}

// asksSomewhere looks for limits of containers at any depth.
func asksSomewhere(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			if limits, ok := child.(map[string]any); key == "limits" && ok && limitsGPU(limits) || asksSomewhere(child) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, asksSomewhere)
	}
	return false
}

func limitsGPU(limits map[string]any) bool {
	for name, n := range limits {
		if plan.IsGPU(corev1.ResourceName(name)) && fmt.Sprint(n) != "0" {
			return true
		}
	}
	return false
}

// deadline is how long an owner, or the queue that admitted it, lets its work
// run, and when the owner ends it: that counts from its start, whether or not
// its pods run.
func (x *object) deadline() (run time.Duration, end time.Time) {
	run, end = x.ownDeadline()
	seconds, stated := number(x.GetLabels()[kueueMaxExec])
	if most := plan.Seconds(seconds); stated && most > 0 && (run == 0 || most < run) {
		run = most
	}
	return run, end
}

func (x *object) ownDeadline() (run time.Duration, end time.Time) {
	if x.job != nil {
		if s := x.job.Spec.ActiveDeadlineSeconds; s != nil {
			run = plan.Seconds(*s)
			if start := x.job.Status.StartTime; start != nil {
				end = start.Add(run)
			}
		}
		return run, end
	}
	if seconds, stated := number(first(x.fields, x.kind.Deadline)); stated && seconds > 0 {
		run = plan.Seconds(seconds)
		if start, started := instant(first(x.fields, x.kind.Started)); started {
			end = start.Add(run)
		}
	}
	return run, end
}

// deadline is the soonest of all deadlines on the way.
func (w *way) deadline() (run time.Duration, end time.Time) {
	for _, x := range w.path {
		r, e := x.deadline()
		if r > 0 && (run == 0 || r < run) {
			run = r
		}
		if !e.IsZero() && (end.IsZero() || e.Before(end)) {
			end = e
		}
	}
	return run, end
}

// ends says by when bound pods are over because of a deadline of their owners.
func (o *owners) ends(pods []*corev1.Pod) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for _, p := range pods {
		if _, end := o.of(p).deadline(); !end.IsZero() {
			out[p.UID] = end
		}
	}
	return out
}
