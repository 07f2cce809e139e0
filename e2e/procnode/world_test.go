package procnode_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/e2e/procnode"
)

const patience = 2 * time.Minute

// TestMain lets the test binary play all the programs of a machine.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch args := os.Args[2:]; os.Args[1] {
		case procnode.InitArg:
			os.Exit(procnode.PodInit(args))
		case "machine":
			os.Exit(procnode.Main(args))
		case "machine-of-nobody": // a machine started without root
			if err := syscall.Setgid(nobody); err != nil {
				panic(err)
			}
			if err := syscall.Setuid(nobody); err != nil {
				panic(err)
			}
			// Only a fresh program may write its children's user mappings.
			if err := syscall.Exec(os.Args[0], append([]string{os.Args[0], "machine"}, args...), os.Environ()); err != nil {
				panic(err)
			}
		case "resolve": // a job that looks up a name
			addrs, err := net.LookupHost(args[0])
			fmt.Println(addrs, err)
			os.Exit(0)
		case "get": // a job that reads a URL
			fmt.Println(get(args[0]))
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

const nobody = 65534

func get(url string) (string, error) {
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// TestProcessNode shares one real control plane among all stories.
func TestProcessNode(t *testing.T) {
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	cp, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: bin, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	client, err := kubernetes.NewForConfig(cp.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	w := world{cp: cp, Interface: client}
	t.Run("stories", func(t *testing.T) {
		for name, story := range map[string]func(*testing.T, world){
			"node": testNode, "GPUs come late": testLateGPUs, "identity": testIdentity,
			"environment": testEnvironment, "exit": testExit, "restarts": testRestarts, "termination": testTermination,
			"GPUs": testGPUs, "scheduler": testScheduler, "logs": testLogs, "hosts": testHosts, "hosts without root": testHostsWithoutRoot,
			"no namespaces": testNoNamespaces, "power cut": testPowerCut, "restart": testMachineRestart, "API outage": testOutage,
			"join": testJoin, "join denied": testJoinDenied, "join too late": testJoinTooLate,
			"agent": testAgent, "stop": testStop, "socket": testSocket, "refusals": testRefusals,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				story(t, w)
			})
		}
	})
}

// world is the cluster and what stories do in it.
type world struct {
	kubernetes.Interface
	cp *controlplane.ControlPlane
}

// machine starts an on-prem machine and waits until its node is Ready.
func (w world) machine(t *testing.T, name string, change ...func(*procnode.Config)) *procnode.Machine {
	t.Helper()
	return w.boot(t, w.config(t, name, change...))
}

func (w world) config(t *testing.T, name string, change ...func(*procnode.Config)) procnode.Config {
	t.Helper()
	dir := tempDir(t)
	cert, key, err := w.cp.SignNode(name)
	if err != nil {
		t.Fatal(err)
	}
	config := procnode.Config{
		Exec: []string{os.Args[0], "machine"}, Dir: filepath.Join(dir, "m"),
		Name: name, APIServer: w.cp.URL, CA: filepath.Join(dir, "ca.crt"),
		ClientCert: filepath.Join(dir, "node.crt"), ClientKey: filepath.Join(dir, "node.key"),
	}
	for path, content := range map[string][]byte{config.CA: w.cp.CACert, config.ClientCert: cert, config.ClientKey: key} {
		write(t, path, content)
	}
	for _, c := range change {
		c(&config)
	}
	return config
}

func (w world) boot(t *testing.T, config procnode.Config) *procnode.Machine {
	t.Helper()
	m := start(t, config)
	w.await(t, "node "+config.Name+" is Ready", func() bool {
		select {
		case <-m.Done():
			t.Fatal(m.Err())
		default:
		}
		return w.ready(t, config.Name) == corev1.ConditionTrue
	})
	return m
}

// start starts a machine and cuts its power at the end of the test.
func start(t *testing.T, config procnode.Config) *procnode.Machine {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m, err := procnode.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		<-m.Done()
		if t.Failed() {
			b, _ := os.ReadFile(m.Console)
			t.Logf("console of %s:\n%s", config.Name, b)
		}
	})
	return m
}

// goesOff waits until a machine is off by itself.
func goesOff(t *testing.T, m *procnode.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatalf("the machine in %s is not off after %v", m.Dir, patience)
	}
}

func (w world) ready(t *testing.T, name string) corev1.ConditionStatus {
	t.Helper()
	node, err := w.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func (w world) allocatable(t *testing.T, name string) int64 {
	t.Helper()
	node, err := w.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	q := node.Status.Allocatable["nvidia.com/gpu"]
	return q.Value()
}

// pod runs a shell script on a node, past the scheduler.
func (w world) pod(t *testing.T, node, script string, change ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "main", Image: "any/image:1", Command: []string{"sh", "-c", script}}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	pod, err := w.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func gpus(n int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
	}
}

func policy(p corev1.RestartPolicy) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = p }
}

// reaches waits for a phase and returns the pod in it.
func (w world) reaches(t *testing.T, pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	var got *corev1.Pod
	w.await(t, "pod "+pod.Name+" is "+string(phase), func() bool {
		var err error
		if got, err = w.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		final := got.Status.Phase == corev1.PodSucceeded || got.Status.Phase == corev1.PodFailed
		if final && got.Status.Phase != phase {
			t.Fatalf("pod %s is %s, want %s: %+v", pod.Name, got.Status.Phase, phase, got.Status)
		}
		return got.Status.Phase == phase
	})
	return got
}

func (w world) log(t *testing.T, pod *corev1.Pod, options corev1.PodLogOptions) string {
	t.Helper()
	b, err := w.CoreV1().Pods("default").GetLogs(pod.Name, &options).DoRaw(t.Context())
	if err != nil {
		t.Fatalf("logs of %s: %v: %s", pod.Name, err, b)
	}
	return string(b)
}

// says waits until a running pod's log holds a text.
func (w world) says(t *testing.T, pod *corev1.Pod, text string) {
	t.Helper()
	w.await(t, "the log of "+pod.Name+" says "+text, func() bool {
		b, err := w.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
		return err == nil && strings.Contains(string(b), text)
	})
}

func (w world) delete(t *testing.T, pod *corev1.Pod, grace int64) {
	t.Helper()
	if err := w.CoreV1().Pods("default").Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
}

func (w world) vanishes(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	w.await(t, "the object of "+pod.Name+" is gone", func() bool {
		_, err := w.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// await polls cond and fails the test when it isn't met in time.
func (w world) await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// tempDir is short, so that a Unix socket fits into it.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// nap is a command that sleeps for a day, and a text to find it by among the
// processes; other runs of these tests have other naps.
func nap(i int) string { return fmt.Sprintf("sleep 864%02d.%d", i, os.Getpid()) }

// processes returns the command lines of living processes that hold text.
func processes(t *testing.T, text string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		b, err := os.ReadFile(path) // zombies and the dead have none
		if line := strings.ReplaceAll(string(b), "\x00", " "); err == nil && strings.Contains(line, text) {
			found = append(found, path+": "+line)
		}
	}
	return found
}
