package observe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/plan"
)

func manifest(kind, spec string) string {
	return fmt.Sprintf("%s\nmetadata: {name: x, annotations: {spillway.dev/gang: \"true\"}}\nspec: %s\n", kind, spec)
}

const (
	aJob  = "apiVersion: batch/v1\nkind: Job"
	aPod  = "apiVersion: v1\nkind: Pod"
	gpus2 = "{containers: [{name: m, image: i, resources: {limits: {nvidia.com/gpu: 2}}}]}"
)

func TestImagine(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		doc  string
		want []string // for each gang: owner, pods, size, whole
	}{
		"a Job of three pods that start together": {
			manifest(aJob, "{parallelism: 3, completions: 3, template: {spec: "+gpus2+"}}"), []string{"team/Job/x 3 3 true"},
		},
		"no more pods than completions": {manifest(aJob, "{parallelism: 8, completions: 2, template: {spec: "+gpus2+"}}"), []string{"team/Job/x 2 2 true"}},
		"a bare pod":                    {manifest(aPod, gpus2), []string{"team/Pod/x 1 0 false"}},
		"a JobSet": {
			manifest("apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet", "{replicatedJobs: [{name: d, template: {spec: {template: {spec: {containers: [{name: m}]}}}}}, {name: w, replicas: 2, template: {spec: {parallelism: 2, template: {spec: "+gpus2+"}}}}]}"),
			[]string{"team/JobSet/x 5 5 true"},
		},
		"a PyTorchJob": {
			manifest("apiVersion: kubeflow.org/v1\nkind: PyTorchJob", "{pytorchReplicaSpecs: {Master: {template: {spec: "+gpus2+"}}, Worker: {replicas: 3, template: {spec: "+gpus2+"}}}}"),
			[]string{"team/PyTorchJob/x 4 4 true"},
		},
		"a RayCluster": {
			manifest("apiVersion: ray.io/v1\nkind: RayCluster", "{headGroupSpec: {template: {spec: "+gpus2+"}}, workerGroupSpecs: [{groupName: w, replicas: 2, numOfHosts: 2, template: {spec: "+gpus2+"}}]}"),
			[]string{"team/RayCluster/x 5 5 true"},
		},
		"a Deployment": {manifest("apiVersion: apps/v1\nkind: Deployment", "{replicas: 2, template: {spec: "+gpus2+"}}"), []string{"team/Deployment/x 2 0 false"}},
		"a CronJob's Job": {
			manifest("apiVersion: batch/v1\nkind: CronJob", "{schedule: '@daily', jobTemplate: {spec: {parallelism: 2, template: {spec: "+gpus2+"}}}}"), []string{"team/Job/x-0 2 0 false"},
		},
		"a pod of a PodGroup": {
			manifest("apiVersion: scheduling.k8s.io/v1beta1\nkind: PodGroup", "{schedulingPolicy: {gang: {minCount: 2}}}") + "---\n" + manifest(aPod, "{schedulingGroup: {podGroupName: x}, "+gpus2[1:]),
			[]string{"team/PodGroup/x 1 2 true"},
		},
		"two documents, and an empty one": {
			manifest(aPod, gpus2) + "---\n---\n" + manifest(aJob, "{template: {spec: "+gpus2+"}}"), []string{"team/Job/x 1 1 true", "team/Pod/x 1 0 false"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			gangs, err := Imagine([]byte(tt.doc), "team", &plan.State{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]bool{}
			for _, g := range gangs {
				got[fmt.Sprintf("%s %d %d %t", g.Owner, len(g.Pods), g.Size, g.Together)] = true
				for _, p := range g.Pods {
					if q := p.Spec.Containers[0].Resources.Requests["nvidia.com/gpu"]; q.Value() != 2 && p.Spec.Containers[0].Image != "" {
						t.Errorf("pod %s requests %s GPUs: what is limited is requested", p.Name, q.String())
					}
					if c := p.Status.Conditions[0]; c.Reason != corev1.PodReasonUnschedulable || now.Sub(c.LastTransitionTime.Time) < longAgo {
						t.Errorf("pod %s: %+v, want one whose local chance is over", p.Name, c)
					}
				}
			}
			for _, w := range tt.want {
				if !got[w] {
					t.Errorf("gangs %v, want %q among them", got, w)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("%d gangs, want %d", len(got), len(tt.want))
			}
		})
	}
}

func TestImagineRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ doc, want string }{
		"nothing":                     {"", "nothing in it asks for a GPU"},
		"a pod without a GPU":         {manifest(aPod, "{containers: [{name: m, image: i}]}"), "nothing in it asks for a GPU"},
		"a kind that it doesn't know": {manifest("apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob", "{}"), `kind "TrainJob" of "trainer.kubeflow.org/v1alpha1" is not understood`},
		"a field that nobody knows":   {manifest(aPod, "{containerz: []}"), `document 1: error unmarshaling JSON: while decoding JSON: json: unknown field "containerz"`},
		"no name":                     {aPod + "\nspec: " + gpus2, "metadata.name is missing"},
		"no YAML":                     {"{{{", "document 1"},
		"the second document is bad":  {manifest(aPod, gpus2) + "---\n[]", "document 2"},
		"a template with a field that nobody knows": {
			manifest("apiVersion: apps/v1\nkind: Deployment", "{template: {spec: {containerz: []}}}"), `document 1: spec.template of Deployment x: error unmarshaling JSON: while decoding JSON: json: unknown field "containerz"`,
		},
		"fields of another type": {
			manifest("apiVersion: kubeflow.org/v1\nkind: PyTorchJob", "{pytorchReplicaSpecs: [3, {replicas: many, template: 7}]}"), "document 1: spec.pytorchReplicaSpecs[].template of PyTorchJob x",
		},
		"no object where one belongs": {"apiVersion: apps/v1\nkind: Deployment\nmetadata: 5\nspec: [x]", "metadata.name is missing"},
		"a Job of a JobSet that wants too many": {
			manifest("apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet", "{replicatedJobs: [{name: w, replicas: 9000, template: {spec: {parallelism: 9000, template: {spec: "+gpus2+"}}}}]}"), "more than 10000",
		},
		"more pods than memory": {manifest(aJob, "{parallelism: 2000000000, template: {spec: "+gpus2+"}}"), "more than 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Imagine([]byte(tt.doc), "team", &plan.State{Now: time.Now()})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q in it", err, tt.want)
			}
		})
	}
}

// What the quotas of its namespace would not let in is not bought for: of a gang
// nothing, of independent pods those that are too many. What one document takes
// is taken for the next.
func TestImaginedWorkIsChargedToQuotas(t *testing.T) {
	list := func(n string) corev1.ResourceList {
		return corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse(n)}
	}
	s := &plan.State{Now: time.Now()}
	s.Cluster.Quotas = []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpus"}}}
	s.Cluster.Quotas[0].Status = corev1.ResourceQuotaStatus{Hard: list("8"), Used: list("1")}
	named := func(name, doc string) string { return strings.Replace(doc, "name: x", "name: "+name, 1) }
	gang := named("a-gang", manifest(aJob, "{parallelism: 2, template: {spec: "+gpus2+"}}"))
	sweep := strings.Replace(named("b-sweep", manifest(aJob, "{parallelism: 3, completions: 9, template: {spec: "+gpus2+"}}")), `"true"`, `"false"`, 1)
	for name, tt := range map[string]struct {
		doc  string
		want []string
	}{
		"a gang that fits":      {gang, []string{"a-gang: 2 pods"}},
		"pods of which one can": {gang + "---\n" + sweep, []string{"a-gang: 2 pods", "b-sweep: 1 pods, short 2 of its pods"}},
		"a gang behind others":  {sweep + "---\n" + strings.ReplaceAll(gang, "a-gang", "c-gang"), []string{"b-sweep: 3 pods", "c-gang: 2 pods, held 2 of its pods"}},
		"one for which nothing is left": {
			sweep + "---\n" + named("d-pod", manifest(aPod, gpus2)), []string{"b-sweep: 3 pods", "d-pod: 1 pods, held 1 of its pods"},
		},
		"of another namespace": {strings.Replace(sweep, "name: b-sweep", "name: b-sweep, namespace: free", 1), []string{"b-sweep: 3 pods"}},
	} {
		t.Run(name, func(t *testing.T) {
			gangs, err := Imagine([]byte(tt.doc), "team", s)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, g := range gangs {
				text := fmt.Sprintf("%s: %d pods", g.Owner.Name, len(g.Pods))
				for what, why := range map[string]*plan.Reason{"held": g.Hold, "short": g.Short} {
					if why == nil {
						continue
					}
					of, rest, _ := strings.Cut(why.Message, " can't be created")
					text += ", " + what + " " + of
					if why.Code != plan.NamespaceQuota || !strings.Contains(rest, "in namespace team: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2") {
						t.Errorf("the reason is %s", why)
					}
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if used := s.Cluster.Quotas[0].Status.Used["requests.nvidia.com/gpu"]; used.Value() != 1 {
		t.Errorf("the state was changed: %s used", used.String())
	}
}
