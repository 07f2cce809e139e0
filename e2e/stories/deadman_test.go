package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/world"
	"spillway.dev/spillway/providers"
)

// TestDeadMan takes the controller away for good while a Job runs on a rented
// machine. Promise 8: the node ends itself by its lease, and `spillway sweep`,
// with nothing but the cloud's credential, deletes what is left.
// cases: D-64 skypilot#2261, F1 skypilot#4170.
func TestDeadMan(t *testing.T) {
	s := newStage(t, func(c *controller.Config) {
		c.Life.LeaseTime, c.Life.LeaseStop, c.Life.LeaseEvery = 20*time.Second, 10*time.Second, 2*time.Second
		c.Life.DeadMan, c.Life.BuyDeadline = 10*time.Second, 20*time.Second
	})
	s.hasten(40 * time.Second)
	c := s.start("lost", nil)
	s.submit("forsaken", 100000)
	s.until(patience, "the Job to run on the rented machine", func() bool { return s.running("forsaken") })
	c.stop() // and never comes back
	machines := s.Bought()
	if len(machines) != 1 {
		t.Fatalf("%d machines were bought, want 1", len(machines))
	}
	m := machines[0]
	power := s.Machine(m.ID)
	select {
	case <-power.Done():
	case <-time.After(time.Until(m.Expires) + 30*time.Second):
		t.Fatalf("the node still runs after its last lease; its console is %s", power.Console)
	}
	s.until(30*time.Second, "the cloud to see the power off", func() bool {
		return s.Bought()[0].State == providers.StateStopped
	})
	if left := s.Billing(); len(left) != 1 {
		t.Fatalf("a machine that powered off is still billed: %d machines, want 1 for the sweeper", len(left))
	}
	s.wiped(m)
	s.until(time.Until(m.Expires)+30*time.Second, "the sweeper to delete it past its stamp", func() bool {
		s.sweep()
		return len(s.Billing()) == 0
	})
}

// hasten shortens the provider's deadlines, and with them the first stamp.
func (s *stage) hasten(ready time.Duration) {
	s.t.Helper()
	p := &v1alpha1.BurstProvider{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: "rhein"}, p); err != nil {
		s.t.Fatal(err)
	}
	p.Spec.Join.JoinDeadline.Duration, p.Spec.Join.ReadyDeadline.Duration = ready, ready
	if err := s.Client.Update(s.t.Context(), p); err != nil {
		s.t.Fatal(err)
	}
}

// running reports whether a pod of the Job runs.
func (s *stage) running(job string) bool {
	s.t.Helper()
	pods := &corev1.PodList{}
	if err := s.Client.List(s.t.Context(), pods, client.InNamespace(tenantNS), client.MatchingLabels{"batch.kubernetes.io/job-name": job}); err != nil {
		s.t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase == corev1.PodRunning {
			return true
		}
	}
	return false
}

// wiped checks that the node left no cache file on its disk.
func (s *stage) wiped(m providers.Machine) {
	s.t.Helper()
	disk := filepath.Join(s.Attic(m), "disk")
	var left []string
	err := filepath.WalkDir(disk, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, "cache") {
			left = append(left, path)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if len(left) > 0 {
		s.t.Errorf("the node powered off without a wipe: %d cache files are on its disk, the first is %s", len(left), left[0])
	}
}

// sweep runs the command as cron would, outside the cluster.
func (s *stage) sweep() {
	s.t.Helper()
	token := filepath.Join(s.Dir, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	out, err := exec.CommandContext(s.t.Context(), filepath.Join(s.BinDir, "spillway"), "sweep",
		"--endpoint", s.CloudsURL+"/rhein", "--token-file", token, "--installation", world.Installation).CombinedOutput()
	if err != nil {
		s.t.Fatalf("spillway sweep: %v\n%s", err, out)
	}
}
