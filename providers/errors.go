package providers

import (
	"errors"
	"fmt"
	"time"
)

// Kind is what a caller may do about an [Error].
type Kind int

// The kinds of failure. A driver maps each answer of its cloud once, from
// structured fields, and what it doesn't know stays OutcomeUnknown.
const (
	OutcomeUnknown Kind = iota // it may have happened: look up the token before asking again
	NotFound                   // the cloud knows no such machine of ours
	SoldOut                    // take another offer now, this one later
	LimitReached               // a person must raise our limit at the cloud; other accounts may serve
	Throttled                  // not done: repeat the same call after RetryAfter
	Rejected                   // not done: the request can never succeed as written
	Unauthorized               // not done: the credential is refused; a person must act
	CleanupFailed              // refused, and something billable is left: stop buying on this cloud
)

// String returns the name of the kind, as it is written in messages and
// metrics.
func (k Kind) String() string {
	names := [...]string{
		"outcome unknown", "not found", "sold out", "limit reached",
		"throttled", "rejected", "unauthorized", "cleanup failed",
	}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", int(k))
	}
	return names[k]
}

// Refusal reports whether the cloud has said no to this request, so that the
// attempt is over and the next one should look elsewhere. Throttled and
// Unauthorized are no refusals: the same request may succeed later.
func (k Kind) Refusal() bool {
	switch k {
	case SoldOut, LimitReached, Rejected, CleanupFailed:
		return true
	default:
		return false
	}
}

// Scope is how far a failure reaches. A block never reaches beyond its scope.
type Scope string

// The scopes, from narrow to wide. The empty Scope is ScopeOffer: what nobody
// knows to be wider is taken as narrow.
const (
	ScopeOffer   Scope = "offer"
	ScopeZone    Scope = "zone"
	ScopeRegion  Scope = "region"
	ScopeAccount Scope = "account"
)

// Error is the only error type that crosses the driver boundary.
type Error struct {
	Kind       Kind
	Scope      Scope
	Op         string        // "offers", "create", "extend", "delete", "list" or "usage"
	RetryAfter time.Duration // the cloud's own wish; zero: it named none
	Err        error         // the cloud's own words, for people only
}

// Error says operation, kind and the cloud's own words.
func (e *Error) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %s", e.Op, e.Kind)
	}
	return fmt.Sprintf("%s: %s: %v", e.Op, e.Kind, e.Err)
}

// Unwrap returns the cause, so that a cancelled context stays recognisable.
func (e *Error) Unwrap() error { return e.Err }

// KindOf reports the kind of a non-nil err; an error of any other type is
// OutcomeUnknown, as nobody can tell what it left behind.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return OutcomeUnknown
}

// ScopeOf reports how far err reaches: the scope of the outermost [*Error], or
// ScopeOffer.
func ScopeOf(err error) Scope {
	if e, ok := errors.AsType[*Error](err); ok && e.Scope != "" {
		return e.Scope
	}
	return ScopeOffer
}

// RetryAfterOf reports how long the cloud wants to be left alone, or zero.
func RetryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
