package plan

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Captured returns a state that can be kept and shown: it decides as s does,
// and holds no more of the objects than that takes. Values of environment
// variables, commands, arguments, probes, messages of containers, addresses, how
// volumes are mounted and the annotations of others are left out, since secrets
// and the names of people stand there. What stays are names of objects, labels
// and images: rules ask about them. Values of labels that name people, by the
// tenants' word or by their makers', are numbered. The state s is not changed.
func Captured(s State) State {
	c := &s.Cluster
	hide := newVeil(&s)
	barePod := func(p *corev1.Pod) {
		barePod(p)
		hide.over(&p.Labels, &p.Spec)
	}
	c.Nodes = eachCopy(c.Nodes, func(n *corev1.Node) {
		bare(n)
		n.Annotations = nil // nobody decides by them, and addresses stand there
		n.Status.Addresses, n.Status.Images, n.Status.NodeInfo = nil, nil, corev1.NodeSystemInfo{}
		n.Spec.PodCIDR, n.Spec.PodCIDRs, n.Spec.ProviderID = "", nil, ""
	})
	c.Pods = eachCopy(c.Pods, barePod)
	s.Gangs = slices.Clone(s.Gangs)
	for i := range s.Gangs {
		s.Gangs[i].Pods = eachCopy(s.Gangs[i].Pods, barePod)
	}
	c.DaemonSets = slices.Clone(c.DaemonSets)
	for i := range c.DaemonSets {
		d := &c.DaemonSets[i]
		bare(d)
		d.Spec.Template.Annotations = nil
		bareSpec(&d.Spec.Template.Spec)
		hide.over(&d.Spec.Template.Labels, &d.Spec.Template.Spec)
	}
	c.Namespaces = bareEach(c.Namespaces)
	c.Volumes = each(c.Volumes, func(v *corev1.PersistentVolume) {
		bare(v)
		v.Spec.MountOptions = nil
		v.Spec.CSI = changed(v.Spec.CSI, func(s *corev1.CSIPersistentVolumeSource) { s.VolumeAttributes = nil })
		v.Spec.FlexVolume = changed(v.Spec.FlexVolume, func(s *corev1.FlexPersistentVolumeSource) { s.Options = nil })
	})
	c.Claims = bareEach(c.Claims)
	c.StorageClasses = each(c.StorageClasses, func(class *storagev1.StorageClass) {
		bare(class)
		class.MountOptions, class.Parameters = nil, nil
	})
	c.Quotas = bareEach(c.Quotas)
	c.CSINodes = bareEach(c.CSINodes)
	c.CSIDrivers = bareEach(c.CSIDrivers)
	s.Tenants = bareEach(s.Tenants)
	s.Providers = bareEach(s.Providers)
	s.Bursts = bareEach(s.Bursts)
	return s
}

func each[T any](list []T, change func(*T)) []T {
	list = slices.Clone(list)
	for i := range list {
		change(&list[i])
	}
	return list
}

func eachCopy[T any](list []*T, change func(*T)) []*T {
	list = slices.Clone(list)
	for i := range list {
		list[i] = changed(list[i], change)
	}
	return list
}

// changed is a changed copy of what a pointer leads to, nil for nil.
func changed[T any](old *T, change func(*T)) *T {
	if old == nil {
		return nil
	}
	own := *old
	change(&own)
	return &own
}

// object is a pointer to T with metadata.
type object[T any] interface {
	*T
	metav1.Object
}

func bareEach[T any, O object[T]](list []T) []T {
	return each(list, func(o *T) { bare(O(o)) })
}

// bare keeps of an object's annotations those that Kubernetes and Spillway
// decide by.
func bare(o metav1.Object) {
	o.SetManagedFields(nil)
	kept := map[string]string{}
	for key, value := range o.GetAnnotations() {
		domain, _, _ := strings.Cut(key, "/")
		if domain == "spillway.dev" || strings.HasSuffix(domain, ".kubernetes.io") && domain != "kubectl.kubernetes.io" {
			kept[key] = value
		}
	}
	o.SetAnnotations(kept)
}

func barePod(p *corev1.Pod) {
	bare(p)
	bareSpec(&p.Spec)
	st := &p.Status
	st.Message, st.HostIP, st.HostIPs, st.PodIP, st.PodIPs = "", "", nil, "", nil
	for _, list := range []*[]corev1.ContainerStatus{&st.ContainerStatuses, &st.InitContainerStatuses, &st.EphemeralContainerStatuses} {
		*list = each(*list, func(c *corev1.ContainerStatus) {
			*c = corev1.ContainerStatus{Name: c.Name, Resources: c.Resources, AllocatedResources: c.AllocatedResources}
		})
	}
}

func bareSpec(s *corev1.PodSpec) {
	s.HostAliases, s.DNSConfig, s.EphemeralContainers = nil, nil, nil
	for _, list := range []*[]corev1.Container{&s.Containers, &s.InitContainers} {
		*list = each(*list, func(c *corev1.Container) {
			c.Command, c.Args, c.WorkingDir, c.Lifecycle = nil, nil, "", nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
			c.Env = each(c.Env, func(e *corev1.EnvVar) { e.Value = "" })
		})
	}
	s.Volumes = each(s.Volumes, func(v *corev1.Volume) {
		v.CSI = changed(v.CSI, func(s *corev1.CSIVolumeSource) { s.VolumeAttributes = nil })
		v.FlexVolume = changed(v.FlexVolume, func(s *corev1.FlexVolumeSource) { s.Options = nil })
		v.GitRepo = changed(v.GitRepo, func(s *corev1.GitRepoVolumeSource) { s.Repository = "" })
		v.Ephemeral = changed(v.Ephemeral, func(s *corev1.EphemeralVolumeSource) {
			s.VolumeClaimTemplate = changed(s.VolumeClaimTemplate, func(t *corev1.PersistentVolumeClaimTemplate) { bare(t) })
		})
	})
}
