package providers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"spillway.dev/spillway/providers"
)

func TestKindOf(t *testing.T) {
	soldOut := &providers.Error{Kind: providers.SoldOut, Scope: providers.ScopeZone, Op: "create", Err: io.EOF}
	tests := map[string]struct {
		err   error
		kind  providers.Kind
		scope providers.Scope
	}{
		"as it is":                              {soldOut, providers.SoldOut, providers.ScopeZone},
		"wrapped":                               {fmt.Errorf("buy: %w", soldOut), providers.SoldOut, providers.ScopeZone},
		"an error that nobody knows":            {errors.New("boom"), providers.OutcomeUnknown, providers.ScopeOffer},
		"the zero error is the dangerous one":   {&providers.Error{}, providers.OutcomeUnknown, providers.ScopeOffer},
		"the outermost kind counts: left over":  {&providers.Error{Kind: providers.CleanupFailed, Err: soldOut}, providers.CleanupFailed, providers.ScopeOffer},
		"a cancelled call may have happened":    {&providers.Error{Err: context.Canceled}, providers.OutcomeUnknown, providers.ScopeOffer},
		"an expired call may have happened too": {context.DeadlineExceeded, providers.OutcomeUnknown, providers.ScopeOffer},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := providers.KindOf(tt.err); got != tt.kind {
				t.Errorf("KindOf = %s, want %s", got, tt.kind)
			}
			if got := providers.ScopeOf(tt.err); got != tt.scope {
				t.Errorf("ScopeOf = %s, want %s", got, tt.scope)
			}
		})
	}
}

// cases: H-39 prometheus/alertmanager notify/util.go
func TestErrorUnwraps(t *testing.T) {
	err := fmt.Errorf("step: %w", &providers.Error{Kind: providers.Throttled, Op: "list", RetryAfter: time.Minute, Err: io.EOF})
	if !errors.Is(err, io.EOF) {
		t.Error("errors.Is does not see the cause through *Error")
	}
	if got := providers.RetryAfterOf(err); got != time.Minute {
		t.Errorf("RetryAfterOf = %s, want 1m", got)
	}
	if got, want := err.Error(), "step: list: throttled: EOF"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

func TestRefusals(t *testing.T) {
	want := map[providers.Kind]bool{
		providers.SoldOut: true, providers.LimitReached: true, providers.Rejected: true, providers.CleanupFailed: true,
		providers.OutcomeUnknown: false, providers.NotFound: false, providers.Throttled: false, providers.Unauthorized: false,
	}
	for kind, refusal := range want {
		t.Run(kind.String(), func(t *testing.T) {
			if got := kind.Refusal(); got != refusal {
				t.Errorf("Refusal = %v, want %v", got, refusal)
			}
		})
	}
}

// The second offer is cut from the same letters at other slashes: without
// escaping, the two keys would be equal.
func TestOfferKeysDiffer(t *testing.T) {
	offer := func(five []string) providers.Offer {
		return providers.Offer{Provider: five[0], Region: five[1], Zone: five[2], InstanceType: five[3], CapacityType: five[4]}
	}
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b", "2F", "%2F"}), 6, 8).Draw(t, "words")
		cut := func(label string) []string {
			first := rapid.IntRange(1, len(words)-4).Draw(t, label) // this many words make the first part
			return append([]string{strings.Join(words[:first], "/")},
				words[first], words[first+1], words[first+2], strings.Join(words[first+3:], "/"))
		}
		a, b := cut("a"), cut("b")
		if slices.Equal(a, b) != (offer(a).Key() == offer(b).Key()) {
			t.Fatalf("%q and %q have keys %q and %q", a, b, offer(a).Key(), offer(b).Key())
		}
	})
}

func TestOfferKeyIsReadable(t *testing.T) {
	o := providers.Offer{Provider: "ovh", Region: "GRA11", InstanceType: "h100-380", CapacityType: "on-demand"}
	if got, want := o.Key(), "ovh/GRA11//h100-380/on-demand"; got != want {
		t.Errorf("Key = %q, want %q", got, want)
	}
}

// A lost stamp is zero, so that nobody takes it for a time; part of a second
// never ends a lease early.
func TestStamp(t *testing.T) {
	at := time.Date(2026, 3, 1, 10, 0, 0, 1, time.FixedZone("CET", 3600))
	if got, want := providers.Stamp(at), "2026-03-01T09:00:01Z"; got != want {
		t.Errorf("stamp = %s, want %s", got, want)
	}
	if got := providers.ReadStamp("tomorrow"); !got.IsZero() {
		t.Errorf("an unreadable stamp reads as %s", got)
	}
}
