// Package capi turns the machines of a burst into Cluster API objects and
// reads back what became of them.
//
// The promise: whoever deletes what, no machine is drained or destroyed before
// Spillway has let go of it. Every Machine carries a pre-drain and a
// pre-terminate hook from its first second on, has no owner that could refill
// it, and its record stays readable until [Machines.Forget].
//
// Vocabulary: an [Order] is what is asked for one machine, a [View] is what is
// known of it, the stub is the OnPremControlPlane that lets Cluster API work
// beside a control plane that it does not manage, a hook is an annotation on
// which Cluster API waits, the record is the SpillwayMachine with the times of
// the cloud's meter. [SetupEmbedded] runs the core reconcilers of Cluster API
// in this process, for the demo and for tests; in production the stock manager
// runs, and the objects are the same.
package capi

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "spillway.dev/spillway/autoscaler/api/controlplane/v1alpha1"
	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
)

// Cluster is the on-prem cluster as Cluster API knows it.
type Cluster struct {
	Name      string // of the Cluster object and of the stub
	Namespace string // where all Cluster API objects live

	// Endpoint is host:port of the API server as the clouds reach it.
	Endpoint string
	// Kubeconfig is what Cluster API reaches the nodes with: a token or a
	// client certificate; exec plugins are refused by Cluster API.
	Kubeconfig []byte
}

// AddToScheme registers the kinds that this package reads and writes.
func AddToScheme(s *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, clusterv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return fmt.Errorf("register Cluster API kinds: %w", err)
		}
	}
	return nil
}

// EnsureCluster makes the Cluster, the stub control plane and the kubeconfig
// Secret, and mends what differs. It may be repeated, and should be whenever
// the kubeconfig changes: Cluster API reads the Secret anew.
func EnsureCluster(ctx context.Context, c client.Client, cl Cluster) error {
	host, portText, err := net.SplitHostPort(cl.Endpoint)
	if err != nil {
		return fmt.Errorf("cluster %s: endpoint %q: want host:port: %w", cl.Name, cl.Endpoint, err)
	}
	port, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		return fmt.Errorf("cluster %s: endpoint %q: %w", cl.Name, cl.Endpoint, err)
	}
	if err := ensureStub(ctx, c, cl); err != nil {
		return err
	}
	if err := ensureKubeconfig(ctx, c, cl); err != nil {
		return err
	}
	want := clusterv1.ClusterSpec{
		ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: host, Port: int32(port)},
		ControlPlaneRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: controlplanev1.Group, Kind: "OnPremControlPlane", Name: cl.Name,
		},
	}
	have := &clusterv1.Cluster{}
	err = c.Get(ctx, client.ObjectKey{Namespace: cl.Namespace, Name: cl.Name}, have)
	if apierrors.IsNotFound(err) {
		have.Namespace, have.Name, have.Spec = cl.Namespace, cl.Name, want
		err = c.Create(ctx, have)
		return wrapCluster("create", cl, err)
	}
	if err != nil {
		return wrapCluster("read", cl, err)
	}
	old := have.DeepCopy()
	have.Spec.ControlPlaneEndpoint, have.Spec.ControlPlaneRef = want.ControlPlaneEndpoint, want.ControlPlaneRef
	if equality.Semantic.DeepEqual(old.Spec, have.Spec) {
		return nil
	}
	return wrapCluster("update", cl, c.Patch(ctx, have, client.MergeFrom(old)))
}

func wrapCluster(verb string, cl Cluster, err error) error {
	if err == nil || apierrors.IsAlreadyExists(err) {
		return nil
	}
	return fmt.Errorf("%s Cluster %s/%s: %w", verb, cl.Namespace, cl.Name, err)
}

// ensureStub makes the object without which Cluster API neither drains nor
// removes a node (cases: B-1 kubernetes-sigs/cluster-api PR#11552, #3631).
func ensureStub(ctx context.Context, c client.Client, cl Cluster) error {
	stub := &controlplanev1.OnPremControlPlane{}
	key := client.ObjectKey{Namespace: cl.Namespace, Name: cl.Name}
	err := c.Get(ctx, key, stub)
	if apierrors.IsNotFound(err) {
		stub.Namespace, stub.Name = cl.Namespace, cl.Name
		stub.Labels = map[string]string{clusterv1.ClusterNameLabel: cl.Name}
		if err = c.Create(ctx, stub); apierrors.IsAlreadyExists(err) {
			err = c.Get(ctx, key, stub)
		}
	}
	if err != nil {
		return fmt.Errorf("stub control plane %s: %w", key, err)
	}
	yes := true
	want := controlplanev1.OnPremControlPlaneStatus{
		Initialization:              &controlplanev1.ControlPlaneInitialization{ControlPlaneInitialized: &yes},
		ExternalManagedControlPlane: true,
	}
	if equality.Semantic.DeepEqual(stub.Status, want) {
		return nil
	}
	old := stub.DeepCopy()
	stub.Status = want
	if err := c.Status().Patch(ctx, stub, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("status of stub control plane %s: %w", key, err)
	}
	return nil
}

// ensureKubeconfig keeps the Secret that Cluster API reaches the cluster with.
func ensureKubeconfig(ctx context.Context, c client.Client, cl Cluster) error {
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: cl.Namespace, Name: cl.Name + "-kubeconfig"}
	err := c.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		secret = clusterSecret(cl, key.Name, cl.Kubeconfig)
		err = c.Create(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("kubeconfig Secret %s: %w", key, err)
	}
	if bytes.Equal(secret.Data["value"], cl.Kubeconfig) && secret.Labels[clusterv1.ClusterNameLabel] == cl.Name {
		return nil
	}
	old := secret.DeepCopy()
	fresh := clusterSecret(cl, key.Name, cl.Kubeconfig)
	secret.Data, secret.Labels = fresh.Data, fresh.Labels
	if err := c.Patch(ctx, secret, client.MergeFrom(old)); err != nil {
		return fmt.Errorf("refresh kubeconfig Secret %s: %w", key, err)
	}
	return nil
}

// clusterSecret is a Secret in the form that Cluster API reads: type, key and
// label are part of its contract.
func clusterSecret(cl Cluster, name string, value []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cl.Namespace, Name: name,
			Labels: map[string]string{clusterv1.ClusterNameLabel: cl.Name},
		},
		Type: clusterv1.ClusterSecretType,
		Data: map[string][]byte{"value": value},
	}
}
