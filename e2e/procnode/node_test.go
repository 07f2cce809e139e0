package procnode_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/nodeagent/link"
)

func testNode(t *testing.T, w world) {
	w.machine(t, "rack-node", func(c *procnode.Config) {
		c.ProviderID, c.GPUs = "spillway://home/rack/1", 2
		c.Labels = map[string]string{"spillway.dev/place": "home"}
		c.Taints = []link.Taint{{Key: "spillway.dev/burst", Value: "b-1", Effect: "NoSchedule"}}
		c.Heartbeat = 200 * time.Millisecond
	})
	node, err := w.CoreV1().Nodes().Get(t.Context(), "rack-node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := node.Spec.ProviderID; got != "spillway://home/rack/1" {
		t.Errorf("providerID = %q", got)
	}
	if got := node.Labels["spillway.dev/place"]; got != "home" {
		t.Errorf("label = %q, want home", got)
	}
	burst := corev1.Taint{Key: "spillway.dev/burst", Value: "b-1", Effect: corev1.TaintEffectNoSchedule}
	found := false
	for _, taint := range node.Spec.Taints {
		found = found || cmp.Equal(taint, burst)
	}
	if !found {
		t.Errorf("taints = %v, want %v among them", node.Spec.Taints, burst)
	}
	w.await(t, "two GPUs are allocatable", func() bool { return w.allocatable(t, "rack-node") == 2 })
	var first metav1.MicroTime
	w.await(t, "the lease is renewed", func() bool {
		lease, err := w.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "rack-node", metav1.GetOptions{})
		if err != nil {
			return false
		}
		if first.IsZero() {
			first = *lease.Spec.RenewTime
		}
		return lease.Spec.RenewTime.After(first.Time)
	})
}

// cases: H-11 kubernetes/kubernetes#54959, H-20 NVIDIA/k8s-device-plugin#291:
// a node is Ready before its GPUs are allocatable, and a pod that is bound in
// between is lost.
func testLateGPUs(t *testing.T, w world) {
	never := func(c *procnode.Config) { c.GPUs, c.GPUDelay = 2, time.Hour }
	w.machine(t, "late-never", never)
	if got := w.allocatable(t, "late-never"); got != 0 {
		t.Errorf("a Ready node whose GPUs are late has %d allocatable, want 0", got)
	}
	pod := w.reaches(t, w.pod(t, "late-never", "true", gpus(1)), corev1.PodFailed)
	if pod.Status.Reason != "OutOfnvidia.com/gpu" {
		t.Errorf("reason = %q, want OutOfnvidia.com/gpu", pod.Status.Reason)
	}
	w.reaches(t, w.pod(t, "late-never", "true"), corev1.PodSucceeded)

	w.machine(t, "late-soon", func(c *procnode.Config) { c.GPUs, c.GPUDelay = 2, 300*time.Millisecond })
	w.await(t, "the late GPUs are allocatable", func() bool { return w.allocatable(t, "late-soon") == 2 })
	w.reaches(t, w.pod(t, "late-soon", "true", gpus(2)), corev1.PodSucceeded)
}

// testIdentity holds the machine's identity against the cluster's rules.
func testIdentity(t *testing.T, w world) {
	w.machine(t, "honest-a")
	w.machine(t, "honest-b")
	config, err := w.cp.NodeConfig("honest-a")
	if err != nil {
		t.Fatal(err)
	}
	a, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "honest"}, StringData: map[string]string{"k": "v"}}
	if _, err := w.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign := w.reaches(t, w.pod(t, "honest-b", "exec sleep 300"), corev1.PodRunning)
	merge := []byte(`{"metadata":{"labels":{"x":"y"}}}`)
	refused := map[string]func() error{
		"labels another node": func() error {
			_, err := a.CoreV1().Nodes().Patch(t.Context(), "honest-b", "application/merge-patch+json", merge, metav1.PatchOptions{})
			return err
		},
		"writes another node's status": func() error {
			_, err := a.CoreV1().Nodes().Patch(t.Context(), "honest-b", "application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status")
			return err
		},
		"takes off its own taints": func() error {
			_, err := a.CoreV1().Nodes().Patch(t.Context(), "honest-a", "application/merge-patch+json", []byte(`{"spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
			return err
		},
		"reads a Secret that none of its pods names": func() error {
			_, err := a.CoreV1().Secrets("default").Get(t.Context(), "honest", metav1.GetOptions{})
			return err
		},
		"deletes a pod of another node": func() error {
			return a.CoreV1().Pods("default").Delete(t.Context(), foreign.Name, metav1.DeleteOptions{})
		},
	}
	for name, try := range refused {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("a node identity %s: %v, want Forbidden", name, err)
		}
	}
	if _, err := a.CoreV1().Nodes().Patch(t.Context(), "honest-a", "application/merge-patch+json", merge, metav1.PatchOptions{}); err != nil {
		t.Errorf("a node identity labels its own node: %v", err)
	}
}

// testScheduler runs an ordinary Job through the real scheduler.
func testScheduler(t *testing.T, w world) {
	w.machine(t, "sched", func(c *procnode.Config) {
		c.GPUs, c.Labels = 1, map[string]string{"story": "sched"}
	})
	two := int32(2)
	pod := corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{"story": "sched"},
		Containers: []corev1.Container{{Name: "main", Image: "x", Command: []string{"sh", "-c", "echo one step"}}},
	}}
	gpus(1)(&pod)
	job, err := w.BatchV1().Jobs("default").Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "sched"},
		Spec:       batchv1.JobSpec{Completions: &two, Parallelism: &two, Template: corev1.PodTemplateSpec{Spec: pod.Spec}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, "the Job is complete, one pod after the other on one GPU", func() bool {
		if job, err = w.BatchV1().Jobs("default").Get(t.Context(), "sched", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if job.Status.Failed > 0 {
			t.Fatalf("a pod of the Job failed: %+v", job.Status)
		}
		return job.Status.Succeeded == 2
	})
}

// testPowerCut kills a machine with SIGKILL; nothing that it ran survives,
// however far it had detached itself.
func testPowerCut(t *testing.T, w world) {
	m := w.machine(t, "cut", func(c *procnode.Config) { c.GPUs = 1 })
	pod := w.pod(t, "cut", "(setsid sh -c 'setsid "+nap(97)+" & "+nap(96)+"' &) ; echo up; exec "+nap(95))
	w.says(t, pod, "up")
	for _, sleep := range []string{nap(95), nap(96), nap(97)} {
		w.await(t, sleep+" runs", func() bool { return len(processes(t, sleep)) > 0 })
	}
	m.Kill()
	w.await(t, "nothing of the machine runs", func() bool {
		left := processes(t, m.Dir)
		for _, sleep := range []string{nap(95), nap(96), nap(97)} {
			left = append(left, processes(t, sleep)...)
		}
		return len(left) == 0
	})
	if err := m.Err(); err == nil {
		t.Error("Err() after a power cut = nil, want how it ended")
	}
}

func testMachineRestart(t *testing.T, w world) {
	config := w.config(t, "again", func(c *procnode.Config) { c.GPUs = 2 })
	m := w.boot(t, config)
	marks := filepath.Join(filepath.Dir(config.Dir), "marks")
	mark := func(name string) string { return "echo " + name + " >>" + marks + "; " }
	once := w.pod(t, "again", mark("once")+"exec sleep 300", gpus(1))
	retried := w.pod(t, "again", "if test -e "+marks+".retried; then "+mark("second")+"exit 0; fi; touch "+marks+".retried; "+mark("first")+"exec sleep 300", policy(corev1.RestartPolicyOnFailure))
	done := w.reaches(t, w.pod(t, "again", mark("done"), policy(corev1.RestartPolicyOnFailure)), corev1.PodSucceeded)
	for _, pod := range []*corev1.Pod{once, retried} {
		w.reaches(t, pod, corev1.PodRunning)
	}
	w.await(t, "all have left their mark", func() bool { b, _ := os.ReadFile(marks); return bytes.Count(b, []byte("\n")) == 3 })
	m.Kill()
	w.boot(t, config)

	got := w.reaches(t, once, corev1.PodFailed)
	if s := got.Status.ContainerStatuses[0].State.Terminated; s == nil || s.ExitCode != 137 || s.Reason != "ContainerStatusUnknown" {
		t.Errorf("state of the pod that must not run twice = %+v, want 137 ContainerStatusUnknown", s)
	}
	got = w.reaches(t, retried, corev1.PodSucceeded)
	if n := got.Status.ContainerStatuses[0].RestartCount; n != 1 {
		t.Errorf("restartCount = %d, want 1", n)
	}
	w.reaches(t, done, corev1.PodSucceeded)
	b, err := os.ReadFile(marks)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(b))
	count := map[string]int{}
	for _, line := range lines {
		count[line]++
	}
	if diff := cmp.Diff(map[string]int{"once": 1, "first": 1, "second": 1, "done": 1}, count); diff != "" {
		t.Errorf("runs (-want +got):\n%s", diff)
	}
}
