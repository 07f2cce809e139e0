package plan

import (
	"fmt"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
)

// stocks are the machines of offers, which a planner keeps from one state to the
// next: how much work they take is found out once.
type stocks struct {
	byKey   map[string]stocked
	daemons []*appsv1.DaemonSet
}

// stocked is a stock with the machine that it is of.
type stocked struct {
	machine placement.Machine
	stock   *placement.Stock
}

// supply gives every offer of a run its stock, the one of the last run when
// neither the machine nor what the cluster puts on it has changed.
func (k *stocks) supply(r *run) {
	daemons := r.daemons()
	old := k.byKey
	if !alike(daemons, k.daemons) {
		old = nil
	}
	k.byKey, k.daemons = make(map[string]stocked, len(r.offers)), daemons
	for _, s := range r.offers {
		machine := virtual(s, r.Settings)
		have, known := old[s.key]
		if known && reflect.DeepEqual(have.machine, machine) {
			have.stock.Prune(r.cluster)
		} else {
			have = stocked{machine, placement.NewStock(numbered(machine), daemons...)}
		}
		s.stock = have.stock
		k.byKey[s.key] = have
	}
}

// alike reports whether DaemonSets put the same pods on the same machines.
func alike(a, b []*appsv1.DaemonSet) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Namespace != b[i].Namespace || a[i].Name != b[i].Name ||
			a[i].DeletionTimestamp.IsZero() != b[i].DeletionTimestamp.IsZero() || !reflect.DeepEqual(a[i].Spec, b[i].Spec) {
			return false
		}
	}
	return true
}

// numbered gives machines of one kind their names.
func numbered(m placement.Machine) func(int) placement.Machine {
	return func(n int) placement.Machine {
		m.Name = fmt.Sprintf("%soffer-%d", v1alpha1.NodePrefix, n)
		return m
	}
}
