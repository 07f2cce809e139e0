package transit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// Refusal is an answer of the server with an error in it.
type Refusal struct {
	Server string
	Op     string   // what was asked
	Path   string   // of the request, below /v1/
	Status int      // of HTTP
	Said   []string // the server's own words, for people only
}

// Error names server, request, reason and remedy.
func (r *Refusal) Error() string {
	said := strings.Join(r.Said, "; ")
	if said == "" {
		said = http.StatusText(r.Status)
	}
	text := fmt.Sprintf("key service %s: %s %s: %d %s", r.Server, r.Op, r.Path, r.Status, said)
	if remedy := r.remedy(); remedy != "" {
		text += ": " + remedy
	}
	return text
}

func (r *Refusal) remedy() string {
	switch r.Status {
	case http.StatusForbidden:
		return "renew the token in the token file, or give its policy this path"
	case http.StatusNotFound:
		if len(r.Said) > 0 {
			return "check mount and namespace in the configuration"
		}
	case http.StatusTooManyRequests:
		return "raise the server's rate limit for this path"
	case http.StatusServiceUnavailable:
		return "unseal it, or wait until it is up"
	}
	return ""
}

// again says whether the same request may be answered otherwise a little
// later: a server that is busy, starting, changing its leader, or not yet
// level with it (412).
func (r *Refusal) again() bool {
	switch r.Status {
	case http.StatusPreconditionFailed, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

const (
	tries     = 3
	maxAnswer = 1 << 20 // bytes
)

// call sends a request until it is answered for good, at most three times. All
// requests of this package may be sent twice: making, deleting, configuring and
// trimming ask for a state; a second wrapping is one that nobody keeps; a second
// rotation makes a version that [Client.Retire] keeps alone. It returns the
// server's id of the request, by which its audit log names it.
func (c *Client) call(ctx context.Context, op, method, path string, in, out any) (id string, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return "", fmt.Errorf("key service %s: %s %s: %w", c.cfg.Address, op, path, err)
	}
	pause := c.cfg.Pause
	for try := 1; ; try++ {
		id, err = c.once(ctx, op, method, path, body, out)
		r, refused := errors.AsType[*Refusal](err)
		if err == nil || refused && !r.again() || try == tries {
			return id, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return "", errors.Join(err, ctx.Err())
		case <-timer.C:
		}
		pause *= 2
	}
}

func (c *Client) once(ctx context.Context, op, method, path string, body []byte, out any) (string, error) {
	token, err := c.token()
	if err != nil {
		return "", err
	}
	r, err := http.NewRequestWithContext(ctx, method, c.cfg.Address+"/v1/"+path, bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("key service %s: %s %s: %w", c.cfg.Address, op, path, err)
	}
	if method == http.MethodGet || method == http.MethodDelete {
		r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	}
	r.Header.Set("X-Vault-Token", token)
	r.Header.Set("X-Vault-Request", "true") // agents ask for it against forged requests
	if c.cfg.Namespace != "" {
		r.Header.Set("X-Vault-Namespace", c.cfg.Namespace)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return "", fmt.Errorf("key service: %s: %w: is it up, and does the CA file hold its authority?", op, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fmt.Errorf("key service %s: %s %s: the answer broke off: %w", c.cfg.Address, op, path, err)
	}
	return c.answer(op, path, resp.StatusCode, data, out)
}

// answer reads what the server said; a success without a body says nothing
// more.
func (c *Client) answer(op, path string, status int, data []byte, out any) (string, error) {
	var a struct {
		ID     string          `json:"request_id"`
		Data   json.RawMessage `json:"data"`
		Errors []string        `json:"errors"`
	}
	err := json.Unmarshal(data, &a)
	if status >= 300 {
		if err != nil { // not the server itself: something on the way to it
			a.Errors = []string{fmt.Sprintf("%.200q", data)}
		}
		return "", &Refusal{Server: c.cfg.Address, Op: op, Path: path, Status: status, Said: a.Errors}
	}
	if out == nil {
		return a.ID, nil
	}
	if err == nil {
		err = json.Unmarshal(a.Data, out)
	}
	if err != nil {
		return "", fmt.Errorf("key service %s: %s %s: its answer can't be read: %w", c.cfg.Address, op, path, err)
	}
	return a.ID, nil
}

func (c *Client) token() (string, error) {
	data, err := os.ReadFile(c.cfg.TokenFile)
	if err != nil {
		return "", fmt.Errorf("token of key service %s: %w", c.cfg.Address, err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return "", fmt.Errorf("token of key service %s: file %s is empty: write a token into it", c.cfg.Address, c.cfg.TokenFile)
	}
	return token, nil
}
