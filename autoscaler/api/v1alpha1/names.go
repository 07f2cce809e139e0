package v1alpha1

// Names that the cluster, the nodes and the users see. They are part of the
// API: tenants write the annotations, admission policies match the taint key.
const (
	// SystemNamespace is where Spillway and its Cluster API objects live.
	SystemNamespace = "spillway-system"
	// ControllerAccount is the ServiceAccount of the controller.
	ControllerAccount = "spillway-controller"
	// ApproverAccount is the ServiceAccount that may add our toleration to
	// approved pods, and change nothing else.
	ApproverAccount = "spillway-approver"

	// KindsConfigMap, in the system namespace, holds under KindsKey the kinds of
	// owners that an installation adds to those that Spillway knows.
	KindsConfigMap = "spillway-kinds"
	KindsKey       = "kinds.yaml"

	// SystemLabel, true on a namespace, says that it belongs to the cluster
	// itself: the approver may never act there.
	SystemLabel = "spillway.dev/system"

	// BurstTaint is the key of the taint on burst nodes and of the toleration
	// on approved pods; its value is the UID of the Burst.
	BurstTaint = "spillway.dev/burst"
	// NodePrefix starts the name of every burst node.
	NodePrefix = "spw-"
	// BurstFinalizer keeps a Burst until its money is settled.
	BurstFinalizer = "spillway.dev/settled"

	// InputsAnnotation lists the S3 URLs that a pod reads, comma separated.
	InputsAnnotation = "spillway.dev/inputs"
	// OutputsAnnotation lists the S3 URLs that a pod writes, comma separated.
	OutputsAnnotation = "spillway.dev/outputs"
	// DataClassAnnotation raises the data class of a pod above its tenant's.
	DataClassAnnotation = "spillway.dev/data-class"
	// FabricAnnotation on a pod names the fast fabric over which it talks to the
	// others of its gang on other machines, for example "infiniband", or says
	// "any". As a label of an offer it names the one between its machines.
	FabricAnnotation = "spillway.dev/fabric"
	// GangAnnotation on a Job says that its pods must start together.
	GangAnnotation = "spillway.dev/gang"
	// StatusAnnotation on the owner tells the user place, start, cost, results.
	StatusAnnotation = "spillway.dev/status"

	// BurstLabel links an object to the Burst it serves, by UID.
	BurstLabel = "spillway.dev/burst-uid"
	// BurstNameLabel links an object to the Burst it serves, by name.
	BurstNameLabel = "spillway.dev/burst-name"
	// BurstNamespaceLabel gives the namespace of that Burst.
	BurstNamespaceLabel = "spillway.dev/burst-namespace"
	// OwnerUIDLabel on a Burst is the UID of the workload it was bought for.
	OwnerUIDLabel = "spillway.dev/owner-uid"
	// OrdinalLabel numbers the machines of one Burst from 0.
	OrdinalLabel = "spillway.dev/ordinal"
)

// Condition types of a Burst: the facts of its life in the order of the ten
// steps. A fact that is True is never taken back.
const (
	Reserved         = "Reserved"         // reserve: the ceiling, or the first slice of it, stands in the ledger
	StagingStarted   = "StagingStarted"   // stage: the data key exists, sealing has begun
	Staged           = "Staged"           // stage: every input is in the staging store, as ciphertext
	MachineRequested = "MachineRequested" // create: the Machine objects exist
	MachineBought    = "MachineBought"    // create: the cloud confirmed every machine
	NodeJoined       = "NodeJoined"       // join: nodes registered, GPUs allocatable, agents ready
	KeyReleased      = "KeyReleased"      // admit: the nodes hold the data key in memory
	PodsAdmitted     = "PodsAdmitted"     // admit: the approved pods tolerate the burst's taint
	StopAnnounced    = "StopAnnounced"    // watch: its user knows when work that has no end of its own is stopped
	WorkDone         = "WorkDone"         // watch: finished, failed, or out of time
	ResultsHome      = "ResultsHome"      // collect: digests checked at home; False with a reason when lost
	Wiped            = "Wiped"            // wipe: proof verified
	WipeUnproven     = "WipeUnproven"     // wipe: no proof in time; the key is destroyed all the same
	KeyDestroyed     = "KeyDestroyed"     // wipe: the key at home is destroyed, the staging store emptied
	MachineGone      = "MachineGone"      // destroy: the cloud no longer lists it or its parts
	Certified        = "Certified"        // destroy: the wipe certificate is signed and kept
	Settled          = "Settled"          // settle: actual cost posted, the rest released
	Complete         = "Complete"         // end: the work succeeded and everything is settled
	Failed           = "Failed"           // end: it did not; the reason says why
)

// Ending is the condition of a Burst that goes no further forward: its reason
// says why. What is owed (results, wipe, machines, money) is still done.
const Ending = "Ending"

// Facts lists the condition types of a Burst in the order of its life.
func Facts() []string {
	return []string{
		Reserved, StagingStarted, Staged, MachineRequested, MachineBought, NodeJoined, KeyReleased,
		PodsAdmitted, StopAnnounced, WorkDone, ResultsHome, Wiped, WipeUnproven, KeyDestroyed, MachineGone, Certified, Settled, Complete, Failed,
	}
}
