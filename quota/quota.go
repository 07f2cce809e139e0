// Package quota is the arithmetic of budgets: what may be spent, what is
// promised, and what has been charged. It is pure: the ledger stores what it
// decides, the planner tries plans on a copy of its [Book], and both go through
// the same lines of code.
//
// A [Budget] bounds the money of one project, tenant or provider, or of
// everything, in each of its windows (a month, a day, or one fixed time). A
// [Reservation] promises the worst case of one burst; it is checked against
// every budget on its path, in every window that its time touches, and it
// stands until the burst is settled, whatever the clock says: only proof that
// the machine is gone frees money. A [Settlement] posts the actual cost up to
// what was reserved and releases the rest; cost beyond it is the operator's
// overrun, which blocks new bursts until a person accepts it.
// A [Correction] takes the whole of a posted cost back and posts another one. A
// [Closing] ends a billing month: what is posted later goes to the first month
// that is still open.
//
// In each window of a hard budget, spent + reserved <= limit whenever a
// reservation is taken or extended. Lowering a limit below that blocks new
// bursts and leaves running ones alone.
//
// A reservation that is taken at once counts in full in each window that it
// touches. That is pessimistic (it can refuse a burst over month end that would
// have fitted) and it is safe wherever in its time the cost falls. One that is
// taken slice by slice ([Terms]) counts in each window with the most that can
// fall into it. The settlement is split over the windows by the time that the
// machine ran in each.
//
// Nothing here reads a clock. All bounds are half-open, [from, until), in UTC.
// People, tenants and owners are opaque ids.
package quota

import "errors"

// What a caller may have to tell apart. All are returned wrapped in a sentence.
var (
	// ErrStaleEpoch: another controller leads by now. Stop acting, become a follower.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrPermitUsed: this create call was permitted once already. Look for the
	// machine in the cloud's list before asking for a new leader epoch.
	ErrPermitUsed = errors.New("create permit already used")
	// ErrConflict: the same key was used before for something else. The first answer stands.
	ErrConflict = errors.New("same key, different content")
	// ErrUnknownBurst: there is no reservation for this burst.
	ErrUnknownBurst = errors.New("no reservation for this burst")
	// ErrSettled: the burst is settled; nothing more can be booked on it.
	ErrSettled = errors.New("burst is settled")
	// ErrDraining: the reservation was shrunk to what leftovers may cost; no machine may be bought on it.
	ErrDraining = errors.New("burst is draining")
	// ErrNoBudget: no budget is on the path of the reservation, or one that it
	// names does not exist (any more). Nobody has allowed this money.
	ErrNoBudget = errors.New("no budget")
	// ErrOverrun: the operator's overrun account is open; it blocks new bursts.
	ErrOverrun = errors.New("operator overrun is open")
	// ErrInvalid: the request can never be accepted as written.
	ErrInvalid = errors.New("invalid")
)
