package procnode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// startFailed is the exit code of a container whose command can't be started.
const startFailed = 128

// container is one container of a pod. The run in it is written to disk before
// it begins and after it has ended.
type container struct {
	run
	spec    *corev1.Container
	init    bool
	gpus    []string
	pid     int                           // of its process while it runs
	waiting *corev1.ContainerStateWaiting // overrides the run in the status
	last    *run                          // the run before
}

// run is one run of a container.
type run struct {
	Restarts int       `json:"restarts"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	Exit     int       `json:"exit"`
	Reason   string    `json:"reason,omitempty"`
	Message  string    `json:"message,omitempty"`
}

func (r *run) ended() bool { return !r.Finished.IsZero() }

// finish completes a run.
func (r *run) finish(exit int, reason, message string) {
	r.Finished, r.Exit, r.Reason, r.Message = time.Now(), exit, reason, message
}

// again makes the container ready for its next run.
func (c *container) again() {
	old := c.run
	c.last, c.run, c.waiting = &old, run{Restarts: old.Restarts + 1}, nil
}

func (c *container) id() string { return fmt.Sprintf("process://%s-%d", c.spec.Name, c.Restarts) }

func (r *run) terminated() *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{
		ExitCode: int32(r.Exit), Reason: r.Reason, Message: r.Message,
		StartedAt: metav1.NewTime(r.Started), FinishedAt: metav1.NewTime(r.Finished),
	}
}

func (c *container) status() corev1.ContainerStatus {
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, RestartCount: int32(c.Restarts),
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last.terminated()
	}
	switch {
	case c.waiting != nil:
		s.State.Waiting = c.waiting
		if c.ended() {
			s.LastTerminationState.Terminated = c.terminated()
		}
	case c.ended():
		s.State.Terminated = c.terminated()
		s.Ready = c.init && c.Exit == 0
	case !c.Started.IsZero():
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(c.Started)}
		s.Ready = !c.init
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	started := s.State.Running != nil
	s.Started = &started
	if !c.Started.IsZero() {
		s.ContainerID, s.ImageID = c.id(), "process"
	}
	return s
}

// runOnce runs the container's command to its end. It leaves the run unended
// only when the pod must end before the command was started.
func (w *worker) runOnce(ctx context.Context, c *container) {
	env, err := w.awaitEnvironment(ctx, c)
	if err != nil {
		return
	}
	select {
	case <-w.end.asked:
		return
	default:
	}
	w.change(func() { c.Started, c.waiting = time.Now(), nil })
	if err := w.remember(); err != nil { // unwritten, a restart might run it twice
		w.change(func() { c.finish(startFailed, "StartError", err.Error()) })
		return
	}
	process, err := w.node.launch(w.pod, c, env)
	if err != nil {
		w.change(func() { c.finish(startFailed, "StartError", err.Error()) })
	} else {
		w.change(func() { c.pid = process.PID() })
		w.end.wait(process)
		exit, reason := process.ExitCode(), "Completed"
		if exit != 0 {
			reason = "Error"
		}
		w.change(func() { c.pid = 0; c.finish(exit, reason, "") })
	}
	if err := w.remember(); err != nil {
		w.node.log.Error("the end of a container is not on disk, a restart would take it for interrupted", "container", c.spec.Name, "error", err)
	}
}

// awaitEnvironment resolves the environment, waiting for Secrets and
// ConfigMaps that aren't there yet, or that the node may not read yet: the
// authorizer learns of a binding a moment later than the node. Its only error
// is that the pod must end.
func (w *worker) awaitEnvironment(ctx context.Context, c *container) (environment, error) {
	for {
		env, err := w.node.environment(ctx, w.pod, c)
		if err == nil {
			return env, nil
		}
		w.change(func() {
			c.waiting = &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
		})
		select {
		case <-w.end.asked:
			return environment{}, err
		case <-time.After(apiRetry):
		}
	}
}

func (w *worker) dir(elem ...string) string {
	return w.node.podDir(w.pod, elem...)
}

func (n *node) podDir(pod *corev1.Pod, elem ...string) string {
	return filepath.Join(append([]string{n.config.disk("pods", string(pod.UID))}, elem...)...)
}

// logPath is the log file of one run of a container.
func (n *node) logPath(pod *corev1.Pod, container string, restarts int) string {
	return n.config.disk("logs", fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID), container, strconv.Itoa(restarts)+".log")
}

// remember writes the runs of all containers to disk, one snapshot after the
// other: the last one written is the newest.
func (w *worker) remember() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	w.mu.Lock()
	runs := map[string]run{}
	for _, c := range w.containers {
		runs[c.spec.Name] = c.run
	}
	w.mu.Unlock()
	data, err := json.Marshal(runs)
	if err != nil {
		return fmt.Errorf("encode the pod's state: %w", err)
	}
	return writeFile(w.dir("state.json"), data)
}

// recall restores the runs of an earlier life of this machine: from disk, and
// where the disk knows nothing from what was told to the API server. A run
// that had begun and not ended has died with the machine.
func (w *worker) recall() {
	runs := map[string]run{}
	if data, err := os.ReadFile(w.dir("state.json")); err == nil {
		if err := json.Unmarshal(data, &runs); err != nil {
			w.node.log.Error("the pod's state on disk is not readable, going by its status", "uid", w.pod.UID, "error", err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		w.node.log.Error("the pod's state on disk can't be read, going by its status", "uid", w.pod.UID, "error", err)
	}
	for _, s := range slices.Concat(w.pod.Status.InitContainerStatuses, w.pod.Status.ContainerStatuses) {
		if _, known := runs[s.Name]; known {
			continue
		}
		r := run{Restarts: int(s.RestartCount)}
		if s.State.Running != nil {
			r.Started = s.State.Running.StartedAt.Time
		}
		if t := s.State.Terminated; t != nil {
			r = run{Restarts: int(s.RestartCount), Started: t.StartedAt.Time, Finished: t.FinishedAt.Time, Exit: int(t.ExitCode), Reason: t.Reason, Message: t.Message}
		}
		runs[s.Name] = r
	}
	for _, c := range w.containers {
		r, known := runs[c.spec.Name]
		if !known {
			continue
		}
		c.run = r
		if c.Started.IsZero() {
			continue
		}
		w.resumed = true
		if !c.ended() {
			c.finish(137, "ContainerStatusUnknown", "the machine restarted while the container ran")
		}
	}
}
