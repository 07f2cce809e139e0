package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Pod is a pod with devices on this node, as GET /pods lists it.
type Pod struct {
	UID       string    `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Owner     string    `json:"owner"` // opaque id of the top owner
	Container string    `json:"container"`
	GPUs      []string  `json:"gpus"`              // device ids
	Started   time.Time `json:"started,omitzero"`  // zero: admitted, not yet running
	Finished  time.Time `json:"finished,omitzero"` // zero: not finished
	IP        string    `json:"ip,omitempty"`
	// Sandbox is the number of a process, in the agent's own numbering, in the
	// pod's network namespace; 0 where it isn't known.
	Sandbox int `json:"sandbox,omitempty"`
}

// Device is a device of this node, as GET /devices lists it.
type Device struct {
	ID       string `json:"id"`       // as in Pod.GPUs
	Resource string `json:"resource"` // for example nvidia.com/gpu
	Model    string `json:"model"`
	Healthy  bool   `json:"healthy"`
}

// StopRequest is the body of POST /stop: end all pods of the burst. The
// answer is 2xx when the request is accepted, not when the pods have ended.
type StopRequest struct {
	Reason       string `json:"reason"`
	GraceSeconds int64  `json:"graceSeconds"` // between SIGTERM and SIGKILL; 0 kills at once
}

// PowerOffRequest is the body of POST /poweroff: switch the machine off. The
// answer is 2xx when that is under way.
type PowerOffRequest struct {
	Reason string `json:"reason"`
}

// Machine is what the agent asks of the machine that it runs on.
type Machine interface {
	// Pods lists the pods that hold devices, finished ones included.
	Pods(ctx context.Context) ([]Pod, error)
	// Devices lists the devices, unhealthy ones included.
	Devices(ctx context.Context) ([]Device, error)
	// StopPods asks for the end of all pods and does not wait for it.
	StopPods(ctx context.Context, grace time.Duration, reason string) error
	// PowerOff switches the machine off; nil means that it is under way.
	PowerOff(ctx context.Context, reason string) error
}

// maxListing bounds what the agent reads from the machine's socket.
const maxListing = 8 << 20

// Socket is a [Machine] behind a small HTTP API, usually on a unix socket:
// GET /pods, GET /devices, POST /stop, POST /poweroff. It stands for the
// kubelet's pod-resources socket and for the power button.
type Socket struct {
	base string
	http *http.Client
}

// Dial returns a Socket for a path, a unix: path or an http: URL. It does not
// connect yet.
func Dial(address string) (*Socket, error) {
	if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
		if _, err := url.Parse(address); err != nil {
			return nil, fmt.Errorf("machine address %q: %w", address, err)
		}
		return &Socket{base: strings.TrimSuffix(address, "/"), http: &http.Client{Timeout: 10 * time.Second}}, nil
	}
	path := strings.TrimPrefix(strings.TrimPrefix(address, "unix://"), "unix:")
	if path == "" {
		return nil, errors.New("machine address is empty: give the path of the machine's socket")
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	return &Socket{
		base: "http://machine",
		http: &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 10 * time.Second},
	}, nil
}

// Pods implements [Machine].
func (s *Socket) Pods(ctx context.Context) ([]Pod, error) {
	var pods []Pod
	err := s.get(ctx, "/pods", &pods)
	return pods, err
}

// Devices implements [Machine].
func (s *Socket) Devices(ctx context.Context) ([]Device, error) {
	var devices []Device
	err := s.get(ctx, "/devices", &devices)
	return devices, err
}

// StopPods implements [Machine].
func (s *Socket) StopPods(ctx context.Context, grace time.Duration, reason string) error {
	return s.post(ctx, "/stop", StopRequest{Reason: reason, GraceSeconds: int64(grace / time.Second)})
}

// PowerOff implements [Machine].
func (s *Socket) PowerOff(ctx context.Context, reason string) error {
	return s.post(ctx, "/poweroff", PowerOffRequest{Reason: reason})
}

func (s *Socket) get(ctx context.Context, path string, into any) error {
	data, err := s.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read %s of the machine: %w", path, err)
	}
	return nil
}

func (s *Socket) post(ctx context.Context, path string, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("ask the machine for %s: %w", path, err)
	}
	_, err = s.do(ctx, http.MethodPost, path, data)
	return err
}

func (s *Socket) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the machine for %s: %w", path, err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the machine for %s: %w", path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end below
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxListing+1))
	if err != nil {
		return nil, fmt.Errorf("ask the machine for %s: %w", path, err)
	}
	if len(data) > maxListing {
		return nil, fmt.Errorf("ask the machine for %s: the answer is larger than %d bytes", path, maxListing)
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("ask the machine for %s: status %d: %.200s", path, resp.StatusCode, data)
	}
	return data, nil
}
