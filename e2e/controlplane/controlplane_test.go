package controlplane_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spillway.dev/spillway/e2e/controlplane"
)

// TestMain lets the test binary play the parent that is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		hold(os.Args[2])
	}
	os.Exit(m.Run())
}

// hold starts a control plane in dir, says so in the file dir/held, and waits.
func hold(dir string) {
	bin, err := controlplane.FindBinDir()
	if err == nil {
		_, err = controlplane.Start(context.Background(), controlplane.Config{BinDir: bin, Dir: dir})
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "held"), nil, 0o600)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

func start(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: bin, Dir: t.TempDir(), Progress: func(line string) { t.Log(time.Now().Format("05.00"), line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func client(t *testing.T, config *rest.Config, err error) kubernetes.Interface {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestControlPlane(t *testing.T) {
	c := start(t)
	t.Run("each identity is who it says", func(t *testing.T) { identities(t, c) })
	t.Run("RBAC and NodeRestriction are on", func(t *testing.T) { restrictions(t, c) })
	t.Run("kubectl works with the written kubeconfig", func(t *testing.T) {
		out, err := exec.Command(filepath.Join(c.BinDir, "kubectl"), "--kubeconfig", c.Kubeconfig, "version", "-o", "json").CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl: %v: %s", err, out)
		}
		var version struct {
			ServerVersion struct{ Major, Minor string }
		}
		if err := json.Unmarshal(out, &version); err != nil {
			t.Fatal(err)
		}
		if got := version.ServerVersion.Major + "." + version.ServerVersion.Minor; got != "1.37" {
			t.Errorf("server version = %s, want 1.37", got)
		}
	})
	t.Run("the folder can't be used twice", func(t *testing.T) {
		_, err := controlplane.Start(t.Context(), controlplane.Config{BinDir: filepath.Dir(mustLink(t, c.BinDir)), Dir: filepath.Dir(c.BinDir)})
		if err == nil || !strings.Contains(err.Error(), "already holds a control plane") {
			t.Errorf("Start() = %v, want a refusal", err)
		}
	})
	t.Run("nothing is left after Stop", func(t *testing.T) {
		dir := filepath.Dir(c.BinDir)
		if got := len(processes(t, dir)); got != 4 {
			t.Errorf("%d processes of the control plane before Stop, want 4", got)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if got := processes(t, dir); len(got) > 0 {
			t.Errorf("left after Stop: %v", got)
		}
		select {
		case err := <-c.Died():
			t.Errorf("a component that was stopped is reported dead: %v", err)
		default:
		}
	})
}

func mustLink(t *testing.T, binDir string) string {
	t.Helper()
	path, err := os.Readlink(filepath.Join(binDir, "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func identities(t *testing.T, c *controlplane.ControlPlane) {
	node, nodeErr := c.NodeConfig("rack1")
	account, accountErr := c.ServiceAccountConfig(t.Context(), "default", "robot")
	user, userErr := c.UserConfig("ann", "team-vision")
	for want, who := range map[string]struct {
		config *rest.Config
		err    error
	}{
		"admin [system:masters system:authenticated]":             {c.AdminConfig, nil},
		"system:node:rack1 [system:nodes system:authenticated]":   {node, nodeErr},
		"ann [team-vision system:authenticated]":                  {user, userErr},
		"system:serviceaccount:default:robot [system:servicea...": {account, accountErr},
	} {
		review, err := client(t, who.config, who.err).AuthenticationV1().SelfSubjectReviews().
			Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprintf("%s %v", review.Status.UserInfo.Username, review.Status.UserInfo.Groups)
		if prefix, cut := strings.CutSuffix(want, "..."); got != want && (!cut || !strings.HasPrefix(got, prefix)) {
			t.Errorf("identity = %s, want %s", got, want)
		}
	}
}

func restrictions(t *testing.T, c *controlplane.ControlPlane) {
	user, err := c.UserConfig("ann")
	_, err = client(t, user, err).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights lists pods: %v, want Forbidden", err)
	}
	config, err := c.NodeConfig("rack1")
	nodes := client(t, config, err).CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rack2"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("node rack1 creates node rack2: %v, want Forbidden", err)
	}
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("node rack1 creates itself: %v", err)
	}
}

func TestKilledParentLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "hold", dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	until(t, 2*time.Minute, "the control plane is up", func() bool {
		select {
		case <-ended:
			t.Fatal("the parent ended before its control plane was up")
		default:
		}
		_, err := os.Stat(filepath.Join(dir, "held"))
		return err == nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-ended
	until(t, 10*time.Second, "all components are gone", func() bool { return len(processes(t, dir)) == 0 })
}

func TestDied(t *testing.T) {
	c := start(t)
	for pid, line := range processes(t, filepath.Dir(c.BinDir)) {
		if strings.Contains(line, "/etcd") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	select {
	case err := <-c.Died():
		if !strings.Contains(err.Error(), "etcd") || !strings.Contains(err.Error(), "was killed") {
			t.Errorf("Died() = %v, want etcd and that it was killed", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing on Died() after etcd was killed")
	}
}

func TestStartErrors(t *testing.T) {
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	broken := t.TempDir()                                                        // a "control plane" that dies at once, like a corrupt build
	const others = "#!/bin/sh\ncase $0 in */etcd) ;; *) exec sleep 60 ;; esac\n" // only etcd dies
	script := others + "echo 'cannot open the vault'\nexit 3\n"
	if err := os.WriteFile(filepath.Join(broken, "kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	taken := t.TempDir()
	script = others + "echo x >>" + taken + "/tries\necho 'listen tcp 127.0.0.1:1: bind: address already in use'\nexit 1\n"
	if err := os.WriteFile(filepath.Join(taken, "kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	script = others + "echo 'write wal: no space left on device'\nexit 1\n"
	if err := os.WriteFile(filepath.Join(full, "kube"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		config controlplane.Config
		want   []string
	}{
		"a missing binary is named, with the command that builds it": {controlplane.Config{BinDir: t.TempDir(), Dir: t.TempDir()}, []string{"kube is missing", "make build"}},
		"a component that dies early shows the end of its log":       {controlplane.Config{BinDir: broken, Dir: t.TempDir()}, []string{"etcd", "status 3", "cannot open the vault"}},
		"a port that stays taken is said to be":                      {controlplane.Config{BinDir: taken, Dir: t.TempDir()}, []string{"etcd", "address already in use"}},
		"a full disk is said to be, with what to do":                 {controlplane.Config{BinDir: full, Dir: t.TempDir()}, []string{"is full", "free some space"}},
		"a folder that is a file":                                    {controlplane.Config{BinDir: bin, Dir: file}, []string{file, "not a directory"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := controlplane.Start(t.Context(), tt.config)
			if err == nil {
				_ = c.Stop()
				t.Fatal("Start() succeeded")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start() = %q, want it to contain %q", err, want)
				}
			}
			if left := processes(t, tt.config.Dir); len(left) > 0 {
				t.Errorf("left after a failed start: %v", left)
			}
		})
	}
	t.Run("a taken port is tried again with others", func(t *testing.T) {
		tries, err := os.ReadFile(filepath.Join(taken, "tries"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(tries), "x"); got < 2 {
			t.Errorf("%d tries, want more than one", got)
		}
	})
}

func TestCancelledStart(t *testing.T) {
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	_, err = controlplane.Start(ctx, controlplane.Config{BinDir: bin, Dir: dir, Progress: func(line string) {
		if line == "kube-apiserver started" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Start() = %v, want context.Canceled", err)
	}
	if left := processes(t, dir); len(left) > 0 {
		t.Errorf("left after a cancelled start: %v", left)
	}
}

// processes returns the command lines of living processes that name dir.
func processes(t *testing.T, dir string) map[int]string {
	t.Helper()
	found := map[int]string{}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		b, err := os.ReadFile(path) // zombies and the dead have none
		line := strings.ReplaceAll(string(b), "\x00", " ")
		var pid int
		if _, scanErr := fmt.Sscanf(path, "/proc/%d/cmdline", &pid); err == nil && scanErr == nil &&
			strings.Contains(line, dir+"/") && pid != os.Getpid() {
			found[pid] = line
		}
	}
	return found
}

// until polls cond and fails the test when it isn't met in time.
func until(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for !cond() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
