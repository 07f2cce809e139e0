// Package v1alpha1 holds the stub that stands for the on-prem control plane in
// Cluster API, group controlplane.spillway.dev: [OnPremControlPlane].
//
// Cluster API drains and removes worker nodes only when the Cluster has a
// control plane that it knows or that says it is managed elsewhere
// (kubernetes-sigs/cluster-api#3631, PR#11552). This object says so; it
// controls nothing.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.spillway.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the stub.
const Group = "controlplane.spillway.dev"

// GroupVersion names this version of the group.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme registers every kind of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &OnPremControlPlane{}, &OnPremControlPlaneList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// OnPremControlPlane stands for the cluster's own control plane.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1alpha1"
type OnPremControlPlane struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec   OnPremControlPlaneSpec   `json:"spec,omitempty"`
	Status OnPremControlPlaneStatus `json:"status,omitempty"`
}

// OnPremControlPlaneSpec is empty: nothing here can be wished for.
type OnPremControlPlaneSpec struct{}

// OnPremControlPlaneStatus is what Cluster API reads.
type OnPremControlPlaneStatus struct {
	// +optional
	Initialization *ControlPlaneInitialization `json:"initialization,omitempty"`
	// ExternalManagedControlPlane says that no Machine stands for it.
	// +optional
	ExternalManagedControlPlane bool `json:"externalManagedControlPlane,omitempty"`
}

// ControlPlaneInitialization is the Cluster API contract's one-way flag.
//
// +kubebuilder:validation:MinProperties=1
type ControlPlaneInitialization struct {
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// OnPremControlPlaneList is a list of OnPremControlPlanes.
//
// +kubebuilder:object:root=true
type OnPremControlPlaneList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OnPremControlPlane `json:"items"`
}
