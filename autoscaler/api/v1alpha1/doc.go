// Package v1alpha1 is the home of Spillway's own API types, group spillway.dev.
//
// Four kinds make up the vocabulary. A [BurstProvider] is one account in one
// region of one cloud, with the facts about its law that policy decides on. A
// [BurstTenant] is who pays: namespaces, budgets, data rules and data sources.
// A [BurstTariff] is a price list that never changes once used. A [Burst] is
// the record of one approved purchase: its spec is final when written, its
// status holds the facts of its life as conditions, and its finalizer falls
// only after the last of them, Settled.
//
// Bad objects are refused by the API server: the validation here is the first
// line, and a controller may rely on it but never has to.
//
// +kubebuilder:object:generate=true
// +groupName=spillway.dev
package v1alpha1
