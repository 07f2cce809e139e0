package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/e2e/objectstore"
	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
	"spillway.dev/spillway/quota/money"
)

// Summary is summary.json: what the story came to, read from the outside.
type Summary struct {
	Jobs     []JobSummary       `json:"jobs"`
	Burst    *BurstSummary      `json:"burst"`
	Promises map[string]Promise `json:"promises"`

	burst *v1alpha1.Burst
	// searched counts the canaries found while the data was in the cloud.
	searched []searchResult
}

// JobSummary is one Job.
type JobSummary struct {
	Name         string  `json:"name"`
	Where        string  `json:"where"` // a node, or "pending"
	ResultSHA256 string  `json:"result_sha256,omitempty"`
	Seconds      float64 `json:"seconds"` // of its container
	Says         string  `json:"says,omitempty"`
}

// BurstSummary is the burst of Job b.
type BurstSummary struct {
	Provider   string        `json:"provider"`
	Refused    []RefusedBy   `json:"refused"`
	Steps      []StepAt      `json:"steps"`
	Reserved   string        `json:"reserved"`
	Spent      string        `json:"spent"`
	Released   string        `json:"released"`
	Currency   string        `json:"currency"`
	Staged     int64         `json:"staged_bytes"`
	Read       int64         `json:"read_bytes"`
	Returned   int64         `json:"returned_bytes"`
	CachedGets int           `json:"cached_reads"`      // answered 304 without a body by the store at home
	CachedBody int64         `json:"cached_read_bytes"` // body bytes that the store at home sent for them
	Cleartext  int64         `json:"cleartext_bytes_in_cloud"`
	Left       int           `json:"machines_left"`
	OnPremSecs int64         `json:"gpu_seconds_on_prem"`
	CloudSecs  int64         `json:"gpu_seconds_cloud"`
	Billed     int64         `json:"billed_machine_seconds"`
	Cert       string        `json:"certificate"`
	CertLevel  string        `json:"certificate_level"`
	Verified   bool          `json:"ledger_verified"`
	report     ledger.Report `json:"-"`
}

// RefusedBy is an offer that was not taken.
type RefusedBy struct {
	Provider string `json:"provider"`
	Reason   string `json:"reason"`
}

// StepAt is one fact of the burst's life.
type StepAt struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
}

// account gathers the summary after the burst has settled.
func (s *story) account(ctx context.Context) error {
	s.controller.End(15 * time.Second) // it has done its part; the ledger's file is whole now
	for _, j := range []struct{ ns, name string }{{visionNS, "a"}, {visionNS, "b"}, {visionNS, "c"}, {newNS, "n"}} {
		job, err := s.jobSummary(ctx, j.ns, j.name)
		if err != nil {
			return err
		}
		s.summary.Jobs = append(s.summary.Jobs, job)
	}
	b := &BurstSummary{}
	s.summary.Burst = b
	s.fromRecord(b)
	for _, read := range []func(context.Context, *BurstSummary) error{s.keep, s.fromLedger, s.fromStore, s.fromClouds, s.fromDisks} {
		if err := read(ctx, b); err != nil {
			return err
		}
	}
	return s.promises(ctx)
}

func (s *story) jobSummary(ctx context.Context, ns, name string) (JobSummary, error) {
	sum := JobSummary{Name: name, Where: "pending"}
	job := &batchv1.Job{}
	if err := s.world.Client.Get(ctx, types.NamespacedName{Namespace: ns, Name: name}, job); err != nil {
		return sum, fmt.Errorf("read Job %s: %w", name, err)
	}
	sum.Says = job.Annotations[v1alpha1.StatusAnnotation]
	pods := &corev1.PodList{}
	if err := s.world.Client.List(ctx, pods, client.InNamespace(ns), client.MatchingLabels{"batch.kubernetes.io/job-name": name}); err != nil {
		return sum, fmt.Errorf("read pods of Job %s: %w", name, err)
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil {
				sum.Where, sum.Seconds = p.Spec.NodeName, t.FinishedAt.Sub(t.StartedAt.Time).Seconds()
			}
		}
	}
	for _, p := range s.summary.burst.Status.Placed { // its pod went with its node
		if name == s.summary.burst.Spec.Gang.Name && p.Started != nil && p.Finished != nil {
			sum.Where, sum.Seconds = p.Node+" at "+s.summary.burst.Spec.Offer.Provider, p.Finished.Sub(p.Started.Time).Seconds()
		}
	}
	if sum.Where == "pending" {
		return sum, nil
	}
	result, err := s.result(ctx, name)
	if err != nil {
		return sum, err
	}
	digest := sha256.Sum256(result)
	sum.ResultSHA256 = hex.EncodeToString(digest[:])
	return sum, nil
}

// result reads a Job's result from the store at home.
func (s *story) result(ctx context.Context, job string) ([]byte, error) {
	c, err := s.world.S3()
	if err != nil {
		return nil, err
	}
	o, err := c.GetObject(ctx, ResultsBucket, job+"/model.json", minio.GetObjectOptions{})
	if err != nil {
		return nil, fmt.Errorf("result of Job %s: %w", job, err)
	}
	defer func() { _ = o.Close() }() // it was read to its end or failed
	data, err := io.ReadAll(o)
	if err != nil {
		return nil, fmt.Errorf("result of Job %s: %w", job, err)
	}
	return data, nil
}

// fromRecord takes the timeline from the Burst object.
func (s *story) fromRecord(b *BurstSummary) {
	r := s.summary.burst
	b.Provider = r.Spec.Offer.Provider
	for _, f := range r.Spec.Refused {
		b.Refused = append(b.Refused, RefusedBy{f.Provider, f.Code + ": " + f.Message})
	}
	for _, fact := range v1alpha1.Facts() {
		for _, c := range r.Status.Conditions {
			if c.Type == fact {
				b.Steps = append(b.Steps, StepAt{fact, c.LastTransitionTime.UTC()})
			}
		}
	}
	b.Staged, b.Read, b.Returned = r.Status.Data.StagedBytes, r.Status.Data.ReadBytes, r.Status.Data.ReturnedBytes
	b.Billed = r.Status.Cost.MachineSeconds
}

// fromLedger reads the money from the ledger's file.
func (s *story) fromLedger(ctx context.Context, b *BurstSummary) error {
	l, err := ledger.Open(ctx, s.path("ledger.db"), ledger.Options{Now: time.Now, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // nothing was written
	account, err := l.Account(ctx, string(s.summary.burst.UID))
	if err != nil {
		return err
	}
	b.Reserved, b.Spent, b.Released = account.Reserved.String(), account.Spent.String(), account.Released.String()
	b.Currency = string(account.Reserved.Currency)
	if b.report, err = l.Verify(ctx); err != nil {
		return err
	}
	b.Verified = b.report.OK
	totals, err := l.UsageSeconds(ctx, quota.UsageFilter{Namespace: visionNS})
	if err != nil {
		return err
	}
	for _, t := range totals {
		if t.Burst == "" {
			b.OnPremSecs += t.ShareSeconds / money.Whole
		} else {
			b.CloudSecs += t.ShareSeconds / money.Whole
		}
	}
	return nil
}

// fromStore counts what the store at home answered to cached reads.
func (s *story) fromStore(_ context.Context, b *BurstSummary) error {
	log, err := objectstore.ReadLog(s.world.HomeLog())
	if err != nil {
		return err
	}
	for _, e := range log {
		if e.Method == "GET" && e.Status == 304 {
			b.CachedGets++
			b.CachedBody += e.BytesSent
		}
	}
	return nil
}

// fromClouds asks every cloud what it still bills for.
func (s *story) fromClouds(_ context.Context, b *BurstSummary) error {
	b.Left = len(s.world.Billing())
	return nil
}

// keep puts what is worth keeping into the output folder.
func (s *story) keep(_ context.Context, b *BurstSummary) error {
	uid, data := string(s.summary.burst.UID), s.world.DataDir()
	b.Cert = filepath.Join(s.Dir, "certificate.json")
	b.CertLevel = s.summary.burst.Status.Certificate.Level
	for from, to := range map[string]string{
		filepath.Join(data, "records", uid, "certificate.json"):       b.Cert,
		filepath.Join(data, "keys", "certificate.pub"):                s.path("certificate.pub"),
		filepath.Join(data, "captured", s.summary.burst.Name+".json"): s.path("state.json"),
		filepath.Join(data, "ledger.db"):                              s.path("ledger.db"),
		filepath.Join(s.world.HomeLog()):                              s.path("logs", "home-store-access.log"),
	} {
		if err := copyFile(from, to); err != nil {
			return fmt.Errorf("keep evidence: %w", err)
		}
	}
	return os.CopyFS(s.path("records"), os.DirFS(filepath.Join(data, "records")))
}

// verdict writes summary.json, prints the end, and says which promise broke.
func (s *story) verdict() error {
	data, err := json.MarshalIndent(s.summary, "", "  ")
	if err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	if err := os.WriteFile(s.path("summary.json"), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("summary: %w", err)
	}
	if s.JSON {
		if _, err := fmt.Fprintln(s.Out, string(data)); err != nil {
			return err
		}
	} else {
		s.print()
	}
	return s.broken()
}
