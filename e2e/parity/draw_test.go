package parity

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	hostname = corev1.LabelHostname
	zone     = corev1.LabelTopologyZone
	gpu      = corev1.ResourceName("nvidia.com/gpu")
	mig      = corev1.ResourceName("nvidia.com/mig-1g.10gb")
	driver   = "disk.parity.test"
	// The namespaces of the drawn pods, and the label that tells them apart.
	teamA, teamB = "team-a", "team-b"
	teamLabel    = "team"
)

// cluster is one drawn cluster with the pods to ask about.
type cluster struct {
	r      *rand.Rand
	prefix string // of all its names

	nodes   []*corev1.Node
	bound   []*corev1.Pod // with a node
	asked   []*corev1.Pod // without
	volumes []*corev1.PersistentVolume
	claims  []*corev1.PersistentVolumeClaim
	csi     []*storagev1.CSINode
}

// drawCluster draws everything from one seed.
func drawCluster(seed uint64, asked int) *cluster {
	c := &cluster{r: rand.New(rand.NewPCG(seed, 1)), prefix: fmt.Sprintf("c%d", seed)}
	for i := range 4 + c.r.IntN(9) {
		c.nodes = append(c.nodes, c.node(i))
	}
	for i := range 8 + c.r.IntN(8) {
		c.volume(i)
	}
	for i := range c.r.IntN(25) {
		p := c.pod(fmt.Sprintf("%s-bound-%d", c.prefix, i), 0.2)
		p.Spec.NodeName = c.pick(c.nodes).Name
		if c.chance(0.4) {
			c.mounts(p)
		}
		p.Spec.TopologySpreadConstraints = nil // of no interest once bound
		c.bound = append(c.bound, p)
	}
	for i := range asked {
		c.asked = append(c.asked, c.pod(fmt.Sprintf("%s-asked-%d", c.prefix, i), 0.3))
	}
	return c
}

func (c *cluster) chance(p float64) bool { return c.r.Float64() < p }

func (c *cluster) pick(nodes []*corev1.Node) *corev1.Node { return nodes[c.r.IntN(len(nodes))] }

func (c *cluster) of(words ...string) string { return words[c.r.IntN(len(words))] }

func quantity(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.DecimalSI) }

func (c *cluster) node(i int) *corev1.Node {
	name := fmt.Sprintf("%s-node-%d", c.prefix, i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hostname: name}}}
	for _, l := range labels() {
		if c.chance(0.85) {
			n.Labels[l.key] = c.of(l.values...)
		}
	}
	for _, key := range []string{"dedicated", "gpu"} {
		if c.chance(0.2) {
			effect := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule}[c.r.IntN(3)]
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Value: c.of("a", "b"), Effect: effect})
		}
	}
	n.Spec.Unschedulable = c.chance(0.1)
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:              quantity(int64(2 + c.r.IntN(14))),
		corev1.ResourceMemory:           quantity(int64(4+c.r.IntN(28)) << 30),
		corev1.ResourcePods:             quantity(int64(2 + c.r.IntN(10))),
		corev1.ResourceEphemeralStorage: quantity(int64(20+c.r.IntN(100)) << 30),
	}
	if c.chance(0.7) {
		n.Status.Allocatable[gpu] = quantity(int64(c.r.IntN(9)))
	}
	if c.chance(0.3) {
		n.Status.Allocatable[mig] = quantity(int64(c.r.IntN(8)))
	}
	n.Status.Capacity = n.Status.Allocatable
	if c.chance(0.6) {
		limit := int32(c.r.IntN(3))
		c.csi = append(c.csi, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: driver, NodeID: name, TopologyKeys: []string{zone}, Allocatable: &storagev1.VolumeNodeResources{Count: &limit},
			}}},
		})
	}
	return n
}

type label struct {
	key    string
	values []string
}

// labels are what nodes may carry, in a fixed order.
func labels() []label {
	return []label{
		{zone, []string{"z1", "z2", "z3"}},
		{"tier", []string{"gold", "silver"}},
		{"size", []string{"1", "5", "9"}},
		{"nvidia.com/gpu.product", []string{"A100", "H100", "L4"}},
	}
}

// classes are the storage classes that all clusters share.
func classes() []*storagev1.StorageClass {
	wait, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	return []*storagev1.StorageClass{
		{ObjectMeta: metav1.ObjectMeta{Name: "local-wait"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "local-now"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &now},
		{ObjectMeta: metav1.ObjectMeta{Name: "made-anywhere"}, Provisioner: driver, VolumeBindingMode: &wait},
		{ObjectMeta: metav1.ObjectMeta{Name: "made-in-z1"}, Provisioner: driver, VolumeBindingMode: &wait, AllowedTopologies: []corev1.TopologySelectorTerm{{
			MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: []string{"z1"}}},
		}}},
	}
}

// volume draws a volume, a claim, or both bound to each other.
func (c *cluster) volume(i int) {
	name := fmt.Sprintf("%s-%d", c.prefix, i)
	class := c.of("local-wait", "local-now", "made-anywhere", "made-anywhere", "made-in-z1")
	mode := corev1.ReadWriteOnce
	if c.chance(0.2) {
		mode = corev1.ReadWriteOncePod
	}
	size := corev1.ResourceList{corev1.ResourceStorage: quantity(1 << 30)}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.of(teamA, teamA, teamB), Name: "claim-" + name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}
	if c.chance(0.9) {
		c.claims = append(c.claims, claim)
	}
	if !c.chance(0.7) {
		return
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{mode}, StorageClassName: class,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		},
	}
	if class == "made-anywhere" || class == "made-in-z1" {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}
	} else {
		pv.Spec.Local = &corev1.LocalVolumeSource{Path: "/data"}
	}
	switch {
	case pv.Spec.Local != nil || c.chance(0.4):
		key, value := hostname, c.pick(c.nodes).Name
		if c.chance(0.5) {
			key, value = zone, c.of("z1", "z2", "z3")
		}
		pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}},
		}}}}
	case c.chance(0.5):
		pv.Labels = map[string]string{zone: c.of("z1", "z2")}
	}
	if c.chance(0.6) { // bound to each other
		claim.Spec.VolumeName = pv.Name
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		claim.Status.Phase = corev1.ClaimBound
		pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name}
		pv.Status.Phase = corev1.VolumeBound
	}
	c.volumes = append(c.volumes, pv)
}

// pod draws a pod; each feature comes with the chance given.
func (c *cluster) pod(name string, often float64) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.of(teamA, teamA, teamB), Name: name,
			Labels: map[string]string{"app": c.of("a", "b", "c"), "rank": c.of("0", "1")},
		},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(bool), RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "image", Resources: c.resources(often)}},
		},
	}
	if c.chance(0.15) {
		p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "image", Resources: c.resources(often)}}
		if c.chance(0.5) {
			always := corev1.ContainerRestartPolicyAlways
			p.Spec.InitContainers[0].RestartPolicy = &always
		}
	}
	for _, draw := range []func(*corev1.Pod){c.selects, c.tolerates, c.ports, c.spreads, c.attracts, c.mounts} {
		if c.chance(often) {
			draw(p)
		}
	}
	return p
}

func (c *cluster) resources(often float64) corev1.ResourceRequirements {
	r := corev1.ResourceList{}
	if c.chance(0.8) {
		r[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(1+c.r.IntN(25))*100, resource.DecimalSI)
	}
	if c.chance(0.7) {
		r[corev1.ResourceMemory] = quantity(int64(1+c.r.IntN(40)) << 27)
	}
	if c.chance(0.2) {
		r[corev1.ResourceEphemeralStorage] = quantity(int64(1+c.r.IntN(40)) << 30)
	}
	if c.chance(often) {
		r[gpu] = quantity(int64(1 + c.r.IntN(4)))
	} else if c.chance(0.15) {
		r[mig] = quantity(int64(1 + c.r.IntN(3)))
	}
	return corev1.ResourceRequirements{Requests: r, Limits: extended(r)}
}

// extended resources must be limited by what is requested.
func extended(r corev1.ResourceList) corev1.ResourceList {
	limits := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{gpu, mig} {
		if q, ok := r[name]; ok {
			limits[name] = q
		}
	}
	return limits
}

func (c *cluster) selects(p *corev1.Pod) {
	if c.chance(0.4) {
		l := labels()[c.r.IntN(len(labels()))]
		p.Spec.NodeSelector = map[string]string{l.key: c.of(l.values...)}
	}
	var terms []corev1.NodeSelectorTerm
	for range c.r.IntN(3) {
		l := labels()[c.r.IntN(len(labels()))]
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{c.requirement(l)}}
		if c.chance(0.2) {
			term.MatchFields = []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{c.pick(c.nodes).Name}}}
		}
		terms = append(terms, term)
	}
	if len(terms) > 0 {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func (c *cluster) requirement(l label) corev1.NodeSelectorRequirement {
	q := corev1.NodeSelectorRequirement{Key: l.key}
	switch c.r.IntN(5) {
	case 0:
		q.Operator = corev1.NodeSelectorOpExists
	case 1:
		q.Operator = corev1.NodeSelectorOpDoesNotExist
	case 2:
		q.Operator, q.Values = corev1.NodeSelectorOpNotIn, []string{c.of(l.values...)}
	case 3:
		q.Key, q.Operator, q.Values = "size", []corev1.NodeSelectorOperator{corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt}[c.r.IntN(2)], []string{c.of("1", "5")}
	default:
		q.Operator, q.Values = corev1.NodeSelectorOpIn, []string{c.of(l.values...), c.of(l.values...)}
	}
	return q
}

func (c *cluster) tolerates(p *corev1.Pod) {
	for range 1 + c.r.IntN(2) {
		t := corev1.Toleration{Key: c.of("dedicated", "gpu"), Operator: corev1.TolerationOpEqual, Value: c.of("a", "b")}
		switch c.r.IntN(4) {
		case 0:
			t.Operator, t.Value = corev1.TolerationOpExists, ""
		case 1:
			t = corev1.Toleration{Operator: corev1.TolerationOpExists}
		case 2:
			t.Effect = corev1.TaintEffectNoSchedule
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}

func (c *cluster) ports(p *corev1.Pod) {
	port := corev1.ContainerPort{ContainerPort: 80, HostPort: int32(8080 + c.r.IntN(2)), Protocol: corev1.ProtocolTCP}
	if c.chance(0.3) {
		port.HostIP = c.of("127.0.0.1", "10.0.0.1")
	}
	if c.chance(0.2) {
		port.Protocol = corev1.ProtocolUDP
	}
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{port}
}

func (c *cluster) spreads(p *corev1.Pod) {
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	s := corev1.TopologySpreadConstraint{
		MaxSkew: int32(1 + c.r.IntN(2)), TopologyKey: c.of(zone, zone, hostname, "tier"), WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: c.selector(),
	}
	if c.chance(0.2) {
		s.WhenUnsatisfiable = corev1.ScheduleAnyway
	} else if c.chance(0.3) {
		domains := int32(1 + c.r.IntN(4))
		s.MinDomains = &domains
	}
	if c.chance(0.3) {
		s.NodeAffinityPolicy = []*corev1.NodeInclusionPolicy{&honor, &ignore}[c.r.IntN(2)]
	}
	if c.chance(0.3) {
		s.NodeTaintsPolicy = []*corev1.NodeInclusionPolicy{&honor, &ignore}[c.r.IntN(2)]
	}
	if c.chance(0.3) {
		s.MatchLabelKeys = []string{"rank"}
	}
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{s}
}

func (c *cluster) selector() *metav1.LabelSelector {
	if c.chance(0.1) {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": c.of("a", "b", "c")}}
}

// attracts draws affinity to, or from, other pods.
func (c *cluster) attracts(p *corev1.Pod) {
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{}
	}
	term := corev1.PodAffinityTerm{LabelSelector: c.selector(), TopologyKey: c.of(zone, hostname, "tier")}
	switch c.r.IntN(4) {
	case 0:
		term.Namespaces = []string{teamB}
	case 1:
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{teamLabel: c.of("a", "b")}}
	}
	if c.chance(0.2) {
		term.MatchLabelKeys = []string{"rank"}
	}
	if c.chance(0.5) {
		p.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
		return
	}
	p.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}
}

// mounts gives the pod a claim, at times one that is not there.
func (c *cluster) mounts(p *corev1.Pod) {
	name := c.prefix + "-nowhere"
	var here []*corev1.PersistentVolumeClaim
	for _, claim := range c.claims {
		if claim.Namespace == p.Namespace {
			here = append(here, claim)
		}
	}
	if len(here) > 0 && c.chance(0.95) {
		name = here[c.r.IntN(len(here))].Name
	}
	p.Spec.Volumes = []corev1.Volume{{
		Name:         "data",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}},
	}}
}
