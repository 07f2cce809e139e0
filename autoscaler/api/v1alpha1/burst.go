package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Money is an amount with its currency, such as "12.34 EUR", exact to the
// nano-unit, and less than a thousand million. Package quota/money parses it,
// all of it: what passes here is an amount there.
//
// +kubebuilder:validation:MaxLength=23
// +kubebuilder:validation:Pattern=`^[0-9]{1,9}(\.[0-9]{1,9})? [A-Z]{3}$`
type Money string

// Burst is one approved purchase for one gang, or for one owner's independent
// pods: machines of one provider and region, a ceiling, a deadline, data.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=spillway,shortName=bu
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.gang.name`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.offer.provider`
// +kubebuilder:printcolumn:name="Step",type=string,JSONPath=`.status.step`
// +kubebuilder:printcolumn:name="Ceiling",type=string,JSONPath=`.spec.ceiling`
// +kubebuilder:printcolumn:name="Spent",type=string,JSONPath=`.status.cost.spent`
// +kubebuilder:printcolumn:name="Staged",type=integer,JSONPath=`.status.data.stagedBytes`,priority=1
// +kubebuilder:printcolumn:name="To Stage",type=integer,JSONPath=`.status.data.totalBytes`,priority=1
// +kubebuilder:printcolumn:name="Wipe",type=string,JSONPath=`.status.certificate.level`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Burst struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   BurstSpec   `json:"spec"`
	Status BurstStatus `json:"status,omitempty"`
}

// BurstSpec is final when written: what was decided, and why.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a Burst's spec is final; delete the Burst to end it, the next attempt is a new one"
type BurstSpec struct {
	// Tenant is the name of the BurstTenant that pays.
	// +kubebuilder:validation:MinLength=1
	Tenant string `json:"tenant"`
	// TenantID is its opaque id, as the ledger and the cloud know it.
	// +kubebuilder:validation:MinLength=1
	TenantID string `json:"tenantID"`
	// Project is the tenant's project that the namespace belongs to, if any.
	// +optional
	Project string `json:"project,omitempty"`
	// Gang is the workload it was bought for.
	Gang GangReference `json:"gang"`
	// Attempt counts the purchases for this workload from 0.
	// +kubebuilder:validation:Minimum=0
	Attempt int32 `json:"attempt"`
	// Offer is what is bought, with its price at the time of the decision.
	Offer OfferReference `json:"offer"`
	// Machines is how many machines of the offer are bought.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Machines int32 `json:"machines"`
	// Ceiling bounds all that this burst may ever reserve.
	Ceiling Money `json:"ceiling"`
	// Budgets are the ids of the budgets on the path of the money.
	// +listType=set
	// +optional
	Budgets []string `json:"budgets,omitempty"`
	// Mode is how the ceiling is reserved: safe at once, lease by slices.
	// +kubebuilder:validation:Enum=safe;lease
	Mode string `json:"mode"`
	// MaxRunTime bounds the work on the machines.
	MaxRunTime metav1.Duration `json:"maxRunTime"`
	// Deadline ends the burst whatever happens.
	Deadline metav1.Time `json:"deadline"`
	// Until is when the last machine is gone in the worst case; the money
	// reaches to here.
	Until metav1.Time `json:"until"`
	// FirstUntil is, in mode lease, when the last machine is gone in the worst
	// case if no lease follows the first one; what is reserved at the start
	// reaches to here.
	// +optional
	FirstUntil *metav1.Time `json:"firstUntil,omitempty"`
	// Data is what the work reads and writes.
	// +optional
	Data BurstData `json:"data,omitempty"`
	// Refused are the offers that were looked at first and why they were not taken.
	// +listType=atomic
	// +optional
	Refused []RefusedOffer `json:"refused,omitempty"`
}

// GangReference names the workload and the exact pods that a burst serves.
type GangReference struct {
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// Together says that the pods must start together.
	// +optional
	Together bool `json:"together,omitempty"`
	// Pods are the approved pods.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	Pods []PodReference `json:"pods"`
}

// PodReference is one pod by name and UID.
type PodReference struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// OfferReference is the offer as it stood when the burst was decided.
type OfferReference struct {
	// +kubebuilder:validation:MinLength=1
	Provider string `json:"provider"`
	Region   string `json:"region"`
	// +optional
	Zone string `json:"zone,omitempty"`
	// +kubebuilder:validation:MinLength=1
	InstanceType string `json:"instanceType"`
	// +optional
	CapacityType string `json:"capacityType,omitempty"`
	// Country is the ISO 3166 code of where the machines stand.
	// +optional
	Country string `json:"country,omitempty"`
	// +optional
	GPUModel string `json:"gpuModel,omitempty"`
	// GPUResource is the resource name that the node will offer.
	GPUResource string `json:"gpuResource"`
	// GPUs is the number of GPUs of one machine.
	// +kubebuilder:validation:Minimum=1
	GPUs int32 `json:"gpus"`
	// PricePerHour of one machine.
	PricePerHour Money `json:"pricePerHour"`
	// Meter is how the provider bills it; settlement uses this copy.
	Meter MeterRule `json:"meter"`
}

// BurstData is what the work reads and writes, and how secret it is.
type BurstData struct {
	// +optional
	Class string `json:"class,omitempty"`
	// Inputs are S3 URLs, s3://bucket/prefix.
	// +listType=atomic
	// +optional
	Inputs []string `json:"inputs,omitempty"`
	// Outputs are S3 URLs, s3://bucket/prefix.
	// +listType=atomic
	// +optional
	Outputs []string `json:"outputs,omitempty"`
	// Freshness is that of the tenant's rule when the burst was decided on.
	// +optional
	Freshness *Freshness `json:"freshness,omitempty"`
}

// RefusedOffer says why an offer was not taken.
type RefusedOffer struct {
	Provider string `json:"provider"`
	// +optional
	Offer string `json:"offer,omitempty"`
	// Code is a stable reason such as JURISDICTION_NO_PROVIDER.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// BurstStatus is the record of the burst's life.
type BurstStatus struct {
	// Step is the name of the step that the burst is in.
	// +optional
	Step string `json:"step,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +listType=map
	// +listMapKey=ordinal
	// +optional
	Machines []BurstMachine `json:"machines,omitempty"`
	// +optional
	Lease *BurstLease `json:"lease,omitempty"`
	// +optional
	Cost BurstCost `json:"cost,omitempty"`
	// +optional
	Data BurstDataStatus `json:"data,omitempty"`
	// +optional
	Certificate *CertificateReference `json:"certificate,omitempty"`
	// Placed are the pods that were seen on the burst's nodes.
	// +listType=atomic
	// +optional
	Placed []PlacedPod `json:"placed,omitempty"`
}

// BurstMachine is one machine of a burst as its controllers saw it.
type BurstMachine struct {
	Ordinal int32 `json:"ordinal"`
	// Name of the Machine object, which is also the name of the node.
	Name string `json:"name"`
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// BootID of the node that proved itself.
	// +optional
	BootID string `json:"bootID,omitempty"`
	// ProofKey is the public key, base64, that the node's wipe proof must verify against.
	// +optional
	ProofKey string `json:"proofKey,omitempty"`
	// Created and Gone are the cloud's own times, the bounds of its meter.
	// +optional
	Created *metav1.Time `json:"created,omitempty"`
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Gone *metav1.Time `json:"gone,omitempty"`
}

// BurstLease is the newest lease that was signed for the burst's nodes.
type BurstLease struct {
	Serial int64       `json:"serial"`
	Issued metav1.Time `json:"issued"`
	Soft   metav1.Time `json:"soft"`
	Hard   metav1.Time `json:"hard"`
}

// BurstCost is the money of the burst as the ledger has it.
type BurstCost struct {
	// +optional
	Reserved Money `json:"reserved,omitempty"`
	// Slices is how many slices were booked behind the first, in mode lease.
	// +optional
	Slices int32 `json:"slices,omitempty"`
	// +optional
	Spent Money `json:"spent,omitempty"`
	// +optional
	Released Money `json:"released,omitempty"`
	// MachineSeconds is what the provider bills.
	// +optional
	MachineSeconds int64 `json:"machineSeconds,omitempty"`
}

// BurstDataStatus counts what moved.
type BurstDataStatus struct {
	// +optional
	Objects int64 `json:"objects,omitempty"`
	// StagedBytes is the plaintext size of what was staged.
	// +optional
	StagedBytes int64 `json:"stagedBytes,omitempty"`
	// TotalBytes is the plaintext size of what has to be staged.
	// +optional
	TotalBytes int64 `json:"totalBytes,omitempty"`
	// Progress is when staging last moved.
	// +optional
	Progress *metav1.Time `json:"progress,omitempty"`
	// ReadBytes were served to the work from the encrypted cache.
	// +optional
	ReadBytes int64 `json:"readBytes,omitempty"`
	// ReturnedObjects and ReturnedBytes are the results verified at home.
	// +optional
	ReturnedObjects int64 `json:"returnedObjects,omitempty"`
	// +optional
	ReturnedBytes int64 `json:"returnedBytes,omitempty"`
	// ManifestSHA256 names the signed manifest of the inputs.
	// +optional
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`
}

// CertificateReference points at the wipe certificate in the controller's records.
type CertificateReference struct {
	// Name of the record.
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	// Level is what the certificate states: certified or unproven.
	Level string `json:"level"`
}

// PlacedPod is a pod seen on one of the burst's nodes.
type PlacedPod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	Node string    `json:"node"`
	// +optional
	Phase string `json:"phase,omitempty"`
	// Started and Finished bound the run of its containers.
	// +optional
	Started *metav1.Time `json:"started,omitempty"`
	// +optional
	Finished *metav1.Time `json:"finished,omitempty"`
	// Logs names the record that holds its logs.
	// +optional
	Logs string `json:"logs,omitempty"`
}

// BurstList is a list of Bursts.
//
// +kubebuilder:object:root=true
type BurstList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Burst `json:"items"`
}
