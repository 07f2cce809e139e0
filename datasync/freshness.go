package datasync

import "time"

// Freshness says how long the word of the source store counts, once it has let
// somebody read an object. The zero Freshness is [Strict].
type Freshness struct {
	Mode FreshnessMode `json:"mode,omitempty"`
	For  time.Duration `json:"forNanos,omitempty"` // mode [Lease] only
}

// FreshnessMode is one of three.
type FreshnessMode string

const (
	// Strict asks the source store about each request.
	Strict FreshnessMode = ""
	// Lease lets one answer of the store count for a while, for the same access
	// key and the same version of the same object.
	Lease FreshnessMode = "lease"
	// Pinned serves the versions of the manifest, whatever happened to the
	// objects since, and asks the store once for each access key and object.
	Pinned FreshnessMode = "pinned"
)
