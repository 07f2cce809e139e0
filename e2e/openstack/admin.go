package openstack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The administrator that the installation has made, alone in the lab's network.
const (
	adminName     = "admin"
	adminPassword = "secret"
	region        = "lab"
)

// Admin speaks to the services as the lab's administrator, past the driver.
type Admin struct {
	client *http.Client

	mu    sync.Mutex
	token string
}

func newAdmin(l *Lab) *Admin {
	return &Admin{client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{DialContext: l.Dial, MaxIdleConnsPerHost: 4}}}
}

// service is where a service listens in every lab.
func service(name string) string {
	return map[string]string{
		"identity":  "http://127.0.0.1:5000/v3",
		"compute":   "http://127.0.0.1:8774/v2.1",
		"placement": "http://127.0.0.1:8778",
		"network":   "http://127.0.0.1:9696/v2.0",
		"image":     "http://127.0.0.1:9292/v2",
	}[name]
}

// StatusError is an answer of 400 and above.
type StatusError struct {
	Status int
	Text   string
}

// Error says the status and the service's own words.
func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Text) }

// Call makes one call of a service and decodes its answer into out; in and out
// may be nil. An in of []byte is sent as it is.
func (a *Admin) Call(ctx context.Context, method, of, path string, in, out any) error {
	token, err := a.login(ctx)
	if err != nil {
		return fmt.Errorf("log in to the lab: %w", err)
	}
	_, err = a.do(ctx, token, method, service(of)+path, in, out)
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", method, of, path, err)
	}
	return nil
}

func (a *Admin) login(ctx context.Context) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token != "" {
		return a.token, nil
	}
	domain := map[string]any{"id": "default"}
	var err error
	a.token, err = a.authenticate(ctx,
		map[string]any{"name": adminName, "password": adminPassword, "domain": domain},
		map[string]any{"project": map[string]any{"name": adminName, "domain": domain}})
	return a.token, err
}

// authenticate returns a token for a user with a password.
func (a *Admin) authenticate(ctx context.Context, user, scope map[string]any) (string, error) {
	auth := map[string]any{"auth": map[string]any{
		"identity": map[string]any{"methods": []string{"password"}, "password": map[string]any{"user": user}},
		"scope":    scope,
	}}
	head, err := a.do(ctx, "", http.MethodPost, service("identity")+"/auth/tokens", auth, nil)
	if err != nil {
		return "", err
	}
	return head.Get("X-Subject-Token"), nil
}

// list reads all pages of a list. What ends meanwhile may take the mark of the
// next page along; then the list is read anew.
func list[T any](ctx context.Context, a *Admin, of, path, key string) ([]T, error) {
	for {
		all, err := pages[T](ctx, a, of, path, key)
		status, ok := errors.AsType[*StatusError](err)
		if !ok || status.Status != http.StatusNotFound || ctx.Err() != nil {
			return all, err
		}
	}
}

func pages[T any](ctx context.Context, a *Admin, of, path, key string) ([]T, error) {
	var all []T
	for path != "" {
		var page map[string]json.RawMessage
		if err := a.Call(ctx, http.MethodGet, of, path, nil, &page); err != nil {
			return nil, err
		}
		var some []T
		if err := json.Unmarshal(page[key], &some); err != nil {
			return nil, fmt.Errorf("list of %s: %w", key, err)
		}
		all = append(all, some...)
		var links []struct{ Href, Rel string }
		if raw := page[key+"_links"]; raw != nil {
			if err := json.Unmarshal(raw, &links); err != nil {
				return nil, fmt.Errorf("list of %s: %w", key, err)
			}
		}
		path = ""
		for _, l := range links {
			if l.Rel == "next" {
				path = strings.TrimPrefix(l.Href, service(of))
			}
		}
	}
	return all, nil
}

func (a *Admin) do(ctx context.Context, token, method, url string, in, out any) (http.Header, error) {
	kind, raw := "application/json", []byte(nil)
	switch body := in.(type) {
	case nil:
	case []byte:
		kind, raw = "application/octet-stream", body
	default:
		var err error
		if raw, err = json.Marshal(in); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("X-Auth-Token", token)
	req.Header.Set("OpenStack-API-Version", "compute 2.90")
	if strings.HasPrefix(url, service("placement")) {
		req.Header.Set("OpenStack-API-Version", "placement 1.38")
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= http.StatusBadRequest {
		return nil, &StatusError{res.StatusCode, strings.TrimSpace(string(answer))}
	}
	if out != nil {
		return res.Header, json.Unmarshal(answer, out)
	}
	return res.Header, nil
}
