package fake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/providers"
)

// driver speaks the API of [Cloud.Handler].
type driver struct {
	base         string
	secret       string
	installation string
	client       *http.Client
}

// Dial returns the driver for the cloud at baseURL, with a bearer token and on
// behalf of one installation; it makes no call yet. A nil client means
// [http.DefaultClient]. The driver is also a [providers.UsageReporter].
func Dial(baseURL, token, installation string, client *http.Client) providers.Driver {
	if client == nil {
		client = http.DefaultClient
	}
	return &driver{
		base: strings.TrimSuffix(baseURL, "/"), secret: token,
		installation: installation, client: client,
	}
}

// Offers implements [providers.Driver].
func (d *driver) Offers(ctx context.Context) ([]providers.Offer, error) {
	var offers []providers.Offer
	if err := d.do(ctx, "offers", http.MethodGet, "/v1/offers", nil, &offers); err != nil {
		return nil, err
	}
	return offers, nil
}

// Create implements [providers.Driver]. The cloud honours the token; what a
// refused create has left behind is deleted here, or the error says so.
func (d *driver) Create(ctx context.Context, req providers.Request) (providers.Machine, error) {
	const op = "create"
	if req.Installation != d.installation {
		return providers.Machine{}, &providers.Error{
			Kind: providers.Rejected, Op: op,
			Err: fmt.Errorf("request is of installation %q, this driver acts for %q", req.Installation, d.installation),
		}
	}
	var w wireMachine
	err := d.do(ctx, op, http.MethodPost, "/v1/machines", req, &w)
	if err == nil {
		return machineOf(w), nil
	}
	if providers.KindOf(err).Refusal() {
		if left := d.clear(ctx, req.Token); left != nil {
			return providers.Machine{}, &providers.Error{
				Kind: providers.CleanupFailed, Scope: providers.ScopeAccount, Op: op,
				Err: fmt.Errorf("%w; and what it left behind could not be removed: %w", err, left),
			}
		}
	}
	return providers.Machine{}, err
}

// clear removes what a refused create has left under the token, and returns
// nil only when the cloud shows nothing of it any more.
func (d *driver) clear(ctx context.Context, token string) error {
	for range 2 {
		list, err := d.List(ctx)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(m providers.Machine) bool { return m.Token != token })
		if len(list) == 0 {
			return nil
		}
		for _, m := range list {
			if err := d.Delete(ctx, m.ID); err != nil && providers.KindOf(err) != providers.NotFound {
				return err
			}
		}
	}
	return errors.New("the cloud still lists it after the delete")
}

// Extend implements [providers.Driver].
func (d *driver) Extend(ctx context.Context, id string, until time.Time) error {
	const op = "extend"
	if err := d.own(ctx, op, id); err != nil {
		return err
	}
	return d.do(ctx, op, http.MethodPut, machinePath(id)+"/expiry", map[string]time.Time{"until": until}, nil)
}

// Delete implements [providers.Driver].
func (d *driver) Delete(ctx context.Context, id string) error {
	const op = "delete"
	if err := d.own(ctx, op, id); err != nil {
		return err
	}
	return d.do(ctx, op, http.MethodDelete, machinePath(id), nil, nil)
}

// own refuses to touch a machine of another installation.
func (d *driver) own(ctx context.Context, op, id string) error {
	var w wireMachine
	if err := d.do(ctx, op, http.MethodGet, machinePath(id), nil, &w); err != nil {
		return err
	}
	if w.Installation != d.installation {
		return &providers.Error{
			Kind: providers.NotFound, Op: op,
			Err: fmt.Errorf("machine %s belongs to another installation", id),
		}
	}
	return nil
}

// List implements [providers.Driver].
func (d *driver) List(ctx context.Context) ([]providers.Machine, error) {
	var all []wireMachine
	if err := d.do(ctx, "list", http.MethodGet, "/v1/machines", nil, &all); err != nil {
		return nil, err
	}
	var list []providers.Machine
	for _, w := range all {
		if w.Installation == d.installation {
			list = append(list, machineOf(w))
		}
	}
	return list, nil
}

// Usage implements [providers.UsageReporter].
func (d *driver) Usage(ctx context.Context, token string) (providers.Machine, error) {
	const op = "usage"
	var w wireMachine
	path := "/v1/usage/" + url.PathEscape(token) + "?installation=" + url.QueryEscape(d.installation)
	if err := d.do(ctx, op, http.MethodGet, path, nil, &w); err != nil {
		return providers.Machine{}, err
	}
	return machineOf(w), nil
}

// machinePath is the path of one machine.
func machinePath(id string) string { return "/v1/machines/" + url.PathEscape(id) }

// machineOf reads a machine, and what its fault means, from the wire.
func machineOf(w wireMachine) providers.Machine {
	m := w.Machine
	m.FaultKind = kindOfCode(w.FaultCode)
	return m
}

// do makes one call, without any retry: whether a call may be repeated is the
// caller's knowledge. It returns an [*providers.Error] as error, or nil.
func (d *driver) do(ctx context.Context, op, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return &providers.Error{Kind: providers.Rejected, Op: op, Err: err}
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, d.base+path, body)
	if err != nil {
		return &providers.Error{Kind: providers.Rejected, Op: op, Err: err}
	}
	req.Header.Set("Authorization", "Bearer "+d.secret)
	req.Header.Set("Content-Type", "application/json")
	res, err := d.client.Do(req)
	if err != nil {
		return &providers.Error{Kind: providers.OutcomeUnknown, Op: op, Err: err}
	}
	defer func() { _ = res.Body.Close() }() // read to its end below, or abandoned
	raw, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return &providers.Error{Kind: providers.OutcomeUnknown, Op: op, Err: err}
	}
	if res.StatusCode >= http.StatusBadRequest {
		return refusal(op, res, raw)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return &providers.Error{Kind: providers.OutcomeUnknown, Op: op, Err: fmt.Errorf("answer of %s: %w", path, err)}
	}
	return nil
}

// refusal maps an answer of 400 and above. The code in the body decides; a
// status alone may come from any proxy on the way and proves nothing.
func refusal(op string, res *http.Response, raw []byte) error {
	var body apiError
	if json.Unmarshal(raw, &body) != nil || body.Code == "" {
		return &providers.Error{
			Kind: providers.OutcomeUnknown, Op: op,
			Err: fmt.Errorf("%s, not an answer of the API", res.Status),
		}
	}
	e := &providers.Error{
		Kind: kindOfCode(body.Code), Scope: providers.Scope(body.Scope), Op: op,
		Err: errors.New(strings.TrimSpace(body.Message)),
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(s) * time.Second
	}
	return e
}

// kindOfCode says what an error code of the API means. A code that is not
// known here is OutcomeUnknown.
func kindOfCode(code string) providers.Kind {
	switch code {
	case codeSoldOut, codeNoHost:
		return providers.SoldOut
	case codeLimit:
		return providers.LimitReached
	case codeInvalid, codeSpent:
		return providers.Rejected
	case codeThrottled:
		return providers.Throttled
	case codeUnauthorized:
		return providers.Unauthorized
	case codeNotFound:
		return providers.NotFound
	default:
		return providers.OutcomeUnknown
	}
}
