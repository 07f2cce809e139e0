package lifecycle

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"spillway.dev/spillway/autoscaler/api/v1alpha1"
	"spillway.dev/spillway/autoscaler/capi"
	"spillway.dev/spillway/nodeagent/link"
	"spillway.dev/spillway/nodeagent/wipe"
	"spillway.dev/spillway/quota"
)

// Ledger is the one applier of money, bound to the epoch of this leader: every
// call fails with [quota.ErrStaleEpoch] once another has taken over.
type Ledger interface {
	// Reserve books the worst case; a [quota.ShortError] names what is missing.
	Reserve(ctx context.Context, r quota.Reservation) (quota.Receipt, error)
	// Extend books the next slice of a burst in mode lease; a
	// [quota.ShortError] names what is missing.
	Extend(ctx context.Context, x quota.Extension) (quota.Receipt, error)
	// Settle posts the actual cost and releases the rest, once.
	Settle(ctx context.Context, s quota.Settlement) (quota.Receipt, error)
	// Account reads what a burst has reserved, spent and got back.
	Account(ctx context.Context, burst string) (quota.Account, error)
	// RecordUsage books measured intervals; repeats change nothing.
	RecordUsage(ctx context.Context, u []quota.Usage) error
}

// Machines makes and unmakes the Cluster API objects of a burst;
// [capi.Machines] is the real one.
type Machines interface {
	Ensure(ctx context.Context, o capi.Order) error
	Read(ctx context.Context, burst types.UID) ([]capi.View, error)
	Stamp(ctx context.Context, burst types.UID, until time.Time) error
	Delete(ctx context.Context, burst types.UID) ([]capi.View, error)
	Release(ctx context.Context, burst types.UID, hooks ...string) error
	Forget(ctx context.Context, burst types.UID) error
}

// Joins makes what a machine needs to become a node of this cluster.
type Joins interface {
	// UserData makes the machine's join token, once, and renders its
	// user-data with the first lease.
	UserData(ctx context.Context, b *v1alpha1.Burst, ordinal int32, first link.SignedLease, joinBy time.Time) ([]byte, error)
	// Revoke ends the join tokens of the burst and drops the user-data: after
	// the join, and again after the machines are gone. A machine that boots
	// late is turned away then (cases: B-4 kubernetes-sigs/cluster-api#7237).
	Revoke(ctx context.Context, b *v1alpha1.Burst) error
}

// Staging is how far the inputs of a burst are staged.
type Staging struct {
	Done           bool
	Objects        int64
	Bytes, Total   int64 // plaintext
	ManifestSHA256 string
}

// Returned is what was verified at home.
type Returned struct {
	Objects, Bytes int64
	// Missing says what was reported written but is not home, sorted.
	Missing []string
}

// Erased is what was made unrecoverable outside the node, in the words of the
// certificate.
type Erased struct {
	Key          wipe.Key          `json:"key"`
	Staging      wipe.Staging      `json:"staging"`
	Verification wipe.Verification `json:"verification"`
	NotCovered   []string          `json:"notCovered,omitempty"`
}

// Data moves and erases the data of a burst.
type Data interface {
	// Prepare makes the burst's data key, once, and opens the gate for its
	// nodes until the time; called again to open it after a restart.
	Prepare(ctx context.Context, b *v1alpha1.Burst, until time.Time) error
	// Stage starts staging or says how far it is.
	Stage(ctx context.Context, b *v1alpha1.Burst) (Staging, error)
	// Release seals the data key to the agent process that made the report. The
	// key is nil when the process holds it already, or may not have it.
	Release(ctx context.Context, b *v1alpha1.Burst, r link.Report) (*link.SealedKey, *link.Stage, error)
	// Collect verifies at home what the nodes reported written.
	Collect(ctx context.Context, b *v1alpha1.Burst, uploads []link.Upload) (Returned, error)
	// Erase closes the gate, destroys the key and empties the staging store.
	Erase(ctx context.Context, b *v1alpha1.Burst) (Erased, error)
}

// Nodes is what the agents say and are told; [link.Hub] is the real one.
type Nodes interface {
	Report(node string) (link.Report, time.Time, bool)
	Tell(node string, o link.Orders)
	Forget(node string)
}

// Records keeps what must outlive the machines: proofs, logs, certificates.
type Records interface {
	// Keep writes one record of a burst, whole or not at all.
	Keep(burst, name string, data []byte) error
	// Load reads a record; an error that is fs.ErrNotExist says there is none.
	Load(burst, name string) ([]byte, error)
	// Certify signs and keeps the burst's certificate, once: a second call
	// returns the first one.
	Certify(burst string, c wipe.Certificate) (v1alpha1.CertificateReference, error)
}

// Workload reaches the user's pods.
type Workload interface {
	// Admit lets one approved pod onto the burst's nodes: the toleration is
	// added and nothing else is changed. It is refused for a pod that is not
	// the approved one any more.
	Admit(ctx context.Context, b *v1alpha1.Burst, pod v1alpha1.PodReference) error
	// Bind places an admitted pod of a gang on a node.
	Bind(ctx context.Context, b *v1alpha1.Burst, pod v1alpha1.PodReference, node string) error
	// Logs reads all logs of a pod.
	Logs(ctx context.Context, namespace, pod string) ([]byte, error)
	// Tell brings the newest fact to the owner: event and status annotation.
	Tell(ctx context.Context, b *v1alpha1.Burst) error
}
