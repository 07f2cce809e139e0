package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

const (
	visionNS = "team-vision"
	newNS    = "team-new"
)

// settle fills the store, brings the tenants in and starts the controller.
func (s *story) settle(ctx context.Context) error {
	for _, bucket := range []string{DataBucket, ResultsBucket} {
		if err := s.world.MakeBucket(ctx, bucket); err != nil {
			return err
		}
	}
	c, err := s.world.S3()
	if err != nil {
		return err
	}
	const expected = 64 << 20
	total, err := fill(ctx, c, DataBucket, s.bar("training set to the store at home", expected))
	if err != nil {
		return err
	}
	s.factf("%d objects, %d bytes, each with a canary string in it", objects, total)
	if err := s.world.Connect(ctx); err != nil {
		return err
	}
	vision := s.world.Tenant(visionNS, "t-7f31", v1alpha1.ModeOn, "12.00 EUR",
		s.world.Source(DataBucket, false), s.world.Source(ResultsBucket, true))
	fresh := s.world.Tenant(newNS, "t-9c02", v1alpha1.ModeObserve, "100.00 EUR",
		s.world.Source(DataBucket, false), s.world.Source(ResultsBucket, true))
	for _, t := range []*v1alpha1.BurstTenant{vision, fresh} {
		if err := s.world.Move(ctx, t); err != nil {
			return err
		}
		s.factf("tenant %s: %s data, mode %s, %s a month at most", t.Name, t.Spec.DataClass, t.Spec.Burst.Mode, t.Spec.Burst.Budgets[0].Limit)
	}
	return s.startController(ctx)
}

// startController runs the controller as a process of its own, as the chart
// would, with a configuration file.
func (s *story) startController(ctx context.Context) error {
	config, err := s.writeConfig(ctx)
	if err != nil {
		return err
	}
	log, err := os.Create(s.path("logs", "controller.log"))
	if err != nil {
		return fmt.Errorf("controller log: %w", err)
	}
	defer func() { _ = log.Close() }() // the child has its own handle
	cmd := exec.Command(s.Exec[0], append(s.Exec[1:len(s.Exec):len(s.Exec)], "controller", "--config", config)...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.controller, err = s.keeper.Start(cmd); err != nil {
		return fmt.Errorf("start the controller: %w", err)
	}
	err = s.until(ctx, time.Minute, "the controller to lead", func() (bool, error) {
		secret := &corev1.Secret{}
		err := s.world.Client.Get(ctx, types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: "onprem-kubeconfig"}, secret)
		return err == nil, client.IgnoreNotFound(err)
	})
	if err == nil {
		s.fact("the controller leads; Cluster API, infrastructure controller, gate and link are up")
	}
	return err
}

func (s *story) path(elem ...string) string {
	p := filepath.Join(append([]string{s.Dir}, elem...)...)
	_ = os.MkdirAll(filepath.Dir(p), 0o755) // the write that follows says what is wrong
	return p
}

func (s *story) writeConfig(ctx context.Context) (string, error) {
	c, err := s.world.Controller(ctx, "demo-controller", nil)
	if err != nil {
		return "", err
	}
	kubeconfig := filepath.Join(s.world.Dir, "controller.kubeconfig")
	if err := s.world.ControlPlane.WriteKubeconfig(kubeconfig, c.REST); err != nil {
		return "", err
	}
	ca := filepath.Join(s.world.Dir, "cluster-ca.crt")
	if err := os.WriteFile(ca, c.ClusterCA, 0o644); err != nil {
		return "", fmt.Errorf("cluster CA: %w", err)
	}
	data, err := yaml.Marshal(map[string]any{
		"kubeconfig": kubeconfig, "dataDir": c.DataDir, "identity": c.Identity, "installation": c.Life.Installation,
		"endpoint": c.Endpoint, "clusterCA": ca, "capiKubeconfig": s.world.ControlPlane.Kubeconfig, "embeddedCAPI": true,
		"link": c.Link, "gate": c.Gate, "store": c.Store.String(), "storeAddress": c.StoreAddress, "storeRegion": "us-east-1",
		"waived": c.Life.Waived,
		"times": map[string]string{
			"debounce": c.Planning.Debounce.String(), "boot": c.Planning.Boot.String(),
			"backoff": c.Planning.Backoff.String(), "cycle": c.CycleEvery.String(), "idle": c.CycleIdle.String(),
			"offers": c.OffersEvery.String(), "sweep": c.SweepEvery.String(), "buyDeadline": c.Life.BuyDeadline.String(),
			"joinDeadline": c.Life.JoinDeadline.String(), "readyDeadline": c.Life.ReadyDeadline.String(), "poll": c.Life.Poll.String(),
			"machinePoll": c.Infra.Poll.String(), "machineLookAgain": c.Infra.LookAgain.String(),
			"machineWatch": c.Infra.Watch.String(), "machineTrouble": c.Infra.Trouble.String(),
		},
	})
	if err != nil {
		return "", fmt.Errorf("controller configuration: %w", err)
	}
	file := filepath.Join(s.world.Dir, "controller.yaml")
	return file, os.WriteFile(file, data, 0o600)
}

// until polls for a condition, and gives up when the controller has died.
func (s *story) until(ctx context.Context, patience time.Duration, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		ok, err := done()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		var died <-chan struct{}
		if s.controller != nil {
			died = s.controller.Done()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s; see %s", patience, what, s.path("logs", "controller.log"))
		case <-died:
			return fmt.Errorf("the controller died while waiting for %s; see %s", what, s.path("logs", "controller.log"))
		case err := <-s.world.ControlPlane.Died():
			return fmt.Errorf("the control plane died: %w", err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// shapes of the Jobs; a and b differ in their name only.
func (s *story) shape(namespace, name string, gpus int, deadline int64) Shape {
	return Shape{
		Namespace: namespace, Name: name, GPUs: gpus, DeadlineSeconds: deadline, Endpoint: "http://" + s.world.StoreAddress(),
		Epochs: 8, Passes: 20,
	}
}

func (s *story) submit(ctx context.Context, sh Shape) error {
	if err := s.world.Client.Create(ctx, TrainJob(sh)); err != nil {
		return fmt.Errorf("submit Job %s: %w", sh.Name, err)
	}
	s.factf("Job %s/%s submitted: %d GPUs, %d s at most", sh.Namespace, sh.Name, sh.GPUs, sh.DeadlineSeconds)
	return nil
}

// jobAtHome fills the second node and runs a on the first.
func (s *story) jobAtHome(ctx context.Context) error {
	resident := s.shape(visionNS, "resident", 2, 3600)
	resident.Command = []string{"sleep", "3600"}
	if err := errors.Join(s.submit(ctx, resident), s.submit(ctx, s.shape(visionNS, "a", 2, 600))); err != nil {
		return err
	}
	return s.until(ctx, time.Minute, "a and resident to run at home", func() (bool, error) {
		pods := &corev1.PodList{}
		err := s.world.Client.List(ctx, pods, client.InNamespace(visionNS))
		running := 0
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running == 2 {
			for _, p := range pods.Items {
				s.factf("pod %s runs on %s", p.Name, p.Spec.NodeName)
			}
		}
		return running == 2, err
	})
}

// jobThatBursts submits b, c and n and follows b to its end.
func (s *story) jobThatBursts(ctx context.Context) error {
	err := errors.Join(
		s.submit(ctx, s.shape(visionNS, "b", 2, 600)),
		s.submit(ctx, s.shape(visionNS, "c", 4, 8*3600)),
		s.submit(ctx, s.shape(newNS, "n", 4, 600)),
	)
	if err != nil {
		return err
	}
	told := map[string]bool{}
	err = s.until(ctx, 10*time.Minute, "the burst of Job b to settle", func() (bool, error) {
		return s.follow(ctx, told)
	})
	if err != nil {
		return err
	}
	return s.until(ctx, 10*time.Minute, "Job a to finish at home", func() (bool, error) {
		job := &batchv1.Job{}
		err := s.world.Client.Get(ctx, types.NamespacedName{Namespace: visionNS, Name: "a"}, job)
		return job.Status.Succeeded > 0, err
	})
}

// follow prints what is new about the burst and the waiting Jobs.
func (s *story) follow(ctx context.Context, told map[string]bool) (bool, error) {
	once := func(key, text string) {
		if text != "" && !told[key+text] {
			told[key+text] = true
			s.fact(text)
		}
	}
	for _, key := range []types.NamespacedName{{Namespace: visionNS, Name: "c"}, {Namespace: newNS, Name: "n"}} {
		job := &batchv1.Job{}
		if err := s.world.Client.Get(ctx, key, job); err != nil {
			return false, err
		}
		if text := job.Annotations[v1alpha1.StatusAnnotation]; text != "" {
			once(key.Name, fmt.Sprintf("Job %s says: %s", key.Name, text))
		}
	}
	bursts := &v1alpha1.BurstList{}
	if err := s.world.Client.List(ctx, bursts, client.InNamespace(visionNS)); err != nil {
		return false, err
	}
	over := false
	for i := range bursts.Items {
		b := &bursts.Items[i]
		once(b.Name, fmt.Sprintf("burst %s: %s, %s an hour, %s at most", b.Name, b.Spec.Offer.Provider, b.Spec.Offer.PricePerHour, b.Spec.Ceiling))
		for _, r := range b.Spec.Refused {
			once(b.Name+r.Provider, fmt.Sprintf("  not %s: %s: %s", r.Provider, r.Code, r.Message))
		}
		for _, f := range append([]string{v1alpha1.Ending}, v1alpha1.Facts()...) {
			for _, c := range b.Status.Conditions {
				if c.Type == f {
					once(b.Name+f, fmt.Sprintf("  %-16s %s", f, c.Message))
				}
			}
		}
		if conditionTrue(b, v1alpha1.PodsAdmitted) && !conditionTrue(b, v1alpha1.WorkDone) && s.working(ctx) && !told["searched"] {
			told["searched"] = true
			if err := s.searchCloud(); err != nil {
				return false, err
			}
		}
		if done := conditionTrue(b, v1alpha1.Complete); done {
			s.summary.burst = b.DeepCopy()
			over = true
		} else if conditionTrue(b, v1alpha1.Failed) {
			return false, fmt.Errorf("burst %s failed", b.Name)
		}
	}
	return over, nil
}

// working reports whether job b has read its inputs once: then everything is
// outside that ever will be.
func (s *story) working(ctx context.Context) bool {
	pods := &corev1.PodList{}
	if err := s.world.Client.List(ctx, pods, client.InNamespace(visionNS), client.MatchingLabels{"batch.kubernetes.io/job-name": "b"}); err != nil {
		return false
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning {
			continue
		}
		logs, err := s.world.Kube.CoreV1().Pods(visionNS).GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(ctx)
		if err == nil && strings.Contains(string(logs), "epoch 1:") {
			return true
		}
	}
	return false
}

func conditionTrue(b *v1alpha1.Burst, kind string) bool {
	for _, c := range b.Status.Conditions {
		if c.Type == kind {
			return c.Status == "True"
		}
	}
	return false
}
