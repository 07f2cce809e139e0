// Package bootstrap makes what a rented machine needs to become one node of
// the cluster, and no more than that.
//
// The promises: the rendered user-data holds no secret but a join token; the
// token is worth one client certificate, for one node name, until the join
// deadline; the node registers with the burst's taints, so that nothing runs
// on it that was not approved; its agent starts before it joins; and no pod on
// it reads the cloud's metadata service, where the user-data can be read.
//
// Vocabulary: the join data is a [link.Join], the fence are the taints of
// [Taints], a join token is a bootstrap-token Secret made by [NewToken] in a
// group of its own ([Group]), and [ApproveCSR] is the word on a certificate
// that such a token asks for. Nothing here talks to anybody: time and
// randomness come in, objects and verdicts go out.
//
// The machine's image holds kubelet, kubeadm, containerd, nft and the agent at
// /usr/local/bin/spillway-agent.
package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/nodeagent/link"
)

// MaxUserData is the most bytes that Render makes: the least that a supported
// cloud takes (64 KiB after base64).
const MaxUserData = 48 << 10

// The keys of the taints that fence a burst node.
const (
	burstTaint        = "spillway.dev/burst"
	initializingTaint = "spillway.dev/initializing"
)

// Paths on the machine.
const (
	joinPath   = "/etc/spillway/join.json"
	agentUnit  = "/etc/systemd/system/spillway-agent.service"
	fencePath  = "/etc/spillway/metadata.nft"
	fenceUnit  = "/etc/systemd/system/spillway-metadata.service"
	kubeconfig = "/etc/kubernetes/spillway-discovery.conf"
	joinConfig = "/etc/kubernetes/spillway-join.yaml"
	scriptPath = "/usr/local/sbin/spillway-join"
)

// Taints is the fence of a burst's nodes: nothing is scheduled there and
// nothing stays there that does not tolerate this one burst. With
// initializing, nothing at all is scheduled before the node has proved itself.
func Taints(burst string, initializing bool) []link.Taint {
	taints := []link.Taint{
		{Key: burstTaint, Value: burst, Effect: "NoSchedule"},
		{Key: burstTaint, Value: burst, Effect: "NoExecute"},
	}
	if initializing {
		taints = append(taints, link.Taint{Key: initializingTaint, Effect: "NoSchedule"})
	}
	return taints
}

// cloudConfig is the part of cloud-init's format that is used.
type cloudConfig struct {
	WriteFiles []file     `json:"write_files"`
	RunCmd     [][]string `json:"runcmd"`
}

type file struct {
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
	Owner       string `json:"owner"`
	Content     string `json:"content"`
}

// Render makes the user-data of one burst node as cloud-init's #cloud-config.
// It refuses join data without the fence, with labels that a kubelet may not
// give itself, or with key material in it.
func Render(j link.Join) ([]byte, error) {
	if err := check(j); err != nil {
		return nil, fmt.Errorf("user-data of node %q: %w", j.NodeName, err)
	}
	files, err := files(j)
	if err != nil {
		return nil, fmt.Errorf("user-data of node %q: %w", j.NodeName, err)
	}
	body, err := yaml.Marshal(cloudConfig{WriteFiles: files, RunCmd: [][]string{{scriptPath}}})
	if err != nil {
		return nil, fmt.Errorf("user-data of node %q: %w", j.NodeName, err)
	}
	out := append([]byte("#cloud-config\n"), body...)
	if len(out) > MaxUserData {
		return nil, fmt.Errorf("user-data of node %q has %d bytes, clouds take %d: shorten the certificate bundles in it", j.NodeName, len(out), MaxUserData)
	}
	return out, nil
}

// ParseJoin reads the join data back from rendered user-data.
func ParseJoin(userData []byte) (link.Join, error) {
	if !bytes.HasPrefix(userData, []byte("#cloud-config\n")) {
		return link.Join{}, errors.New("user-data is no #cloud-config: it was not rendered here")
	}
	var c cloudConfig
	if err := yaml.Unmarshal(userData, &c); err != nil {
		return link.Join{}, fmt.Errorf("user-data: %w", err)
	}
	i := slices.IndexFunc(c.WriteFiles, func(f file) bool { return f.Path == joinPath })
	if i < 0 {
		return link.Join{}, fmt.Errorf("user-data holds no %s: it was not rendered here", joinPath)
	}
	return link.ParseJoin([]byte(c.WriteFiles[i].Content))
}

// check says why join data must not become a machine.
func check(j link.Join) error {
	for _, need := range []struct{ name, value string }{
		{"node name", j.NodeName},
		{"provider id", j.ProviderID},
		{"burst", j.Burst},
		{"API server", j.APIServer},
		{"join token", j.BootstrapToken},
		{"cluster CA", string(j.ClusterCA)},
		{"store", j.Store},
	} {
		if need.value == "" {
			return fmt.Errorf("%s is missing", need.name)
		}
	}
	for _, want := range Taints(j.Burst, false) {
		if !slices.Contains(j.Taints, want) {
			return fmt.Errorf("taint %s=%s:%s is missing: the node would take any pod", want.Key, want.Value, want.Effect)
		}
	}
	for key := range j.Labels {
		prefix, _, _ := strings.Cut(key, "/")
		if prefix == "kubernetes.io" || strings.HasSuffix(prefix, ".kubernetes.io") || strings.HasSuffix(prefix, "k8s.io") {
			return fmt.Errorf("label %s: a kubelet may not give itself labels of that domain; put it on the Machine", key)
		}
	}
	for name, pem := range map[string][]byte{"cluster CA": j.ClusterCA, "controller CA": j.ControllerCA, "gate CA": j.GateCA} {
		if bytes.Contains(pem, []byte("PRIVATE KEY")) {
			return fmt.Errorf("%s holds a private key: user-data is readable by the cloud; give the certificate alone", name)
		}
	}
	return nil
}

// files are written in this order; the script uses all of them.
func files(j link.Join) ([]file, error) {
	join, err := json.MarshalIndent(j, "", "  ")
	if err != nil {
		return nil, err
	}
	front, err := frontAddress(j.Store)
	if err != nil {
		return nil, err
	}
	discovery, registration, err := kubeadmFiles(j)
	if err != nil {
		return nil, err
	}
	return []file{
		{joinPath, "0600", "root:root", string(join) + "\n"},
		{agentUnit, "0644", "root:root", fmt.Sprintf(agentService, front)},
		{fencePath, "0644", "root:root", metadataRules},
		{fenceUnit, "0644", "root:root", metadataService},
		{kubeconfig, "0600", "root:root", discovery},
		{joinConfig, "0600", "root:root", registration},
		{scriptPath, "0700", "root:root", script},
	}, nil
}

// frontIP is the node's own address on which the agent serves the S3 front.
// It is link-local: reachable from this node and from nowhere else.
const frontIP = "169.254.77.1"

// frontAddress is where the front listens: the port is that of the store, so
// that the URL in the job stays the same.
func frontAddress(store string) (string, error) {
	_, port, err := net.SplitHostPort(store)
	if err != nil {
		return "", fmt.Errorf("store %q: want host:port as the jobs write it: %w", store, err)
	}
	return net.JoinHostPort(frontIP, port), nil
}

// kubeadmFiles are the discovery kubeconfig, which pins the cluster's CA and
// holds no credential, and the join configuration.
func kubeadmFiles(j link.Join) (discovery, registration string, err error) {
	api, err := url.Parse(j.APIServer)
	if err != nil || api.Scheme != "https" || api.Host == "" {
		return "", "", fmt.Errorf("API server %q: want https://host:port", j.APIServer)
	}
	d, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "",
		"clusters": []any{map[string]any{
			"name":    "onprem",
			"cluster": map[string]any{"server": j.APIServer, "certificate-authority-data": j.ClusterCA},
		}},
		"users": []any{}, "contexts": []any{},
	})
	if err != nil {
		return "", "", err
	}
	args := []any{map[string]string{"name": "provider-id", "value": j.ProviderID}}
	if len(j.Labels) > 0 {
		args = append(args, map[string]string{"name": "node-labels", "value": labelList(j.Labels)})
	}
	r, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "JoinConfiguration",
		"discovery": map[string]any{
			"file":              map[string]string{"kubeConfigPath": kubeconfig},
			"tlsBootstrapToken": j.BootstrapToken,
		},
		"nodeRegistration": map[string]any{
			"name": j.NodeName, "taints": j.Taints, "kubeletExtraArgs": args,
		},
	})
	return string(d), string(r), err
}

func labelList(labels map[string]string) string {
	var list []string
	for k, v := range labels {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
