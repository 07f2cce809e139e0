// Package plan decides: [Decide] turns one [State] into one [Plan], and does
// nothing else. No clock, no network, no randomness: the same State gives the
// same Plan, in whatever order its lists come, on every machine. A recorded
// State is therefore enough to ask later why something was decided.
//
// The words, as the whole project uses them:
//
//   - gang: pods that must start together. A gang is never split between
//     places. Pending pods of one owner that need not start together are
//     independent: they are bought for together and may be split. One pod is a
//     gang of one. The type [Gang] holds either.
//   - tenant: who pays. One namespace has one tenant.
//   - offer: one thing a cloud sells, with its price and when it was seen.
//   - burst: one approved purchase for one gang: machines of one offer, a
//     ceiling, a deadline, data. No machine is replaced inside a burst; it
//     ends, and the next attempt excludes what failed.
//   - ceiling: the most that a burst can ever cost, from the first second that
//     the cloud may bill to the last, whoever fails on the way.
//   - reservation: the ceiling booked in the ledger against every budget on
//     its path, before anything is asked of a cloud.
//   - settlement: what it did cost, posted; the rest is released.
//
// The order of the questions is a promise. Local first: no burst while the work
// fits on-prem, or is expected to before a burst could be ready. Policy before
// price: where the work may go is decided before any offer is ranked, and an
// unknown fact is a no. Money last: a ceiling that a budget can't carry is a
// refusal that names the missing amount.
//
// Decide may be wrong about money by the age of its State. Only the ledger
// reserves; this package never does.
package plan

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/placement"
	"spillway.dev/spillway/providers"
	"spillway.dev/spillway/quota"
)

// State is all that a decision depends on. It is plain data: written as JSON it
// can be kept, sent, and decided on again.
type State struct {
	Now      time.Time `json:"now"`
	Settings Settings  `json:"settings"`
	Cluster  Cluster   `json:"cluster"`

	// Gangs is the pending work, one entry an owner.
	Gangs     []Gang                   `json:"gangs"`
	Tenants   []v1alpha1.BurstTenant   `json:"tenants"`
	Providers []v1alpha1.BurstProvider `json:"providers"`
	// Offers as the drivers reported them; prices and meter rules that a
	// BurstProvider states win over these.
	Offers []providers.Offer `json:"offers"`
	// Bursts are all Burst objects, ended ones included: they are the memory
	// of what was bought for whom and what failed.
	Bursts []v1alpha1.Burst `json:"bursts"`
	// Book is the ledger's budgets with what is spent and reserved.
	Book quota.Book `json:"book"`
}

// Cluster is what the scheduler's filters look at. Nodes and pods may be those of
// a cache: they are replaced, never changed.
type Cluster struct {
	Nodes []*corev1.Node `json:"nodes"`
	// Pods are the bound pods that still occupy their node.
	Pods           []*corev1.Pod                  `json:"pods"`
	Namespaces     []corev1.Namespace             `json:"namespaces,omitempty"`
	Volumes        []corev1.PersistentVolume      `json:"volumes,omitempty"`
	Claims         []corev1.PersistentVolumeClaim `json:"claims,omitempty"`
	StorageClasses []storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes       []storagev1.CSINode            `json:"csiNodes,omitempty"`
	CSIDrivers     []storagev1.CSIDriver          `json:"csiDrivers,omitempty"`
	// DaemonSets of the cluster's own namespaces put their pods on rented
	// machines too, where they tolerate these.
	DaemonSets []appsv1.DaemonSet `json:"daemonSets,omitempty"`
	// Quotas of the namespaces bound home and cloud alike; deciding needs none,
	// since a pod beyond one does not exist, but imagining work does.
	Quotas []corev1.ResourceQuota `json:"quotas,omitempty"`
	// Ends says by when bound pods are over at the latest, by pod UID, where
	// the owner's deadline tells. A pod's own activeDeadlineSeconds need not
	// be repeated here.
	Ends map[types.UID]time.Time `json:"ends,omitempty"`
	// Changes, where they are known, are those of nodes and bound pods since an
	// earlier state of the same source. They only save work.
	Changes *placement.Changes `json:"-"`
}

// Owner is the top owner of pending pods, or a bare pod itself.
type Owner struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// String is namespace/Kind/name.
func (o Owner) String() string { return o.Namespace + "/" + o.Kind + "/" + o.Name }

// Gang is the pending work of one owner.
type Gang struct {
	Owner         Owner     `json:"owner"`
	Created       time.Time `json:"created"`
	Priority      int32     `json:"priority"`
	PriorityClass string    `json:"priorityClass,omitempty"`

	// Together says that the pods must start together, in one place.
	Together bool `json:"together,omitempty"`
	// Service says that the work runs until somebody deletes it.
	Service bool `json:"service,omitempty"`
	// Size is how many members the owner wants in all; 0 means those that
	// exist. A gang that is not complete waits.
	Size int `json:"size,omitempty"`
	// Pods are the members without a node, as the API server has them.
	Pods []*corev1.Pod `json:"pods"`
	// Bound is how many members have a node that is not a burst node.
	Bound int `json:"bound,omitempty"`

	// MaxRun bounds the work once it runs; 0 means that the owner states none.
	MaxRun time.Duration `json:"maxRun,omitempty"`
	// EndsBy is when the owner's deadline ends the work, run or not; zero
	// means that it has none.
	EndsBy time.Time `json:"endsBy,omitzero"`

	// Inputs and Outputs are S3 URLs, from annotations.
	Inputs  []string `json:"inputs,omitempty"`
	Outputs []string `json:"outputs,omitempty"`
	// InputBytes is how much all inputs are; nil when nobody knows.
	InputBytes *int64 `json:"inputBytes,omitempty"`
	// DataClass is the annotation's, empty when there is none.
	DataClass string `json:"dataClass,omitempty"`

	// Fabrics are the fast fabrics that its pods declare to need between
	// machines, from annotations.
	Fabrics []string `json:"fabrics,omitempty"`

	// Hold says why the pods are pending when it is not for want of capacity
	// (suspended, waiting in a queue). Held work is never bought for.
	Hold *Reason `json:"hold,omitempty"`
	// Short says why further pods of independent work don't exist. It is told
	// with whatever is decided on those that do.
	Short *Reason `json:"short,omitempty"`
}
