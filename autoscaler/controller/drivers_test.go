package controller_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/providers/ec2"
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

func ec2Provider() *v1alpha1.BurstProvider {
	return &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: "frankfurt"},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "ec2", Region: "eu-central-1", Country: "DE", CredentialsSecret: "frankfurt-credentials", Endpoint: "https://ec2.example",
			Machines: v1alpha1.MachineSettings{
				Image: "ami-1", Subnets: []string{"subnet-1", "subnet-2"}, SecurityGroups: []string{"sg-1"}, AddressNetwork: "amazon", DiskGiB: 300,
				GPUs: map[string]v1alpha1.GPUStatement{"p5.4xlarge": {Model: "H100-80", Count: 1}},
			},
		},
	}
}

func TestEC2Settings(t *testing.T) {
	secret := map[string][]byte{"accessKey": []byte("AKID"), "secretKey": []byte("s")}
	got, err := controller.EC2Config(ec2Provider(), secret, "home")
	if err != nil {
		t.Fatal(err)
	}
	want := ec2.Config{
		Provider: "frankfurt", Region: "eu-central-1", Country: "DE", Installation: "home", Endpoint: "https://ec2.example",
		Login: ec2.Login{AccessKey: "AKID", SecretKey: "s"}, Image: "ami-1", Subnets: []string{"subnet-1", "subnet-2"},
		SecurityGroups: []string{"sg-1"}, PublicAddress: true, DiskGiB: 300, GPUs: map[string]ec2.GPU{"p5.4xlarge": {Model: "H100-80", Count: 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What can't be read or can't be right is told by name, before any call.
func TestEC2Refusals(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.BurstProvider)
		secret map[string][]byte
		words  string
	}{
		"no credential": {func(*v1alpha1.BurstProvider) {}, nil, "spillway-system/frankfurt-credentials"},
		"no image": {
			func(p *v1alpha1.BurstProvider) { p.Spec.Machines.Image = "" },
			map[string][]byte{"accessKey": []byte("a"), "secretKey": []byte("s")},
			"image",
		},
		"an address of nowhere": {
			func(p *v1alpha1.BurstProvider) { p.Spec.Machines.AddressNetwork = "ext" },
			map[string][]byte{"accessKey": []byte("a"), "secretKey": []byte("s")},
			"amazon",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := ec2Provider()
			tt.change(p)
			d, err := controller.DialEC2(p, tt.secret, "home")
			if err == nil || d != nil || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("got %v and %v, want words about %s", d, err, tt.words)
			}
		})
	}
}
