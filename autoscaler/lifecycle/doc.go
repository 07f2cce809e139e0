// Package lifecycle carries each Burst through its ten steps, from money
// reserved to money settled, and runs the cycle that decides on new ones.
//
// A step is a list of acts. An act talks to one outside system and records one
// fact, a condition on the Burst; it first asks whether its fact is already
// recorded, so every act may be repeated and a crash between the outside call
// and the record loses nothing. The steps, in order:
//
//	reserve  stage  create  join  admit  watch  collect  wipe  destroy  settle
//
// A burst that can't go on is ending: it takes no further step forward, and
// every step that owes something back (results, wipe, machines, money) is
// still taken. Money stands first and last: nothing is asked of a cloud before
// Reserved, and the finalizer falls only after Settled.
//
// Nothing here remembers anything between two calls. The memory is the API
// server (facts), the ledger (money) and the clouds (machines); what the nodes
// were told is told again after a restart.
package lifecycle
