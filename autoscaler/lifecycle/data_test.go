package lifecycle

import (
	"crypto/rand"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
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
