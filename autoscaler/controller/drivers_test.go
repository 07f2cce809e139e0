package controller_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/providers/openstack"
)

func openstackProvider() *v1alpha1.BurstProvider {
	return &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: "west"},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "openstack", Region: "w1", Country: "FR", CredentialsSecret: "west-credentials",
			Machines: v1alpha1.MachineSettings{
				Image: "debian", Network: "net", SecurityGroups: []string{"gpu"}, AddressNetwork: "ext",
				GPUs: map[string]v1alpha1.GPUStatement{"g1": {Model: "H100-80", Count: 2}},
			},
		},
	}
}

func TestOpenStackSettings(t *testing.T) {
	secret := map[string][]byte{"clouds.yaml": []byte(`clouds: {openstack: {auth: {auth_url: "https://id.example/v3"}}}`)}
	got, err := controller.OpenStackConfig(openstackProvider(), secret, "home")
	if err != nil {
		t.Fatal(err)
	}
	if url := got.Login.Auth.IdentityEndpoint; url != "https://id.example/v3" {
		t.Errorf("logs in at %s", url)
	}
	got.Login = openstack.Login{}
	want := openstack.Config{
		Provider: "west", Region: "w1", Country: "FR", Installation: "home",
		Image: "debian", Network: "net", SecurityGroups: []string{"gpu"}, Addresses: "ext",
		GPUs: map[string]openstack.GPU{"g1": {Model: "H100-80", Count: 2}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A credential that can't be read and a setting that is missing are told by name.
func TestOpenStackRefusals(t *testing.T) {
	for name, tt := range map[string]struct {
		clouds string
		image  string
		words  string
	}{
		"no credential": {"", "debian", "spillway-system/west-credentials"},
		"no image":      {`clouds: {openstack: {auth: {auth_url: "https://id.example/v3"}}}`, "", "image"},
	} {
		t.Run(name, func(t *testing.T) {
			p := openstackProvider()
			p.Spec.Machines.Image = tt.image
			d, err := controller.DialOpenStack(p, map[string][]byte{"clouds.yaml": []byte(tt.clouds)}, "home")
			if err == nil || d != nil || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("got %v and %v, want words about %s", d, err, tt.words)
			}
		})
	}
}
