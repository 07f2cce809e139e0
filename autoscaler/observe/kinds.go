package observe

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/plan"
)

// Kind is what Spillway knows of one kind of owner. Owners of other kinds are
// climbed to, not beyond, and their pods are independent.
//
// Paths are names of fields joined by dots, from the root of the object; "[]"
// behind a name stands for each item of the list, or each value of the map,
// that lies there. A condition is a path, "=" and a value.
type Kind struct {
	Group string `json:"group,omitempty"` // of the API; empty is the core group
	Kind  string `json:"kind"`
	// Resource is its plural. The chart gives the right to read it by that name;
	// nothing else uses it.
	Resource string `json:"resource,omitempty"`

	// Together says that the pods are useless one by one.
	Together bool `json:"together,omitempty"`
	// Service says that it runs until somebody deletes it. It bursts only where
	// the tenant allows services.
	Service bool `json:"service,omitempty"`
	// Through says that the climb goes on to its own controller.
	Through bool `json:"through,omitempty"`
	// Apart says that each thing it makes is work of its own: the climb ends
	// below it.
	Apart bool `json:"apart,omitempty"`

	// Pods are the pods that it makes itself, Jobs the batch/v1 Jobs. What they
	// add up to is the size of a gang.
	Pods []Count `json:"pods,omitempty"`
	Jobs []Count `json:"jobs,omitempty"`
	// Staged are conditions under which some of its Jobs come only when others
	// are done: those that exist are then all that start together.
	Staged []string `json:"staged,omitempty"`
	// InOrder are conditions under which some of its pods come only when others
	// run: nobody sees the whole gang before a part of it has a place.
	InOrder []string `json:"inOrder,omitempty"`
	// MemberSize is an annotation of its pods that holds the size of their
	// gang; Leader is the condition, on the pod's labels, of the pod that the
	// gang is named after.
	MemberSize string `json:"memberSize,omitempty"`
	Leader     string `json:"leader,omitempty"`

	// Suspended is the path of a flag that keeps its pods from existing.
	Suspended string `json:"suspended,omitempty"`
	// Deadline is the path of the seconds after which it ends by itself; they
	// count from the time at the path Started.
	Deadline string `json:"deadline,omitempty"`
	Started  string `json:"started,omitempty"`
}

// Count is a number of equal things.
type Count struct {
	// Of is the path of what is counted once for each thing found there.
	Of string `json:"of"`
	// Times are paths below each thing, of numbers that multiply it; one that is
	// not stated is 1.
	Times []string `json:"times,omitempty"`
	// Template is the path, below each thing, of the template that the pods or
	// Jobs are made from. It is used to imagine them, and nowhere else.
	Template string `json:"template,omitempty"`
}

// group is a kind of object that pods name as their gang, whoever owns them.
type group struct {
	schema.GroupKind
	// keys are the labels and annotations of a pod that hold the name; without
	// any it is the field spec.schedulingGroup.
	keys []string
	size []Count // the least members that start together; none, and it is no gang
	// refused is the type of the condition that is False, with the reason
	// Unschedulable, when the scheduler found no place for the group.
	refused string
	queued  []string // conditions under which a queue holds it, not the want of room
	larger  string   // path of the name of a larger gang that it is a part of
}

// builtin is the table of kinds. Each line states facts of its project's API;
// the owners are read without its module.
func builtin() []Kind {
	replicas := func(of string) []Count {
		return []Count{{Of: of, Times: []string{"replicas"}, Template: "template"}}
	}
	// The v1 training jobs of Kubeflow are alike but for the field of replicas.
	training := func(kind, specs string) Kind {
		return Kind{
			Group: "kubeflow.org", Kind: kind, Together: true, Pods: replicas("spec." + specs + "[]"),
			Suspended: "spec.runPolicy.suspend", Deadline: "spec.runPolicy.activeDeadlineSeconds", Started: "status.startTime",
		}
	}
	mpi := training("MPIJob", "mpiReplicaSpecs")
	mpi.InOrder = []string{"spec.launcherCreationPolicy=WaitForWorkersReady", "spec.waitForWorkers=true"}
	return []Kind{
		{Group: "batch", Kind: "Job", Through: true, Pods: []Count{{Of: "spec", Times: []string{"parallelism"}, Template: "template"}}},
		{Group: "batch", Kind: "CronJob", Apart: true, Jobs: []Count{{Of: "spec", Template: "jobTemplate"}}},
		{
			Group: "jobset.x-k8s.io", Kind: "JobSet", Together: true, Through: true, Suspended: "spec.suspend",
			Jobs:    replicas("spec.replicatedJobs[]"),
			Staged:  []string{"spec.replicatedJobs[].dependsOn[].status=Complete"},
			InOrder: []string{"spec.startupPolicy.startupPolicyOrder=InOrder", "spec.replicatedJobs[].dependsOn[].status=Ready"},
		},
		// Its size is that of its JobSet: the runtime that it names decides.
		{Group: "trainer.kubeflow.org", Kind: "TrainJob", Together: true, Suspended: "spec.suspend", Deadline: "spec.activeDeadlineSeconds"},
		training("PyTorchJob", "pytorchReplicaSpecs"),
		training("TFJob", "tfReplicaSpecs"),
		training("XGBoostJob", "xgbReplicaSpecs"),
		training("PaddleJob", "paddleReplicaSpecs"),
		training("JAXJob", "jaxReplicaSpecs"),
		mpi, // v1 and v2beta1
		{
			Group: "ray.io", Kind: "RayCluster", Together: true, Through: true, Suspended: "spec.suspend",
			Pods: []Count{
				{Of: "spec.headGroupSpec", Template: "template"},
				{Of: "spec.workerGroupSpecs[]", Times: []string{"replicas", "numOfHosts"}, Template: "template"},
			},
		},
		// The size of both is that of their clusters.
		{Group: "ray.io", Kind: "RayJob", Together: true, Suspended: "spec.suspend", Deadline: "spec.activeDeadlineSeconds", Started: "status.startTime"},
		{Group: "ray.io", Kind: "RayService", Together: true, Service: true},
		{Group: "argoproj.io", Kind: "Workflow", Deadline: "spec.activeDeadlineSeconds", Started: "status.startedAt"},
		{Group: "batch.volcano.sh", Kind: "Job", Together: true, Pods: replicas("spec.tasks[]")},
		// The gang is one group of it. The leader of a group owns the workers'
		// StatefulSet, so that the climb from a worker ends at its leader.
		{
			Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet", Together: true, Service: true,
			MemberSize: "leaderworkerset.sigs.k8s.io/size", Leader: "leaderworkerset.sigs.k8s.io/worker-index=0",
		},
		{Group: "apps", Kind: "Deployment", Service: true, Pods: replicas("spec")},
		{Group: "apps", Kind: "ReplicaSet", Service: true, Through: true, Pods: replicas("spec")},
		{Group: "apps", Kind: "StatefulSet", Service: true, Through: true, Pods: replicas("spec")},
		{Kind: "ReplicationController", Service: true, Pods: replicas("spec")},
	}
}

// groups are the kinds of groups that pods name.
func groups() []group {
	minimum := []Count{{Of: "spec", Times: []string{"minMember"}}}
	kind := func(group, kind string) schema.GroupKind { return schema.GroupKind{Group: group, Kind: kind} }
	return []group{
		{
			GroupKind: kind("scheduling.k8s.io", "PodGroup"),
			size:      []Count{{Of: "spec.schedulingPolicy.gang", Times: []string{"minCount"}}}, refused: "PodGroupInitiallyScheduled",
			larger: "spec.parentCompositePodGroupName",
		},
		{
			GroupKind: kind("scheduling.volcano.sh", "PodGroup"), size: minimum,
			keys:   []string{"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"},
			queued: []string{"status.phase=Pending"}, // the next phase, Inqueue, says that the queue has room
		},
		{
			GroupKind: kind("scheduling.x-k8s.io", "PodGroup"), size: minimum,
			keys: []string{"scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io"},
		},
		{
			GroupKind: kind("scheduling.run.ai", "PodGroup"), size: minimum, keys: []string{"pod-group-name"},
			queued: []string{
				"status.schedulingConditions[].reasons[].reason=OverLimit",
				"status.schedulingConditions[].reasons[].reason=NonPreemptibleOverQuota",
			},
		},
	}
}

// Table is the kinds of owners that an installation knows.
type Table struct {
	kinds  map[schema.GroupKind]*Kind
	marked []*Kind // whose pods state the size of their gang
	groups []group
}

// NewTable returns the built-in kinds and those given, which replace built-in
// ones of the same group and kind. An error names the kind and the field.
func NewTable(more ...Kind) (Table, error) {
	t := Table{kinds: map[schema.GroupKind]*Kind{}, groups: groups()}
	for _, k := range more {
		if err := k.check(); err != nil {
			return t, fmt.Errorf("kind %q of group %q: %w", k.Kind, k.Group, err)
		}
	}
	for _, k := range slices.Concat(builtin(), more) {
		t.kinds[schema.GroupKind{Group: k.Group, Kind: k.Kind}] = &k
	}
	for _, k := range t.kinds {
		if k.MemberSize != "" {
			t.marked = append(t.marked, k)
		}
	}
	return t, nil
}

// ReadKinds reads a YAML list of kinds, as an installation states its own.
func ReadKinds(data []byte) ([]Kind, error) {
	var kinds []Kind
	if err := yaml.UnmarshalStrict(data, &kinds); err != nil {
		return nil, fmt.Errorf("kinds: %w; write a YAML list of kinds, see the chart's values", err)
	}
	return kinds, nil
}

// check finds what would make a kind mean nothing.
func (k Kind) check() error {
	switch {
	case k.Kind == "":
		return errors.New("kind is empty: name it as owner references do")
	case k.Group == "batch" && k.Kind == "Job":
		return errors.New("batch/v1 Jobs are read as they are: leave it out")
	case k.Apart && k.Through:
		return errors.New("apart and through exclude each other: the climb ends below it, or goes on above it")
	case k.Started != "" && k.Deadline == "":
		return errors.New("started says when a deadline begins to count: state the deadline")
	case k.MemberSize == "" && k.Leader != "":
		return errors.New("leader names the gangs whose size pods state: state memberSize")
	}
	paths := []string{k.Suspended, k.Deadline, k.Started}
	for _, c := range slices.Concat(k.Pods, k.Jobs) {
		if c.Of == "" {
			return errors.New("a count without a path: state of")
		}
		paths = append(append(paths, c.Of, c.Template), c.Times...)
	}
	for _, path := range paths {
		if path != "" && !wellFormed(path) {
			return fmt.Errorf("%q is no path such as spec.replicaSpecs[].replicas", path)
		}
	}
	for _, condition := range slices.Concat(k.Staged, k.InOrder) {
		if path, _, ok := cutCondition(condition); !ok || !wellFormed(path) {
			return fmt.Errorf("%q is no condition such as spec.order=InOrder", condition)
		}
	}
	return nil
}

// of is the kind of an owner, nil for one that the table does not have.
func (t Table) of(owner plan.Owner) *Kind {
	return t.kinds[schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()]
}

// group is the kind of a group that pods name, nil for every other object.
func (t Table) group(owner plan.Owner) *group {
	kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
	for i := range t.groups {
		if t.groups[i].GroupKind == kind {
			return &t.groups[i]
		}
	}
	return nil
}

// whole reports whether an owner's fields are needed, and not only who owns it.
func (k *Kind) whole() bool {
	return k.Together && len(k.Pods)+len(k.Jobs) > 0 || k.Suspended != "" || k.Deadline != ""
}
