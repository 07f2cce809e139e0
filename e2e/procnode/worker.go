package procnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"spillway.dev/spillway/nodeagent"
)

const (
	// goneGrace is what a pod gets whose object is already gone.
	goneGrace = time.Second
	// Restarts of a failing container are this far apart, doubling. (A
	// kubelet starts at 10 s; a demo can't wait.)
	firstRestart = time.Second
	lastRestart  = time.Minute
)

// worker carries one pod from its binding to its end. Its processes don't
// depend on the API server: that only hears of them, as soon as it can.
type worker struct {
	node *node
	pod  *corev1.Pod // as first seen; what changes later is told by update
	end  *ending
	done chan struct{}

	deleteOnce sync.Once
	deleted    chan struct{} // closed when the API server wants the pod gone
	goneOnce   sync.Once
	vanished   chan struct{} // closed when the object is gone

	writing sync.Mutex // serialises remember; taken before mu

	mu         sync.Mutex
	phase      corev1.PodPhase // set when concluded
	reason     string
	message    string
	start      metav1.Time
	resumed    bool // containers were started in an earlier life of the machine
	containers []*container
	conditions map[corev1.PodConditionType]corev1.PodCondition
	dirty      chan struct{}
}

func newWorker(n *node, pod *corev1.Pod) *worker {
	w := &worker{
		node: n, pod: pod,
		end:        newEnding(),
		done:       make(chan struct{}),
		deleted:    make(chan struct{}),
		vanished:   make(chan struct{}),
		dirty:      make(chan struct{}, 1),
		start:      metav1.Now(),
		conditions: map[corev1.PodConditionType]corev1.PodCondition{},
	}
	if pod.Status.StartTime != nil {
		w.start = *pod.Status.StartTime
	}
	for _, old := range pod.Status.Conditions {
		w.conditions[old.Type] = old
	}
	for i := range pod.Spec.InitContainers {
		w.containers = append(w.containers, &container{spec: &pod.Spec.InitContainers[i], init: true})
	}
	for i := range pod.Spec.Containers {
		w.containers = append(w.containers, &container{spec: &pod.Spec.Containers[i]})
	}
	w.recall()
	return w
}

// update takes what the API server says now: only the wish to delete matters.
func (w *worker) update(pod *corev1.Pod) {
	if pod.DeletionTimestamp == nil {
		return
	}
	grace := int64(0)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	w.end.ask("", "deleted", time.Duration(grace)*time.Second)
	w.deleteOnce.Do(func() { close(w.deleted) })
}

func (w *worker) gone() {
	w.end.ask("", "its object is gone", goneGrace)
	w.goneOnce.Do(func() { close(w.vanished) })
}

// specGrace is the grace period of an end that the API server didn't set.
func (w *worker) specGrace() time.Duration {
	if s := w.pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// run is the whole life: admit, execute, conclude, tell, delete.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	log := w.node.log.With("pod", w.pod.Namespace+"/"+w.pod.Name, "uid", w.pod.UID)
	if old := w.pod.Status.Phase; old != corev1.PodSucceeded && old != corev1.PodFailed {
		w.live(ctx)
		phase, reason := w.outcome()
		log.Info("pod ended", "phase", phase, "reason", reason)
		w.tell(ctx)
	}
	select {
	case <-w.deleted:
		w.deleteObject(ctx)
	case <-w.vanished:
	case <-ctx.Done():
	}
}

// live admits the pod and runs it while a companion tells the API server of
// every change.
func (w *worker) live(ctx context.Context) {
	telling, stop := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() { w.keepTelling(telling) })
	defer teller.Wait()
	defer stop()
	if !w.mustNotRerun() {
		if err := w.admit(); err != nil {
			w.refuse(err)
			return
		}
	}
	if seconds := w.pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		deadline := w.start.Add(time.Duration(*seconds) * time.Second)
		defer time.AfterFunc(time.Until(deadline), func() {
			w.end.ask("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", w.specGrace())
		}).Stop()
	}
	w.execute(ctx)
	// Before the end is told: the scheduler may bind the next pod at once.
	w.node.gpus.release(w.pod.UID)
	w.conclude()
}

// mustNotRerun says that the pod was begun in an earlier life and its policy
// forbids a second run: only its end is left to tell.
func (w *worker) mustNotRerun() bool {
	return w.resumed && w.pod.Spec.RestartPolicy == corev1.RestartPolicyNever
}

// refusal is a pod that must not run here, in the words of its status.
type refusal struct{ reason, message string }

func (r *refusal) Error() string { return r.message }

// admit reserves what the pod needs, or says why it can't run here.
func (w *worker) admit() error {
	if why, stopping := w.node.isStopping(); stopping {
		return &refusal{"NodeShutdown", "Pod was rejected as the node is shutting down: " + why}
	}
	if what := unsupported(w.pod); what != "" {
		return &refusal{"Unsupported", "Pod was rejected: a process node has no " + what}
	}
	most, sum := 0, 0
	for _, c := range w.containers {
		if c.init {
			most = max(most, w.node.wants(c.spec))
		} else {
			sum += w.node.wants(c.spec)
		}
	}
	devices, err := w.node.gpus.take(w.pod.UID, max(most, sum))
	if err != nil {
		return &refusal{"OutOf" + w.node.config.GPUResource, err.Error()}
	}
	w.change(func() {
		next := 0
		for _, c := range w.containers {
			count := w.node.wants(c.spec)
			if c.init {
				c.gpus = devices[:count]
				continue
			}
			c.gpus = devices[next : next+count]
			next += count
		}
	})
	return nil
}

// wants is the number of GPUs that a container asks for.
func (n *node) wants(c *corev1.Container) int {
	quantity := c.Resources.Limits[corev1.ResourceName(n.config.GPUResource)]
	return int(quantity.Value())
}

// unsupported names what the pod needs and a process node can't give.
func unsupported(pod *corev1.Pod) string {
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			return "sidecar containers (container " + c.Name + ")"
		}
	}
	for _, v := range pod.Spec.Volumes {
		// The service account's token is mounted into every pod unasked.
		if v.Projected == nil || !strings.HasPrefix(v.Name, "kube-api-access-") {
			return "volumes (volume " + v.Name + "): use environment variables and S3"
		}
	}
	return ""
}

// refuse concludes a pod that was not admitted.
func (w *worker) refuse(err error) {
	r, ok := errors.AsType[*refusal](err)
	if !ok {
		r = &refusal{"UnexpectedAdmissionError", err.Error()}
	}
	w.change(func() {
		w.phase, w.reason, w.message = corev1.PodFailed, r.reason, r.message
		w.containers = nil
	})
}

// execute runs the init containers one after the other, then the others
// together, and returns when all have ended for good.
func (w *worker) execute(ctx context.Context) {
	var mains sync.WaitGroup
	defer mains.Wait()
	for _, c := range w.containers {
		if !c.init {
			mains.Go(func() { w.runToEnd(ctx, c) })
		} else if !w.runToEnd(ctx, c) {
			return
		}
	}
}

// runToEnd runs a container as often as its policy says and reports success.
func (w *worker) runToEnd(ctx context.Context, c *container) bool {
	policy := w.pod.Spec.RestartPolicy
	for pause := firstRestart; ; pause = min(2*pause, lastRestart) {
		if !c.ended() {
			w.runOnce(ctx, c)
		}
		if !c.ended() { // the end was asked for before it could start
			return false
		}
		succeeded := c.Exit == 0
		if again := policy == corev1.RestartPolicyAlways && !c.init || policy != corev1.RestartPolicyNever && !succeeded; !again {
			return succeeded
		}
		w.change(func() {
			c.waiting = &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v restarting container %s", pause, c.spec.Name)}
		})
		select {
		case <-w.end.asked:
			w.change(func() { c.waiting = nil })
			return succeeded
		case <-time.After(pause):
		}
		w.change(c.again)
	}
}

// conclude decides the pod's phase.
func (w *worker) conclude() {
	reason, message, asked := w.end.why()
	w.change(func() {
		w.phase = corev1.PodSucceeded
		for _, c := range w.containers {
			if !c.ended() || c.Exit != 0 {
				w.phase = corev1.PodFailed
			}
		}
		if asked && reason != "" {
			w.phase, w.reason, w.message = corev1.PodFailed, reason, message
		}
	})
}

func (w *worker) outcome() (phase corev1.PodPhase, reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.phase, w.reason
}

// change changes what the status says and wakes the teller.
func (w *worker) change(f func()) {
	w.mu.Lock()
	f()
	w.mu.Unlock()
	select {
	case w.dirty <- struct{}{}:
	default:
	}
}

// records are the pod's containers as the agent sees them.
func (w *worker) records() []nodeagent.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []nodeagent.Pod
	for _, c := range w.containers {
		r := nodeagent.Pod{
			UID: string(w.pod.UID), Namespace: w.pod.Namespace, Name: w.pod.Name, Owner: ownerOf(w.pod),
			Container: c.spec.Name, GPUs: c.gpus, Started: c.Started, Finished: c.Finished, IP: address, Sandbox: c.pid,
		}
		out = append(out, r)
	}
	return out
}
