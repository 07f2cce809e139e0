package placement

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// contract is all that this package uses of the scheduler framework. It is the
// part that upstream pins for outside users in its autoscaler_contract tests.
type contract interface {
	RunPreFilterPlugins(context.Context, fwk.CycleState, *corev1.Pod) (*fwk.PreFilterResult, *fwk.Status, nodeSet)
	RunFilterPlugins(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeInfo) *fwk.Status
	RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status
	RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node string)
}

var _ contract = framework.Framework(nil)

// simulator runs the plugins of kube-scheduler's default profile.
type simulator struct {
	filters contract
	// elsewhere are the filters that look at more than the node in question.
	elsewhere []string
	nodes     cache.Indexer   // of the filters that look nodes up
	ctx       context.Context //nolint:containedctx // carries a silent logger, no deadline and no values
	logger    klog.Logger
}

// assumedVolumes is a pod whose volumes were reserved on a node.
type assumedVolumes struct {
	state fwk.CycleState
	pod   *corev1.Pod
	node  string
}

func newSimulator(inv Inventory, lister fwk.SharedLister) (*simulator, error) {
	config, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("read the default scheduler configuration: %w", err)
	}
	if len(config.Profiles) != 1 {
		return nil, fmt.Errorf("the default scheduler configuration has %d profiles, want 1", len(config.Profiles))
	}
	factory, err := storedInformers(inv)
	if err != nil {
		return nil, err
	}
	// The plugins observe these metrics and would crash without them. They are
	// registered once a process, however often this runs.
	metrics.Register()
	csi := csiNodes{}
	for _, n := range inv.CSINodes {
		csi[n.Name] = n
	}
	silent := klog.NewContext(context.Background(), klog.New(nil))
	// The framework starts a goroutine that lives as long as its context, for
	// metrics that are off here. An ended context ends it at once.
	ended, end := context.WithCancel(silent)
	end()
	filters, err := runtime.NewFramework(ended, plugins.NewInTreeRegistry(), &config.Profiles[0],
		runtime.WithInformerFactory(factory),
		runtime.WithSnapshotSharedLister(lister),
		runtime.WithSharedDRAManager(noDevices{}),
		runtime.WithSharedCSIManager(csi),
		runtime.WithLogger(klog.New(nil)),
	)
	if err != nil {
		return nil, fmt.Errorf("start the default profile: %w", err)
	}
	m := &simulator{filters: filters, nodes: factory.Core().V1().Nodes().Informer().GetIndexer(), ctx: silent, logger: klog.New(nil)}
	for _, p := range filters.ListPlugins().Filter.Enabled {
		if !slices.Contains(nodeFilters(), p.Name) {
			m.elsewhere = append(m.elsewhere, p.Name)
		}
	}
	return m, nil
}

// nodeFilters are the filters whose answer depends on the pod and on the state
// of the one node that they are asked about. A filter that is not named here is
// taken to look further.
func nodeFilters() []string {
	return []string{
		names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity,
		names.NodePorts, names.NodeResourcesFit, names.NodeDeclaredFeatures,
	}
}

// storedInformers returns informers that hold the inventory and are never
// started: they have no client to ask.
func storedInformers(inv Inventory) (informers.SharedInformerFactory, error) {
	var offline kubernetes.Interface
	f := informers.NewSharedInformerFactory(offline, 0)
	return f, errors.Join(
		store(f.Core().V1().Namespaces().Informer(), inv.Namespaces),
		store(f.Core().V1().Nodes().Informer(), inv.Nodes),
		store(f.Core().V1().PersistentVolumes().Informer(), inv.Volumes),
		store(f.Core().V1().PersistentVolumeClaims().Informer(), inv.Claims),
		store(f.Storage().V1().StorageClasses().Informer(), inv.StorageClasses),
		store(f.Storage().V1().CSINodes().Informer(), inv.CSINodes),
		store(f.Storage().V1().CSIDrivers().Informer(), inv.CSIDrivers),
	)
}

type indexable interface {
	*corev1.Namespace | *corev1.Node | *corev1.PersistentVolume | *corev1.PersistentVolumeClaim |
		*storagev1.StorageClass | *storagev1.CSINode | *storagev1.CSIDriver
}

func store[T indexable](informer cache.SharedIndexInformer, objects []T) error {
	for _, o := range objects {
		if err := informer.GetIndexer().Add(o); err != nil {
			return fmt.Errorf("index %T: %w", o, err)
		}
	}
	return nil
}

// reserve assumes the volumes that the filters chose, so that the next pod
// does not get them too.
func (m *simulator) reserve(v assumedVolumes) error {
	if st := m.filters.RunReservePluginsReserve(m.ctx, v.state, v.pod, v.node); !st.IsSuccess() {
		m.release(v)
		return fmt.Errorf("reserve volumes of pod %s/%s on node %s: %w", v.pod.Namespace, v.pod.Name, v.node, st.AsError())
	}
	return nil
}

func (m *simulator) release(v assumedVolumes) {
	m.filters.RunReservePluginsUnreserve(m.ctx, v.state, v.pod, v.node)
}
