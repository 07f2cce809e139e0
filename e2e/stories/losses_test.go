package stories

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/e2e/demo"
	"spillway.dev/spillway/providers/fake"
)

// TestHurriedSite: losses, at a site whose leases and deadlines are seconds.
func TestHurriedSite(t *testing.T) {
	s := newStage(t, hurried)
	var theft theft
	c := s.start("hurried", func(_ context.CancelFunc, step, fact string) { theft.strike(s, step, fact) })
	defer c.stop()
	t.Run("results", func(t *testing.T) { s.on(t).resultsLost(t, &theft) })
	t.Run("node", func(t *testing.T) { s.on(t).lostNode(t) })
	t.Run("nobody", func(t *testing.T) { s.on(t).nobodyHome(t) })
}

// nobodyHome: a machine runs and bills, and no node ever joins from it. At the
// deadline it is given back, and the next attempt excludes the offer.
// cases: D-62 scaleway terraform provider#66.
func (s *stage) nobodyHome(t *testing.T) {
	s.forgive()
	s.hasten(15 * time.Second)
	s.Clouds["rhein"].Script(fake.Fault{Op: "create", Effect: fake.NeverBoots})
	s.submit("unanswered", 1)
	s.until(patience, "the Job to finish at the other cloud", func() bool { return s.finished("unanswered") })
	bursts := s.bursts("unanswered")
	if len(bursts) != 2 {
		t.Fatalf("%d bursts, want one that nobody answered and one that ran", len(bursts))
	}
	for _, b := range bursts {
		failed := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.Failed)
		if b.Spec.Offer.Provider == "rhein" && (failed == nil || failed.Reason != v1alpha1.EndJoinDeadline || b.Status.Cost.Spent != "0.00 EUR") {
			t.Errorf("the silent machine ended with %+v and cost the tenant %s", failed, b.Status.Cost.Spent)
		}
	}
	if got := s.count("unanswered"); got.machines != 2 || got.billing != 0 || got.charges != 1 || got.result == "" {
		t.Errorf("%+v, want two machines, none left, one charge and the result", got)
	}
}

// theft is a result that goes from the store as soon as its work is done.
type theft struct {
	mu sync.Mutex
	at time.Time
}

func (th *theft) strike(s *stage, step, fact string) {
	th.mu.Lock()
	defer th.mu.Unlock()
	if step+"/"+fact == "watch/"+v1alpha1.WorkDone && th.at.IsZero() {
		th.at = time.Now()
		s.steal("bereft/model.json")
	}
}

func (th *theft) time() time.Time {
	th.mu.Lock()
	defer th.mu.Unlock()
	return th.at
}

// resultsLost: what the Job has written is not at home when its machine is
// to go. The machine waits until the stated deadline, and then the loss is
// recorded and announced by the name of the object. Promise 6.
// It is the first work of its site.
func (s *stage) resultsLost(t *testing.T, theft *theft) {
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
	if waited := home.LastTransitionTime.Sub(theft.time()); waited < 4*time.Second {
		t.Errorf("the machine waited %s for the results, want the whole deadline", waited)
	}
	s.until(patience, "a warning on the Job that names what is lost", func() bool { return strings.Contains(s.warning("bereft"), "bereft/model.json") })
	if got := s.count("bereft"); got.machines != 1 || got.billing != 0 || got.charges != 1 || got.certificates != 1 {
		t.Errorf("%+v, want one machine, none left, one charge, one certificate", got)
	}
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
