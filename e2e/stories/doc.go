// Package stories holds the whole-system tests that need a site of their own:
// a controller that is killed after every outside act, two controllers around
// a change of the lead, a node whose controller never comes back, a market that
// refuses, gangs over several machines, machines that die under their Job,
// results that are lost, and people who delete what is in use.
//
// Each story ends with a count from the outside: machines that the clouds ever
// made and still bill for, charges in the ledger, certificates in the records,
// and results at home. A kill point is a place right behind an outside act and
// before its fact is recorded.
package stories
