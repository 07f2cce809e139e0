package lifecycle

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/datasync/transit"
	"spillway.dev/spillway/e2e/keyservice"
	"spillway.dev/spillway/nodeagent/wipe"
)

// What the key custody saw is what the certificate says: a key service that
// proves the key's end leaves nothing to doubt about keys and verification, one
// that exposed the key or can prove nothing does, and one that lies or is
// silent brings no certificate at all.
func TestEvidenceOfTheKeyReachesTheCertificate(t *testing.T) {
	tests := map[string]struct {
		files bool
		spoil func(*keyservice.Server)
		want  string // a reason; empty: nothing to doubt
		err   string // or of erasing
	}{
		"a transit engine":                     {},
		"files":                                {files: true, want: "a file system can't show"},
		"a transit engine that exposed it":     {spoil: func(s *keyservice.Server) { s.Expose(s.Names()[0]) }, want: "the key could be exported"},
		"a transit engine where it was gone":   {spoil: func(s *keyservice.Server) { s.Delete(s.Names()[0]) }, want: "gone before it was destroyed"},
		"a transit engine that keeps it":       {spoil: func(s *keyservice.Server) { s.Misbehave(keyservice.Faults{KeepDeleted: true}) }, err: "still has it"},
		"a transit engine that is sealed":      {spoil: func(s *keyservice.Server) { s.Misbehave(keyservice.Faults{Sealed: true}) }, err: "unseal it"},
		"a way to it that answers 404 to all":  {spoil: func(s *keyservice.Server) { s.Misbehave(keyservice.Faults{Proxy404: true}) }, err: "404"},
		"a token that lost its rights by then": {spoil: func(s *keyservice.Server) { s.Misbehave(keyservice.Faults{Denied: true}) }, err: "permission denied"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server := keyservice.Start("token")
			defer server.Close()
			s, b := eraser(t, server, tt.files)
			if _, err := s.Keys.Create(t.Context(), string(b.UID)); err != nil {
				t.Fatal(err)
			}
			if tt.spoil != nil {
				tt.spoil(server)
			}
			e, err := s.Erase(t.Context(), b)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("%+v, %v; want an error with %q", e, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			reasons := strings.Join(about(t, e), "\n")
			if (reasons == "") != (tt.want == "") || !strings.Contains(reasons, tt.want) || len(e.NotCovered) == 0 {
				t.Errorf("the certificate doubts %q, want %q; not covered: %q", reasons, tt.want, e.NotCovered)
			}
		})
	}
}

// eraser is the data of a burst that staged nothing, over one key service.
func eraser(t *testing.T, server *keyservice.Server, files bool) (*Stager, *v1alpha1.Burst) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("token"), 0o600); err != nil {
		t.Fatal(err)
	}
	var keks stager.KEKs
	keks, err := transit.New(transit.Config{Address: server.URL(), CA: server.CA(), TokenFile: token, Pause: time.Millisecond})
	dir := filepath.Join(t.TempDir(), "keys")
	if err == nil && files {
		keks, err = stager.FileKEKs(dir, rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	keys, err := stager.NewCustody(stager.CustodyConfig{Dir: dir, KEKs: keks, Random: rand.Reader, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return &Stager{
		Client: fakeclient.NewClientBuilder().WithScheme(scheme).Build(), Keys: keys, Records: newRecords(t), Now: time.Now,
		Gate: stager.NewGate(stager.GateConfig{Store: &url.URL{Scheme: "http", Host: "store"}, Now: time.Now}),
	}, &v1alpha1.Burst{ObjectMeta: metav1.ObjectMeta{UID: burstUID}}
}

// about are a certificate's doubts about keys and their verification, in a
// certificate that names nothing else.
func about(t *testing.T, e Erased) []string {
	t.Helper()
	records := newRecords(t)
	c := certificateFor(string(burstUID))
	c.Keys, c.Verification, c.NotCovered = []wipe.Key{e.Key}, e.Verification, e.NotCovered
	signed, err := wipe.SignCertificate(records.Key, c)
	if err != nil {
		t.Fatal(err)
	}
	c, err = wipe.VerifyCertificate(records.Key.Public().(ed25519.PublicKey), signed)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range c.Unproven {
		if strings.Contains(r, "key") {
			out = append(out, r)
		}
	}
	return out
}
