package plan

// Codes of reasons. They are part of the interface: people search for them,
// events and conditions carry them, programs switch on them. A code is never
// renamed and never given a second meaning. The codes of policy stand in
// package policy; those here are about time, place, money and the market.
const (
	// The decisions to buy.
	Bursts      Code = "BURST"
	WouldBurst  Code = "WOULD_BURST"
	Undecidable Code = "UNDECIDABLE" // a fault on our side

	// About the state of the work.
	NotPending          Code = "NOT_PENDING"           // nothing of it waits for a place
	FitsLocally         Code = "FITS_LOCALLY"          // a node on-prem has room now
	NotUnschedulableYet Code = "NOT_UNSCHEDULABLE_YET" // the scheduler has not refused it for long enough
	LocalChance         Code = "LOCAL_CHANCE"          // burstAfter is not over
	WaitingLocalETA     Code = "WAITING_LOCAL_ETA"     // on-prem is expected free before a burst could be ready
	AlreadyPlanned      Code = "ALREADY_PLANNED"       // a burst for it is on its way
	BackoffAfterFailure Code = "BACKOFF_AFTER_FAILURE" // a burst for it failed a moment ago
	AttemptsExhausted   Code = "ATTEMPTS_EXHAUSTED"    // too many bursts for it have failed
	PreemptionPossible  Code = "PREEMPTION_POSSIBLE"   // the scheduler is making room for it
	SchedulingGated     Code = "SCHEDULING_GATED"      // a gate holds the pod
	JobSuspended        Code = "JOB_SUSPENDED"         // its owner keeps its pods from existing
	KueueNotAdmitted    Code = "KUEUE_NOT_ADMITTED"    // it waits for quota of a Kueue queue
	NamespaceQuota      Code = "NAMESPACE_QUOTA"       // a ResourceQuota keeps its pods from being created
	QueueHeld           Code = "QUEUE_HELD"            // it waits for quota of another scheduler's queue
	OtherScheduler      Code = "OTHER_SCHEDULER"       // whose reasons can't be read: its queue may hold the pod
	SchedulerError      Code = "SCHEDULER_ERROR"       // the scheduler could not look at the pod
	ClaimMissing        Code = "PVC_MISSING"           // a claim that the pod mounts does not exist
	ClaimUnbound        Code = "PVC_UNBOUND"           // a claim that binds at once has no volume
	StartsInOrder       Code = "STARTS_IN_ORDER"       // some members exist only when others run
	OwnerUnknown        Code = "OWNER_UNKNOWN"         // the owner or group of its pods can't be read
	PodTerminating      Code = "POD_TERMINATING"       // the pod is being deleted
	GangIncomplete      Code = "GANG_INCOMPLETE"       // members are missing
	GangSplit           Code = "GANG_SPLIT"            // a member runs on-prem already
	NodeNameSet         Code = "NODE_NAME_SET"         // the pod is bound by its own spec
	NoGPU               Code = "NO_GPU"                // no GPU is asked for
	OwnerUnsupported    Code = "OWNER_UNSUPPORTED"     // system pods and DaemonSets never start a burst
	DeadlineTooShort    Code = "DEADLINE_TOO_SHORT"    // its deadline ends it before a burst could be ready
	OtherReason         Code = "UNSCHEDULABLE_FOR_OTHER_REASON"

	// About who may spend.
	TenantUnknown       Code = "TENANT_UNKNOWN"        // the namespace has no tenant, or several
	NamespaceNotEnabled Code = "NAMESPACE_NOT_ENABLED" // the tenant's mode is Off
	ServicesNotEnabled  Code = "SERVICES_NOT_ENABLED"  // it runs until somebody deletes it

	// About money.
	NoMaxRuntime      Code = "NO_MAX_RUNTIME"             // the cost has no bound
	BudgetExceeds     Code = "BUDGET_RESERVATION_EXCEEDS" // the ceiling is more than a budget has left
	BudgetMissing     Code = "BUDGET_MISSING"             // no budget is on the path
	BudgetRefused     Code = "BUDGET_REFUSED"             // the book refuses for another reason
	PriceUnknown      Code = "PRICE_UNKNOWN"              // zero or unreadable
	CeilingOutOfRange Code = "CEILING_OUT_OF_RANGE"       // the arithmetic does not hold it
	CurrencyMismatch  Code = "CURRENCY_MISMATCH"          // the budget counts in another currency

	// About the market.
	NoOffer        Code = "NO_OFFER"        // nothing on sale fits, or nothing is on sale
	Capacity       Code = "CAPACITY"        // sold out
	EarlierAttempt Code = "EARLIER_ATTEMPT" // a burst of this gang failed on this offer
	ProviderQuota  Code = "PROVIDER_QUOTA"  // our own limit at this provider
	QuotaCloudGPU  Code = "QUOTA_CLOUD_GPU" // the tenant's hard cap on this model
	GangTooLarge   Code = "GANG_TOO_LARGE"  // more machines than one burst may have
	// Its machines would have to talk over a fast fabric that the offer lacks.
	GangNeedsFabric Code = "GANG_NEEDS_FABRIC"

	// DatasetTooLarge: its inputs take longer to move there than staging is given.
	DatasetTooLarge Code = "DATASET_TOO_LARGE_FOR_LINK"

	// About fitting on a machine of the offer.
	GPUModelNotOffered        Code = "GPU_MODEL_NOT_OFFERED"
	GPUCountPerNode           Code = "GPU_COUNT_PER_NODE"
	ExtendedResourceUnknown   Code = "EXTENDED_RESOURCE_UNKNOWN"
	NodeSelectorUnsatisfiable Code = "NODE_SELECTOR_UNSATISFIABLE"
	PodAffinityOnPrem         Code = "POD_AFFINITY_ONPREM"
	TopologySpread            Code = "TOPOLOGY_SPREAD"
	LocalPV                   Code = "LOCAL_PV"
	MachineTooSmall           Code = "MACHINE_TOO_SMALL"
)
