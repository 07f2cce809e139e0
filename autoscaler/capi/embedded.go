package capi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	clusterreconciler "sigs.k8s.io/cluster-api/core/reconcilers/cluster"
	machinereconciler "sigs.k8s.io/cluster-api/core/reconcilers/machine"
	"sigs.k8s.io/cluster-api/core/setup"
	"sigs.k8s.io/cluster-api/util/index"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/yaml"
)

// agent is the name under which the embedded reconcilers speak to the API
// server.
const agent = "spillway-embedded-capi"

// EmbeddedScheme registers what the embedded reconcilers need beyond
// [AddToScheme]: Kubernetes' own kinds, as they drain nodes, and
// CustomResourceDefinitions.
func EmbeddedScheme(s *runtime.Scheme) error {
	if err := AddToScheme(s); err != nil {
		return err
	}
	if err := kubernetesscheme.AddToScheme(s); err != nil {
		return fmt.Errorf("register Kubernetes' kinds: %w", err)
	}
	if err := apiextensionsv1.AddToScheme(s); err != nil {
		return fmt.Errorf("register CustomResourceDefinition: %w", err)
	}
	return nil
}

// ManagerOptions returns the cache and client options that a manager needs for
// [SetupEmbedded], for one namespace or, when it is empty, for all: only
// Secrets with a cluster label are cached, and nothing of most of them.
func ManagerOptions(scheme *runtime.Scheme, namespace string) ctrl.Options {
	return ctrl.Options{
		Scheme: scheme,
		Cache:  cacheOptions(namespace),
		Client: setup.ManagerClientOptions(),
	}
}

// cacheOptions are those of Cluster API's setup.ManagerCacheOptions without its
// named informers: a name can be taken once in a process, and a second manager
// would panic.
func cacheOptions(namespace string) cache.Options {
	resync := 10 * time.Minute
	options := cache.Options{
		SyncPeriod: &resync,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: clusterSecrets(), Transform: kubeconfigsOnly},
		},
	}
	if namespace != "" {
		options.DefaultNamespaces = map[string]cache.Config{namespace: {}}
	}
	return options
}

// clusterSecrets selects the Secrets that Cluster API looks at.
func clusterSecrets() labels.Selector {
	labelled, err := labels.NewRequirement(clusterv1.ClusterNameLabel, selection.Exists, nil)
	if err != nil {
		return labels.Nothing() // a constant requirement is never wrong
	}
	return labels.NewSelector().Add(*labelled)
}

// kubeconfigsOnly drops the content of every other Secret before it is cached.
func kubeconfigsOnly(in any) (any, error) {
	if s, ok := in.(*corev1.Secret); ok {
		s.ManagedFields = nil
		if !strings.HasSuffix(s.Name, "-kubeconfig") {
			s.Data = nil
		}
	}
	return in, nil
}

// SetupEmbedded adds Cluster API's own reconcilers for Cluster and Machine to
// the manager, which must have been made with [ManagerOptions] and a scheme of
// [EmbeddedScheme]. The context ends their connections to the cluster.
func SetupEmbedded(ctx context.Context, mgr ctrl.Manager) error {
	if err := index.AddDefaultIndexes(ctx, mgr); err != nil {
		return fmt.Errorf("embed Cluster API: indexes: %w", err)
	}
	secrets, err := setup.CreateSecretCachingClient(mgr)
	if err != nil {
		return fmt.Errorf("embed Cluster API: secret client: %w", err)
	}
	clusters, err := clustercache.SetupWithManager(ctx, mgr, clustercache.Options{
		SecretClient: secrets,
		Cache:        setup.ClusterCacheCacheOptions(),
		Client:       setup.ClusterCacheClientOptions(agent, 20, 30),
	}, options(1))
	if err != nil {
		return fmt.Errorf("embed Cluster API: cluster cache: %w", err)
	}
	if impatient, ok := clusters.(interface{ SetConnectionCreationRetryInterval(time.Duration) }); ok {
		impatient.SetConnectionCreationRetryInterval(2 * time.Second) // it is this very cluster, not a slow stranger
	}
	cluster := &clusterreconciler.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: clusters,
		RemoteConnectionGracePeriod: 50 * time.Second,
	}
	if err := cluster.SetupWithManager(ctx, mgr, options(1)); err != nil {
		return fmt.Errorf("embed Cluster API: Cluster reconciler: %w", err)
	}
	machine := &machinereconciler.Reconciler{
		Client: mgr.GetClient(), APIReader: mgr.GetAPIReader(), ClusterCache: clusters,
		RemoteConditionsGracePeriod: 5 * time.Minute,
	}
	if err := machine.SetupWithManager(ctx, mgr, options(10)); err != nil {
		return fmt.Errorf("embed Cluster API: Machine reconciler: %w", err)
	}
	return nil
}

// options lets so many objects be reconciled at a time, and a second manager
// run in one process, as after a change of leader.
func options(concurrent int) controller.Options {
	again := true
	return controller.Options{MaxConcurrentReconciles: concurrent, SkipNameValidation: &again}
}

// CRDs loads the eight definitions of group cluster.x-k8s.io that the embedded
// reconcilers need, sorted by name. The directory is either the root of the
// module sigs.k8s.io/cluster-api or a folder that holds the YAML files.
func CRDs(dir string) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	bases := filepath.Join(dir, "core", "config", "crd", "bases")
	if _, err := os.Stat(bases); err != nil {
		bases = dir
	}
	files, err := filepath.Glob(filepath.Join(bases, "cluster.x-k8s.io_*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("Cluster API definitions in %s: %w", dir, err)
	}
	var crds []*apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("Cluster API definition: %w", err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(raw, crd); err != nil {
			return nil, fmt.Errorf("Cluster API definition %s: %w", file, err)
		}
		if !strings.HasSuffix(crd.Name, ".cluster.x-k8s.io") {
			return nil, fmt.Errorf("%s is no definition of Cluster API: it names %q", file, crd.Name)
		}
		crds = append(crds, crd)
	}
	const needed = 8
	if len(crds) != needed {
		return nil, fmt.Errorf("%s holds %d Cluster API definitions, %d are needed: point at the folder of module sigs.k8s.io/cluster-api", dir, len(crds), needed)
	}
	return crds, nil
}
