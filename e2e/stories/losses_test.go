package stories

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/autoscaler/lifecycle"
	"spillway.dev/spillway/e2e/demo"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/fake"
)

// hurried has leases of seconds, and short deadlines on the way back.
func hurried(c *controller.Config) {
	c.Life.LeaseTime, c.Life.LeaseStop, c.Life.LeaseEvery = 30*time.Second, 10*time.Second, 2*time.Second
	c.Life.DeadMan = 10 * time.Second
	c.Life.CollectDeadline, c.Life.WipeDeadline = 5*time.Second, 10*time.Second
}

// TestLostNode: a machine dies under its Job, seen by the cloud or unseen. The
// machine is deleted, the provider's failure costs the tenant nothing, the
// wipe is said to be unproven, and the Job finishes on another machine.
// cases: F11 "node unreachable", F20 autoscaler#3639, F51 EKS zone scenarios, D-29 "SHUTOFF", B-17 CAPO#1741.
func TestLostNode(t *testing.T) {
	s := newStage(t, hurried)
	c := s.start("lost", nil)
	defer c.stop()
	for job, tt := range map[string]struct {
		name string
		fail func(s *stage, m providers.Machine)
	}{
		"dark":   {"the power goes, and the cloud sees it", func(s *stage, m providers.Machine) { s.Machine(m.ID).Kill() }},
		"frozen": {"the machine hangs, and the cloud says that it runs", (*stage).freeze},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := s.on(t)
			s.forgive()
			s.submit(job, 200)
			uid := s.burstWith(job, v1alpha1.PodsAdmitted)
			s.until(patience, "the Job to run", func() bool { return s.running(job) })
			tt.fail(s, s.machineOf(uid))
			s.gone(uid)
			a := s.account(uid)
			if !a.Spent.IsZero() || a.Waived.IsZero() {
				t.Errorf("the tenant paid %s and the operator %s for a machine that failed", a.Spent, a.Waived)
			}
			if c := s.certificate(uid); c.Level == wipe.Certified || len(c.NodeAcks) != 1 || !c.NodeAcks[0].Missing {
				t.Errorf("certificate: level %q, acknowledged %+v; no node has proved anything", c.Level, c.NodeAcks)
			}
			s.until(patience, "the Job to finish on another machine", func() bool { return s.finished(job) })
			if got := s.count(job); got.machines != 2 || got.billing != 0 || got.charges != 1 || got.certificates != 2 {
				t.Errorf("%+v, want two machines, none left, one charge, a certificate each", got)
			}
		})
	}
}

// TestNobodyHome: a machine runs and bills, and no node ever joins from it. At
// the deadline it is given back, and the next attempt excludes the offer.
// cases: D-62 scaleway terraform provider#66.
func TestNobodyHome(t *testing.T) {
	s := newStage(t, hurried)
	s.hasten(15 * time.Second)
	c := s.start("nobody", nil)
	defer c.stop()
	s.Clouds["rhein"].Script(fake.Fault{Op: "create", Effect: fake.NeverBoots})
	s.submit("unanswered", 1)
	s.until(patience, "the Job to finish at the other cloud", func() bool { return s.finished("unanswered") })
	bursts := s.bursts("unanswered")
	if len(bursts) != 2 {
		t.Fatalf("%d bursts, want one that nobody answered and one that ran", len(bursts))
	}
	for _, b := range bursts {
		failed := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.Failed)
		if b.Spec.Offer.Provider == "rhein" && (failed == nil || failed.Reason != lifecycle.ReasonJoinDeadline || b.Status.Cost.Spent != "0.00 EUR") {
			t.Errorf("the silent machine ended with %+v and cost the tenant %s", failed, b.Status.Cost.Spent)
		}
	}
	if got := s.count("unanswered"); got.machines != 2 || got.billing != 0 || got.charges != 1 || got.result == "" {
		t.Errorf("%+v, want two machines, none left, one charge and the result", got)
	}
}

// TestResultsLost: what the Job has written is not at home when its machine is
// to go. The machine waits until the stated deadline, and then the loss is
// recorded and announced by the name of the object. Promise 6.
func TestResultsLost(t *testing.T) {
	s := newStage(t, hurried)
	var lost time.Time
	c := s.start("thief", func(_ context.CancelFunc, step, fact string) {
		if step+"/"+fact == "watch/"+v1alpha1.WorkDone && lost.IsZero() {
			lost = time.Now()
			s.steal("bereft/model.json")
		}
	})
	defer c.stop()
	s.submit("bereft", 1)
	s.until(patience, "the Job's burst to end", func() bool { return s.finished("bereft") })
	b := s.bursts("bereft")[0]
	home := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.ResultsHome)
	if home == nil || home.Status != "False" || home.Reason != "ResultsLost" || !strings.Contains(home.Message, "bereft/model.json") {
		t.Errorf("ResultsHome is %+v, want a loss that names the object", home)
	}
	if failed := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.Failed); failed == nil || failed.Reason != "ResultsLost" {
		t.Errorf("the burst ended with %+v, want Failed for ResultsLost", failed)
	}
	if waited := home.LastTransitionTime.Sub(lost); waited < 4*time.Second {
		t.Errorf("the machine waited %s for the results, want the whole deadline", waited)
	}
	s.until(patience, "a warning on the Job that names what is lost", func() bool { return strings.Contains(s.warning("bereft"), "bereft/model.json") })
	if got := s.count("bereft"); got.machines != 1 || got.billing != 0 || got.charges != 1 || got.certificates != 1 {
		t.Errorf("%+v, want one machine, none left, one charge, one certificate", got)
	}
}

// freeze stops all processes of a machine, as a hang of its kernel does.
func (s *stage) freeze(m providers.Machine) {
	s.t.Helper()
	for todo := []int{s.Machine(m.ID).PID()}; len(todo) > 0; todo = todo[1:] {
		if err := syscall.Kill(todo[0], syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
			s.t.Fatal(err)
		}
		todo = append(todo, children(s.t, todo[0])...)
	}
}

// children are the processes that a process has started.
func children(t *testing.T, pid int) []int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(data)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// machineOf is the only machine of a burst.
func (s *stage) machineOf(uid types.UID) providers.Machine {
	s.t.Helper()
	for _, m := range s.Billing() {
		if m.Burst == string(uid) {
			return m
		}
	}
	s.t.Fatalf("no cloud bills a machine of burst %s", uid)
	return providers.Machine{}
}

// certificate reads what was certified of a burst.
func (s *stage) certificate(uid types.UID) wipe.Certificate {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.DataDir(), "records", string(uid), "certificate.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	var signed wipe.SignedCertificate
	var c wipe.Certificate
	if err := json.Unmarshal(data, &signed); err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(signed.Certificate, &c); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// steal removes a result from the store at home behind everybody's back.
func (s *stage) steal(key string) {
	c, err := s.S3()
	if err == nil {
		err = c.RemoveObject(context.Background(), demo.ResultsBucket, key, minio.RemoveObjectOptions{})
	}
	if err != nil {
		s.t.Error(err)
	}
}

// warning is the text of the last warning on a Job.
func (s *stage) warning(job string) string {
	s.t.Helper()
	list, err := s.Kube.EventsV1().Events(tenantNS).List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	var last time.Time
	note := ""
	for _, e := range list.Items {
		if e.Regarding.Name == job && e.Type == "Warning" && !e.EventTime.Time.Before(last) && strings.HasPrefix(e.Reason, "Burst") {
			last, note = e.EventTime.Time, e.Note
		}
	}
	return note
}
