package plan_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

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
		captured := plan.Captured(g.s)
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

const confidence = "hunter2"

// confide writes something confidential wherever an object has room for it that
// no rule reads.
func confide(s *plan.State) {
	c := &s.Cluster
	for i := range c.Nodes {
		confideIn(&c.Nodes[i])
		c.Nodes[i].Status.Addresses = []corev1.NodeAddress{{Address: confidence}}
	}
	for i := range c.Pods {
		confidePod(&c.Pods[i])
	}
	for i := range s.Gangs {
		for j := range s.Gangs[i].Pods {
			confidePod(&s.Gangs[i].Pods[j])
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

func text(t *rapid.T, v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
