package capi

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	infrav1 "spillway.dev/spillway/autoscaler/api/infrastructure/v1alpha1"
	"spillway.dev/spillway/autoscaler/infra"
)

// View is what is known of one machine of a burst.
type View struct {
	Name       string
	Ordinal    int32
	ProviderID string
	InstanceID string // empty until the cloud has confirmed the purchase
	State      string // the cloud's state, a [providers.State]

	Bought      bool // the cloud has confirmed the purchase
	Provisioned bool // and runs it
	// Refusal is why there is no such machine (any more): SoldOut,
	// LimitReached, Rejected, CleanupFailed, NoReservation, Broken or
	// Vanished. Empty: nothing is refused.
	Refusal string
	// Message is what is awaited, or the cloud's own words on the refusal.
	Message string

	Phase string // Cluster API's word
	Node  string // name of the matched Node, empty before the join
	// Conditions of the Machine object.
	Conditions []metav1.Condition
	// Deleting says that the deletion of the Machine has been asked.
	Deleting bool

	Created, Started time.Time // the cloud's own times; zero: not yet
	// Gone is when the cloud was seen without any of the machine's parts.
	Gone time.Time
	// Stamped is the expiry stamp as the cloud holds it.
	Stamped time.Time
}

// Read lists the machines of a burst by ordinal. A machine stays in the list
// until [Machines.Forget], also when Cluster API has finished with it.
func (m *Machines) Read(ctx context.Context, burst types.UID) ([]View, error) {
	list, err := m.infraMachines(ctx, m.Client, burst)
	if err != nil {
		return nil, err
	}
	machines, err := m.machines(ctx, m.Client, burst)
	if err != nil {
		return nil, err
	}
	return views(list, machines), nil
}

// views joins records and Machines by name, in the order of their ordinals.
func views(list []infrav1.SpillwayMachine, machines []clusterv1.Machine) []View {
	byName := map[string]*clusterv1.Machine{}
	for i := range machines {
		byName[machines[i].Name] = &machines[i]
	}
	all := make([]View, 0, len(list))
	for i := range list {
		all = append(all, viewOf(&list[i], byName[list[i].Name]))
	}
	slices.SortFunc(all, func(a, b View) int { return cmp.Compare(a.Ordinal, b.Ordinal) })
	return all
}

// viewOf joins the record and the Machine; the Machine may be nil.
func viewOf(sm *infrav1.SpillwayMachine, machine *clusterv1.Machine) View {
	v := View{
		Name: sm.Name, Ordinal: sm.Spec.Ordinal, ProviderID: sm.Spec.ProviderID,
		InstanceID: sm.Status.InstanceID, State: sm.Status.State,
		Deleting: !sm.DeletionTimestamp.IsZero(),
		Created:  timeOf(sm.Status.CreatedAt), Started: timeOf(sm.Status.StartedAt),
		Gone: timeOf(sm.Status.GoneAt), Stamped: timeOf(sm.Status.ExpiresAt),
		Provisioned: infra.Provisioned(sm),
	}
	v.Bought = meta.IsStatusConditionTrue(sm.Status.Conditions, infra.Purchased)
	v.Refusal, v.Message = infra.Refusal(sm)
	if machine == nil {
		return v
	}
	v.Phase, v.Node = machine.Status.Phase, machine.Status.NodeRef.Name
	v.Conditions = machine.Status.Conditions
	v.Deleting = v.Deleting || !machine.DeletionTimestamp.IsZero()
	return v
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
