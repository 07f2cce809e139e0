package procnode_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/e2e/procnode"
	"spillway.dev/spillway/nodeagent"
)

// testAgent gives the machine an agent that dies on its first start.
func testAgent(t *testing.T, w world) {
	config := w.config(t, "agent", func(c *procnode.Config) {
		dir := filepath.Dir(c.Dir)
		c.Agent, c.Join = filepath.Join(dir, "agent"), filepath.Join(dir, "join.json")
		write(t, c.Join, []byte("{}"))
		script := "#!/bin/sh\necho \"$@\" >>" + dir + "/starts\nif test -e " + dir + "/second; then exec " + nap(6) + "; fi\ntouch " + dir + "/second\nexit 9\n"
		write(t, c.Agent, []byte(script))
		if err := os.Chmod(c.Agent, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	m := w.boot(t, config)
	w.await(t, "the agent is started again", func() bool { return len(processes(t, nap(6))) == 1 })
	b, err := os.ReadFile(filepath.Join(filepath.Dir(config.Dir), "starts"))
	if err != nil {
		t.Fatal(err)
	}
	want := "--client-cert " + config.ClientCert + " --client-key " + config.ClientKey + " --join " + config.Join +
		" --state " + config.Dir + "/disk/agent --pods " + config.Dir + "/node.sock --on-prem\n"
	if got := string(b); got != want+want {
		t.Errorf("agent started with %q, want twice %q", got, want)
	}
	m.Kill()
	w.await(t, "the agent is gone", func() bool { return len(processes(t, nap(6))) == 0 })
}

func dial(t *testing.T, m *procnode.Machine) *nodeagent.Socket {
	t.Helper()
	s, err := nodeagent.Dial(filepath.Join(m.Dir, "node.sock"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// cases: N33 k8s#119423: one device belongs to one pod at a time, and a pod
// that has ended says so while it is still listed.
func testSocket(t *testing.T, w world) {
	m := w.machine(t, "socket", func(c *procnode.Config) { c.GPUs, c.GPUModel = 1, "H100" })
	s := dial(t, m)
	devices, err := s.Devices(t.Context())
	if err != nil || len(devices) != 1 || devices[0].Model != "H100" || devices[0].Resource != "nvidia.com/gpu" || !devices[0].Healthy {
		t.Fatalf("Devices() = %+v, %v", devices, err)
	}
	first := w.reaches(t, w.pod(t, "socket", "true", gpus(1)), corev1.PodSucceeded)
	second := w.reaches(t, w.pod(t, "socket", "exec sleep 300", gpus(1)), corev1.PodRunning)
	pods, err := s.Pods(t.Context())
	if err != nil || len(pods) != 2 {
		t.Fatalf("Pods() = %+v, %v, want two", pods, err)
	}
	for _, p := range pods {
		if p.Started.IsZero() || len(p.GPUs) != 1 || p.GPUs[0] != devices[0].ID || p.Container != "main" || p.Namespace != "default" {
			t.Errorf("record = %+v", p)
		}
		if finished := !p.Finished.IsZero(); finished != (p.Name == first.Name) || p.UID != string(first.UID) && p.UID != string(second.UID) {
			t.Errorf("record = %+v, want only %s finished", p, first.Name)
		}
	}
	if err := s.PowerOff(t.Context(), "test"); err != nil {
		t.Fatal(err)
	}
	goesOff(t, m)
	if err := m.Err(); err != nil {
		t.Errorf("Err() after power off = %v, want nil", err)
	}
	if left := processes(t, m.Dir); len(left) > 0 {
		t.Errorf("left after power off: %v", left)
	}
}

func testStop(t *testing.T, w world) {
	m := w.machine(t, "stop")
	obeys := w.pod(t, "stop", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
	stubborn := w.pod(t, "stop", "trap '' TERM; echo up; while :; do sleep 0.05; done")
	w.says(t, obeys, "up")
	w.says(t, stubborn, "up")
	if err := dial(t, m).StopPods(t.Context(), 2*time.Second, "the lease is over"); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{obeys, stubborn} {
		got := w.reaches(t, pod, corev1.PodFailed)
		if got.Status.Reason != "Terminated" || !strings.Contains(got.Status.Message, "the lease is over") {
			t.Errorf("status = %s: %s, want Terminated with the reason", got.Status.Reason, got.Status.Message)
		}
	}
	if got := w.log(t, obeys, corev1.PodLogOptions{}); got != "up\nbye\n" {
		t.Errorf("log = %q, want up and bye", got)
	}
	if got := w.reaches(t, w.pod(t, "stop", "true"), corev1.PodFailed); got.Status.Reason != "NodeShutdown" {
		t.Errorf("a pod that came after the stop: %s, want NodeShutdown", got.Status.Reason)
	}
	w.await(t, "the node is not Ready", func() bool { return w.ready(t, "stop") == corev1.ConditionFalse })
}

// testOutage cuts the machine off from the API server: what the agent asks for
// happens all the same, and is told when the line is back.
func testOutage(t *testing.T, w world) {
	line := newLine(t, strings.TrimPrefix(w.cp.URL, "https://"))
	m := w.machine(t, "outage", func(c *procnode.Config) { c.APIServer = "https://" + line.addr() })
	pod := w.pod(t, "outage", "echo up; exec "+nap(7))
	w.says(t, pod, "up")
	w.reaches(t, pod, corev1.PodRunning)
	line.cut()
	if err := dial(t, m).StopPods(t.Context(), time.Second, "out of contact"); err != nil {
		t.Fatal(err)
	}
	w.await(t, "the pod's process is gone", func() bool { return len(processes(t, nap(7))) == 0 })
	if got, err := w.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil || got.Status.Phase != corev1.PodRunning {
		t.Errorf("the cut line told something: %v, %v", got.Status.Phase, err)
	}
	line.mend()
	w.reaches(t, pod, corev1.PodFailed)
}

// line is a TCP connection that can be cut.
type line struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	isCut bool
	open  []net.Conn
}

func newLine(t *testing.T, target string) *line {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	out := &line{listener: l, target: target}
	t.Cleanup(func() { _ = l.Close(); out.cut() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out.carry(in)
		}
	}()
	return out
}

func (l *line) addr() string { return l.listener.Addr().String() }

func (l *line) carry(in net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out, err := net.Dial("tcp", l.target)
	if err != nil || l.isCut {
		_ = in.Close()
		return
	}
	l.open = append(l.open, in, out)
	go func() { _, _ = io.Copy(out, in) }()
	go func() { _, _ = io.Copy(in, out) }()
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = true
	for _, c := range l.open {
		_ = c.Close()
	}
	l.open = nil
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = false
}

// testRefusals starts machines that can't work; each says why.
func testRefusals(t *testing.T, w world) {
	running := w.config(t, "busy")
	w.boot(t, running)
	long := w.config(t, "long", func(c *procnode.Config) { c.Dir += strings.Repeat("x", 120) })
	foreign := w.config(t, "busy", func(c *procnode.Config) { c.ProviderID = "spillway://else/where/1" })
	wrongName := w.config(t, "busy", func(c *procnode.Config) { c.Name = "someone-else" })
	for name, tt := range map[string]struct {
		config procnode.Config
		want   string
	}{
		"the folder of a machine that runs":  {running, "in use by another machine"},
		"a path too long for a socket":       {long, "choose a shorter --dir"},
		"the name of another machine's node": {foreign, "another machine has this name"},
		"a name that isn't in the identity":  {wrongName, "orbidden"},
		"join data that isn't there":         {procnode.Config{Exec: running.Exec, Dir: filepath.Join(tempDir(t), "m"), Join: "/no/such/file"}, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, tt.config)
			goesOff(t, m)
			if err := m.Err(); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Err() = %v, want it to contain %q", err, tt.want)
			}
		})
	}
	t.Run("SIGTERM is a power off in order", func(t *testing.T) {
		m := w.machine(t, "sigterm")
		pod := w.pod(t, "sigterm", "echo up; exec "+nap(8))
		w.says(t, pod, "up")
		if err := syscall.Kill(m.PID(), syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		goesOff(t, m)
		if err := m.Err(); err != nil {
			t.Error(err)
		}
		if left := processes(t, nap(8)); len(left) > 0 {
			t.Errorf("left after power off: %v", left)
		}
	})
}

func TestUsage(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no folder":               {nil, "--dir is missing"},
		"no identity":             {[]string{"--dir=x"}, "no identity"},
		"half an identity":        {[]string{"--dir=x", "--client-cert=y"}, "belong together"},
		"an argument":             {[]string{"--dir=x", "--join=y", "z"}, `unexpected argument "z"`},
		"a taint without effect":  {[]string{"--taint=a=b"}, "is not KEY=VALUE:EFFECT"},
		"an agent without a join": {[]string{"--dir=x", "--client-cert=y", "--client-key=y", "--agent=z"}, "--agent needs --join"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(os.Args[0], append([]string{"machine"}, tt.args...)...).CombinedOutput()
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 {
				t.Errorf("exit = %v, want status 2", err)
			}
			if !strings.Contains(string(out), tt.want) {
				t.Errorf("output = %s, want %q", out, tt.want)
			}
		})
	}
}

func tlsClient(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	cert, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, // as the API server does
	}}}
}
