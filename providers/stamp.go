package providers

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Stamp writes an expiry stamp for a cloud: RFC 3339 in UTC, whole seconds,
// rounded up, so that it never ends a lease early.
func Stamp(t time.Time) string {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		t = whole.Add(time.Second)
	}
	return t.UTC().Format(time.RFC3339)
}

// ReadStamp returns the zero time for a stamp that is lost or unreadable.
func ReadStamp(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// Check refuses a request from which no cloud may make a machine: one that could
// not be found again, or would not end by itself.
func (r Request) Check() error {
	switch {
	case !regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`).MatchString(r.Token):
		return fmt.Errorf("token %q: use 1 to 64 characters of A-Z, a-z, 0-9 and -", r.Token)
	case r.Expires.IsZero():
		return errors.New("the request has no expiry stamp: a machine without one is never made")
	case r.Name == "":
		return errors.New("the request names no node")
	}
	return nil
}
