package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/plan"
)

// A captured state decides as the whole one.
func TestCapturedDecidesAlike(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := draw(t)
		if rapid.Bool().Draw(t, "horizon") {
			g = drawHorizon(t)
		}
		confide(&g.s)
		before := text(t, g.s)
		captured := again(t, plan.Captured(g.s))
		if diff := cmp.Diff(plan.Decide(g.s), plan.Decide(captured)); diff != "" {
			t.Fatalf("the captured state decides differently:\n%s", diff)
		}
		if text(t, g.s) != before {
			t.Fatal("the state was changed")
		}
		if strings.Contains(text(t, captured), confidence) {
			t.Fatalf("something confidential was kept: %s", text(t, captured))
		}
	})
}

// How volumes are mounted is where passwords of file servers stand, and an
// address stands in more places than the status of a node.
func TestCapturedTellsNothingOfMounts(t *testing.T) {
	confided := map[string]string{"password": confidence}
	claim := &corev1.PersistentVolumeClaimTemplate{}
	confideIn(claim)
	g := site().node("rack1", 1).gang("train", 2).pods(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "share", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "smb.csi.k8s.io", VolumeAttributes: confided}}},
			{Name: "old", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "example.org/cifs", Options: confided}}},
			{Name: "code", VolumeSource: corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{Repository: "https://me:" + confidence + "@git.example.org/code"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: claim}}},
		}
	})
	c := &g.s.Cluster
	c.Nodes[0].Annotations = map[string]string{"alpha.kubernetes.io/provided-node-ip": confidence}
	c.Volumes = []corev1.PersistentVolume{{}, {}}
	c.Volumes[0].Spec.MountOptions = []string{"username=me", "password=" + confidence}
	c.Volumes[0].Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "smb.csi.k8s.io", VolumeHandle: "share", VolumeAttributes: confided}
	c.Volumes[1].Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.org/cifs", Options: confided}
	c.StorageClasses = []storagev1.StorageClass{{Parameters: confided, MountOptions: []string{"password=" + confidence}}}

	before := text(t, g.s)
	captured := plan.Captured(g.s)
	if kept := text(t, captured); strings.Contains(kept, confidence) {
		t.Errorf("something confidential was kept: %s", kept)
	}
	if text(t, g.s) != before {
		t.Error("the state was changed")
	}
	if diff := cmp.Diff(plan.Decide(g.s), plan.Decide(captured)); diff != "" {
		t.Errorf("the captured state decides differently:\n%s", diff)
	}
	if got := captured.Cluster.Volumes[0].Spec.CSI; got.Driver != "smb.csi.k8s.io" || got.VolumeHandle != "share" {
		t.Errorf("the volume is %+v; filters count by its driver and handle", got)
	}
}

// again is a state that was written down and read.
func again(t rapid.TB, s plan.State) plan.State {
	var read plan.State
	if err := json.Unmarshal([]byte(text(t, s)), &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// Who made a pod is in no captured state where its maker's tool writes it, nor
// where the tenant says that a label names people; and rules that select by such
// select as before.
func TestCapturedNamesNobody(t *testing.T) {
	const user, mail = "example.com/user", "workflows.argoproj.io/creator-email"
	apart := func(key string, values ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Labels = map[string]string{user: values[0], "app": "notebook"}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}},
				}}},
			}}
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 5, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{key: values[0]}},
			}}
		}
	}
	g := site().rules(func(s *v1alpha1.BurstTenantSpec) { s.PersonalLabels = []string{user} }).
		node("rack1", 8).node("rack2", 8).gangOf("vision", "sits", 1).pods(apart(user, "ada", "bob"))
	sits := g.s.Gangs[0].Pods[0].DeepCopy()
	sits.Spec.NodeName, sits.Labels[mail] = "rack1", "ada@example.org"
	g.s.Gangs, g.s.Cluster.Pods = nil, append(g.s.Cluster.Pods, sits)
	g = g.gang("beside", 8).pods(apart(user, "ada")).gang("other", 1).pods(apart(user, "carol")).gang("third", 8).pods(apart("app", "none"))

	before, want := text(t, g.s), plan.Decide(g.s).Explain()
	captured := again(t, plan.Captured(g.s))
	for _, name := range []string{"ada", "bob", "carol"} {
		if strings.Contains(text(t, captured), `"`+name) {
			t.Errorf("%s is in it: %s", name, text(t, captured))
		}
	}
	if got := plan.Decide(captured).Explain(); got != want || !strings.Contains(want, "it fits now on rack2") {
		t.Errorf("the captured state decides\n%swant\n%s", got, want)
	}
	if p := captured.Cluster.Pods[0]; p.Labels["app"] != "notebook" || p.Labels[user] == "" || p.Labels[mail] == p.Labels[user] {
		t.Errorf("its labels are %v", p.Labels)
	}
	if text(t, g.s) != before {
		t.Error("the state was changed")
	}
}

const confidence = "hunter2"

// confide writes something confidential wherever an object has room for it that
// no rule reads.
func confide(s *plan.State) {
	c := &s.Cluster
	for i := range c.Nodes {
		confideIn(c.Nodes[i])
		c.Nodes[i].Status.Addresses = []corev1.NodeAddress{{Address: confidence}}
	}
	for i := range c.Pods {
		confidePod(c.Pods[i])
	}
	for i := range s.Gangs {
		for j := range s.Gangs[i].Pods {
			confidePod(s.Gangs[i].Pods[j])
		}
	}
	c.DaemonSets = append(c.DaemonSets, daemonSet("1"))
	d := &c.DaemonSets[0]
	confideIn(d)
	d.Spec.Template.Annotations = map[string]string{"owner": confidence}
	confideSpec(&d.Spec.Template.Spec)
	for i := range c.Namespaces {
		confideIn(&c.Namespaces[i])
	}
	for i := range s.Tenants {
		confideIn(&s.Tenants[i])
	}
	for i := range s.Providers {
		confideIn(&s.Providers[i])
	}
	for i := range s.Bursts {
		confideIn(&s.Bursts[i])
	}
}

func confideIn(o metav1.Object) {
	o.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": confidence, "openshift.io/requester": confidence})
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: confidence}})
}

func confidePod(p *corev1.Pod) {
	confideIn(p)
	confideSpec(&p.Spec)
	p.Status.PodIP, p.Status.Message = confidence, confidence
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: confidence}}}}
}

func confideSpec(s *corev1.PodSpec) {
	s.HostAliases = []corev1.HostAlias{{IP: confidence}}
	s.InitContainers = append(s.InitContainers, corev1.Container{Name: "before", Args: []string{confidence}})
	for i := range s.Containers {
		c := &s.Containers[i]
		c.Command, c.Args = []string{confidence}, []string{confidence}
		c.Env = []corev1.EnvVar{{Name: "PASSWORD", Value: confidence}}
		c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{confidence}}}}
		c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{confidence}}}}
	}
}

func text(t rapid.TB, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
