package lifecycle

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// cases: H-26 aws/karpenter-provider-aws#663: the shortest requeue wins.
func TestTheShortestRequeueWins(t *testing.T) {
	for _, tt := range []struct{ a, b, want time.Duration }{
		{0, 0, 0}, {0, time.Second, time.Second}, {time.Second, 0, time.Second}, {time.Hour, 30 * time.Second, 30 * time.Second},
	} {
		if got := sooner(tt.a, tt.b); got != tt.want {
			t.Errorf("sooner(%s, %s) = %s, want %s", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestAFactIsNeverTakenBack(t *testing.T) {
	first := time.Unix(1_800_000_000, 0)
	b := record{&v1alpha1.Burst{}, first}
	b.note(v1alpha1.Reserved, metav1.ConditionTrue, "Done", "first")
	later := record{b.Burst, first.Add(time.Hour)}
	later.note(v1alpha1.Reserved, metav1.ConditionFalse, "Other", "second")
	if reason, message := later.why(v1alpha1.Reserved); !later.is(v1alpha1.Reserved) || reason != "Done" || message != "first" || !later.at(v1alpha1.Reserved).Equal(first) {
		t.Errorf("a recorded fact changed: %+v", b.Status.Conditions)
	}
}

// TestAdmission: the approver's patch adds one toleration without an effect,
// takes the time from the two default ones, and is bound to the very pod.
func TestAdmission(t *testing.T) {
	five := int64(300)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}, Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{
		{Key: "other", TolerationSeconds: &five},
		{Key: corev1.TaintNodeNotReady, TolerationSeconds: &five},
		{Key: corev1.TaintNodeUnreachable},
	}}}
	got, err := json.Marshal(admission(pod, "burst"))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"op":"test","path":"/metadata/uid","value":"pod"},` +
		`{"op":"test","path":"/spec/tolerations/1/key","value":"node.kubernetes.io/not-ready"},` +
		`{"op":"remove","path":"/spec/tolerations/1/tolerationSeconds"},` +
		`{"op":"add","path":"/spec/tolerations/-","value":{"key":"spillway.dev/burst","operator":"Equal","value":"burst"}}]`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	pod.Spec.Tolerations = nil
	if ops := admission(pod, "burst"); ops[len(ops)-1].Path != "/spec/tolerations" {
		t.Errorf("a pod without tolerations gets %+v", ops)
	}
}

// settlingBurst ran from 10:00:00 to 10:10:30 at 3.60 EUR an hour.
func settlingBurst(change func(*v1alpha1.Burst)) record {
	at := func(s int) *metav1.Time {
		t := metav1.NewTime(time.Date(2026, 11, 30, 10, 0, s, 0, time.UTC))
		return &t
	}
	b := &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{UID: "burst"}}
	b.Spec.Offer.PricePerHour = "3.60 EUR"
	b.Spec.Offer.Meter = v1alpha1.MeterRule{Start: "created", Granularity: metav1.Duration{Duration: time.Second}}
	b.Status.Machines = []v1alpha1.BurstMachine{{InstanceID: "i-1", Created: at(0), Started: at(30), Gone: at(630)}}
	change(b)
	return record{b, time.Date(2026, 11, 30, 11, 0, 0, 0, time.UTC)}
}

func TestSettlement(t *testing.T) {
	tests := map[string]struct {
		change  func(*v1alpha1.Burst)
		actual  string
		seconds int64
	}{
		"by the second, from created to gone": {func(*v1alpha1.Burst) {}, "0.63 EUR", 630},
		"a meter that starts at running":      {func(b *v1alpha1.Burst) { b.Spec.Offer.Meter.Start = "started" }, "0.60 EUR", 600},
		"every started hour":                  {func(b *v1alpha1.Burst) { b.Spec.Offer.Meter.Granularity.Duration = time.Hour }, "3.60 EUR", 3600},
		"a minimum of 15 minutes":             {func(b *v1alpha1.Burst) { b.Spec.Offer.Meter.Minimum.Duration = 15 * time.Minute }, "0.90 EUR", 900},
		"two machines": {func(b *v1alpha1.Burst) {
			second := b.Status.Machines[0]
			second.InstanceID = "i-2"
			b.Status.Machines = append(b.Status.Machines, second)
		}, "1.26 EUR", 1260},
		"a machine that the cloud never had": {func(b *v1alpha1.Burst) { b.Status.Machines[0].InstanceID = "" }, "0.00 EUR", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := settlement(settlingBurst(tt.change))
			if err != nil {
				t.Fatal(err)
			}
			if s.Actual.String() != tt.actual || s.Seconds != tt.seconds {
				t.Errorf("settlement() = %s for %d s, want %s for %d s", s.Actual, s.Seconds, tt.actual, tt.seconds)
			}
			if err := s.Validate(); err != nil || tt.seconds > 0 && len(s.Machines) == 0 {
				t.Errorf("the bills of its machines are %+v: %v", s.Machines, err)
			}
		})
	}
}

func TestWhatFailedAtTheProviderIsNotCharged(t *testing.T) {
	for reason, want := range map[string]string{
		v1alpha1.EndJoinDeadline: quota.CauseProviderFault, infra.RefusedBroken: quota.CauseProviderFault,
		v1alpha1.EndWorkFailed: v1alpha1.EndWorkFailed, v1alpha1.EndDeleted: v1alpha1.EndDeleted,
	} {
		b := settlingBurst(func(*v1alpha1.Burst) {})
		b.end(reason, "")
		if got := b.cause(); got != want {
			t.Errorf("cause of %s = %s, want %s", reason, got, want)
		}
	}
}

func TestUsageThatIsRefusedForGoodHoldsNothingUp(t *testing.T) {
	log := quiet()
	if err := Booked(log, "n", errors.Join(quota.ErrInvalid, errors.New("record 3"))); err != nil {
		t.Errorf("a bad record holds up the others: %v", err)
	}
	if err := Booked(log, "n", quota.ErrStaleEpoch); !errors.Is(err, quota.ErrStaleEpoch) {
		t.Errorf("a leader that lost its lead acknowledged usage: %v", err)
	}
}

func newRecords(t testing.TB) *FileRecords {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &FileRecords{Dir: t.TempDir(), Key: key, SignedBy: "certificate", Operator: "test"}
}

func certificateFor(burst string) wipe.Certificate {
	return wipe.Certificate{ID: "wipe-" + burst, Burst: burst, IssuedAt: time.Unix(1_800_000_000, 0).UTC()}
}

func TestACertificateIsIssuedOnceAndChained(t *testing.T) {
	r := newRecords(t)
	first, err := r.Certify("one", certificateFor("one"))
	if err != nil {
		t.Fatal(err)
	}
	changed := certificateFor("one")
	changed.Tenant = "another"
	again, err := r.Certify("one", changed)
	if err != nil || again != first {
		t.Errorf("a second certificate for one burst: %+v, %v; want the first, %+v", again, err, first)
	}
	// The crash came between the certificate and the list of certificates.
	if err := os.Remove(filepath.Join(r.Dir, certificateIndex)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Certify("two", certificateFor("two")); err != nil {
		t.Fatal(err)
	}
	hash, err := certificateHash(filepath.Join(r.Dir, "one", certificateName))
	if err != nil {
		t.Fatal(err)
	}
	data, err := r.Load("two", certificateName)
	if err != nil || !strings.Contains(string(data), hash) {
		t.Errorf("the second certificate does not name the first, %s: %v\n%s", hash, err, data)
	}
}

func TestRecordsStayInTheirFolder(t *testing.T) {
	r := newRecords(t)
	for _, name := range []string{"../x", "/etc/passwd", "a/../../x"} {
		if err := r.Keep("burst", name, nil); err == nil {
			t.Errorf("record %q was kept", name)
		}
	}
	if err := r.Keep("../burst", "x", nil); err == nil {
		t.Error("a burst outside the folder was kept")
	}
	if _, err := r.Load("burst", "absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an absent record: %v, want fs.ErrNotExist", err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
