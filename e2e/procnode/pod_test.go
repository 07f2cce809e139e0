package procnode_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/e2e/procnode"
)

func testEnvironment(t *testing.T, w world) {
	w.machine(t, "env")
	objects := metav1.ObjectMeta{Name: "env"}
	if _, err := w.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: objects, StringData: map[string]string{"key": "s3cret", "OTHER": "all"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := w.pod(t, "env", `env; echo "args: $0 $1"`, func(pod *corev1.Pod) {
		pod.Name, pod.Labels = "env-pod", map[string]string{"team": "vision"}
		c := &pod.Spec.Containers[0]
		c.Args = []string{"$(GREETING)", "$$(GREETING)$(NOT_THERE)"}
		c.EnvFrom = []corev1.EnvFromSource{{Prefix: "ALL_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}}}}
		from := func(name string, source corev1.EnvVarSource) corev1.EnvVar {
			return corev1.EnvVar{Name: name, ValueFrom: &source}
		}
		field := func(path string) corev1.EnvVarSource {
			return corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		yes := true
		absent := corev1.LocalObjectReference{Name: "not-there"}
		c.Env = []corev1.EnvVar{
			from("SECRET", corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}, Key: "key"}}),
			from("CONFIG", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "env"}, Key: "key"}}),
			from("OPTIONAL", corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: absent, Key: "key", Optional: &yes}}),
			from("POD", field("metadata.name")), from("NODE", field("spec.nodeName")), from("TEAM", field("metadata.labels['team']")), from("IP", field("status.podIP")),
			{Name: "GREETING", Value: "hello $(SECRET), $(LATER)"},
			{Name: "LATER", Value: "too late"},
		}
	})
	// A container waits for what it names, as with a kubelet.
	w.await(t, "the container says what it waits for", func() bool {
		got, err := w.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err != nil || len(got.Status.ContainerStatuses) == 0 {
			return false
		}
		waiting := got.Status.ContainerStatuses[0].State.Waiting
		return waiting != nil && waiting.Reason == "CreateContainerConfigError" && strings.Contains(waiting.Message, "ConfigMap env")
	})
	if _, err := w.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: objects, Data: map[string]string{"key": "plain"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.reaches(t, pod, corev1.PodSucceeded)
	got := strings.Split(w.log(t, pod, corev1.PodLogOptions{}), "\n")
	for _, want := range []string{
		"SECRET=s3cret", "CONFIG=plain", "ALL_key=s3cret", "ALL_OTHER=all", "POD=env-pod", "NODE=env", "TEAM=vision", "IP=127.0.0.1",
		"GREETING=hello s3cret, $(LATER)", "HOSTNAME=env-pod", "NVIDIA_VISIBLE_DEVICES=void",
		"args: hello s3cret, $(LATER) $(GREETING)$(NOT_THERE)",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the pod's environment lacks %q:\n%s", want, strings.Join(got, "\n"))
		}
	}
	for _, line := range got {
		if strings.HasPrefix(line, "OPTIONAL=") || strings.HasPrefix(line, "HTTP_PROXY=") {
			t.Errorf("unwanted variable %q", line)
		}
	}
}

func testExit(t *testing.T, w world) {
	w.machine(t, "exit")
	two := func(script string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "second", Image: "x", Command: []string{"sh", "-c", script}})
		}
	}
	deadline := int64(1)
	tests := map[string]struct {
		script string
		change func(*corev1.Pod)
		phase  corev1.PodPhase
		reason string // of the pod
		exit   string // of the containers
	}{
		"success":                                 {"true", nil, corev1.PodSucceeded, "", "0 Completed"},
		"a failure keeps its exit status":         {"exit 7", nil, corev1.PodFailed, "", "7 Error"},
		"death by a signal is 128 and the signal": {"kill -9 $$$$", nil, corev1.PodFailed, "", "137 Error"},
		"one of two fails":                        {"true", two("exit 3"), corev1.PodFailed, "", "0 Completed, 3 Error"},
		"both succeed":                            {"true", two("true"), corev1.PodSucceeded, "", "0 Completed, 0 Completed"},
		"a command that isn't there": {"", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Command = []string{"/no/such/program"}
		}, corev1.PodFailed, "", "128 StartError"},
		"no command, because images aren't run": {"", func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Command = nil
		}, corev1.PodFailed, "", "128 StartError"},
		"a deadline ends it": {"exec sleep 300", func(pod *corev1.Pod) {
			pod.Spec.ActiveDeadlineSeconds = &deadline
		}, corev1.PodFailed, "DeadlineExceeded", "143 Error"},
		"a volume is refused": {"true", func(pod *corev1.Pod) {
			pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}, corev1.PodFailed, "Unsupported", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var changes []func(*corev1.Pod)
			if tt.change != nil {
				changes = append(changes, tt.change)
			}
			got := w.reaches(t, w.pod(t, "exit", tt.script, changes...), tt.phase)
			if got.Status.Reason != tt.reason {
				t.Errorf("reason = %q (%s), want %q", got.Status.Reason, got.Status.Message, tt.reason)
			}
			var exits []string
			for _, s := range got.Status.ContainerStatuses {
				end := s.State.Terminated
				if end == nil {
					t.Fatalf("container %s is not terminated: %+v", s.Name, s.State)
				}
				exits = append(exits, fmt.Sprintf("%d %s", end.ExitCode, end.Reason))
				if end.StartedAt.IsZero() || end.FinishedAt.Before(&end.StartedAt) {
					t.Errorf("container %s started %v, finished %v", s.Name, end.StartedAt, end.FinishedAt)
				}
			}
			if exit := strings.Join(exits, ", "); exit != tt.exit {
				t.Errorf("containers ended with %q, want %q", exit, tt.exit)
			}
		})
	}
}

func testRestarts(t *testing.T, w world) {
	w.machine(t, "restarts")
	// HOME stays the same across the restarts of a container.
	pod := w.pod(t, "restarts", "echo run >>$HOME/runs; test $(wc -l <$HOME/runs) -ge 2", policy(corev1.RestartPolicyOnFailure))
	s := w.reaches(t, pod, corev1.PodSucceeded).Status.ContainerStatuses[0]
	if s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("restarts = %d, last = %+v, want one after exit status 1", s.RestartCount, s.LastTerminationState)
	}
	marks := filepath.Join(tempDir(t), "marks")
	step := func(name, script string) corev1.Container {
		return corev1.Container{Name: name, Image: "x", Command: []string{"sh", "-c", script}}
	}
	pod = w.pod(t, "restarts", "echo main >>"+marks, func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{step("one", "echo one >>"+marks), step("two", "echo two >>"+marks)}
	})
	w.reaches(t, pod, corev1.PodSucceeded)
	if b, err := os.ReadFile(marks); err != nil || string(b) != "one\ntwo\nmain\n" {
		t.Errorf("order = %q, %v, want one, two, main", b, err)
	}
	pod = w.pod(t, "restarts", "echo never >>"+marks, func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{step("one", "exit 4")}
	})
	w.reaches(t, pod, corev1.PodFailed)
	if b, err := os.ReadFile(marks); err != nil || strings.Contains(string(b), "never") {
		t.Errorf("a container ran although its init container failed: %q, %v", b, err)
	}
}

func testTermination(t *testing.T, w world) {
	w.machine(t, "term")
	t.Run("SIGTERM comes first and may be obeyed", func(t *testing.T) {
		pod := w.pod(t, "term", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
		w.says(t, pod, "up")
		follow := make(chan string)
		go func() {
			b, err := w.CoreV1().Pods("default").GetLogs(pod.Name, &corev1.PodLogOptions{Follow: true}).DoRaw(t.Context())
			follow <- fmt.Sprintf("%s%v", b, err)
		}()
		w.delete(t, pod, 60)
		if got := <-follow; got != "up\nbye\n<nil>" {
			t.Errorf("followed log = %q, want up and bye", got)
		}
		w.vanishes(t, pod)
	})
	t.Run("SIGKILL ends what does not obey", func(t *testing.T) {
		pod := w.pod(t, "term", "trap '' TERM; echo up; while :; do sleep 0.05; done # "+nap(21))
		w.says(t, pod, "up")
		w.delete(t, pod, 1)
		w.vanishes(t, pod)
		if left := processes(t, nap(21)); len(left) > 0 {
			t.Errorf("left after the pod's object is gone: %v", left)
		}
	})
	t.Run("a forced deletion does not wait", func(t *testing.T) {
		pod := w.pod(t, "term", "trap '' TERM; echo up; while :; do sleep 0.05; done # "+nap(22))
		w.says(t, pod, "up")
		w.delete(t, pod, 0)
		w.vanishes(t, pod)
		w.await(t, "its process is gone", func() bool { return len(processes(t, nap(22))) == 0 })
	})
	t.Run("a later, shorter grace counts", func(t *testing.T) {
		pod := w.pod(t, "term", "trap '' TERM; echo up; while :; do sleep 0.05; done # "+nap(23))
		w.says(t, pod, "up")
		w.delete(t, pod, 3600)
		w.delete(t, pod, 1)
		w.vanishes(t, pod)
	})
	t.Run("the end of the main process is the end of the pod's", func(t *testing.T) {
		pod := w.pod(t, "term", "setsid "+nap(1)+" & exit 0")
		w.reaches(t, pod, corev1.PodSucceeded)
		if left := processes(t, nap(1)); len(left) > 0 {
			t.Errorf("left after the pod has ended: %v", left)
		}
	})
}

func testGPUs(t *testing.T, w world) {
	w.machine(t, "gpus", func(c *procnode.Config) { c.GPUs = 2 })
	w.await(t, "two GPUs are allocatable", func() bool { return w.allocatable(t, "gpus") == 2 })
	hold := "echo gpus=$SPILLWAY_GPUS $NVIDIA_VISIBLE_DEVICES.; exec sleep 300"
	first, second := w.pod(t, "gpus", hold, gpus(1)), w.pod(t, "gpus", hold, gpus(1))
	w.says(t, first, "gpus=GPU-")
	w.says(t, second, "gpus=GPU-")
	if a, b := w.log(t, first, corev1.PodLogOptions{}), w.log(t, second, corev1.PodLogOptions{}); a == b {
		t.Errorf("two pods hold the same device: %s", a)
	}
	third := w.reaches(t, w.pod(t, "gpus", "true", gpus(1)), corev1.PodFailed)
	if third.Status.Reason != "OutOfnvidia.com/gpu" || !strings.Contains(third.Status.Message, "requested: 1, used: 2, capacity: 2") {
		t.Errorf("status = %s: %s, want OutOfnvidia.com/gpu with the numbers", third.Status.Reason, third.Status.Message)
	}
	w.delete(t, first, 1)
	w.vanishes(t, first)
	w.reaches(t, w.pod(t, "gpus", "true", gpus(1)), corev1.PodSucceeded)
	both := w.pod(t, "gpus", "true", gpus(2))
	if got := w.reaches(t, both, corev1.PodFailed); got.Status.Reason != "OutOfnvidia.com/gpu" {
		t.Errorf("reason = %q, want OutOfnvidia.com/gpu: one is still held", got.Status.Reason)
	}
}

func testLogs(t *testing.T, w world) {
	w.machine(t, "logs")
	pod := w.pod(t, "logs", "for i in 1 2 3 4; do echo line $i; done; echo err >&2")
	w.reaches(t, pod, corev1.PodSucceeded)
	two, few := int64(2), int64(9)
	for name, tt := range map[string]struct {
		options corev1.PodLogOptions
		want    string
	}{
		"all, both streams": {corev1.PodLogOptions{}, "line 1\nline 2\nline 3\nline 4\nerr\n"},
		"the last lines":    {corev1.PodLogOptions{TailLines: &two}, "line 4\nerr\n"},
		"follow of a pod that has ended comes to an end": {corev1.PodLogOptions{TailLines: &two, Follow: true}, "line 4\nerr\n"},
		"a limit of bytes": {corev1.PodLogOptions{LimitBytes: &few}, "line 1\nli"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.log(t, pod, tt.options); got != tt.want {
				t.Errorf("log = %q, want %q", got, tt.want)
			}
		})
	}
	t.Run("what is not served is refused", func(t *testing.T) {
		kubectl := filepath.Join(w.cp.BinDir, "kubectl")
		out, err := exec.Command(kubectl, "--kubeconfig", w.cp.Kubeconfig, "logs", "--timestamps", pod.Name).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "leave out timestamps") {
			t.Errorf("kubectl logs --timestamps = %v: %s, want a refusal", err, out)
		}
	})
	t.Run("only the API server may read", func(t *testing.T) {
		node, err := w.CoreV1().Nodes().Get(t.Context(), "logs", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
		config, err := w.cp.NodeConfig("logs")
		if err != nil {
			t.Fatal(err)
		}
		client := tlsClient(t, config)
		for path, want := range map[string]int{"/healthz": 200, "/pods": 403, "/containerLogs/default/" + pod.Name + "/main": 403} {
			resp, err := client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("GET %s with a node's certificate = %d, want %d", path, resp.StatusCode, want)
			}
		}
	})
}

// testHosts shows the heart of the demo: one name, two machines, two addresses.
func testHosts(t *testing.T, w world) {
	w.machine(t, "home", func(c *procnode.Config) { c.StoreHost, c.StoreAddr = "s3.onprem.test", "127.0.0.7" })
	w.machine(t, "away", func(c *procnode.Config) { c.StoreHost, c.StoreAddr = "s3.onprem.test", "127.9.9.9" })
	resolvesTo(t, w, "home", "[127.0.0.7] <nil>")
	resolvesTo(t, w, "away", "[127.9.9.9] <nil>")
}

func resolvesTo(t *testing.T, w world, node, want string) {
	t.Helper()
	pod := w.pod(t, node, os.Args[0]+" resolve s3.onprem.test; id -u; grep -c onprem /etc/hosts")
	w.reaches(t, pod, corev1.PodSucceeded)
	if got := w.log(t, pod, corev1.PodLogOptions{}); !strings.HasPrefix(got, want+"\n") {
		t.Errorf("on node %s the store's name means %q, want %q", node, got, want)
	}
}

// testHostsWithoutRoot is the same in a user namespace.
func testHostsWithoutRoot(t *testing.T, w world) {
	config := w.config(t, "rootless", func(c *procnode.Config) { c.StoreHost, c.StoreAddr = "s3.onprem.test", "127.8.8.8" })
	uid := os.Getuid()
	if uid == 0 {
		uid = nobody
		config.Exec = []string{forEveryone(t, os.Args[0]), "machine-of-nobody"}
		giveAway(t, filepath.Dir(config.Dir), config.Dir)
	}
	m := w.boot(t, config)
	if b, err := os.ReadFile(m.Console); err != nil || !strings.Contains(string(b), "user namespace") {
		t.Errorf("console = %s, %v, want that user namespaces are in use", b, err)
	}
	pod := w.pod(t, "rootless", config.Exec[0]+" resolve s3.onprem.test; id -u; grep CapEff /proc/self/status; setsid "+nap(2)+" &")
	w.reaches(t, pod, corev1.PodSucceeded)
	want := fmt.Sprintf("[127.8.8.8] <nil>\n%d\nCapEff:\t0000000000000000\n", uid)
	if got := w.log(t, pod, corev1.PodLogOptions{}); got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	if left := processes(t, nap(2)); len(left) > 0 {
		t.Errorf("left after the pod has ended: %v", left)
	}
	running := w.pod(t, "rootless", "setsid "+nap(3)+" & echo up; wait")
	w.says(t, running, "up")
	m.Kill()
	w.await(t, "nothing of the machine runs", func() bool { return len(processes(t, nap(3)))+len(processes(t, m.Dir)) == 0 })
}

// forEveryone copies a program to where any user may run it.
func forEveryone(t *testing.T, program string) string {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	path := filepath.Join(dir, "program")
	for _, err := range []error{os.WriteFile(path, b, 0o755), os.Chmod(path, 0o755), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// giveAway gives a folder and what lies in it to nobody.
func giveAway(t *testing.T, dir string, more ...string) {
	t.Helper()
	for _, d := range more {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			err = os.Chown(path, nobody, nobody)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func testNoNamespaces(t *testing.T, w world) {
	store := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(out, "store asked for %s %s", r.Host, r.URL.Path)
	}))
	defer store.Close()
	host, port, err := net.SplitHostPort(store.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	m := w.machine(t, "plain", func(c *procnode.Config) {
		c.NoNamespaces, c.StoreHost, c.StoreAddr = true, "s3.onprem.test:"+port, host
	})
	pod := w.pod(t, "plain", os.Args[0]+" get http://s3.onprem.test:"+port+"/bucket/key")
	w.reaches(t, pod, corev1.PodSucceeded)
	if got, want := w.log(t, pod, corev1.PodLogOptions{}), "store asked for s3.onprem.test:"+port+" /bucket/key <nil>\n"; got != want {
		t.Errorf("log = %q, want %q", got, want)
	}
	if b, err := os.ReadFile(m.Console); err != nil || !strings.Contains(string(b), "HTTP_PROXY") {
		t.Errorf("console = %s, %v, want that HTTP_PROXY is in use", b, err)
	}
	stubborn := w.pod(t, "plain", "trap '' TERM; echo up; "+nap(4)+"; "+nap(4))
	w.says(t, stubborn, "up")
	w.delete(t, stubborn, 1)
	w.vanishes(t, stubborn)
	if left := processes(t, nap(4)); len(left) > 0 {
		t.Errorf("left after the pod's object is gone: %v", left)
	}
	running := w.pod(t, "plain", "echo up; exec "+nap(5))
	w.says(t, running, "up")
	m.Kill()
	w.await(t, "nothing of the machine runs", func() bool { return len(processes(t, nap(5)))+len(processes(t, m.Dir)) == 0 })
}
