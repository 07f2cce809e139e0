package plan_test

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/plan"
)

// What is asked about is answered, by whatever name it is known, and nothing
// else is: not another namespace's work of the same name, not a neighbour's.
func TestAbout(t *testing.T) {
	yes := true
	g := site().node("rack1", 2).running("old", "rack1", 2, 0).tenant("other").
		gang("train", 2).pods(func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "train-workers", Controller: &yes}}
	}).offer("ovh", 2, "2 EUR").burst("train", "ovh", "Ending=SoldOut", "Failed=SoldOut").burst("train", "ovh", "Reserved", "PodsAdmitted").
		gang("neighbour", 2).burst("neighbour", "ovh", "Reserved").
		gangOf("other", "train", 2)
	decided := plan.Decide(g.s)
	for name, subject := range map[string]plan.Subject{
		"owner":     {Kind: "Job", Namespace: "vision", Name: "train"},
		"child":     {Kind: "job", Namespace: "vision", Name: "train-workers"},
		"pod":       {Kind: "Pod", Namespace: "vision", Name: "train-0"},
		"burst":     {Kind: "Burst", Namespace: "vision", Name: "train-0"},
		"elsewhere": {Kind: "Job", Namespace: "other", Name: "train"},
		"running":   {Kind: "Pod", Namespace: "other", Name: "old"},
		"nothing":   {Kind: "Job", Namespace: "vision", Name: "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			golden(t, filepath.Join("testdata", "about", name+".txt"), plan.About(g.s, decided, subject).Explain())
		})
	}
}

// Why further pods don't exist is told with what is decided on those that do.
func TestWhatIsMissingIsTold(t *testing.T) {
	short := plan.Reason{Code: plan.NamespaceQuota, Message: "2 of its pods can't be created", Remedy: "wait"}
	g := site().node("rack1", 2).gang("train", 2).work(func(w *plan.Gang) { w.Short = &short })
	d := plan.Decide(g.s).Decisions[0]
	if d.Code != plan.FitsLocally || len(d.Refusals) != 1 || d.Refusals[0].Reason != short {
		t.Errorf("decided:\n%s", d.Explain())
	}
}
