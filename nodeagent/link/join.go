package link

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Taint is a node taint as the kubelet registers it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"` // NoSchedule or NoExecute
}

// Join is all that a fresh machine is told. It lies in
// /etc/spillway/join.json. The only secret in it is a token that is worth one
// node's certificate, once.
type Join struct {
	APIServer      string            `json:"apiServer"`      // https URL
	BootstrapToken string            `json:"bootstrapToken"` // single use
	ClusterCA      []byte            `json:"clusterCA"`      // PEM
	NodeName       string            `json:"nodeName"`
	ProviderID     string            `json:"providerID"`
	Taints         []Taint           `json:"taints"`
	Labels         map[string]string `json:"labels"`
	Burst          string            `json:"burst"` // UID, empty on-prem
	Tenant         string            `json:"tenant"`
	Installation   string            `json:"installation"`
	Controller     string            `json:"controller"`   // host:port of the hub
	ControllerCA   []byte            `json:"controllerCA"` // PEM
	Gate           string            `json:"gate"`         // https base URL of the on-prem gate
	GateCA         []byte            `json:"gateCA"`       // PEM
	Store          string            `json:"store"`        // host:port of the source store as jobs write it
	Region         string            `json:"region"`
	Lease          SignedLease       `json:"lease"`    // the first lease
	LeaseKey       []byte            `json:"leaseKey"` // ed25519 public key that signs leases
	GPUResource    string            `json:"gpuResource"`
	GPUs           int               `json:"gpus"` // how many the offer promised
}

// ParseJoin reads join data and checks what the agent needs. An on-prem node
// (empty burst) needs name and controller only.
func ParseJoin(data []byte) (Join, error) {
	var j Join
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&j); err != nil {
		return Join{}, fmt.Errorf("join data is not readable: %w: have the machine booted again with fresh join data", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Join{}, errors.New("join data has something behind its end: have the machine booted again with fresh join data")
	}
	if missing := j.missing(); missing != "" {
		return Join{}, fmt.Errorf("join data lacks %s: render it again from the burst", missing)
	}
	if j.Burst == "" {
		return j, nil
	}
	if len(j.LeaseKey) != ed25519.PublicKeySize {
		return Join{}, fmt.Errorf("join data: lease key has %d bytes, not %d: render it again from the burst", len(j.LeaseKey), ed25519.PublicKeySize)
	}
	return j, nil
}

// missing names the first field that the agent can't do without.
func (j Join) missing() string {
	needs := []struct {
		name  string
		empty bool
	}{
		{"nodeName", j.NodeName == ""},
		{"controller", j.Controller == ""},
		{"controllerCA", len(j.ControllerCA) == 0},
		{"lease", j.Burst != "" && len(j.Lease.Payload) == 0},
		{"gate", j.Burst != "" && j.Gate == ""},
		{"store", j.Burst != "" && j.Store == ""},
	}
	for _, n := range needs {
		if n.empty {
			return n.name
		}
	}
	return ""
}
