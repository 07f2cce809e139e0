//go:build openstack

package openstack_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/e2e/demo"
	"spillway.dev/spillway/e2e/openstack"
	site "spillway.dev/spillway/e2e/world"
	"spillway.dev/spillway/providers"
	driver "spillway.dev/spillway/providers/openstack"
)

func TestMain(m *testing.M) {
	if status, child := site.Child(os.Args[1:]); child {
		os.Exit(status)
	}
	if len(os.Args) > 1 && os.Args[1] == demo.TrainArg {
		if err := demo.Train(context.Background(), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	ctrl.SetLogger(klog.New(nil))
	klog.SetLogger(klog.New(nil))
	os.Exit(m.Run())
}

const (
	tenantNS = "team-vision"
	job      = "train"
	slow     = 5 * time.Minute // two busy cores run a cluster and a cloud
)

// wholeBurst: an ordinary Job that finds no GPU at home runs on a server that
// was bought from a real Nova, and nothing of it is left there.
func wholeBurst(t *testing.T, w *world) {
	s := newSite(t)
	connect(t, s, w)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { w.power(ctx, s) })
	log := runController(ctx, t, s, w, &group)
	defer group.Wait()
	defer cancel()
	submit(t, s)
	bursts := &v1alpha1.BurstList{}
	over := func() bool {
		if err := s.Client.List(ctx, bursts, client.InNamespace(tenantNS)); err != nil {
			t.Fatal(err)
		}
		for _, b := range bursts.Items {
			if !apimeta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.Complete) {
				return false
			}
		}
		return len(bursts.Items) > 0 && succeeded(ctx, t, s)
	}
	for end := time.Now().Add(slow); !over(); w.Pass() {
		if time.Now().After(end) {
			t.Fatalf("no end after %s, see %s: %+v", slow, log, bursts.Items)
		}
	}
	if n := len(bursts.Items); n != 1 {
		t.Errorf("%d bursts, want one", n)
	}
	if left := w.audit(); len(left) > 0 {
		t.Errorf("still billed: %+v", left)
	}
	creates := 0
	for _, c := range w.proxy.Calls() {
		if c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/servers") {
			creates++
		}
	}
	if creates != 1 {
		t.Errorf("%d creates were sent, want one", creates)
	}
	if size := resultSize(ctx, t, s); size == 0 {
		t.Error("the result is not at home")
	}
	t.Logf("the Job ran on %s and cost %s", bursts.Items[0].Spec.Offer.InstanceType, bursts.Items[0].Status.Cost.Spent)
}

// newSite is a site without a node at home, with a tenant and a training set.
func newSite(t *testing.T) *site.World {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "burst") // t.TempDir is too long for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	s, err := site.Start(t.Context(), site.Config{Dir: dir, BinDir: bin, Exec: []string{self}, NewScheme: controller.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the site is kept in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, bucket := range []string{demo.DataBucket, demo.ResultsBucket} {
		if err := s.MakeBucket(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
	}
	store, err := s.S3()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		data := demo.Shard(i)
		if _, err := store.PutObject(t.Context(), demo.DataBucket, fmt.Sprintf("train/%d.bin", i), bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// connect brings in the tenant and the lab as a provider.
func connect(t *testing.T, s *site.World, w *world) {
	tenant := s.Tenant(tenantNS, "t-1", v1alpha1.ModeOn, "1000.00 EUR", s.Source(demo.DataBucket, false), s.Source(demo.ResultsBucket, true))
	tenant.Spec.Burst.BurstAfter.Duration = time.Millisecond
	proof := v1alpha1.Evidence{
		Link: "https://example.com/evidence", Reviewed: metav1.NewTime(time.Now().Add(-time.Hour)), Expires: metav1.NewTime(time.Now().AddDate(1, 0, 0)),
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "lab-credentials"},
		Data:       map[string][]byte{"clouds.yaml": w.project.Clouds},
	}
	p := &v1alpha1.BurstProvider{
		ObjectMeta: metav1.ObjectMeta{Name: provider},
		Spec: v1alpha1.BurstProviderSpec{
			Driver: "openstack", Region: openstack.Region, Country: "DE", CredentialsSecret: secret.Name,
			Legal:               v1alpha1.LegalFacts{Seat: "DE", Owner: "Lab AG", OwnerCountry: "DE", Evidence: &proof},
			ProcessingAgreement: &proof,
			Prices:              map[string]v1alpha1.Money{openstack.FlavorTwo: "5.80 EUR"},
			Machines:            v1alpha1.MachineSettings{Image: openstack.Image, Network: openstack.Network, AddressNetwork: openstack.Outside},
			Join: v1alpha1.JoinSettings{
				BootTime:     metav1.Duration{Duration: 10 * time.Second},
				JoinDeadline: metav1.Duration{Duration: slow}, ReadyDeadline: metav1.Duration{Duration: slow},
			},
			Staging: &v1alpha1.StagingStore{Endpoint: s.Staging.URL(), Region: "us-east-1", Secret: "staging-keys"},
		},
	}
	if err := errors.Join(s.Connect(t.Context()), s.Move(t.Context(), tenant), s.Client.Create(t.Context(), secret), s.Client.Create(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
}

// runController runs the controller as an installation does, but for the way to
// the cloud, which leads through the world's proxy. It returns the log's path.
func runController(ctx context.Context, t *testing.T, s *site.World, w *world, group *sync.WaitGroup) string {
	path := filepath.Join(s.Dir, "controller.log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Controller(t.Context(), "one", slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	c.Life.BuyDeadline, c.Life.JoinDeadline, c.Life.ReadyDeadline = slow, slow, slow
	c.OffersEvery, c.SweepEvery, c.Infra.Poll = 10*time.Second, 20*time.Second, time.Second
	web, err := w.proxy.Client()
	if err != nil {
		t.Fatal(err)
	}
	c.Dialers = map[string]controller.Dialer{"openstack": func(p *v1alpha1.BurstProvider, credential map[string][]byte, installation string) (providers.Driver, error) {
		config, err := controller.OpenStackConfig(p, credential, installation)
		if err != nil {
			return nil, err
		}
		config.HTTP = web
		return driver.New(config)
	}}
	group.Go(func() {
		defer func() { _ = log.Close() }()
		if err := controller.Run(ctx, c); err != nil && ctx.Err() == nil {
			t.Errorf("controller: %v", err)
		}
	})
	return path
}

// power is the hypervisors' one lack made good: what Nova says is running boots
// from its user-data, and what Nova deletes loses its power.
func (w *world) power(ctx context.Context, s *site.World) {
	on := map[string]context.CancelFunc{}
	var group sync.WaitGroup
	defer group.Wait()
	for ctx.Err() == nil {
		servers, err := w.project.Servers(ctx)
		if err == nil {
			there := map[string]bool{}
			for _, server := range servers {
				there[server.ID] = server.TaskState != "deleting"
				if on[server.ID] != nil || server.Status != "ACTIVE" {
					continue
				}
				data, err := base64.StdEncoding.DecodeString(server.UserData)
				if err != nil {
					w.t.Errorf("user data of server %s: %v", server.ID, err)
				}
				powered, cut := context.WithCancel(ctx)
				on[server.ID] = cut
				short := providers.Machine{ID: server.ID[:8], Provider: "lab"} // names a folder, and sockets in it
				group.Go(func() {
					if err := s.Boot(powered, short, data); err != nil {
						w.t.Logf("server %s: %v", server.ID, err)
					}
				})
			}
			for id, cut := range on {
				if !there[id] {
					cut()
				}
			}
		}
		w.Pass()
	}
}

func submit(t *testing.T, s *site.World) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	err = s.Client.Create(t.Context(), demo.TrainJob(demo.Shape{
		Namespace: tenantNS, Name: job, GPUs: 2, DeadlineSeconds: 900, Endpoint: "http://" + s.StoreAddress(),
		Epochs: 1, Passes: 1, Command: []string{self, demo.TrainArg},
	}))
	if err != nil {
		t.Fatal(err)
	}
}

func succeeded(ctx context.Context, t *testing.T, s *site.World) bool {
	j := &batchv1.Job{}
	if err := s.Client.Get(ctx, types.NamespacedName{Namespace: tenantNS, Name: job}, j); err != nil {
		t.Fatal(err)
	}
	return j.Status.Succeeded > 0
}

func resultSize(ctx context.Context, t *testing.T, s *site.World) int {
	store, err := s.S3()
	if err != nil {
		t.Fatal(err)
	}
	o, err := store.GetObject(ctx, demo.ResultsBucket, job+"/model.json", minio.GetObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Close() }()
	data, err := io.ReadAll(o)
	if err != nil {
		t.Error(err)
	}
	return len(data)
}
