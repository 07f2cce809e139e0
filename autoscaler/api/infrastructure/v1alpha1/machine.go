// Package v1alpha1 holds Spillway's Cluster API infrastructure kind, group
// infrastructure.spillway.dev: [SpillwayMachine], one machine at any cloud.
//
// It follows the InfraMachine contract v1beta2 of Cluster API. The provider id
// is chosen before the machine exists and never changes; what the cloud says
// is recorded in status; the object goes only when the cloud no longer lists
// anything that carries its token.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.spillway.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the infrastructure kind.
const Group = "infrastructure.spillway.dev"

// MachineFinalizer keeps a SpillwayMachine until the cloud has nothing of it.
const MachineFinalizer = "infrastructure.spillway.dev/machine"

// ForceDestroyAnnotation on a SpillwayMachine is a time, RFC 3339, from which
// on the machine is destroyed although its Machine still holds it back.
const ForceDestroyAnnotation = "infrastructure.spillway.dev/force-destroy-after"

// GroupVersion names this version of the group.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme registers every kind of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &SpillwayMachine{}, &SpillwayMachineList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// SpillwayMachine is one machine at a cloud, bought for one burst.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=spillway;cluster-api,shortName=spwm
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Instance",type=string,JSONPath=`.status.instanceID`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SpillwayMachine struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SpillwayMachineSpec   `json:"spec"`
	Status SpillwayMachineStatus `json:"status,omitempty"`
}

// SpillwayMachineSpec is final but for the expiry stamp.
//
// +kubebuilder:validation:XValidation:rule="self.providerID == oldSelf.providerID && self.provider == oldSelf.provider && self.burst == oldSelf.burst && self.ordinal == oldSelf.ordinal && self.instanceType == oldSelf.instanceType",message="a SpillwayMachine's identity is final; only expires may move"
type SpillwayMachineSpec struct {
	// ProviderID is spillway://<provider>/<region>/<machine uid>.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID"`
	// Provider is the name of the BurstProvider.
	// +kubebuilder:validation:MinLength=1
	Provider string `json:"provider"`
	Region   string `json:"region"`
	// +optional
	Zone string `json:"zone,omitempty"`
	// +kubebuilder:validation:MinLength=1
	InstanceType string `json:"instanceType"`
	// +optional
	CapacityType string `json:"capacityType,omitempty"`
	// Burst is the UID of the Burst that pays; without its reservation in the
	// ledger nothing is created.
	// +kubebuilder:validation:MinLength=1
	Burst string `json:"burst"`
	// Ordinal numbers the machines of the burst from 0.
	// +kubebuilder:validation:Minimum=0
	Ordinal int32 `json:"ordinal"`
	// Tenant is the opaque id of who pays.
	Tenant string `json:"tenant"`
	// Installation is the tag that this cluster's machines carry at the cloud.
	Installation string `json:"installation"`
	// Token makes the purchase idempotent at the cloud.
	// +kubebuilder:validation:MinLength=1
	Token string `json:"token"`
	// Expires is the stamp at the cloud: past it any sweeper may delete.
	Expires metav1.Time `json:"expires"`
}

// SpillwayMachineStatus is what the cloud said.
type SpillwayMachineStatus struct {
	// Initialization is the Cluster API contract's field.
	// +optional
	Initialization *MachineInitialization `json:"initialization,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +listType=atomic
	// +optional
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// +optional
	FailureDomain string `json:"failureDomain,omitempty"`
	// InstanceID is the cloud's id; once recorded nothing is created again.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// State is the cloud's state in our words.
	// +optional
	State string `json:"state,omitempty"`
	// IntentAt is when the purchase was first intended, before any call.
	// +optional
	IntentAt *metav1.Time `json:"intentAt,omitempty"`
	// CreatedAt, StartedAt and GoneAt are the bounds of the cloud's meter.
	// +optional
	CreatedAt *metav1.Time `json:"createdAt,omitempty"`
	// +optional
	StartedAt *metav1.Time `json:"startedAt,omitempty"`
	// +optional
	GoneAt *metav1.Time `json:"goneAt,omitempty"`
	// ExpiresAt is the stamp as the cloud holds it.
	// +optional
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

// MachineInitialization is the Cluster API contract's one-way flag.
//
// +kubebuilder:validation:MinProperties=1
type MachineInitialization struct {
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// MachineAddress is an address of the machine, in Cluster API's words.
type MachineAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// SpillwayMachineList is a list of SpillwayMachines.
//
// +kubebuilder:object:root=true
type SpillwayMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SpillwayMachine `json:"items"`
}
