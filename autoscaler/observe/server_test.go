package observe

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
	chart "spillway.dev/spillway/charts/spillway"
	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/quota"
)

// TestGangsOnARealServer asks the real scheduler and the real controllers: what
// they write of groups and owners is what becomes gangs.
func TestGangsOnARealServer(t *testing.T) {
	ctrl.SetLogger(klog.New(nil))
	s := newSite(t)
	tenant := &v1alpha1.BurstTenant{ObjectMeta: metav1.ObjectMeta{Name: "team"}, Spec: v1alpha1.BurstTenantSpec{ID: "team", Namespaces: []string{"default"}, DataClass: "internal"}}
	s.create(t, tenant, node("rack1", 8))
	t.Run("a PodGroup that does not fit whole", s.group)
	t.Run("a PodGroup that lacks a member", s.partOfAGroup)
	t.Run("a Job whose controller made its PodGroup", s.jobWithGroup)
	t.Run("a JobSet that is installed by its definition alone", s.jobSet)
	t.Run("a Deployment is a service", s.deployment)
	t.Run("a Job that a queue keeps suspended", s.suspended)
}

// site is a real control plane with gangs switched on, and an observer of it.
type site struct {
	client   client.Client
	observer *Observer
}

func newSite(t *testing.T) *site {
	t.Helper()
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	plane, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: bin, Dir: t.TempDir(), Gates: []string{"GenericWorkload", "WorkloadWithJob"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	installKinds(t, plane.AdminConfig)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(plane.AdminConfig, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &site{client: c, observer: watching(t, plane.AdminConfig, scheme)}
}

// installKinds makes the API server serve our kinds, and JobSets as anybody's.
func installKinds(t *testing.T, config *rest.Config) {
	t.Helper()
	objects, err := chart.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(u *unstructured.Unstructured) bool { return u.GetKind() != "CustomResourceDefinition" })
	objects = append(objects, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "jobsets.jobset.x-k8s.io", "annotations": map[string]any{"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"}},
		"spec": map[string]any{
			"group": "jobset.x-k8s.io", "scope": "Namespaced", "names": map[string]any{"kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList"},
			"versions": []any{map[string]any{
				"name": "v1alpha2", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}})
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := chart.ApplyObjects(t.Context(), dyn, objects); err != nil {
		t.Fatal(err)
	}
}

// watching is an observer whose cache has what the API server has.
func watching(t *testing.T, config *rest.Config, scheme *runtime.Scheme) *Observer {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	table, err := NewTable()
	if err != nil {
		t.Fatal(err)
	}
	watched, err := table.Watch(mapper)
	if err != nil {
		t.Fatal(err)
	}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- informers.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	mirror := NewMirror()
	if err := mirror.Follow(ctx, informers); err != nil {
		t.Fatal(err)
	}
	return &Observer{
		Cache: informers, Mirror: mirror, Synced: informers.WaitForCacheSync, Table: table, Watched: watched, Offers: nothing{}, Now: time.Now,
		Book: func(context.Context) (quota.Book, error) { return quota.Book{}, nil },
	}
}

func (s *site) create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		status, _ := o.DeepCopyObject().(client.Object)
		if err := s.client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
		if n, ok := status.(*corev1.Node); ok {
			n.ResourceVersion = ""
			if err := s.client.Status().Patch(t.Context(), n, client.Merge); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// gang waits for the one gang of an owner, as long as it is not as wanted, and
// returns it as text.
func (s *site) gang(t *testing.T, owner, want string) plan.Gang {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	seen := "nothing"
	for {
		state, err := s.observer.State(ctx)
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
		for _, g := range state.Gangs {
			if g.Owner.String() != owner {
				continue
			}
			seen = fmt.Sprintf("together %v, size %d, %d waiting, service %v", g.Together, g.Size, len(g.Pods), g.Service)
			if g.Hold != nil {
				seen += ", " + string(g.Hold.Code)
			}
			if seen == want {
				return g
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the gang of %s is: %s; want: %s", owner, seen, want)
		case <-tick.C:
		}
	}
}

func node(name string, gpus int64) *corev1.Node {
	room := corev1.ResourceList{
		"cpu": resource.MustParse("64"), "memory": resource.MustParse("512Gi"), "pods": resource.MustParse("110"),
		"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}}},
	}
}

// template asks for GPUs of the node with 8.
func template(gpus int64, group string) corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
		Name: "main", Image: "registry.example/train:1",
		Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}},
	}}}}
	if group != "" {
		t.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &group}
	}
	return t
}

func podGroup(name string, members int32) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: members}}},
	}
}

func member(group string, i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("%s-%d", group, i)}, Spec: template(8, group).Spec}
}

// cases: F1 volcano-sh/volcano#2558, F4 kubernetes/autoscaler#8783
func (s *site) group(t *testing.T) {
	s.create(t, podGroup("ring", 3), member("ring", 0), member("ring", 1), member("ring", 2))
	g := s.gang(t, "default/PodGroup/ring", "together true, size 3, 3 waiting, service false")
	for _, p := range g.Pods {
		if !unschedulable(p) || condition(p).LastTransitionTime.IsZero() {
			t.Errorf("pod %s has the conditions %+v, want a refusal with its time", p.Name, p.Status.Conditions)
		}
	}
}

func (s *site) partOfAGroup(t *testing.T) {
	late := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "late"}, Spec: template(9, "").Spec} // comes after it
	s.create(t, podGroup("pair", 2), member("pair", 0), late)
	s.gang(t, "default/Pod/late", "together false, size 0, 1 waiting, service false")
	state, err := s.observer.State(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range state.Gangs {
		if g.Owner.Name == "pair" {
			t.Errorf("a group that the scheduler does not look at is pending work: %+v", g)
		}
	}
	s.create(t, member("pair", 1))
	s.gang(t, "default/PodGroup/pair", "together true, size 2, 2 waiting, service false")
}

func (s *site) jobWithGroup(t *testing.T) {
	two, indexed := int32(2), batchv1.IndexedCompletion
	gang := &schedulingv1alpha3.WorkloadPodGroupSchedulingPolicy{Gang: &schedulingv1alpha3.WorkloadPodGroupGangSchedulingPolicy{}}
	s.create(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train"}, Spec: batchv1.JobSpec{
		Parallelism: &two, Completions: &two, CompletionMode: &indexed, Template: template(8, ""),
		Scheduling: &batchv1.JobSchedulingConfiguration{SchedulingPolicy: gang},
	}})
	s.gang(t, "default/Job/train", "together true, size 2, 2 waiting, service false")
	s.create(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sweep"}, Spec: batchv1.JobSpec{
		Parallelism: &two, Completions: &two, CompletionMode: &indexed, Template: template(9, ""),
	}})
	s.gang(t, "default/Job/sweep", "together false, size 0, 2 waiting, service false") // its PodGroup is no gang
}

func (s *site) jobSet(t *testing.T) {
	set := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": map[string]any{"namespace": "default", "name": "pretrain"},
		"spec": map[string]any{"replicatedJobs": []any{map[string]any{"name": "workers", "replicas": int64(2)}}},
	}}
	s.create(t, set)
	job := func(i int) *batchv1.Job {
		yes, two := true, int32(2)
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("pretrain-workers-%d", i),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "jobset.x-k8s.io/v1alpha2", Kind: "JobSet", Name: "pretrain", UID: set.GetUID(), Controller: &yes}},
			},
			Spec: batchv1.JobSpec{Parallelism: &two, Completions: &two, Template: template(9, "")},
		}
	}
	s.create(t, job(0))
	s.gang(t, "default/JobSet/pretrain", "together true, size 3, 2 waiting, service false") // one Job is missing
	s.create(t, job(1))
	s.gang(t, "default/JobSet/pretrain", "together true, size 4, 4 waiting, service false")
}

func (s *site) deployment(t *testing.T) {
	two, labels := int32(2), map[string]string{"app": "web"}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &two, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(9, ""),
	}}
	d.Spec.Template.Labels, d.Spec.Template.Spec.RestartPolicy = labels, corev1.RestartPolicyAlways
	s.create(t, d)
	s.gang(t, "default/Deployment/web", "together false, size 0, 2 waiting, service true")
}

func (s *site) suspended(t *testing.T) {
	yes := true
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "queued", Labels: map[string]string{kueueQueue: "team-a"}},
		Spec:       batchv1.JobSpec{Suspend: &yes, Template: template(9, "")},
	}
	s.create(t, job)
	s.gang(t, "default/Job/queued", "together false, size 0, 0 waiting, service false, KUEUE_NOT_ADMITTED")
}
