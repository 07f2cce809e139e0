// Package nodeagent is the agent on a node: it says what the node is, counts
// who holds its devices, serves a burst's data, and ends the node when its
// time is over.
//
// # Words
//
//   - lease: how long a burst node may live without the controller, with a
//     soft and a hard end ([link.Lease]). Kept on a clock that nobody can set.
//   - dead-man: what happens at the ends, with or without the controller: at
//     soft the pods are stopped, at hard the node is wiped and powered off.
//   - evidence: one thing read on the node that speaks for its readiness. The
//     agent gives evidence, the controller judges.
//   - journal: the file of usage records. A record is an interval in which one
//     pod held one device, whatever it did with it.
//   - front: the S3 front that jobs talk to ([cache.Front]).
//   - vault: the one place where the agent keeps the burst's data key.
//
// # Promise
//
// A node whose controller is gone for good has its pods asked to stop by soft,
// and is wiped and off by hard plus two minutes, in every schedule: also when
// stopping, wiping or the network hang, and whatever the wall clock does. The
// data key is in memory only. A usage record that was written survives a kill
// and is sent until it is acknowledged. The proof of a wipe shows each step
// as it went.
//
// On-prem the same agent reports readiness and usage, and has no lease, no
// key and no front.
package nodeagent
