package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BurstTenant is who pays: a set of namespaces with quota, budgets, rules for
// data and the data sources that may be used.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=spillway,shortName=bt
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.burst.mode`
// +kubebuilder:printcolumn:name="Data Class",type=string,JSONPath=`.spec.dataClass`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BurstTenant struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BurstTenantSpec   `json:"spec"`
	Status BurstTenantStatus `json:"status,omitempty"`
}

// BurstTenantSpec is what the operator grants a tenant.
type BurstTenantSpec struct {
	// ID is the opaque id that ledger and metrics use; never a person's name.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a tenant's id is final: the ledger's past is booked under it"
	ID string `json:"id"`
	// Namespaces of the tenant; one namespace has one tenant.
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	Namespaces []string `json:"namespaces"`
	// +listType=map
	// +listMapKey=name
	// +optional
	Projects []Project `json:"projects,omitempty"`
	// DataClass of all the tenant's work unless an annotation raises it.
	// +kubebuilder:validation:Enum=public;internal;confidential;secret
	DataClass string `json:"dataClass"`
	// +listType=map
	// +listMapKey=gpuModel
	// +optional
	Quota []GPUQuota `json:"quota,omitempty"`
	// Burst says whether and how the tenant may spend money.
	// +optional
	Burst BurstRules `json:"burst,omitempty"`
	// Sources are the buckets that the tenant's work may read and write.
	// +listType=map
	// +listMapKey=name
	// +optional
	Sources []DataSource `json:"sources,omitempty"`
	// Tariff names the BurstTariff that the tenant is charged at.
	// +optional
	Tariff string `json:"tariff,omitempty"`
	// PersonalLabels are keys of pod labels whose values name people. Captured
	// states hold numbers in their place.
	// +listType=set
	// +optional
	PersonalLabels []string `json:"personalLabels,omitempty"`
}

// Project is a part of a tenant with its own cost centre.
type Project struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// ID is the opaque id for the ledger.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	ID string `json:"id"`
	// +optional
	CostCentre string `json:"costCentre,omitempty"`
	// +listType=set
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
}

// GPUQuota is on-prem quota in Kueue's words, in GPUs of one model.
type GPUQuota struct {
	GPUModel string `json:"gpuModel"`
	// +kubebuilder:validation:Minimum=0
	NominalQuota int32 `json:"nominalQuota"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	BorrowingLimit *int32 `json:"borrowingLimit,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	LendingLimit *int32 `json:"lendingLimit,omitempty"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	HardCap *int32 `json:"hardCap,omitempty"`
}

// Modes of bursting.
const (
	ModeOff     = "Off"
	ModeObserve = "Observe"
	ModeOn      = "On"
)

// BurstRules say whether and how a tenant may spend money.
type BurstRules struct {
	// Mode Off decides nothing, Observe records what would have been bought,
	// On buys.
	// +kubebuilder:validation:Enum=Off;Observe;On
	// +kubebuilder:default=Observe
	Mode string `json:"mode,omitempty"`
	// BurstAfter is the chance that on-prem gets before money is spent.
	// +kubebuilder:default="5m"
	BurstAfter metav1.Duration `json:"burstAfter,omitempty"`
	// MaxRunTime bounds a job that has no activeDeadlineSeconds.
	// +optional
	MaxRunTime *metav1.Duration `json:"maxRunTime,omitempty"`
	// Reserve is how ceilings are reserved: safe at once, so that work that has
	// begun is never stopped for want of money; lease slice by slice, so that
	// less money is tied up, and work whose next slice is refused is stopped in
	// time to give its results back. Work that states no end of its own is always
	// reserved slice by slice.
	// +kubebuilder:validation:Enum=safe;lease
	// +kubebuilder:default=safe
	Reserve string `json:"reserve,omitempty"`
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Budgets []TenantBudget `json:"budgets,omitempty"`
	// DataRules by data class; a class without a rule never leaves the house.
	// +listType=map
	// +listMapKey=class
	// +optional
	DataRules []DataRule `json:"dataRules,omitempty"`
	// PriorityClasses that may cost money; empty means all.
	// +listType=set
	// +optional
	PriorityClasses []string `json:"priorityClasses,omitempty"`
	// Services lets pods of Deployments, StatefulSets and other owners that run
	// until somebody deletes them burst as well. Each of their bursts still ends
	// at its deadline; their pods are then made anew.
	// +optional
	Services bool `json:"services,omitempty"`
}

// TenantBudget bounds money over a window of time.
//
// +kubebuilder:validation:XValidation:rule="self.window != 'fixed' || (has(self.start) && has(self.end) && self.start < self.end)",message="a budget with window fixed needs start and end, the start first"
// +kubebuilder:validation:XValidation:rule="self.window == oldSelf.window && self.timeZone == oldSelf.timeZone",message="window and timeZone of a budget are final: what was booked under them would mean something else; use a new name"
// +kubebuilder:validation:XValidation:rule="self.limit.substring(size(self.limit) - 3) == oldSelf.limit.substring(size(oldSelf.limit) - 3)",message="the currency of a budget is final: what was booked under it would mean something else; use a new name"
type TenantBudget struct {
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
	Name  string `json:"name"`
	Limit Money  `json:"limit"`
	// +kubebuilder:validation:Enum=day;month;fixed
	// +kubebuilder:default=month
	Window string `json:"window,omitempty"`
	// TimeZone whose days and months count, an IANA name.
	// +kubebuilder:default="Europe/Berlin"
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self != 'Local'",message="name the time zone: Local would be another one on each host"
	TimeZone string `json:"timeZone,omitempty"`
	// Hard budgets are never exceeded; soft ones warn.
	// +kubebuilder:default=true
	Hard bool `json:"hard"`
	// +optional
	Start *metav1.Time `json:"start,omitempty"`
	// +optional
	End *metav1.Time `json:"end,omitempty"`
}

// DataRule says where work of a data class may go. Every stated rule must
// hold; an empty list of countries allows none.
type DataRule struct {
	// +kubebuilder:validation:Enum=public;internal;confidential;secret
	Class string `json:"class"`
	// Countries where the machines may stand, ISO 3166.
	// +listType=set
	// +optional
	Countries []string `json:"countries,omitempty"`
	// ForbiddenLaws exclude providers subject to any of them.
	// +listType=set
	// +optional
	ForbiddenLaws []string `json:"forbiddenLaws,omitempty"`
	// RequiredCertifications must all be held and unexpired.
	// +listType=set
	// +optional
	RequiredCertifications []string `json:"requiredCertifications,omitempty"`
	// Providers restricts to these BurstProviders; empty means any.
	// +listType=set
	// +optional
	Providers []string `json:"providers,omitempty"`
	// Freshness says how often burst nodes ask the source store; strict when
	// absent.
	// +optional
	Freshness *Freshness `json:"freshness,omitempty"`
}

// Freshness says how long the word of the source store counts on a burst node,
// for pods of the burst's own gang in a network namespace of their own. All
// others are strict, as are presigned requests.
//
// +kubebuilder:validation:XValidation:rule="(self.mode == 'Lease') == has(self.seconds)",message="mode Lease needs seconds, and no other mode has them"
type Freshness struct {
	// Mode Strict asks the store about each request. Lease lets an answer count
	// for a while, for the same access key and object: who lost a right, and a new
	// version, are noticed that much later. Pinned serves the versions that were
	// staged and asks once for each access key and object: who lost a right after
	// that keeps reading until the burst ends.
	// +kubebuilder:validation:Enum=Strict;Lease;Pinned
	Mode string `json:"mode"`
	// Seconds is how long an answer counts in mode Lease.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	// +optional
	Seconds int32 `json:"seconds,omitempty"`
}

// Modes of freshness.
const (
	FreshnessStrict = "Strict"
	FreshnessLease  = "Lease"
	FreshnessPinned = "Pinned"
)

// DataSource is one bucket that the tenant's work may use.
type DataSource struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Endpoint as the jobs write it, for example http://s3.onprem.example:9000.
	// +kubebuilder:validation:Pattern=`^https?://[^/]+$`
	Endpoint string `json:"endpoint"`
	// +optional
	Region string `json:"region,omitempty"`
	// +kubebuilder:validation:MinLength=3
	Bucket string `json:"bucket"`
	// Prefixes that may be used; empty means the whole bucket.
	// +listType=atomic
	// +optional
	Prefixes []string `json:"prefixes,omitempty"`
	// Secret in the system namespace with a read-only accessKey and secretKey.
	// +kubebuilder:validation:MinLength=1
	Secret string `json:"secret"`
	// DataClass of what lies there; the highest class of any input wins.
	// +kubebuilder:validation:Enum=public;internal;confidential;secret
	// +optional
	DataClass string `json:"dataClass,omitempty"`
	// Writable lets results be written there.
	// +optional
	Writable bool `json:"writable,omitempty"`
}

// BurstTenantStatus is what was decided last for a tenant.
type BurstTenantStatus struct {
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Observed are the newest decisions in mode Observe.
	// +listType=map
	// +listMapKey=owner
	// +kubebuilder:validation:MaxItems=200
	// +optional
	Observed []ObservedBurst `json:"observed,omitempty"`
}

// ObservedKept is how many decisions of mode Observe a tenant's status holds.
const ObservedKept = 200

// ObservedBurst is what would have been bought.
type ObservedBurst struct {
	// Owner is namespace/kind/name of the workload.
	Owner        string `json:"owner"`
	Offer        string `json:"offer"`
	PricePerHour Money  `json:"pricePerHour"`
	Ceiling      Money  `json:"ceiling"`
	// Expected is the bill if all had gone as planned.
	// +optional
	Expected Money `json:"expected,omitempty"`
	// SavedWaiting is how much earlier the work would have begun than on-prem.
	// It is absent where nobody knows when there is room on-prem.
	// +optional
	SavedWaiting *metav1.Duration `json:"savedWaiting,omitempty"`
	Message      string           `json:"message"`
	// At is when it was seen first, in these words.
	// +optional
	At metav1.Time `json:"at,omitempty"`
}

// BurstTenantList is a list of BurstTenants.
//
// +kubebuilder:object:root=true
type BurstTenantList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BurstTenant `json:"items"`
}

// BurstTariff is an internal price list. A price that was used never changes;
// a new one has its own validFrom.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=spillway
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BurstTariff struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BurstTariffSpec `json:"spec"`
}

// BurstTariffSpec is a list of prices.
//
// +kubebuilder:validation:XValidation:rule="oldSelf.prices.all(p, p in self.prices)",message="a tariff's prices never change once written: add a price with a later validFrom"
type BurstTariffSpec struct {
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Prices []TariffPrice `json:"prices"`
}

// TariffPrice is the price of one GPU model from a time on.
type TariffPrice struct {
	// +kubebuilder:validation:MaxLength=63
	GPUModel string `json:"gpuModel"`
	// OnPremPerHour of one whole GPU in the own data centre.
	OnPremPerHour Money `json:"onPremPerHour"`
	// BurstPerHour of one whole GPU at a cloud.
	BurstPerHour Money       `json:"burstPerHour"`
	ValidFrom    metav1.Time `json:"validFrom"`
}

// BurstTariffList is a list of BurstTariffs.
//
// +kubebuilder:object:root=true
type BurstTariffList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []BurstTariff `json:"items"`
}
