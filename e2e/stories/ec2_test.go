package stories

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/providers/ec2/ec2fake"
)

// withEC2 lets a controller speak to EC2.
func withEC2(c *controller.Config) { c.Dialers["ec2"] = controller.DialEC2 }

// ec2 is an ordinary Job on a machine that was bought through EC2's API, by the
// SDK and over HTTP: one launch, and nothing of it left.
func (s *stage) ec2(t *testing.T) {
	s.forgive()
	cloud := ec2fake.New(ec2fake.Config{
		Account: "123456789012", Region: "eu-central-1", Keys: map[string]string{"AKID": "secret"},
		Subnets: []ec2fake.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "eu-central-1a"}},
		Images:  []ec2fake.Image{{ID: "ami-1", Owner: "123456789012", Arch: "x86_64", RootDevice: "/dev/xvda", SizeGiB: 30}},
		Types: []ec2fake.Type{{
			Name: "g2", Arch: "x86_64", VCPUs: 16, MemoryMiB: 64 << 10, Zones: []string{"eu-central-1a"},
			GPUs: []ec2fake.GPU{{Maker: "NVIDIA", Name: "process-gpu", Count: 2, MemoryMiB: 24576}},
		}},
		Now: time.Now, Timing: ec2fake.Timing{BootTakes: 100 * time.Millisecond, TerminateTakes: 100 * time.Millisecond},
	})
	server := httptest.NewServer(cloud)
	defer server.Close()
	p := s.connectEC2(server.URL)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { s.power(ctx, cloud) })
	defer group.Wait()
	defer cancel()

	s.submit("main", 1)
	s.until(patience, "the Job to finish on a machine of EC2's", func() bool { return s.finished("main") })
	bursts := s.bursts("main")
	if len(bursts) != 1 || bursts[0].Spec.Offer.Provider != p.Name {
		t.Fatalf("%d bursts, the first one of %s; want one of %s", len(bursts), bursts[0].Spec.Offer.Provider, p.Name)
	}
	if got := s.count("main"); got.charges != 1 || got.certificates != 1 || got.result == "" {
		t.Errorf("%+v, want one charge, one certificate and the result", got)
	}
	if n := cloud.Calls("RunInstances"); n != 1 {
		t.Errorf("%d launches were sent, want one", n)
	}
	if left := cloud.Existing(); len(left) > 0 {
		t.Errorf("left at the cloud: %+v", left)
	}
	if err := s.Client.Delete(t.Context(), p); err != nil { // the next stories are of the other clouds
		t.Error(err)
	}
}

// connectEC2 brings in an endpoint as the cheapest provider. Its owner is none of
// another continent, as the tenant's data are confidential.
func (s *stage) connectEC2(endpoint string) *v1alpha1.BurstProvider {
	s.t.Helper()
	proof := v1alpha1.Evidence{
		Link: "https://example.com/evidence", Reviewed: metav1.NewTime(time.Now().Add(-time.Hour)), Expires: metav1.NewTime(time.Now().AddDate(1, 0, 0)),
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "main-credentials"},
		Data:       map[string][]byte{"accessKey": []byte("AKID"), "secretKey": []byte("secret")},
	}
	p := &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: "main"},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "ec2", Endpoint: endpoint, Region: "eu-central-1", Country: "DE", CredentialsSecret: secret.Name,
			Legal:               v1alpha1.LegalFacts{Seat: "DE", Owner: "Main AG", OwnerCountry: "DE", Evidence: &proof},
			ProcessingAgreement: &proof,
			Prices:              map[string]v1alpha1.Money{"g2": "1.10 EUR"},
			Machines: v1alpha1.MachineSettings{
				Image: "ami-1", Subnets: []string{"subnet-1"}, GPUs: map[string]v1alpha1.GPUStatement{"g2": {Model: "process-gpu", Count: 2}},
			},
			Join: v1alpha1.JoinSettings{
				BootTime:     metav1.Duration{Duration: time.Second},
				JoinDeadline: metav1.Duration{Duration: time.Minute}, ReadyDeadline: metav1.Duration{Duration: 90 * time.Second},
			},
			Staging: &v1alpha1.StagingStore{Endpoint: s.Staging.URL(), Region: "us-east-1", Secret: "staging-keys"},
		},
	}
	if err := errors.Join(s.Client.Create(s.t.Context(), secret), s.Client.Create(s.t.Context(), p)); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// power is what an endpoint alone lacks: what runs there boots from its user
// data, what is terminated loses its power, and a guest that shuts down says so.
func (s *stage) power(ctx context.Context, cloud *ec2fake.Cloud) {
	on := map[string]context.CancelFunc{}
	var group sync.WaitGroup
	defer group.Wait()
	for tick := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-tick {
		runs := map[string]bool{}
		for _, r := range cloud.Existing() {
			if r.Kind != "instance" || r.State != "running" {
				continue
			}
			runs[r.ID] = true
			if on[r.ID] != nil {
				continue
			}
			data, err := unpacked(r.Asked["UserData"])
			if err != nil {
				s.t.Errorf("user data of %s: %v", r.ID, err)
			}
			powered, cut := context.WithCancel(ctx)
			on[r.ID] = cut
			short := providers.Machine{ID: "i" + strings.TrimLeft(r.ID[2:], "0"), Provider: "main"} // names a folder, and sockets in it
			group.Go(func() {
				if err := s.Boot(powered, short, data); err != nil {
					s.t.Logf("instance %s: %v", r.ID, err)
				}
				_ = cloud.PowerOff(r.ID) // one that was terminated doesn't run any more
			})
		}
		for id, cut := range on {
			if !runs[id] {
				cut()
			}
		}
	}
	for _, cut := range on {
		cut()
	}
}

// unpacked is what cloud-init makes of user data.
func unpacked(encoded string) ([]byte, error) {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, err
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}
