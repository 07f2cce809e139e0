// Package e2e tells whole-system stories and holds the code to its rules.
//
// The stories run against a real control plane (package controlplane), nodes
// whose pods are real processes (procnode), a real S3 store (objectstore) and
// a cloud in memory (providers/fake). The guards story is hostile: tenants, the
// approver, joining machines and burst nodes try what the admission policies
// and roles of charts/spillway must refuse.
//
// The architecture and structure tests read the source alone. The architecture
// is a table: each package with the packages of this module it may import; a
// package without a line does not exist. The structure test measures functions,
// files and interfaces. Both run in "make check".
package e2e
