package bootstrap_test

import (
	"bytes"
	"encoding/base64"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"spillway.dev/spillway/autoscaler/bootstrap"
	"spillway.dev/spillway/nodeagent/link"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	burst = "7f3a2b1c-0000-4000-8000-000000000001"
	node  = "spw-7f3a2b1c-0"
)

// joinData is a complete Join; each call returns a fresh one.
func joinData() link.Join {
	return link.Join{
		APIServer: "https://api.onprem.test:6443", BootstrapToken: "abcdef.0123456789abcdef",
		ClusterCA: []byte("-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"),
		NodeName:  node, ProviderID: "spillway://west/w1/" + burst + "-0",
		Taints: bootstrap.Taints(burst, true), Labels: map[string]string{"spillway.dev/gpu-model": "H100-80", "spillway.dev/capacity": "on-demand"},
		Burst: burst, Tenant: "team-vision", Installation: "onprem-1",
		Controller: "link.onprem.test:9443", ControllerCA: []byte("-----BEGIN CERTIFICATE-----\nTElOSw==\n-----END CERTIFICATE-----\n"),
		Gate: "https://gate.onprem.test:9444", GateCA: []byte("-----BEGIN CERTIFICATE-----\nR0FURQ==\n-----END CERTIFICATE-----\n"),
		Store: "s3.onprem.test:9000", Region: "onprem",
		Lease:    link.SignedLease{Payload: []byte(`{"burst":"` + burst + `"}`), Signature: bytes.Repeat([]byte{7}, 64)},
		LeaseKey: bytes.Repeat([]byte{9}, 32), GPUResource: "nvidia.com/gpu", GPUs: 2,
	}
}

func render(t *testing.T, j link.Join) []byte {
	t.Helper()
	out, err := bootstrap.Render(j)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRenderGolden(t *testing.T) {
	got := render(t, joinData())
	golden := filepath.Join("testdata", "user-data.yaml")
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("user-data has changed (-want +got); run the test with -update if that is meant:\n%s", diff)
	}
}

func TestJoinDataComesBack(t *testing.T) {
	want := joinData()
	got, err := bootstrap.ParseJoin(render(t, want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("join data (-rendered +read):\n%s", diff)
	}
}

// files reads the rendered files by path, and the commands.
func files(t *testing.T, userData []byte) (map[string]string, [][]string) {
	t.Helper()
	var c struct {
		WriteFiles []struct{ Path, Permissions, Content string } `json:"write_files"`
		RunCmd     [][]string                                    `json:"runcmd"`
	}
	if err := yaml.UnmarshalStrict(bytes.ReplaceAll(userData, []byte("owner:"), []byte("#owner:")), &c); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range c.WriteFiles {
		found[f.Path] = f.Content
	}
	return found, c.RunCmd
}

// cases: B-28 kubernetes-sigs/cluster-api#1739, #3030,
// kubernetes-sigs/cluster-api-provider-azure#915
func TestTheOnlySecretIsTheToken(t *testing.T) {
	j := joinData()
	out := string(render(t, j))
	if strings.Contains(out, "PRIVATE KEY") {
		t.Error("user-data holds a private key")
	}
	token := j.BootstrapToken
	j.BootstrapToken = "ghijkl.ghijklghijklghij"
	other := strings.ReplaceAll(string(render(t, j)), j.BootstrapToken, token)
	if diff := cmp.Diff(out, other); diff != "" {
		t.Errorf("the token shows in more than itself (-one +other):\n%s", diff)
	}
	content, _ := files(t, []byte(out))
	for path, text := range content {
		holds := strings.Contains(text, token) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(token)))
		if want := path == "/etc/spillway/join.json" || path == "/etc/kubernetes/spillway-join.yaml"; holds != want {
			t.Errorf("%s holds the token: %v, want %v", path, holds, want)
		}
	}
}

func TestAgentStartsBeforeTheJoin(t *testing.T) {
	content, commands := files(t, render(t, joinData()))
	if len(commands) != 1 || len(commands[0]) != 1 {
		t.Fatalf("commands %q, want the one script", commands)
	}
	script := content[commands[0][0]]
	fence, agent, join := strings.Index(script, "spillway-metadata.service"), strings.Index(script, "spillway-agent.service"), strings.Index(script, "kubeadm join")
	if fence < 0 || agent < fence || join < agent {
		t.Errorf("order of the script: fence at %d, agent at %d, join at %d", fence, agent, join)
	}
	unit := content["/etc/systemd/system/spillway-agent.service"]
	for _, want := range []string{"--join /etc/spillway/join.json", "--front 169.254.77.1:9000", "Restart=always"} {
		if !strings.Contains(unit, want) {
			t.Errorf("the agent's unit lacks %q:\n%s", want, unit)
		}
	}
	if !strings.Contains(content["/etc/spillway/metadata.nft"], "hook forward") || !strings.Contains(content["/etc/spillway/metadata.nft"], "169.254.169.254 drop") {
		t.Error("pods are not kept from the metadata service")
	}
}

func TestScriptIsShell(t *testing.T) {
	content, commands := files(t, render(t, joinData()))
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("the script can't be checked: %v; install a POSIX shell", err)
	}
	check := exec.Command(sh, "-n")
	check.Stdin = strings.NewReader(content[commands[0][0]])
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sh -n: %v: %s", err, out)
	}
}

// cases: B-19 k0rdent/kcm#1077: one string, fixed in advance; B-20
// kubernetes-sigs/cluster-api#8357: no taint of a cloud controller.
func TestNodeRegistersWithFenceAndProviderID(t *testing.T) {
	j := joinData()
	content, _ := files(t, render(t, j))
	var config struct {
		Discovery        struct{ TLSBootstrapToken string }
		NodeRegistration struct {
			Name             string
			Taints           []link.Taint
			KubeletExtraArgs []struct{ Name, Value string }
		}
	}
	if err := yaml.Unmarshal([]byte(content["/etc/kubernetes/spillway-join.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	args := map[string]string{}
	for _, a := range config.NodeRegistration.KubeletExtraArgs {
		args[a.Name] = a.Value
	}
	want := map[string]string{"provider-id": j.ProviderID, "node-labels": "spillway.dev/capacity=on-demand,spillway.dev/gpu-model=H100-80"}
	if diff := cmp.Diff(want, args); diff != "" {
		t.Errorf("kubelet arguments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(bootstrap.Taints(burst, true), config.NodeRegistration.Taints); diff != "" {
		t.Errorf("taints (-want +got):\n%s", diff)
	}
	if config.NodeRegistration.Name != node || config.Discovery.TLSBootstrapToken != j.BootstrapToken {
		t.Errorf("registers as %q with token %q", config.NodeRegistration.Name, config.Discovery.TLSBootstrapToken)
	}
}

func TestRenderRefuses(t *testing.T) {
	tests := map[string]struct {
		edit func(*link.Join)
		want string
	}{
		"a node without the NoExecute fence": {func(j *link.Join) { j.Taints = j.Taints[:1] }, "NoExecute is missing"},
		"a fence of another burst":           {func(j *link.Join) { j.Taints = bootstrap.Taints("other", false) }, "would take any pod"},
		"a label that is not the kubelet's": {func(j *link.Join) {
			j.Labels["spillway.node-restriction.kubernetes.io/burst"] = burst
		}, "put it on the Machine"},
		"a private key in a CA bundle": {func(j *link.Join) {
			j.GateCA = append(j.GateCA, "-----BEGIN EC PRIVATE KEY-----\n"...)
		}, "gate CA holds a private key"},
		"no token":                  {func(j *link.Join) { j.BootstrapToken = "" }, "join token is missing"},
		"no provider id":            {func(j *link.Join) { j.ProviderID = "" }, "provider id is missing"},
		"an API server over http":   {func(j *link.Join) { j.APIServer = "http://api:6443" }, "want https://host:port"},
		"a store without a port":    {func(j *link.Join) { j.Store = "s3.onprem.test" }, "want host:port"},
		"more than a cloud takes":   {func(j *link.Join) { j.ClusterCA = bytes.Repeat([]byte("A"), 40<<10) }, "shorten the certificate bundles"},
		"no burst at all (on-prem)": {func(j *link.Join) { j.Burst = "" }, "burst is missing"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := joinData()
			tt.edit(&j)
			_, err := bootstrap.Render(j)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Render = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestParseJoinRefuses(t *testing.T) {
	for name, data := range map[string]string{
		"a shell script":           "#!/bin/sh\n",
		"somebody else's config":   "#cloud-config\nruncmd: []\n",
		"join data that is cut":    "#cloud-config\nwrite_files:\n- path: /etc/spillway/join.json\n  content: '{\"nodeName\":'\n",
		"yaml that is none at all": "#cloud-config\n\t- :",
	} {
		t.Run(name, func(t *testing.T) {
			if j, err := bootstrap.ParseJoin([]byte(data)); err == nil {
				t.Errorf("ParseJoin = %+v, want an error", j)
			}
		})
	}
}

// endless is a random source whose bytes count up: every run is the same.
type endless struct{ next byte }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.next
		e.next += 7
	}
	return len(p), nil
}

var deadline = time.Date(2026, 3, 1, 10, 15, 0, 0, time.UTC)
