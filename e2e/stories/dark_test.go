package stories

import (
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

	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/providers"
)

// hurried has leases of seconds, and short deadlines on the way back.
func hurried(c *controller.Config) {
	c.Life.LeaseTime, c.Life.LeaseStop, c.Life.LeaseEvery = 20*time.Second, 8*time.Second, 2*time.Second
	c.Life.DeadMan = 10 * time.Second
	c.Life.CollectDeadline, c.Life.WipeDeadline = 5*time.Second, 10*time.Second
}

// lostNode: a machine dies under its Job, seen by the cloud or unseen. The
// machine is deleted, the provider's failure costs the tenant nothing, the
// wipe is said to be unproven, and the Job finishes on another machine.
// cases: F11 "node unreachable", F20 autoscaler#3639, F51 EKS zone scenarios, D-29 "SHUTOFF", B-17 CAPO#1741.
func (s *stage) lostNode(t *testing.T) {
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
			s.submit(job, 120)
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
func children(t testing.TB, pid int) []int {
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
