package parity

import (
	"context"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/e2e/controlplane"
)

// site is the real control plane that clusters are drawn into.
type site struct {
	t       *testing.T
	client  client.Client
	answers *answers
	logs    string
}

func connect(t *testing.T, cp *controlplane.ControlPlane) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := cp.AdminConfig
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &site{t: t, client: c, logs: cp.LogDir}
}

func (s *site) create(objects ...client.Object) {
	s.t.Helper()
	for _, o := range objects {
		if err := s.client.Create(s.t.Context(), o); err != nil {
			s.t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// furnish makes what all clusters share.
func (s *site) furnish() {
	s.t.Helper()
	for name, team := range map[string]string{teamA: "a", teamB: "b"} {
		s.create(
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{teamLabel: team}}},
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}},
		)
	}
	for _, class := range classes() {
		s.create(class)
	}
	s.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}})
}

// build writes a drawn cluster; the asked pods wait behind a gate.
func (s *site) build(c *cluster) {
	s.t.Helper()
	var group writes
	for _, n := range c.nodes {
		group.Go(func() error { return s.node(n) })
	}
	for _, pv := range c.volumes {
		group.Go(func() error { return s.withStatus(pv.DeepCopy(), pv) })
	}
	for _, claim := range c.claims {
		group.Go(func() error { return s.withStatus(claim.DeepCopy(), claim) })
	}
	for _, n := range c.csi {
		group.Go(func() error { return s.client.Create(s.t.Context(), n) })
	}
	group.wait(s.t)
	for _, p := range c.bound {
		group.Go(func() error { return s.client.Create(s.t.Context(), p) })
	}
	for _, p := range c.asked {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "parity.test/drawn"}}
		group.Go(func() error { return s.client.Create(s.t.Context(), p) })
	}
	group.wait(s.t)
}

// writes run side by side, eight at most.
type writes []func() error

// Go adds a write, which starts with wait.
func (w *writes) Go(write func() error) { *w = append(*w, write) }

// wait runs all of them.
func (w *writes) wait(t *testing.T) {
	t.Helper()
	todo := make(chan func() error, len(*w))
	for _, write := range *w {
		todo <- write
	}
	close(todo)
	*w = nil
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for write := range todo {
				if err := write(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// node creates a node and takes off the taint that every new one gets.
func (s *site) node(n *corev1.Node) error {
	taints := n.Spec.Taints
	if err := s.client.Create(s.t.Context(), n); err != nil {
		return err
	}
	n.Spec.Taints = taints
	return s.client.Update(s.t.Context(), n)
}

// withStatus creates an object, then writes the status that it was drawn with.
func (s *site) withStatus(o, drawn client.Object) error {
	if err := s.client.Create(s.t.Context(), o); err != nil {
		return err
	}
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		o.Status = drawn.(*corev1.PersistentVolume).Status
		if o.Status.Phase == "" {
			o.Status.Phase = corev1.VolumeAvailable
		}
	case *corev1.PersistentVolumeClaim:
		o.Status = drawn.(*corev1.PersistentVolumeClaim).Status
		if o.Status.Phase == "" {
			o.Status.Phase = corev1.ClaimPending
		}
	}
	return s.client.Status().Update(s.t.Context(), o)
}

// ungate lets the scheduler see the asked pods.
func (s *site) ungate(c *cluster) {
	s.t.Helper()
	for _, p := range c.asked {
		old := p.DeepCopy()
		p.Spec.SchedulingGates = nil
		if err := s.client.Patch(s.t.Context(), p, client.MergeFrom(old)); err != nil {
			s.t.Fatalf("ungate pod %s: %v", p.Name, err)
		}
	}
}

func (s *site) list(l client.ObjectList) {
	s.t.Helper()
	if err := s.client.List(context.Background(), l); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) pods() []corev1.Pod {
	s.t.Helper()
	var l corev1.PodList
	s.list(&l)
	return l.Items
}

// inventory reads everything back.
func (s *site) inventory() (inv placement.Inventory, asked []*corev1.Pod) {
	s.t.Helper()
	var nodes corev1.NodeList
	var namespaces corev1.NamespaceList
	var volumes corev1.PersistentVolumeList
	var claims corev1.PersistentVolumeClaimList
	var classes storagev1.StorageClassList
	var csiNodes storagev1.CSINodeList
	var drivers storagev1.CSIDriverList
	for _, l := range []client.ObjectList{&nodes, &namespaces, &volumes, &claims, &classes, &csiNodes, &drivers} {
		s.list(l)
	}
	for _, p := range s.pods() {
		switch {
		case p.Spec.NodeName != "":
			inv.Pods = append(inv.Pods, &p)
		case strings.Contains(p.Name, "-asked-"):
			asked = append(asked, &p)
		}
	}
	inv.Nodes, inv.Namespaces = pointers(nodes.Items), pointers(namespaces.Items)
	inv.Volumes, inv.Claims = pointers(volumes.Items), pointers(claims.Items)
	inv.StorageClasses, inv.CSINodes, inv.CSIDrivers = pointers(classes.Items), pointers(csiNodes.Items), pointers(drivers.Items)
	return inv, asked
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// clear removes the cluster, with the protection that nobody would take off.
func (s *site) clear() {
	s.t.Helper()
	var nodes corev1.NodeList
	var volumes corev1.PersistentVolumeList
	var claims corev1.PersistentVolumeClaimList
	var csiNodes storagev1.CSINodeList
	for _, l := range []client.ObjectList{&nodes, &volumes, &claims, &csiNodes} {
		s.list(l)
	}
	var all []client.Object
	for _, p := range s.pods() {
		all = append(all, &p)
	}
	for i := range claims.Items {
		all = append(all, &claims.Items[i])
	}
	for i := range volumes.Items {
		all = append(all, &volumes.Items[i])
	}
	for i := range nodes.Items {
		all = append(all, &nodes.Items[i])
	}
	for i := range csiNodes.Items {
		all = append(all, &csiNodes.Items[i])
	}
	for _, o := range all {
		if len(o.GetFinalizers()) > 0 {
			old := o.DeepCopyObject().(client.Object)
			o.SetFinalizers(nil)
			if err := s.client.Patch(s.t.Context(), o, client.MergeFrom(old)); err != nil {
				s.t.Fatalf("unprotect %s: %v", o.GetName(), err)
			}
		}
		if err := s.client.Delete(s.t.Context(), o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			s.t.Fatalf("delete %s: %v", o.GetName(), err)
		}
	}
}

// described shows a pod and what the scheduler said, for a difference.
func (s *site) described(name string) string {
	s.t.Helper()
	for _, p := range s.pods() {
		if p.Name == name {
			p.ManagedFields = nil
			text, err := yaml.Marshal(map[string]any{"labels": p.Labels, "namespace": p.Namespace, "spec": p.Spec, "conditions": p.Status.Conditions})
			if err != nil {
				s.t.Fatal(err)
			}
			return string(text)
		}
	}
	return "the pod is gone"
}
