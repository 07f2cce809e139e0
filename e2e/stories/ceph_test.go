//go:build ceph

package stories

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/controller"
	"spillway.dev/spillway/datasync/stager"
	"spillway.dev/spillway/datasync/transit"
	"spillway.dev/spillway/e2e/canary"
	"spillway.dev/spillway/e2e/ceph"
	"spillway.dev/spillway/e2e/demo"
	"spillway.dev/spillway/e2e/keyservice"
	"spillway.dev/spillway/e2e/world"
	"spillway.dev/spillway/nodeagent/wipe"
)

// gateway is a Ceph lab as a store of a world.
type gateway struct {
	*ceph.Lab
	owner string
}

// Policy names the owner too: what others write into its bucket is theirs.
func (g gateway) Policy(bucket string, accounts ...string) string {
	return ceph.Policy(bucket, append([]string{g.owner}, accounts...)...)
}

// onCeph makes both stores of a world real Ceph gateways.
func onCeph(c *world.Config) {
	c.OpenStore = func(ctx context.Context, name, dir string, accounts []world.Account) (world.Store, error) {
		config := ceph.Config{Cache: filepath.Join("..", "..", "bin", ".built"), Dir: filepath.Join(dir, name+"-store"), Name: world.StoreHost}
		for _, a := range accounts {
			config.Users = append(config.Users, ceph.User{Name: a.Key, AccessKey: a.Key, SecretKey: a.Secret})
		}
		lab, err := ceph.Start(ctx, config)
		if err != nil {
			return nil, err
		}
		return gateway{lab, accounts[0].Key}, nil
	}
}

// withTransit lets controllers keep their keys at a transit engine.
func withTransit(t *testing.T) func(*controller.Config) {
	const token = "the token of the controller"
	engine := keyservice.Start(token)
	t.Cleanup(engine.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *controller.Config) {
		c.KeyService.Transit = &transit.Config{Address: engine.URL(), TokenFile: file, CA: engine.CA()}
	}
}

// A Job bursts, with its inputs staged, at a site whose stores are real Ceph
// gateways and whose keys can be proven to be gone: its result comes home, the
// wipe is certified, and neither the raw disk under the staging store nor the
// node's holds a canary of its inputs, while the disk under the store at home
// holds them all.
func TestCephBurst(t *testing.T) {
	s := openStage(t, withTransit(t), onCeph)
	c := s.start("ceph", nil)
	defer c.stop()
	s.submit("proven", 1)
	uid := s.burstWith("proven", v1alpha1.Staged)
	s.staged(stager.BucketName(string(uid)))
	s.wouldShow()
	s.clean("while the inputs are staged", s.StagingDir(), filepath.Join(s.Dir, "machines"))
	s.until(patience, "the Job to finish and its burst to settle", func() bool { return s.finished("proven") })
	if got := s.count("proven"); got.machines != 1 || got.billing != 0 || got.charges != 1 || got.certificates != 1 || got.result == "" {
		t.Errorf("%+v, want one machine, none left, one charge, one certificate and the result", got)
	}
	s.certified(string(uid))
	s.clean("at the end", s.StagingDir(), filepath.Join(s.Dir, "attic"))
	control := s.search(filepath.Join(s.Dir, world.HomeStore+"-store"))
	found := map[int]bool{}
	for _, hit := range control.Found {
		found[hit.Canary] = found[hit.Canary] || hit.Form == "raw"
	}
	if len(found) != len(demo.Canaries()) {
		t.Errorf("the positive control: of %d canaries %v were found in %d bytes of the disk at home", len(demo.Canaries()), found, control.Bytes)
	}
}

func (s *stage) search(dir string) canary.Report {
	s.t.Helper()
	r, err := canary.Search(dir, demo.Canaries())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("searched %s: %d files, %d bytes, %d hits", dir, r.Files, r.Bytes, len(r.Found))
	return r
}

// clean searches places outside home for cleartext.
func (s *stage) clean(when string, dirs ...string) {
	s.t.Helper()
	for _, dir := range dirs {
		if r := s.search(dir); len(r.Found) > 0 || r.Files == 0 {
			s.t.Errorf("%s: %d files in %s hold %v", when, r.Files, dir, r.Found)
		}
	}
}

// atStaging is a client of the staging store as its owner.
func (s *stage) atStaging() *minio.Client {
	s.t.Helper()
	account := world.StagingAccount()
	c, err := minio.New(s.Staging.Addr(), &minio.Options{Creds: credentials.NewStaticV4(account, s.SecretOf(account), ""), Region: "us-east-1"})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// wouldShow is the control on the disk of the staging store itself: what is
// stored there in the clear is found.
func (s *stage) wouldShow() {
	s.t.Helper()
	c, clear := s.atStaging(), "CONTROL-"+rand.Text()+rand.Text()
	err := c.MakeBucket(s.t.Context(), "control", minio.MakeBucketOptions{})
	if err == nil {
		_, err = c.PutObject(s.t.Context(), "control", "k", strings.NewReader(clear), int64(len(clear)), minio.PutObjectOptions{DisableContentSha256: true})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if r, err := canary.Search(s.StagingDir(), []string{clear}); err != nil || len(r.Found) == 0 {
		s.t.Errorf("what was stored in the clear is not found on the disk of the staging store: %+v, %v", r, err)
	}
}

// staged looks that the staging store really holds a burst's inputs.
func (s *stage) staged(bucket string) {
	s.t.Helper()
	objects, bytes := 0, int64(0)
	for o := range s.atStaging().ListObjectsIter(s.t.Context(), bucket, minio.ListObjectsOptions{Recursive: true}) {
		if o.Err != nil {
			s.t.Fatal(o.Err)
		}
		objects, bytes = objects+1, bytes+o.Size
	}
	if objects < 5 || bytes < 1<<20 {
		s.t.Errorf("the staging store holds %d objects of %d bytes, want the 5 inputs", objects, bytes)
	}
}

// certified holds a burst's certificate against the installation's key.
func (s *stage) certified(uid string) {
	s.t.Helper()
	data, err := os.ReadFile(filepath.Join(s.DataDir(), "records", uid, "certificate.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	var signed wipe.SignedCertificate
	if err := json.Unmarshal(data, &signed); err != nil {
		s.t.Fatal(err)
	}
	var said wipe.Certificate
	if err := json.Unmarshal(signed.Certificate, &said); err != nil {
		s.t.Fatal(err)
	}
	if said.Level != wipe.Certified {
		s.t.Errorf("the certificate says %s: %s", said.Level, strings.Join(said.Unproven, "; "))
	}
	if said.Staging.ObjectsDeleted < 6 || said.Staging.EmptyPasses < 2 {
		s.t.Errorf("of the staging store it says %+v", said.Staging)
	}
	resp, err := http.Head(s.Staging.URL() + "/" + said.Staging.Bucket)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		s.t.Errorf("the staging bucket after the wipe: %s", resp.Status)
	}
}
