package lifecycle

import (
	"crypto/rand"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/datasync"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/nodeagent/wipe"
)

// TestErasingWithoutAStagingStore: the provider was deleted, or its staging
// store taken out of it, while a burst was under way. The key is destroyed all
// the same, the burst can end, and its certificate says what was not emptied.
func TestErasingWithoutAStagingStore(t *testing.T) {
	for name, objects := range map[string][]client.Object{ // a Secret that is missing may come back, and is waited for
		"the provider is gone":       nil,
		"it has no staging any more": {&v1alpha1.BurstProvider{ObjectMeta: metav1.ObjectMeta{Name: "west"}}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			keys, err := stager.NewFileKeys(filepath.Join(t.TempDir(), "keys"), rand.Reader, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			s := &Stager{
				Client: fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), Keys: keys, Records: newRecords(t),
				Gate: stager.NewGate(stager.GateConfig{Store: &url.URL{Scheme: "http", Host: "store"}, Now: time.Now}), Now: time.Now,
			}
			b := &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{UID: burstUID}}
			b.Spec.Offer.Provider = "west"
			record{b, time.Now()}.note(v1alpha1.StagingStarted, metav1.ConditionTrue, "Done", "")
			if _, err := keys.Create(t.Context(), string(burstUID)); err != nil {
				t.Fatal(err)
			}
			e, err := s.Erase(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			if e.Verification.CanaryUnwrap != wipe.CanaryRefused || !e.Verification.CanaryControl || !e.Verification.LiveUnwrap {
				t.Errorf("the key is not shown to be destroyed: %+v", e)
			}
			// A certificate takes a store without a name for "nothing was staged".
			if e.Staging.EmptyPasses > 0 || e.Staging.Bucket == "" {
				t.Errorf("nobody looked, and the store counts as empty: %+v", e.Staging)
			}
		})
	}
}

// The end of the work is known to the second. What a node said in that second
// may be from before the last result was written, and is not believed.
func TestAReportOfTheSecondOfTheEnd(t *testing.T) {
	b := newBench(t, 1, 1)
	b.live(v1alpha1.NodeJoined)
	burst := b.burst()
	end := b.now.Truncate(time.Second)
	record{burst, end}.note(v1alpha1.WorkDone, metav1.ConditionTrue, "Done", "")
	node := record{burst, end}.nodes()[0]
	for after, silent := range map[time.Duration]int{-time.Second: 1, 0: 1, 900 * time.Millisecond: 1, time.Second: 0} {
		report := b.agents.reports[node]
		report.seen = end.Add(after)
		b.agents.reports[node] = report
		if _, named := b.r.uploads(record{burst, end}); len(named) != silent {
			t.Errorf("a report %s after the end: %q are silent, want %d", after, named, silent)
		}
	}
}

// A burst's freshness reaches the stager, and what is not known is strict.
func TestFreshnessOfABurst(t *testing.T) {
	for name, tt := range map[string]struct {
		stated *v1alpha1.Freshness
		want   datasync.Freshness
	}{
		"none":           {},
		"strict":         {stated: &v1alpha1.Freshness{Mode: v1alpha1.FreshnessStrict}},
		"lease":          {&v1alpha1.Freshness{Mode: v1alpha1.FreshnessLease, Seconds: 30}, datasync.Freshness{Mode: datasync.Lease, For: 30 * time.Second}},
		"pinned":         {&v1alpha1.Freshness{Mode: v1alpha1.FreshnessPinned}, datasync.Freshness{Mode: datasync.Pinned}},
		"of a later age": {stated: &v1alpha1.Freshness{Mode: "Eventual", Seconds: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			secret := &corev1.Secret{Data: map[string][]byte{"accessKey": []byte("a"), "secretKey": []byte("s")}}
			secret.Name, secret.Namespace = "west-staging", v1alpha1.SystemNamespace
			west := &v1alpha1.BurstProvider{ObjectMeta: metav1.ObjectMeta{Name: "west"}}
			west.Spec.Staging = &v1alpha1.StagingStore{Endpoint: "http://staging", Secret: secret.Name}
			vision := &v1alpha1.BurstTenant{ObjectMeta: metav1.ObjectMeta{Name: "vision"}}
			s := &Stager{Client: fakeclient.NewClientBuilder().WithScheme(scheme).WithObjects(secret, west, vision).Build()}
			b := &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{UID: burstUID}}
			b.Spec.Offer.Provider, b.Spec.Tenant, b.Spec.Data.Freshness = west.Name, vision.Name, tt.stated
			job, err := s.job(t.Context(), b)
			if err != nil || job.Freshness != tt.want {
				t.Errorf("%+v, %v, want %+v", job.Freshness, err, tt.want)
			}
		})
	}
}
