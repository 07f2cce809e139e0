package procnode

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	kubeletVersion = "v1.37.2"
	leaseNamespace = "kube-node-lease"
	leaseSeconds   = 40
)

// register creates the Node object with its labels, taints and provider ID, or
// finds it after a restart, and posts the first status. It tries until it
// works or the join deadline has passed.
func (n *node) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, n.config.JoinDeadline, fmt.Errorf("the join deadline of %v has passed", n.config.JoinDeadline))
	defer cancel()
	nodes := n.client.CoreV1().Nodes()
	object := n.object()
	for {
		_, err := nodes.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = n.recognise(ctx)
		}
		if err == nil {
			err = n.patchStatus(ctx)
		}
		switch {
		case err == nil:
			n.log.Info("node registered", "node", n.config.Name, "providerID", n.config.ProviderID, "pod walls", n.walls.String())
			return nil
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || errors.Is(err, errForeign):
			return fmt.Errorf("register node %s: %w: check its identity, labels and taints", n.config.Name, err)
		}
		n.log.Warn("can't register the node yet, trying again", "error", err)
		select {
		case <-n.power:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("register node %s: %w: %w", n.config.Name, context.Cause(ctx), err)
		case <-time.After(joinRetry):
		}
	}
}

// errForeign is a Node object of this name that belongs to another machine.
var errForeign = errors.New("another machine has this name")

// recognise accepts an existing Node object only when it is this machine's.
// Its taints stay as they are: NodeRestriction lets no node change them.
func (n *node) recognise(ctx context.Context) error {
	have, err := n.client.CoreV1().Nodes().Get(ctx, n.config.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if have.Spec.ProviderID != n.config.ProviderID {
		return fmt.Errorf("%w: its provider ID is %q, this machine's is %q", errForeign, have.Spec.ProviderID, n.config.ProviderID)
	}
	return nil
}

func (n *node) object() *corev1.Node {
	labels := map[string]string{
		corev1.LabelHostname:   n.config.Name,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
	for key, value := range n.config.Labels {
		labels[key] = value
	}
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.config.Name, Labels: labels},
		Spec:       corev1.NodeSpec{ProviderID: n.config.ProviderID},
	}
	for _, t := range n.config.Taints {
		object.Spec.Taints = append(object.Spec.Taints, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return object
}

// status is the node's status now. Heartbeat times are left out: the lease is
// the heartbeat, so an unchanged status needs no write.
func (n *node) status() corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(n.config.CPU), // parsed once in newNode
		corev1.ResourceMemory: resource.MustParse(n.config.Memory),
		corev1.ResourcePods:   *resource.NewQuantity(int64(n.config.MaxPods), resource.DecimalSI),
	}
	if count := n.gpus.capacity(); count > 0 {
		capacity[corev1.ResourceName(n.config.GPUResource)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "process node is ready"}
	if why, stopping := n.isStopping(); stopping {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionFalse, "KubeletNotReady", "node is shutting down: "+why
	}
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: capacity,
		Conditions:  []corev1.NodeCondition{ready},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: address},
			{Type: corev1.NodeHostName, Address: n.config.Name},
		},
		DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(n.port)}},
		NodeInfo: corev1.NodeSystemInfo{
			MachineID: n.config.Name, SystemUUID: n.config.Name, BootID: trimmed("/proc/sys/kernel/random/boot_id"),
			KernelVersion: trimmed("/proc/sys/kernel/osrelease"), OSImage: "process node",
			ContainerRuntimeVersion: "process://1", KubeletVersion: kubeletVersion,
			OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		},
	}
}

// patchStatus writes the status when the API server has another.
func (n *node) patchStatus(ctx context.Context) error {
	nodes := n.client.CoreV1().Nodes()
	have, err := nodes.Get(ctx, n.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	want := n.status()
	now := metav1.Now()
	for _, old := range have.Status.Conditions {
		ready := &want.Conditions[0]
		if old.Type != ready.Type {
			continue
		}
		ready.LastTransitionTime, ready.LastHeartbeatTime = old.LastTransitionTime, old.LastHeartbeatTime
		if old.Status != ready.Status {
			ready.LastTransitionTime = now
		}
		if old == *ready && equality.Semantic.DeepEqual(have.Status.Allocatable, want.Allocatable) &&
			have.Status.DaemonEndpoints == want.DaemonEndpoints {
			return nil
		}
	}
	want.Conditions[0].LastHeartbeatTime = now
	if want.Conditions[0].LastTransitionTime.IsZero() {
		want.Conditions[0].LastTransitionTime = now
	}
	patch, err := mergePatch("", want)
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, n.config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write the node's status: %w", err)
	}
	return nil
}

// postStatus is patchStatus for callers that can't wait: the next heartbeat
// repeats what failed.
func (n *node) postStatus(ctx context.Context) {
	if err := n.patchStatus(ctx); err != nil && ctx.Err() == nil {
		n.log.Warn("node status not written, the next heartbeat tries again", "error", err)
	}
}

// heartbeat renews the lease and repairs the status until ctx ends. A Node
// object that is gone is not made again, as with a kubelet: what to do then is
// for the agent to say (cases: B-34 kubernetes#71398).
func (n *node) heartbeat(ctx context.Context) {
	tick := time.NewTicker(n.config.Heartbeat)
	defer tick.Stop()
	for {
		if err := n.renewLease(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("lease not renewed, trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.postStatus(ctx)
		}
	}
}

func (n *node) renewLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, n.config.Heartbeat)
	defer cancel()
	leases := n.client.CoordinationV1().Leases(leaseNamespace)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	have, err := leases.Get(ctx, n.config.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: n.config.Name},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &n.config.Name, LeaseDurationSeconds: &seconds, RenewTime: &now,
			},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	have.Spec.RenewTime, have.Spec.LeaseDurationSeconds, have.Spec.HolderIdentity = &now, &seconds, &n.config.Name
	_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
	return err
}
