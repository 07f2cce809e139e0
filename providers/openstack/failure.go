package openstack

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"spillway.dev/spillway/providers"
)

// failure maps what a call has come to onto the contract, once. Nil stays nil.
// What is not known here stays OutcomeUnknown.
func failure(op string, err error) error {
	if err == nil {
		return nil
	}
	e := &providers.Error{Kind: providers.OutcomeUnknown, Op: op, Err: err}
	// It doesn't unwrap: what matters is why no new token was to be had.
	if reauth, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		err = reauth.ErrReauth
		e.Err = fmt.Errorf("log in again: %w", err)
	}
	if a := answerOf(err); a != nil {
		e.Kind, e.Scope = a.kind()
		e.RetryAfter = a.wait
		e.Err = a
	}
	if v, ok := errors.AsType[*verdict](err); ok {
		e.Kind, e.Scope = v.kind, v.scope
	}
	return e
}

// verdict is what the driver itself has found out about a call.
type verdict struct {
	kind  providers.Kind
	scope providers.Scope
	err   error
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// answer is a service's refusal in its own words.
type answer struct {
	status  int
	call    string        // method and path
	code    string        // the service's name for it, where it has one
	message string        // for people; some clouds say only here what they mean
	own     bool          // the API's own answer, not that of a proxy on the way
	wait    time.Duration // Retry-After
}

// Error says the call, the status and the service's own words.
func (a *answer) Error() string {
	words := a.message
	if !a.own {
		words = "not an answer of the API"
	}
	return fmt.Sprintf("%s: %d %s: %s", a.call, a.status, http.StatusText(a.status), words)
}

// answerOf finds the refusal in an error, or returns nil.
func answerOf(err error) *answer {
	if a, ok := errors.AsType[*answer](err); ok {
		return a
	}
	raw, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err)
	if !ok {
		return nil
	}
	a := &answer{status: raw.Actual, call: raw.Method}
	if u, err := url.Parse(raw.URL); err == nil {
		a.call += " " + u.Path
	}
	a.code, a.message, a.own = readBody(raw.Body)
	if s, err := strconv.Atoi(raw.ResponseHeader.Get("Retry-After")); err == nil && s > 0 {
		a.wait = time.Duration(s) * time.Second
	}
	return a
}

// isTransport reports whether a call has met no answer at all.
func isTransport(err error) bool {
	_, ok := errors.AsType[*url.Error](err)
	return ok
}

// readBody reads the error bodies of Nova ({"forbidden": {"message": ...}}),
// Neutron ({"NeutronError": {"type": ..., "message": ...}}), Keystone
// ({"error": {"code": 401, "message": ...}}) and Open Telekom Cloud ({"error":
// {"code": "Ecs.0319", ...}} or {"error_code": ..., "error_msg": ...}).
func readBody(body []byte) (code, message string, own bool) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil {
		return "", "", false
	}
	for name, raw := range fields {
		var inner struct {
			Code    json.RawMessage `json:"code"`
			Type    string          `json:"type"`
			Message string          `json:"message"`
		}
		if json.Unmarshal(raw, &inner) == nil && inner.Message != "" {
			code = name
			if inner.Type != "" {
				code = inner.Type
			}
			if text := strings.Trim(string(inner.Code), `"`); strings.Contains(text, ".") {
				code = text
			}
			return code, strings.TrimSpace(inner.Message), true
		}
	}
	var flat struct {
		Code    string `json:"error_code"`
		Message string `json:"error_msg"`
	}
	if json.Unmarshal(body, &flat) == nil && flat.Code != "" {
		return flat.Code, flat.Message, true
	}
	return "", "", false
}

// kind says what a refusal means and how far it reaches.
func (a *answer) kind() (providers.Kind, providers.Scope) {
	switch a.status {
	case http.StatusUnauthorized:
		return providers.Unauthorized, providers.ScopeAccount
	case http.StatusTooManyRequests:
		return providers.Throttled, providers.ScopeAccount
	case http.StatusRequestEntityTooLarge: // old clouds throttle with it
		if a.wait > 0 {
			return providers.Throttled, providers.ScopeAccount
		}
		return providers.Rejected, providers.ScopeOffer
	}
	if !a.own { // a status alone may come from any proxy and proves nothing
		return providers.OutcomeUnknown, ""
	}
	if kind, known := telekomKind(a.code); known {
		return kind, scopeOf(kind)
	}
	switch a.status {
	case http.StatusBadRequest:
		return providers.Rejected, providers.ScopeOffer
	case http.StatusForbidden:
		return a.forbidden()
	case http.StatusNotFound:
		return providers.NotFound, providers.ScopeOffer
	case http.StatusConflict:
		return a.conflict()
	}
	// cases: D-1 kubernetes-sigs/cluster-api-provider-openstack#1404
	if a.status == http.StatusInternalServerError && faultKind(a.message) == providers.SoldOut {
		return providers.SoldOut, providers.ScopeOffer
	}
	return providers.OutcomeUnknown, ""
}

// forbidden tells a limit of ours from a right that is missing and from a
// request that is wrong. cases: D-26, D-28 (a real Nova, measured)
func (a *answer) forbidden() (providers.Kind, providers.Scope) {
	switch {
	case strings.HasPrefix(a.message, "Quota exceeded"), strings.HasPrefix(a.message, "Maximum number of ports"):
		return providers.LimitReached, providers.ScopeAccount
	case strings.HasPrefix(a.message, "Maximum number of"):
		return providers.Rejected, providers.ScopeOffer
	default:
		return providers.Unauthorized, providers.ScopeAccount
	}
}

func (a *answer) conflict() (providers.Kind, providers.Scope) {
	switch a.code {
	case "OverQuota":
		return providers.LimitReached, providers.ScopeAccount
	case "IpAddressGenerationFailure", "ExternalIpAddressExhausted": // no address is free: a person must add some
		return providers.LimitReached, providers.ScopeRegion
	default:
		return providers.OutcomeUnknown, ""
	}
}

// telekomKind reads the codes of Open Telekom Cloud, from its ECS API
// reference. cases: D-76
func telekomKind(code string) (providers.Kind, bool) {
	switch code {
	case "Ecs.0319":
		return providers.SoldOut, true
	case "Ecs.0001", "Ecs.0013", "Ecs.0021", "Ecs.0050", "Ecs.0067", "Ecs.0070":
		return providers.LimitReached, true
	case "Common.0024", "Common.1503":
		return providers.Throttled, true
	default:
		return providers.OutcomeUnknown, false
	}
}

func scopeOf(k providers.Kind) providers.Scope {
	if k == providers.SoldOut {
		return providers.ScopeOffer
	}
	return providers.ScopeAccount
}

// faultKind says what the fault of a failed server means. Nova ends some of its
// messages with a blank, and tenants see no more than the message.
// cases: D-25, B-14 cluster-api-provider-openstack#3375
func faultKind(message string) providers.Kind {
	switch {
	case strings.HasPrefix(message, "No valid host was found"):
		return providers.SoldOut
	case strings.HasPrefix(message, "Quota exceeded"):
		return providers.LimitReached
	default:
		return providers.OutcomeUnknown
	}
}

// inMaking maps a failure on the way to a new machine: what a create names and
// the cloud doesn't know is a wrong request, never a machine that is gone.
func inMaking(op string, err error) error {
	mapped := failure(op, err)
	if e, ok := errors.AsType[*providers.Error](mapped); ok && e.Kind == providers.NotFound {
		e.Kind = providers.Rejected
	}
	return mapped
}
