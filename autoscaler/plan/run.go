package plan

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/quota"
)

// run is one call of Decide: the working copies that decisions are tried on.
type run struct {
	State
	// cluster is the one simulated cluster: what an earlier gang took is taken.
	cluster *placement.Snapshot
	onPrem  placement.Choice                // the nodes that are not burst nodes
	home    map[string]int                  // their names, and their places in onPrem
	ends    []ending                        // pods on them whose end is known, soonest first
	endsOn  [][]int                         // of ends, by node: what is over there, in their order
	freed   map[corev1.ResourceName][]int64 // see freedOf
	slots   map[gpuNeed]slots
	seats   map[placement.Class]seats
	// book is tried on, gang by gang: two gangs can't both get the last euro.
	book      quota.Book
	history   history
	system    map[string]bool                    // namespaces of the cluster itself
	tenants   map[string][]*v1alpha1.BurstTenant // by namespace
	providers map[string]*v1alpha1.BurstProvider
	offers    []*sale
	variety   []gpuNeed // see variety
	desk      desk
	trips     map[trip]*journey // see travelling
	room      []int64           // see spare
	claims    map[string]*corev1.PersistentVolumeClaim
	volumes   map[string]*corev1.PersistentVolume
}

func newRun(s State, cluster *placement.Snapshot, known *stays) *run {
	r := &run{
		State:     s,
		cluster:   cluster,
		home:      map[string]int{},
		trips:     map[trip]*journey{},
		freed:     map[corev1.ResourceName][]int64{},
		slots:     map[gpuNeed]slots{},
		seats:     map[placement.Class]seats{},
		book:      s.Book.Clone(),
		system:    map[string]bool{"kube-system": true},
		tenants:   map[string][]*v1alpha1.BurstTenant{},
		providers: map[string]*v1alpha1.BurstProvider{},
		claims:    map[string]*corev1.PersistentVolumeClaim{},
		volumes:   map[string]*corev1.PersistentVolume{},
	}
	var names []string
	for i := range s.Cluster.Nodes {
		if n := s.Cluster.Nodes[i]; burstOf(n) == "" {
			r.home[n.Name] = len(names)
			names = append(names, n.Name)
		}
	}
	r.onPrem = r.cluster.Choose(names...)
	for i := range s.Cluster.Namespaces {
		if ns := &s.Cluster.Namespaces[i]; ns.Labels[v1alpha1.SystemLabel] == "true" {
			r.system[ns.Name] = true
		}
	}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		for _, ns := range t.Spec.Namespaces {
			if !slices.Contains(r.tenants[ns], t) {
				r.tenants[ns] = append(r.tenants[ns], t)
			}
		}
	}
	for i := range s.Providers {
		r.providers[s.Providers[i].Name] = &s.Providers[i]
	}
	for i := range s.Cluster.Claims {
		c := &s.Cluster.Claims[i]
		r.claims[c.Namespace+"/"+c.Name] = c
	}
	for i := range s.Cluster.Volumes {
		r.volumes[s.Cluster.Volumes[i].Name] = &s.Cluster.Volumes[i]
	}
	r.history = remember(s, r.onBurstNodes())
	r.offers = sales(&s, r.providers)
	r.variety = variety(r.offers)
	r.desk = newDesk(len(r.offers))
	r.ends = r.endings(known)
	r.endsOn = make([][]int, len(names))
	for i, e := range r.ends {
		r.endsOn[e.place] = append(r.endsOn[e.place], i)
	}
	r.promise()
	return r
}

// promise puts the money of bursts that the ledger has not booked yet into
// the working book: they were decided, and their money is as good as gone.
func (r *run) promise() {
	for _, b := range r.history.live {
		_, booked := r.book.Open[string(b.UID)]
		if _, ended := outcome(b); booked || ended {
			continue
		}
		if res, err := ReservationOf(b); err == nil {
			// A refusal here will be the ledger's too, and ends that burst.
			_ = r.book.Try(res)
		}
	}
}

// daemons are the DaemonSets whose pods may be on burst nodes: those of the
// cluster itself. The guards keep all others at home.
func (r *run) daemons() []*appsv1.DaemonSet {
	return slices.DeleteFunc(pointers(r.Cluster.DaemonSets), func(d *appsv1.DaemonSet) bool { return !r.system[d.Namespace] })
}

// onBurstNodes returns, by UID of the owning burst, how many pods its nodes hold.
func (r *run) onBurstNodes() map[string]int {
	owner := map[string]string{}
	for i := range r.Cluster.Nodes {
		if uid := burstOf(r.Cluster.Nodes[i]); uid != "" {
			owner[r.Cluster.Nodes[i].Name] = uid
		}
	}
	count := map[string]int{}
	for i := range r.Cluster.Pods {
		p := r.Cluster.Pods[i]
		if uid := owner[p.Spec.NodeName]; uid != "" && !daemon(p) {
			count[uid]++
		}
	}
	return count
}

// burstOf returns the UID of the burst that a node belongs to, or nothing for
// an on-prem node. A node with our prefix and no taint is nobody's, and not
// on-prem either.
func burstOf(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if t.Key == v1alpha1.BurstTaint {
			return t.Value
		}
	}
	if strings.HasPrefix(n.Name, v1alpha1.NodePrefix) {
		return "unknown"
	}
	return ""
}

func daemon(p *corev1.Pod) bool {
	return slices.ContainsFunc(ownerKinds(p), func(kind string) bool { return kind == "DaemonSet" || kind == "Node" })
}

func ownerKinds(p *corev1.Pod) []string {
	kinds := make([]string, 0, len(p.OwnerReferences))
	for _, o := range p.OwnerReferences {
		kinds = append(kinds, o.Kind)
	}
	return kinds
}

func inventory(c *Cluster) placement.Inventory {
	return placement.Inventory{
		Changes: c.Changes, Nodes: c.Nodes, Pods: c.Pods, Namespaces: pointers(c.Namespaces),
		Volumes: pointers(c.Volumes), Claims: pointers(c.Claims), StorageClasses: pointers(c.StorageClasses),
		CSINodes: pointers(c.CSINodes), CSIDrivers: pointers(c.CSIDrivers),
	}
}

func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// payer finds the tenant. A namespace that two tenants claim has none: nobody
// has said who pays.
func (r *run) payer(w *work) (Decision, bool) {
	switch found := r.tenants[w.Owner.Namespace]; len(found) {
	case 0:
		return w.decision(Refuse, Reason{
			Code: TenantUnknown, Message: fmt.Sprintf("namespace %s belongs to no tenant", w.Owner.Namespace),
			Remedy: "add the namespace to a BurstTenant",
		}), true
	case 1:
		w.tenant = found[0]
	default:
		return w.decision(Refuse, Reason{
			Code: TenantUnknown, Message: fmt.Sprintf("namespace %s belongs to the tenants %s and %s", w.Owner.Namespace, found[0].Name, found[1].Name),
			Remedy: "leave it in one of them",
		}), true
	}
	for i := range r.Tenants {
		if other := &r.Tenants[i]; other != w.tenant && other.Spec.ID == w.tenant.Spec.ID {
			return w.decision(Refuse, Reason{
				Code: TenantUnknown, Message: fmt.Sprintf("the tenants %s and %s have one id, so one would pay for the other", w.tenant.Name, other.Name),
				Remedy: "delete one of them and create it with an id of its own",
			}), true
		}
	}
	if mode := w.tenant.Spec.Burst.Mode; mode == v1alpha1.ModeOff {
		return w.decision(Refuse, Reason{
			Code: NamespaceNotEnabled, Message: fmt.Sprintf("bursting is off for tenant %s", w.tenant.Name),
			Remedy: "set the tenant's burst mode to Observe or On",
		}), true
	}
	if w.Service && !w.tenant.Spec.Burst.Services {
		return w.decision(Refuse, Reason{
			Code: ServicesNotEnabled, Message: fmt.Sprintf("the work of this %s runs until somebody deletes it, and services of tenant %s don't burst", w.Owner.Kind, w.tenant.Name),
			Remedy: "run the work as a Job, or set burst.services of the tenant",
		}), true
	}
	return Decision{}, false
}
