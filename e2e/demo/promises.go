package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/e2e/canary"
)

// Promise is what the story shows of one of the ten promises.
type Promise struct {
	Kept     any    `json:"kept"` // true, false or "not exercised"
	Evidence string `json:"evidence"`
}

// searchResult is one search for cleartext outside home.
type searchResult struct {
	where string
	canary.Report
}

// search looks for canaries while the data is in the cloud, and in what came
// back of its disks. Files that go while it looks are looked at again.
func (s *story) search(where, dir string) error {
	for range 20 {
		report, err := canary.Search(dir, Canaries())
		if errors.Is(err, fs.ErrNotExist) {
			time.Sleep(50 * time.Millisecond) // the store or the node moved a file
			continue
		}
		if err != nil {
			return fmt.Errorf("search for cleartext in %s: %w", where, err)
		}
		s.summary.searched = append(s.summary.searched, searchResult{where, report})
		s.factf("  searched %s: %d files, %d bytes, %d bytes of cleartext", where, report.Files, report.Bytes, report.CleartextBytes(Canaries()))
		return nil
	}
	return fmt.Errorf("search for cleartext in %s: its files never kept still", where)
}

// searchCloud searches everything outside home, once the job works there.
func (s *story) searchCloud() error {
	return errors.Join(
		s.search("the staging store's files", s.world.StagingDir()),
		s.search("the burst node's disk", filepath.Join(s.world.Dir, "machines")),
	)
}

// fromDisks searches the disks that came back and adds up.
func (s *story) fromDisks(_ context.Context, b *BurstSummary) error {
	if err := s.search("the disks of machines that are gone", filepath.Join(s.world.Dir, "attic")); err != nil {
		return err
	}
	for _, r := range s.summary.searched {
		b.Cleartext += r.CleartextBytes(Canaries())
	}
	return nil
}

// promises holds each promise against what was seen from outside.
func (s *story) promises(ctx context.Context) error {
	events, err := s.refusalEvents(ctx)
	if err != nil {
		return err
	}
	bursts := &v1alpha1.BurstList{}
	if err := s.world.Client.List(ctx, bursts); err != nil {
		return fmt.Errorf("list bursts: %w", err)
	}
	b, jobs := s.summary.Burst, map[string]JobSummary{}
	for _, j := range s.summary.Jobs {
		jobs[j.Name] = j
	}
	forA := 0
	for _, burst := range bursts.Items {
		if burst.Spec.Gang.Name == "a" {
			forA++
		}
	}
	stratus := len(s.world.Clouds["stratus"].Snapshot())
	deleted, boughtAt := s.fates()
	certificate := b.CertLevel != "" && fileExists(b.Cert)
	home := b.at(v1alpha1.ResultsHome)
	s.summary.Promises = map[string]Promise{
		"1":  {strings.HasPrefix(jobs["a"].Where, "onprem-") && forA == 0, "state.json; a ran on " + jobs["a"].Where + ", no burst exists for it"},
		"2":  {jobs["a"].ResultSHA256 != "" && jobs["a"].ResultSHA256 == jobs["b"].ResultSHA256, "equal manifests but for the name, equal results: " + jobs["b"].ResultSHA256},
		"3":  {stratus == 0 && refusedBy(b, "stratus"), fmt.Sprintf("the cheapest provider, stratus, was never asked for a machine: its own list has %d", stratus)},
		"4":  {b.Verified && !boughtAt.IsZero() && !b.at(v1alpha1.Reserved).After(boughtAt), "spillway ledger verify --file " + s.path("ledger.db")},
		"5":  {b.Cleartext == 0 && len(s.summary.searched) >= 3 && b.CachedGets > 0, fmt.Sprintf("%d searches for %d canaries outside home; the positive control is TestSearchFindsEveryForm in e2e/canary", len(s.summary.searched), len(Canaries()))},
		"6":  {jobs["b"].ResultSHA256 != "" && !home.IsZero() && !home.After(b.at(v1alpha1.MachineGone)), "ResultsHome stands before MachineGone in steps; records/*/logs hold b's logs"},
		"7":  {certificate, "spillway wipe verify --trust " + s.path("certificate.pub") + " " + b.Cert + ": " + b.CertLevel},
		"8":  {b.Left == 0 && deleted, "the clouds' own lists: nothing is billed, every machine has its time of deletion"},
		"9":  {"not exercised", "go test ./e2e/stories -run TestCrash"},
		"10": {strings.Contains(jobs["c"].Says, "EUR") && events > 0, fmt.Sprintf("%d refusal events on Job c; its annotation: %s", events, jobs["c"].Says)},
	}
	return nil
}

func refusedBy(b *BurstSummary, provider string) bool {
	for _, r := range b.Refused {
		if r.Provider == provider {
			return true
		}
	}
	return false
}

// at is when a fact was recorded.
func (b *BurstSummary) at(fact string) time.Time {
	for _, step := range b.Steps {
		if step.Name == fact {
			return step.At
		}
	}
	return time.Time{}
}

// fates says whether every machine that was ever made is deleted, and when the
// first was made, by the clouds' own records.
func (s *story) fates() (allDeleted bool, first time.Time) {
	allDeleted = true
	for _, m := range s.world.Bought() {
		allDeleted = allDeleted && !m.Deleted.IsZero()
		if first.IsZero() || m.Created.Before(first) {
			first = m.Created
		}
	}
	return allDeleted, first
}

// refusalEvents counts the events on Job c that name the missing amount.
func (s *story) refusalEvents(ctx context.Context) (int, error) {
	list := &eventsv1.EventList{}
	if err := s.world.Client.List(ctx, list, client.InNamespace(visionNS)); err != nil {
		return 0, fmt.Errorf("list events: %w", err)
	}
	n := 0
	for _, e := range list.Items {
		if e.Regarding.Kind == "Job" && e.Regarding.Name == "c" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Note, "EUR") {
			n++
		}
	}
	return n, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// broken names the promises that were not kept.
func (s *story) broken() error {
	var bad []string
	for n := 1; n <= 10; n++ {
		key := fmt.Sprint(n)
		if p, ok := s.summary.Promises[key]; !ok || p.Kept == false {
			bad = append(bad, fmt.Sprintf("%d (%s)", n, p.Evidence))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf("promises broken: %s", strings.Join(bad, "; "))
	}
	return nil
}
