package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"spillway.dev/spillway/providers"
)

// refusal is what the library returns for an answer of 400 and above.
func refusal(status int, body string, header ...string) error {
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return fmt.Errorf("call: %w", gophercloud.ErrUnexpectedResponseCode{
		Method: "POST", URL: "https://cloud.example/v2.1/servers", Actual: status, Body: []byte(body), ResponseHeader: h,
	})
}

func TestFailure(t *testing.T) {
	tests := map[string]struct {
		err   error
		kind  providers.Kind
		scope providers.Scope
		wait  time.Duration
	}{
		// Recorded from a real OpenStack (Zed).
		"quota of cores (cases: D-26)": {
			refusal(403, `{"forbidden": {"code": 403, "message": "Quota exceeded for cores, ram: Requested 30, 380000, but already used 0, 0 of 20, 51200 cores, ram"}}`),
			providers.LimitReached, providers.ScopeAccount, 0,
		},
		"quota of ports": {
			refusal(409, `{"NeutronError": {"type": "OverQuota", "message": "Quota exceeded for resources: ['port'].", "detail": ""}}`),
			providers.LimitReached, providers.ScopeAccount, 0,
		},
		"too much metadata is no quota (cases: D-28)": {
			refusal(403, `{"forbidden": {"code": 403, "message": "Maximum number of metadata items exceeds 128"}}`),
			providers.Rejected, providers.ScopeOffer, 0,
		},
		"a right is missing": {
			refusal(403, `{"forbidden": {"code": 403, "message": "Policy doesn't allow os_compute_api:servers:create to be performed."}}`),
			providers.Unauthorized, providers.ScopeAccount, 0,
		},
		"unknown flavor":   {refusal(400, `{"badRequest": {"code": 400, "message": "Flavor nope could not be found."}}`), providers.Rejected, providers.ScopeOffer, 0},
		"no such server":   {refusal(404, `{"itemNotFound": {"code": 404, "message": "Instance x could not be found."}}`), providers.NotFound, providers.ScopeOffer, 0},
		"no such port":     {refusal(404, `{"NeutronError": {"type": "PortNotFound", "message": "Port x could not be found.", "detail": ""}}`), providers.NotFound, providers.ScopeOffer, 0},
		"port in use":      {refusal(409, `{"conflictingRequest": {"code": 409, "message": "Port x is still in use."}}`), providers.OutcomeUnknown, "", 0},
		"no free address":  {refusal(409, `{"NeutronError": {"type": "IpAddressGenerationFailure", "message": "No more IP addresses available on network x.", "detail": ""}}`), providers.LimitReached, providers.ScopeRegion, 0},
		"expired token":    {refusal(401, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`), providers.Unauthorized, providers.ScopeAccount, 0},
		"a bare 401":       {refusal(401, "Authentication required"), providers.Unauthorized, providers.ScopeAccount, 0},
		"something broke":  {refusal(500, `{"computeFault": {"code": 500, "message": "Unexpected API Error. Please report this at http://bugs.launchpad.net/nova/."}}`), providers.OutcomeUnknown, "", 0},
		"gateway timeout":  {refusal(504, "<html>504</html>"), providers.OutcomeUnknown, "", 0},
		"a proxy's 404":    {refusal(404, "<html>404</html>"), providers.OutcomeUnknown, "", 0},
		"a proxy's 403":    {refusal(403, "<html>403</html>"), providers.OutcomeUnknown, "", 0},
		"JSON, not an API": {refusal(404, `{"path": "/servers"}`), providers.OutcomeUnknown, "", 0},

		// From public reports and references.
		"no host, told at once (cases: D-1)": {
			refusal(500, `{"computeFault": {"code": 500, "message": "No valid host was found. "}}`),
			providers.SoldOut, providers.ScopeOffer, 0,
		},
		"throttled":                           {refusal(429, "slow down", "Retry-After", "7"), providers.Throttled, providers.ScopeAccount, 7 * time.Second},
		"throttled without a time (D-14)":     {refusal(429, `{"overLimit": {"message": "x"}}`), providers.Throttled, providers.ScopeAccount, 0},
		"throttled by an old cloud":           {refusal(413, `{"overLimit": {"message": "x"}}`, "Retry-After", "3"), providers.Throttled, providers.ScopeAccount, 3 * time.Second},
		"user data too large":                 {refusal(413, `{"badRequest": {"message": "too large"}}`), providers.Rejected, providers.ScopeOffer, 0},
		"Open Telekom Cloud: no stock":        {refusal(400, `{"error": {"code": "Ecs.0319", "message": "Insufficient resources for this flavor."}}`), providers.SoldOut, providers.ScopeOffer, 0},
		"Open Telekom Cloud: quota":           {refusal(400, `{"error": {"code": "Ecs.0013", "message": "Insufficient EIP quota."}}`), providers.LimitReached, providers.ScopeAccount, 0},
		"Open Telekom Cloud: flat, throttled": {refusal(400, `{"error_code": "Common.1503", "error_msg": "x"}`), providers.Throttled, providers.ScopeAccount, 0},

		"no answer":               {&url.Error{Op: "Post", URL: "x", Err: errors.New("EOF")}, providers.OutcomeUnknown, "", 0},
		"an error nobody expects": {errors.New("boom"), providers.OutcomeUnknown, "", 0},
		"the login is refused, too": {
			&gophercloud.ErrUnableToReauthenticate{ErrOriginal: refusal(401, ""), ErrReauth: refusal(401, "")},
			providers.Unauthorized, providers.ScopeAccount, 0,
		},
		"a login that meets a broken cloud says nothing": {
			&gophercloud.ErrUnableToReauthenticate{ErrOriginal: refusal(401, ""), ErrReauth: refusal(503, "")},
			providers.OutcomeUnknown, "", 0,
		},
		"our own words": {
			fmt.Errorf("image: %w", &verdict{providers.Rejected, providers.ScopeRegion, errors.New("x")}),
			providers.Rejected, providers.ScopeRegion, 0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := failure("create", tt.err)
			e, ok := errors.AsType[*providers.Error](err)
			if !ok {
				t.Fatalf("got %T", err)
			}
			if e.Kind != tt.kind || e.Scope != tt.scope || e.RetryAfter != tt.wait || e.Op != "create" {
				t.Errorf("got %s, scope %q, wait %s, op %q; want %s, %q, %s: %v", e.Kind, e.Scope, e.RetryAfter, e.Op, tt.kind, tt.scope, tt.wait, err)
			}
			if strings.Count(err.Error(), e.Kind.String()+":") > 1 {
				t.Errorf("says its kind twice: %v", err)
			}
		})
	}
}

func TestFailureKeepsTheContext(t *testing.T) {
	for name, cause := range map[string]error{
		"in a call": fmt.Errorf("x: %w", &url.Error{Op: "Post", URL: "x", Err: context.DeadlineExceeded}),
		"in a login": &gophercloud.ErrUnableToReauthenticate{
			ErrOriginal: refusal(401, ""), ErrReauth: &url.Error{Op: "Post", URL: "x", Err: context.DeadlineExceeded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := failure("create", cause)
			if !errors.Is(err, context.DeadlineExceeded) || providers.KindOf(err) != providers.OutcomeUnknown {
				t.Errorf("got %v of kind %s", err, providers.KindOf(err))
			}
		})
	}
	if err := failure("list", nil); err != nil {
		t.Errorf("no failure became %v", err)
	}
}

// A person reads call, status and the cloud's own words, with no markup.
func TestFailureText(t *testing.T) {
	err := failure("create", refusal(403, `{"forbidden": {"code": 403, "message": "Quota exceeded for ram: Requested 65536, but already used 512 of 51200 ram"}}`))
	want := "create: limit reached: POST /v2.1/servers: 403 Forbidden: Quota exceeded for ram: Requested 65536, but already used 512 of 51200 ram"
	if err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
	err = failure("delete", refusal(404, "<html>secret site</html>"))
	if want := "delete: outcome unknown: POST /v2.1/servers: 404 Not Found: not an answer of the API"; err.Error() != want {
		t.Errorf("got  %s\nwant %s", err, want)
	}
}

func TestFaultKind(t *testing.T) {
	for message, want := range map[string]providers.Kind{
		"No valid host was found. ":                                         providers.SoldOut, // cases: D-25
		"No valid host was found. There are not enough hosts available.":    providers.SoldOut,
		"Quota exceeded for cores, ram: Requested 30, 380000":               providers.LimitReached, // cases: B-14
		"Build of instance x aborted: the disk of the host is broken":       providers.OutcomeUnknown,
		"Exceeded maximum number of retries. Exhausted all hosts available": providers.OutcomeUnknown,
		"": providers.OutcomeUnknown,
	} {
		t.Run(message, func(t *testing.T) {
			if got := faultKind(message); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
