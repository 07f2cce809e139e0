package procnode

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"spillway.dev/spillway/e2e/procnode/child"
	"spillway.dev/spillway/nodeagent"
)

const (
	address    = "127.0.0.1" // of every machine; their kubelet ports differ
	headerWait = 10 * time.Second
	apiRetry   = 500 * time.Millisecond
)

// node is one running machine.
type node struct {
	config  Config
	id      identity
	log     *slog.Logger
	client  kubernetes.Interface
	keeper  *child.Keeper
	gpus    *inventory
	walls   walls
	exe     string    // this program, for pod-init
	port    int       // of the kubelet API
	masters [2]string // host and port of the API server, for pods

	servers []*http.Server

	power     chan struct{} // closed when the power button is pressed
	powerOnce sync.Once
	work      sync.WaitGroup // workers and the agent

	mu       sync.Mutex
	pods     map[types.UID]*worker
	stopping string             // why no pod may start; "" when it may
	cancel   context.CancelFunc // ends all that talks to the API server
}

func newNode(config Config, id identity, log *slog.Logger) (*node, error) {
	client, err := kubernetes.NewForConfig(id.config)
	if err != nil {
		return nil, fmt.Errorf("client for the API server: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, which also starts the pods: %w", err)
	}
	for name, quantity := range map[string]string{"--cpu": config.CPU, "--memory": config.Memory} {
		if _, err := resource.ParseQuantity(quantity); err != nil {
			return nil, fmt.Errorf("%s %q: %w", name, quantity, err)
		}
	}
	n := &node{
		config: config, id: id, log: log, client: client, exe: exe,
		keeper: child.NewKeeper(),
		gpus:   newInventory(config.Name, config.GPUResource, config.GPUModel, config.GPUs),
		power:  make(chan struct{}),
		pods:   map[types.UID]*worker{},
	}
	if server, err := url.Parse(config.APIServer); err == nil {
		n.masters = [2]string{server.Hostname(), either(server.Port(), "443")}
	}
	n.walls = n.probeWalls()
	return n, nil
}

// live works until the power button is pressed or ctx ends.
func (n *node) live(ctx context.Context) error {
	ctx, n.cancel = context.WithCancel(ctx)
	defer n.cancel()
	if err := n.serveSocket(); err != nil {
		return err
	}
	if err := n.serveKubelet(); err != nil {
		return err
	}
	if n.config.Agent != "" {
		n.work.Go(n.keepAgent)
	}
	if err := n.register(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	n.work.Go(func() { n.heartbeat(ctx) })
	n.work.Go(func() { n.watchPods(ctx) })
	if n.config.GPUDelay > 0 {
		n.log.Info("GPUs come later", "after", n.config.GPUDelay)
	}
	time.AfterFunc(n.config.GPUDelay, func() {
		n.gpus.appear()
		n.postStatus(ctx)
	})
	select {
	case <-n.power:
	case <-ctx.Done():
		n.log.Info("power off, asked by a signal")
	}
	return nil
}

// pressPower starts the power off; it may be called more than once.
func (n *node) pressPower() { n.powerOnce.Do(func() { close(n.power) }) }

// powerOff ends everything at once, as a machine does.
func (n *node) powerOff() {
	n.pressPower()
	if n.cancel != nil {
		n.cancel()
	}
	for _, s := range n.servers {
		_ = s.Close()
	}
	n.mu.Lock()
	for _, w := range n.pods {
		w.end.ask("", "the machine is powered off", 0)
	}
	n.mu.Unlock()
	n.keeper.Close()
	n.work.Wait()
	n.log.Info("off")
}

// stopPods ends all pods within grace and lets no new one start.
func (n *node) stopPods(reason string, grace time.Duration) {
	n.mu.Lock()
	n.stopping = reason
	workers := make([]*worker, 0, len(n.pods))
	for _, w := range n.pods {
		workers = append(workers, w)
	}
	n.mu.Unlock()
	n.log.Info("all pods are asked to end", "reason", reason)
	for _, w := range workers {
		w.end.ask("Terminated", "Pod was terminated in response to imminent node shutdown: "+reason, grace)
	}
	go n.postStatus(context.Background())
}

func (n *node) isStopping() (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopping, n.stopping != ""
}

// watchPods keeps a worker for each pod that is bound to this node.
func (n *node) watchPods(ctx context.Context) {
	lw := cache.NewFilteredListWatchFromClient(n.client.CoreV1().RESTClient(), "pods", corev1.NamespaceAll,
		func(options *metav1.ListOptions) { options.FieldSelector = "spec.nodeName=" + n.config.Name })
	see := func(obj any) {
		if pod, ok := obj.(*corev1.Pod); ok {
			n.see(ctx, pod)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    see,
			UpdateFunc: func(_, obj any) { see(obj) },
			DeleteFunc: func(obj any) {
				if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = last.Obj
				}
				if pod, ok := obj.(*corev1.Pod); ok {
					n.forget(pod)
				}
			},
		},
	})
	informer.RunWithContext(ctx)
}

// see tells the pod's worker what the API server says now.
func (n *node) see(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.pods[pod.UID]
	if w == nil {
		w = newWorker(n, pod)
		n.pods[pod.UID] = w
		n.work.Go(func() { w.run(ctx) })
	}
	w.update(pod)
}

// forget ends a pod whose object is gone.
func (n *node) forget(pod *corev1.Pod) {
	n.mu.Lock()
	w := n.pods[pod.UID]
	n.mu.Unlock()
	if w == nil {
		return
	}
	w.gone()
	go func() {
		<-w.done
		n.mu.Lock()
		delete(n.pods, pod.UID)
		n.mu.Unlock()
		_ = os.RemoveAll(n.config.disk("pods", string(pod.UID)))
	}()
}

func (n *node) podRecords() []nodeagent.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := []nodeagent.Pod{}
	for _, w := range n.pods {
		out = append(out, w.records()...)
	}
	return out
}

// find returns the worker of a pod by name, the youngest when a name was used
// again.
func (n *node) find(namespace, name string) *worker {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found *worker
	for _, w := range n.pods {
		if w.pod.Namespace == namespace && w.pod.Name == name &&
			(found == nil || found.pod.CreationTimestamp.Before(&w.pod.CreationTimestamp)) {
			found = w
		}
	}
	return found
}

func (c Config) socket() string { return filepath.Join(c.Dir, "node.sock") }

func listenUnix(path string) (net.Listener, error) {
	_ = os.Remove(path) // of an earlier life; the folder's lock says that it is over
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket for the agent: %w", err)
	}
	return l, nil
}

// lockDir makes sure that one machine at a time uses the folder.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Join(dir, "disk"), 0o700); err != nil {
		return nil, fmt.Errorf("machine folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("machine folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("the folder %s is in use by another machine that runs: give this one a folder of its own (%w)", dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// ownerOf is the UID of the pod's controller, or "".
func ownerOf(pod *corev1.Pod) string {
	for _, ref := range pod.OwnerReferences {
		if ref.Controller != nil && *ref.Controller {
			return string(ref.UID)
		}
	}
	return ""
}

// mergePatch is what a strategic merge patch of a status looks like. The UID
// makes it fail on an object of the same name that came later.
func mergePatch(uid types.UID, status any) ([]byte, error) {
	meta := map[string]any{}
	if uid != "" {
		meta["uid"] = uid
	}
	data, err := json.Marshal(map[string]any{"metadata": meta, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode a status: %w", err)
	}
	return data, nil
}

func trimmed(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
