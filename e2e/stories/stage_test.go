package stories

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/e2e/controlplane"
	"spillway.dev/spillway/e2e/demo"
	"spillway.dev/spillway/e2e/world"
	"spillway.dev/spillway/quota/ledger"
)

func TestMain(m *testing.M) {
	if status, child := world.Child(os.Args[1:]); child {
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

const tenantNS = "team-vision"

// patience is how long a story waits for what must come. Two busy cores are
// slow; one that never comes costs this much once.
const patience = 4 * time.Minute

// stage is a world with a tenant whose work always bursts: there are no nodes
// at home.
type stage struct {
	*world.World
	t testing.TB
	// edit changes the configuration of every controller of the stage.
	edit func(*controller.Config)
}

// Stages stand side by side: their time is mostly waiting.
func newStage(t *testing.T, edit func(*controller.Config)) *stage {
	t.Helper()
	t.Parallel()
	return openStage(t, edit)
}

// openStage opens a stage; shape changes the world that it is.
func openStage(t testing.TB, edit func(*controller.Config), shape ...func(*world.Config)) *stage {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin, err := controlplane.FindBinDir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "stage") // t.TempDir is too long for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	config := world.Config{
		Dir: dir, BinDir: bin, Exec: []string{self}, NewScheme: controller.Scheme,
		Clouds: []world.Cloud{cloudIn("rhein", "DE", "2.90 EUR"), cloudIn("seine", "FR", "3.90 EUR")},
	}
	for _, change := range shape {
		change(&config)
	}
	w, err := world.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{World: w, t: t, edit: edit}
	t.Cleanup(s.close)
	s.furnish()
	return s
}

// cloudIn is a cloud that boots at once.
func cloudIn(name, country, price string) world.Cloud {
	return world.Cloud{
		Name: name, Region: name + "1", Country: country, Secret: "secret", Owner: name + " AG", OwnerCountry: country,
		Prices: map[string]string{"g2": price}, BootTakes: 100 * time.Millisecond, DeleteTakes: 100 * time.Millisecond,
	}
}

// on is the same stage for a subtest.
func (s *stage) on(t *testing.T) *stage {
	return &stage{World: s.World, t: t, edit: s.edit}
}

func (s *stage) close() {
	if err := s.Stop(); err != nil {
		s.t.Errorf("something did not end: %v", err)
	}
	if s.t.Failed() {
		s.t.Logf("the stage is kept in %s", s.Dir)
		return
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		s.t.Error(err)
	}
}

// furnish brings in tenant, provider and a small training set.
func (s *stage) furnish() {
	s.t.Helper()
	ctx := s.t.Context()
	for _, bucket := range []string{demo.DataBucket, demo.ResultsBucket} {
		if err := s.MakeBucket(ctx, bucket); err != nil {
			s.t.Fatal(err)
		}
	}
	c, err := s.S3()
	if err != nil {
		s.t.Fatal(err)
	}
	for i := range 5 {
		data := demo.Shard(i)
		if _, err := c.PutObject(ctx, demo.DataBucket, fmt.Sprintf("train/%d.bin", i), bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	tenant := s.Tenant(tenantNS, "t-1", v1alpha1.ModeOn, "1000.00 EUR", s.Source(demo.DataBucket, false), s.Source(demo.ResultsBucket, true))
	tenant.Spec.Burst.BurstAfter.Duration = time.Millisecond
	tenant.Spec.Burst.DataRules[0].Freshness = &v1alpha1.Freshness{Mode: v1alpha1.FreshnessLease, Seconds: 30}
	if err := errors.Join(s.Connect(ctx), s.Move(ctx, tenant)); err != nil {
		s.t.Fatal(err)
	}
}

// submit submits a Job that needs two GPUs. Changes are made to it before.
func (s *stage) submit(name string, epochs int, changes ...func(*batchv1.Job)) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	job := demo.TrainJob(demo.Shape{
		Namespace: tenantNS, Name: name, GPUs: 2, DeadlineSeconds: 600, Endpoint: "http://" + s.StoreAddress(),
		Epochs: epochs, Passes: 1, Command: []string{self, demo.TrainArg},
	})
	for _, change := range changes {
		change(job)
	}
	if err := s.Client.Create(s.t.Context(), job); err != nil {
		s.t.Fatal(err)
	}
}

// run is one controller process of the stage.
type run struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a controller in this process. Its kill points call strike.
func (s *stage) start(identity string, strike func(kill context.CancelFunc, step, fact string)) *run {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.Dir, "controller.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := s.Controller(s.t.Context(), identity, slog.New(slog.NewJSONHandler(log, nil)).With("controller", identity))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	at := func(step, fact string) {
		if strike != nil {
			strike(cancel, step, fact)
		}
	}
	c.StepHook = func(_ context.Context, step, fact string) { at(step, fact) }
	c.InfraHook = func(_ context.Context, act string) { at("infra", act) }
	if s.edit != nil {
		s.edit(&c)
	}
	r := &run{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer func() { _ = log.Close() }()
		r.err = controller.Run(ctx, c)
	}()
	return r
}

func (r *run) stop() {
	r.cancel()
	<-r.done
}

// until polls a condition that must come true.
func (s *stage) until(patience time.Duration, what string, done func() bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !done(); {
		if time.Now().After(end) {
			s.t.Fatalf("waited %s for %s; the controller's log is %s", patience, what, filepath.Join(s.Dir, "controller.log"))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// bursts reads the bursts of one Job.
func (s *stage) bursts(job string) []v1alpha1.Burst {
	s.t.Helper()
	list := &v1alpha1.BurstList{}
	if err := s.Client.List(context.Background(), list, client.InNamespace(tenantNS)); err != nil {
		s.t.Fatal(err)
	}
	var of []v1alpha1.Burst
	for _, b := range list.Items {
		if b.Spec.Gang.Name == job {
			of = append(of, b)
		}
	}
	return of
}

func has(b v1alpha1.Burst, fact string) bool {
	for _, c := range b.Status.Conditions {
		if c.Type == fact {
			return true
		}
	}
	return false
}

// tally is what a story came to, counted from outside.
type tally struct {
	machines, billing, charges, certificates int
	result                                   string
}

// count counts what one Job's bursts came to.
func (s *stage) count(job string) tally {
	s.t.Helper()
	ctx := context.Background()
	var sum tally
	of := map[string]bool{}
	for _, b := range s.bursts(job) {
		of[string(b.UID)] = true
		if _, err := os.Stat(filepath.Join(s.DataDir(), "records", string(b.UID), "certificate.json")); err == nil {
			sum.certificates++
		}
	}
	for _, m := range s.Bought() {
		if of[m.Burst] {
			sum.machines++
		}
	}
	for _, m := range s.Billing() {
		if of[m.Burst] {
			sum.billing++
		}
	}
	l, err := ledger.Open(ctx, filepath.Join(s.DataDir(), "ledger.db"), ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accounts, err := l.Accounts(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range accounts {
		if of[a.Reservation.Burst] && !a.Spent.IsZero() {
			sum.charges++
		}
	}
	report, err := l.Verify(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if !report.OK {
		s.t.Errorf("the ledger is not sound:\n%s", report)
	}
	sum.result = s.result(job)
	return sum
}

// result is the digest of a Job's result at home, empty when there is none.
func (s *stage) result(job string) string {
	s.t.Helper()
	c, err := s.S3()
	if err != nil {
		s.t.Fatal(err)
	}
	o, err := c.GetObject(context.Background(), demo.ResultsBucket, job+"/model.json", minio.GetObjectOptions{})
	if err != nil {
		return ""
	}
	defer func() { _ = o.Close() }()
	data, err := io.ReadAll(o)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// finished reports whether a Job has succeeded and its bursts are settled.
func (s *stage) finished(job string) bool {
	s.t.Helper()
	j := &batchv1.Job{}
	if err := s.Client.Get(context.Background(), types.NamespacedName{Namespace: tenantNS, Name: job}, j); err != nil {
		s.t.Fatal(err)
	}
	of := s.bursts(job)
	for _, b := range of {
		if !has(b, v1alpha1.Complete) && !has(b, v1alpha1.Failed) {
			return false
		}
	}
	return j.Status.Succeeded > 0 && len(of) > 0
}

// killer kills a controller once, at one kill point.
type killer struct {
	mu    sync.Mutex
	point string
	hit   bool
}

func (k *killer) strike(kill context.CancelFunc, step, fact string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.hit && step+"/"+fact == k.point {
		k.hit = true
		kill() // from here on no call of this controller reaches anybody
	}
}

func (k *killer) struck() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hit
}
