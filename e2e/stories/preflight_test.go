package stories

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/controller"
	chart "spillway.dev/spillway/charts/spillway"
)

// lateClock answers with a time of its own.
type lateClock struct{ next http.RoundTripper }

func (l lateClock) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	if err == nil {
		resp.Header.Set("Date", time.Now().Add(-3*time.Minute).UTC().Format(http.TimeFormat))
	}
	return resp, err
}

// preflight: a controller that can't work says in one sentence what is wrong
// and what to do, and ends; nothing hangs in a retry.
func (s *stage) preflight(t *testing.T) {
	before := len(s.Bought())
	for name, tt := range map[string]struct {
		harm func(t *testing.T, c *controller.Config)
		want []string
	}{
		"no cluster": {func(_ *testing.T, c *controller.Config) { c.REST = &rest.Config{Host: "https://127.0.0.1:1"} }, []string{
			"API server: https://127.0.0.1:1 does not answer", "check that it runs",
		}},
		"an identity that the cluster doesn't know": {func(_ *testing.T, c *controller.Config) { c.REST.BearerToken, c.REST.BearerTokenFile = "nonsense", "" }, []string{
			"does not know the kubeconfig's identity (401)", "renew",
		}},
		"a clock that is minutes late": {func(_ *testing.T, c *controller.Config) {
			c.REST.Wrap(func(rt http.RoundTripper) http.RoundTripper { return lateClock{rt} })
		}, []string{"clock is 3m", "set the clocks"}},
		"a right that is missing": {func(t *testing.T, _ *controller.Config) {
			s.harmed(t, &rbacv1.ClusterRole{}, "spillway-controller", func(o client.Object) {
				r := o.(*rbacv1.ClusterRole)
				for i, rule := range r.Rules {
					if rule.Resources[0] == "bursts" {
						r.Rules[i].Verbs = []string{"get", "list", "watch"}
					}
				}
			})
		}, []string{"may not create bursts.spillway.dev in every namespace", "apply the chart"}},
		"a kind of an older version": {func(t *testing.T, _ *controller.Config) {
			s.harmed(t, &apiextensionsv1.CustomResourceDefinition{}, "bursts.spillway.dev", func(o client.Object) {
				spec := o.(*apiextensionsv1.CustomResourceDefinition).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties
				status := spec["status"]
				delete(status.Properties, "placed")
				spec["status"] = status
			})
		}, []string{"CustomResourceDefinition bursts.spillway.dev is of another version", "placed", "kubectl apply"}},
		"no admission policy": {func(t *testing.T, _ *controller.Config) {
			s.restored(t)
			if err := s.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(t.Context(), "spillway-nodes", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}, []string{"ValidatingAdmissionPolicy spillway-nodes is missing", "apply the chart"}},
		"a data folder that is a file": {func(t *testing.T, c *controller.Config) {
			c.DataDir = filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(c.DataDir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"data folder", "not a directory", "choose a folder"}},
		"a port that is taken": {func(t *testing.T, c *controller.Config) {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", c.Link)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, []string{"link: listen on", "address already in use", "free the port"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.on(t)
			s.edit = func(c *controller.Config) { tt.harm(t, c) }
			r := s.start("harmed", nil)
			select {
			case <-r.done:
			case <-time.After(patience):
				r.stop()
				t.Fatal("the controller runs on")
			}
			if r.err == nil {
				t.Fatal("the controller ended without a word")
			}
			for _, want := range tt.want {
				if !strings.Contains(r.err.Error(), want) {
					t.Errorf("it says %q, want %q in it", r.err, want)
				}
			}
			if strings.Contains(r.err.Error(), "\n") {
				t.Errorf("one fault, and more than one line: %s", r.err)
			}
		})
	}
	t.Run("what is whole again passes", func(t *testing.T) {
		c, err := s.Controller(t.Context(), "whole", nil)
		if err != nil {
			t.Fatal(err)
		}
		findings, err := controller.Preflight(t.Context(), c)
		if err != nil || len(findings) != 7 {
			t.Fatalf("%d findings, %v", len(findings), err)
		}
		for _, f := range findings {
			if !f.OK {
				t.Errorf("%s: %s", f.Check, f.Detail)
			}
		}
	})
	if n := len(s.Bought()) - before; n != 0 {
		t.Errorf("%d machines were bought by controllers that should not have started", n)
	}
}

// harmed changes an object of the chart for one test.
func (s *stage) harmed(t *testing.T, o client.Object, name string, harm func(client.Object)) {
	t.Helper()
	s.restored(t)
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		t.Fatal(err)
	}
	harm(o)
	if err := s.Client.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// restored applies the chart again when the test ends.
func (s *stage) restored(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		dyn, err := dynamic.NewForConfig(s.ControlPlane.AdminConfig)
		if err == nil {
			err = chart.Apply(context.Background(), dyn)
		}
		if err != nil {
			t.Error(err)
		}
	})
}
