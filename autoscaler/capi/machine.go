package capi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/retry"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/api/v1alpha1"
)

// The hooks on which Cluster API waits when a Machine is deleted. Only the
// second is unconditional: without a matched Node the first is skipped.
const (
	PreDrainHook     = clusterv1.PreDrainDeleteHookAnnotationPrefix + "/spillway-results"
	PreTerminateHook = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/spillway-wipe"
)

// RecordFinalizer keeps a SpillwayMachine, with the times of the cloud's meter,
// until [Machines.Forget].
const RecordFinalizer = "spillway.dev/record"

// NodeLabelPrefix starts the labels that Cluster API copies to the Node and
// that no kubelet may write: burst, tenant, provider and jurisdiction.
const NodeLabelPrefix = "spillway.node-restriction.kubernetes.io/"

// NodeName is the name of a burst's machine, of its objects and of its node.
func NodeName(burst types.UID, ordinal int32) string {
	short := string(burst)
	if len(short) > 8 {
		short = short[:8]
	}
	return fmt.Sprintf("%s%s-%d", v1alpha1.NodePrefix, short, ordinal)
}

// Token is what makes the purchase of a burst's machine idempotent at the
// cloud; no other machine ever has it.
func Token(burst types.UID, ordinal int32) string {
	return fmt.Sprintf("%s-%d", burst, ordinal)
}

// scheme starts every provider id of ours.
const scheme = "spillway://"

// ProviderID is the id by which Cluster API matches Machine and Node. It is
// fixed before the machine exists and compared as an exact string.
func ProviderID(provider, region string, burst types.UID, ordinal int32) string {
	return fmt.Sprintf("%s%s/%s/%s", scheme, provider, region, Token(burst, ordinal))
}

// Order is what is asked for one machine.
type Order struct {
	Burst        *v1alpha1.Burst // with UID; its offer says what is bought
	Ordinal      int32           // from 0
	Tenant       string          // opaque id of who pays
	Installation string          // tag of this cluster's machines at the cloud
	UserData     []byte          // rendered cloud-init
	Expires      time.Time       // first expiry stamp
}

// Machines makes and unmakes the Cluster API objects of bursts. Every method
// may be repeated.
type Machines struct {
	Client  client.Client
	Cluster Cluster
	// Reader reads past the cache, where an empty list would be taken for the
	// end of a machine; nil means Client.
	Reader client.Reader
}

// live reads past the cache.
func (m *Machines) live() client.Reader {
	if m.Reader != nil {
		return m.Reader
	}
	return m.Client
}

// Ensure makes the objects of one machine: SpillwayMachine, user-data Secret,
// Machine. What exists already stays as it is; an object of that name that
// belongs to another burst is an error.
func (m *Machines) Ensure(ctx context.Context, o Order) error {
	if o.Burst.UID == "" {
		return fmt.Errorf("burst %s/%s has no UID yet: it must be written before machines are asked for", o.Burst.Namespace, o.Burst.Name)
	}
	name := NodeName(o.Burst.UID, o.Ordinal)
	labels, err := m.labels(o)
	if err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Namespace: m.Cluster.Namespace, Name: name, Labels: labels}
	secret := clusterSecret(m.Cluster, name+"-userdata", o.UserData)
	maps.Copy(secret.Labels, labels)
	for _, obj := range []client.Object{m.infraMachine(o, meta), secret, m.machine(o, meta)} {
		if err := m.make(ctx, obj, o.Burst.UID); err != nil {
			return err
		}
	}
	return nil
}

// make creates an object, or checks that the one there is of the same burst.
func (m *Machines) make(ctx context.Context, obj client.Object, burst types.UID) error {
	err := m.Client.Create(ctx, obj)
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("%T %s/%s", obj, obj.GetNamespace(), obj.GetName())
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s: %w", what, err)
	}
	if err := m.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if owner := obj.GetLabels()[v1alpha1.BurstLabel]; owner != string(burst) {
		return fmt.Errorf("%s belongs to burst %q, not to %q: two bursts share the first 8 characters of their UID; delete one of them", what, owner, burst)
	}
	return nil
}

// labels link an object to its burst; the restricted ones reach the Node.
func (m *Machines) labels(o Order) (map[string]string, error) {
	labels := map[string]string{
		clusterv1.ClusterNameLabel:   m.Cluster.Name,
		v1alpha1.BurstLabel:          string(o.Burst.UID),
		v1alpha1.BurstNameLabel:      o.Burst.Name,
		v1alpha1.BurstNamespaceLabel: o.Burst.Namespace,
		v1alpha1.OrdinalLabel:        strconv.Itoa(int(o.Ordinal)),
		NodeLabelPrefix + "burst":    string(o.Burst.UID),
		NodeLabelPrefix + "tenant":   o.Tenant,
		NodeLabelPrefix + "provider": o.Burst.Spec.Offer.Provider,
	}
	if country := o.Burst.Spec.Offer.Country; country != "" {
		labels[NodeLabelPrefix+"jurisdiction"] = country
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if problems := validation.IsValidLabelValue(labels[key]); len(problems) > 0 {
			return nil, fmt.Errorf("burst %s/%s: label %s=%q: %s", o.Burst.Namespace, o.Burst.Name, key, labels[key], problems[0])
		}
	}
	return labels, nil
}

// infraMachine is the record of the purchase, with both finalizers in place
// before anything can be bought.
func (m *Machines) infraMachine(o Order, meta metav1.ObjectMeta) *infrav1.SpillwayMachine {
	offer := o.Burst.Spec.Offer
	meta.Finalizers = []string{infrav1.MachineFinalizer, RecordFinalizer}
	return &infrav1.SpillwayMachine{
		ObjectMeta: meta,
		Spec: infrav1.SpillwayMachineSpec{
			ProviderID: ProviderID(offer.Provider, offer.Region, o.Burst.UID, o.Ordinal),
			Provider:   offer.Provider, Region: offer.Region, Zone: offer.Zone,
			InstanceType: offer.InstanceType, CapacityType: offer.CapacityType,
			Burst: string(o.Burst.UID), Ordinal: o.Ordinal, Tenant: o.Tenant,
			Installation: o.Installation, Token: Token(o.Burst.UID, o.Ordinal),
			Expires: metav1.NewTime(o.Expires),
		},
	}
}

// machine is a bare Machine: nothing recreates it, and it is deleted by name
// (cases: B-23 cluster-api#75, kubernetes/autoscaler#5465). Its node is
// deleted without a time limit: the default counts from the deletion, which
// the hooks hold up for longer. It is not drained: when the hooks fall the work
// is over and the node is wiped, and a drain would hold up the delete call for
// 20 s (cases: B-5 cluster-api#12920, B-7 cluster-api#1870). A volume that never
// detaches holds it up for half a minute only: nothing on the node writes any
// more (cases: B-8 cluster-api#6285, #8507).
func (m *Machines) machine(o Order, meta metav1.ObjectMeta) *clusterv1.Machine {
	userData, forever, detach := meta.Name+"-userdata", int32(0), int32(30)
	meta.Annotations = map[string]string{
		PreDrainHook: "spillway", PreTerminateHook: "spillway", clusterv1.ExcludeNodeDrainingAnnotation: "spillway",
	}
	return &clusterv1.Machine{
		ObjectMeta: meta,
		Spec: clusterv1.MachineSpec{
			ClusterName: m.Cluster.Name,
			Bootstrap:   clusterv1.Bootstrap{DataSecretName: &userData},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{
				APIGroup: infrav1.Group, Kind: "SpillwayMachine", Name: meta.Name,
			},
			Deletion: clusterv1.MachineDeletionSpec{NodeDeletionTimeoutSeconds: &forever, NodeVolumeDetachTimeoutSeconds: &detach},
		},
	}
}

// Stamp moves the expiry stamp of all of a burst's machines to a later time;
// an earlier one changes nothing. The infrastructure controller carries it to
// the cloud; [View.Stamped] says when it has arrived.
func (m *Machines) Stamp(ctx context.Context, burst types.UID, until time.Time) error {
	list, err := m.infraMachines(ctx, m.Client, burst)
	if err != nil {
		return err
	}
	for _, sm := range list {
		if !sm.DeletionTimestamp.IsZero() || !until.After(sm.Spec.Expires.Time) {
			continue
		}
		old := sm.DeepCopy()
		sm.Spec.Expires = metav1.NewTime(until)
		if err := m.Client.Patch(ctx, &sm, client.MergeFrom(old)); err != nil {
			return fmt.Errorf("stamp SpillwayMachine %s: %w", sm.Name, err)
		}
	}
	return nil
}

// Delete deletes every machine of a burst and leaves the hooks in place:
// nothing ends before [Machines.Release]. It returns the machines that are
// recorded, read past the cache: none means that there is none, also right
// after [Machines.Ensure].
func (m *Machines) Delete(ctx context.Context, burst types.UID) ([]View, error) {
	machines, err := m.machines(ctx, m.live(), burst)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, machine := range machines {
		seen[machine.Name] = true
		if !machine.DeletionTimestamp.IsZero() {
			continue
		}
		if err := client.IgnoreNotFound(m.Client.Delete(ctx, &machine)); err != nil {
			return nil, fmt.Errorf("delete Machine %s: %w", machine.Name, err)
		}
	}
	list, err := m.infraMachines(ctx, m.live(), burst)
	if err != nil {
		return nil, err
	}
	for _, sm := range list { // the Machine was never made: a crash came first
		if seen[sm.Name] || !sm.DeletionTimestamp.IsZero() {
			continue
		}
		if err := client.IgnoreNotFound(m.Client.Delete(ctx, &sm)); err != nil {
			return nil, fmt.Errorf("delete SpillwayMachine %s: %w", sm.Name, err)
		}
	}
	return views(list, machines), nil
}

// Release removes the given hooks from all of a burst's machines: from then on
// Cluster API may drain ([PreDrainHook]) or destroy ([PreTerminateHook]).
func (m *Machines) Release(ctx context.Context, burst types.UID, hooks ...string) error {
	machines, err := m.machines(ctx, m.live(), burst)
	if err != nil {
		return err
	}
	for _, machine := range machines {
		old := machine.DeepCopy()
		maps.DeleteFunc(machine.Annotations, func(k, _ string) bool { return slices.Contains(hooks, k) })
		if len(machine.Annotations) == len(old.Annotations) {
			continue
		}
		if err := client.IgnoreNotFound(m.Client.Patch(ctx, &machine, client.MergeFrom(old))); err != nil {
			return fmt.Errorf("release hooks of Machine %s: %w", machine.Name, err)
		}
	}
	return nil
}

// DropUserData removes the Secrets with the user-data of a burst, as soon as
// all its nodes have joined (cases: B-28 cluster-api#1739, CAPZ#915).
func (m *Machines) DropUserData(ctx context.Context, burst types.UID) error {
	var secrets corev1.SecretList
	if err := m.Client.List(ctx, &secrets, m.of(burst)...); err != nil {
		return fmt.Errorf("list user-data of burst %s: %w", burst, err)
	}
	for _, s := range secrets.Items {
		if err := client.IgnoreNotFound(m.Client.Delete(ctx, &s)); err != nil {
			return fmt.Errorf("delete user-data Secret %s: %w", s.Name, err)
		}
	}
	return nil
}

// Forget lets go of the records of a burst's machines that are gone, and of
// their user-data. A machine that is not gone keeps both, and that is no error.
func (m *Machines) Forget(ctx context.Context, burst types.UID) error {
	list, err := m.infraMachines(ctx, m.live(), burst)
	if err != nil {
		return err
	}
	all := true
	for _, sm := range list {
		if sm.Status.GoneAt == nil {
			all = false
			continue
		}
		if err := m.forget(ctx, client.ObjectKeyFromObject(&sm)); err != nil {
			return fmt.Errorf("forget SpillwayMachine %s: %w", sm.Name, err)
		}
	}
	if !all {
		return nil
	}
	return m.DropUserData(ctx, burst)
}

// DropStrays deletes the Node objects that carry a provider id of ours and
// belong to no machine that is recorded, and returns their names: a machine
// that booted after its deletion was asked must not stay as a Node for ever
// (cases: B-4 kubernetes-sigs/cluster-api#7237). Nodes are read before the
// records, and the records past the cache, so that a machine that is just being
// made is not taken for one (cases: H-14 kubernetes/autoscaler#7419).
func (m *Machines) DropStrays(ctx context.Context) ([]string, error) {
	var nodes corev1.NodeList
	if err := m.Client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("look for stray nodes: %w", err)
	}
	var records infrav1.SpillwayMachineList
	if err := m.live().List(ctx, &records, client.InNamespace(m.Cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("look for stray nodes: %w", err)
	}
	known := map[string]bool{}
	for _, sm := range records.Items {
		known[sm.Spec.ProviderID] = true
	}
	var dropped []string
	for _, n := range nodes.Items {
		if id := n.Spec.ProviderID; !strings.HasPrefix(id, scheme) || known[id] {
			continue
		}
		// This very object: one that registered anew meanwhile is looked at again.
		err := m.Client.Delete(ctx, &n, client.Preconditions{UID: &n.UID})
		if client.IgnoreNotFound(err) != nil {
			return dropped, fmt.Errorf("delete stray node %s: %w", n.Name, err)
		}
		dropped = append(dropped, n.Name)
	}
	slices.Sort(dropped)
	return dropped, nil
}

// forget removes the record's finalizer. The infrastructure controller removes
// its own at the same time: with a lock, neither brings the other's back.
func (m *Machines) forget(ctx context.Context, key client.ObjectKey) error {
	return client.IgnoreNotFound(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		sm := &infrav1.SpillwayMachine{}
		if err := m.Client.Get(ctx, key, sm); err != nil {
			return err
		}
		old := sm.DeepCopy()
		if !controllerutil.RemoveFinalizer(sm, RecordFinalizer) {
			return nil
		}
		return m.Client.Patch(ctx, sm, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	}))
}

// of selects the objects of one burst.
func (m *Machines) of(burst types.UID) []client.ListOption {
	return []client.ListOption{
		client.InNamespace(m.Cluster.Namespace),
		client.MatchingLabels{v1alpha1.BurstLabel: string(burst)},
	}
}

func (m *Machines) machines(ctx context.Context, from client.Reader, burst types.UID) ([]clusterv1.Machine, error) {
	var list clusterv1.MachineList
	if err := from.List(ctx, &list, m.of(burst)...); err != nil {
		return nil, fmt.Errorf("list Machines of burst %s: %w", burst, err)
	}
	return list.Items, nil
}

func (m *Machines) infraMachines(ctx context.Context, from client.Reader, burst types.UID) ([]infrav1.SpillwayMachine, error) {
	var list infrav1.SpillwayMachineList
	if err := from.List(ctx, &list, m.of(burst)...); err != nil {
		return nil, fmt.Errorf("list SpillwayMachines of burst %s: %w", burst, err)
	}
	return list.Items, nil
}
