package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of Spillway's own kinds.
const Group = "spillway.dev"

// GroupVersion names this version of the group.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme registers every kind of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(),
		&Burst{}, &BurstList{},
		&BurstProvider{}, &BurstProviderList{},
		&BurstTenant{}, &BurstTenantList{},
		&BurstTariff{}, &BurstTariffList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
