package procnode

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"spillway.dev/spillway/nodeagent/link"
)

// Config is one machine. Each field has the flag named in its comment.
type Config struct {
	// Exec is the command that runs [Main], before the flags. [Start] only.
	Exec []string

	Dir  string // --dir: the machine's folder; required
	Join string // --join FILE: join data; a burst machine's identity comes from it

	Name       string            // --name: node name; overrides the join data's
	APIServer  string            // --api-server: https URL; overrides
	CA         string            // --ca FILE: the cluster's authority (PEM); overrides
	ClientCert string            // --client-cert FILE: node identity of an on-prem machine (PEM)
	ClientKey  string            // --client-key FILE: its key (PEM)
	ProviderID string            // --provider-id; overrides
	Labels     map[string]string // --label KEY=VALUE, repeatable; added
	Taints     []link.Taint      // --taint KEY=VALUE:EFFECT, repeatable; added

	GPUs        int           // --gpus: number of devices; default: the join data's
	GPUResource string        // --gpu-resource; default: the join data's, or nvidia.com/gpu
	GPUModel    string        // --gpu-model: reported for each device
	GPUDelay    time.Duration // --gpu-delay: the node is Ready this long before its GPUs are allocatable
	CPU         string        // --cpu: quantity, default 16
	Memory      string        // --memory: quantity, default 64Gi
	MaxPods     int           // --max-pods, default 110

	StoreHost string // --store-host: the store's NAME or NAME:PORT as jobs write it; default: the join data's
	StoreAddr string // --store-addr: IP that it means on this machine; default: the front's
	Front     string // --front ADDR:PORT of the agent's S3 front, burst only; default: a free 127.x.y.z, the store's port
	Agent     string // --agent PATH of spillway-agent; none: no agent; needs Join, on-prem too

	JoinDeadline time.Duration // --join-deadline, from the start of the process; default 5m
	Heartbeat    time.Duration // --heartbeat: between lease renewals; default 10s
	// NoNamespaces (--no-namespaces) runs pods as plain processes, as on a
	// kernel that refuses namespaces: no own /etc/hosts, but HTTP_PROXY points
	// at the store's address; what a pod left running may survive a SIGKILL
	// of the machine.
	NoNamespaces bool

	joined    link.Join // the content of Join
	storePort string
}

const (
	defaultGPUResource  = "nvidia.com/gpu"
	defaultHeartbeat    = 10 * time.Second
	defaultJoinDeadline = 5 * time.Minute
	defaultMaxPods      = 110
)

// flags binds every field to its flag.
func (c *Config) flags(out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("process node", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&c.Dir, "dir", "", "the machine's `folder`")
	f.StringVar(&c.Join, "join", "", "join data `file`")
	f.StringVar(&c.Name, "name", "", "node `name`")
	f.StringVar(&c.APIServer, "api-server", "", "`URL` of the API server")
	f.StringVar(&c.CA, "ca", "", "`file` with the cluster's authority")
	f.StringVar(&c.ClientCert, "client-cert", "", "`file` with the node's client certificate")
	f.StringVar(&c.ClientKey, "client-key", "", "`file` with its key")
	f.StringVar(&c.ProviderID, "provider-id", "", "provider `ID` of the node")
	f.Func("label", "`KEY=VALUE` for the node, repeatable", c.addLabel)
	f.Func("taint", "`KEY=VALUE:EFFECT` for the node, repeatable", c.addTaint)
	f.IntVar(&c.GPUs, "gpus", 0, "`number` of GPUs")
	f.StringVar(&c.GPUResource, "gpu-resource", "", "resource `name` of the GPUs")
	f.StringVar(&c.GPUModel, "gpu-model", "process-gpu", "`model` of the GPUs")
	f.DurationVar(&c.GPUDelay, "gpu-delay", 0, "time from Ready to allocatable GPUs")
	f.StringVar(&c.CPU, "cpu", "16", "CPU `quantity`")
	f.StringVar(&c.Memory, "memory", "64Gi", "memory `quantity`")
	f.IntVar(&c.MaxPods, "max-pods", defaultMaxPods, "`number` of pods")
	f.StringVar(&c.StoreHost, "store-host", "", "`name` of the store as jobs write it")
	f.StringVar(&c.StoreAddr, "store-addr", "", "`IP` address that the name means here")
	f.StringVar(&c.Front, "front", "", "`address:port` of the agent's S3 front")
	f.StringVar(&c.Agent, "agent", "", "`path` of spillway-agent")
	f.DurationVar(&c.JoinDeadline, "join-deadline", defaultJoinDeadline, "give up joining after this time")
	f.DurationVar(&c.Heartbeat, "heartbeat", defaultHeartbeat, "time between lease renewals")
	f.BoolVar(&c.NoNamespaces, "no-namespaces", false, "run pods as plain processes")
	return f
}

func (c *Config) addLabel(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("label %q is not KEY=VALUE", s)
	}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels[key] = value
	return nil
}

func (c *Config) addTaint(s string) error {
	rest, effect, ok := cutLast(s, ":")
	key, value, _ := strings.Cut(rest, "=")
	if !ok || key == "" || !slices.Contains([]string{"NoSchedule", "PreferNoSchedule", "NoExecute"}, effect) {
		return fmt.Errorf("taint %q is not KEY=VALUE:EFFECT with the effect NoSchedule, PreferNoSchedule or NoExecute", s)
	}
	c.Taints = append(c.Taints, link.Taint{Key: key, Value: value, Effect: effect})
	return nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// args is the inverse of parse: the flags that make this Config.
func (c Config) args() []string {
	var out []string
	add := func(name, value string) {
		if value != "" {
			out = append(out, "--"+name+"="+value)
		}
	}
	number := func(name string, value int) {
		if value != 0 {
			add(name, strconv.Itoa(value))
		}
	}
	duration := func(name string, value time.Duration) {
		if value != 0 {
			add(name, value.String())
		}
	}
	for _, f := range []struct{ name, value string }{
		{"dir", c.Dir},
		{"join", c.Join},
		{"name", c.Name},
		{"api-server", c.APIServer},
		{"ca", c.CA},
		{"client-cert", c.ClientCert},
		{"client-key", c.ClientKey},
		{"provider-id", c.ProviderID},
		{"gpu-resource", c.GPUResource},
		{"gpu-model", c.GPUModel},
		{"cpu", c.CPU},
		{"memory", c.Memory},
		{"store-host", c.StoreHost},
		{"store-addr", c.StoreAddr},
		{"front", c.Front},
		{"agent", c.Agent},
	} {
		add(f.name, f.value)
	}
	for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
		add("label", key+"="+c.Labels[key])
	}
	for _, t := range c.Taints {
		add("taint", t.Key+"="+t.Value+":"+t.Effect)
	}
	number("gpus", c.GPUs)
	number("max-pods", c.MaxPods)
	duration("gpu-delay", c.GPUDelay)
	duration("join-deadline", c.JoinDeadline)
	duration("heartbeat", c.Heartbeat)
	if c.NoNamespaces {
		out = append(out, "--no-namespaces")
	}
	return out
}

// parse reads the flags and checks what can be checked without looking at
// anything else.
func parse(args []string, out io.Writer) (Config, error) {
	var c Config
	f := c.flags(out)
	if err := f.Parse(args); err != nil {
		return Config{}, err
	}
	switch {
	case f.NArg() > 0:
		return Config{}, fmt.Errorf("unexpected argument %q: everything is a flag", f.Arg(0))
	case c.Dir == "":
		return Config{}, errors.New("--dir is missing: give the machine a folder of its own")
	case (c.ClientCert == "") != (c.ClientKey == ""):
		return Config{}, errors.New("--client-cert and --client-key belong together: give both or neither")
	case c.ClientCert == "" && c.Join == "":
		return Config{}, errors.New("no identity: give --client-cert and --client-key (on-prem) or --join (burst)")
	case c.Agent != "" && c.Join == "":
		return Config{}, errors.New("--agent needs --join: the agent learns from it where its controller is")
	}
	return c, nil
}

// complete reads the join data and fills what the flags left open.
func complete(c Config) (Config, error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return Config{}, fmt.Errorf("machine folder %s: %w", c.Dir, err)
	}
	c.Dir = dir
	if c.Join != "" {
		data, err := os.ReadFile(c.Join)
		if err != nil {
			return Config{}, fmt.Errorf("join data: %w", err)
		}
		if err := json.Unmarshal(data, &c.joined); err != nil {
			return Config{}, fmt.Errorf("join data %s is not readable: %w: boot the machine again with fresh join data", c.Join, err)
		}
	}
	j := c.joined
	c.Name = either(c.Name, j.NodeName)
	c.APIServer = either(c.APIServer, j.APIServer)
	c.ProviderID = either(c.ProviderID, j.ProviderID)
	c.GPUResource = either(c.GPUResource, either(j.GPUResource, defaultGPUResource))
	if c.GPUs == 0 {
		c.GPUs = j.GPUs
	}
	c.Taints = append(slices.Clone(j.Taints), c.Taints...)
	labels := map[string]string{}
	maps.Copy(labels, j.Labels)
	maps.Copy(labels, c.Labels)
	c.Labels = labels
	if c.CA != "" {
		if c.joined.ClusterCA, err = os.ReadFile(c.CA); err != nil {
			return Config{}, fmt.Errorf("the cluster's authority: %w", err)
		}
	}
	for name, missing := range map[string]bool{
		"--name": c.Name == "", "--api-server": c.APIServer == "", "--ca": len(c.joined.ClusterCA) == 0,
	} {
		if missing {
			return Config{}, fmt.Errorf("%s is missing: neither the flags nor the join data have it", name)
		}
	}
	return placeFront(c)
}

// placeFront decides where the agent's front listens and what the store's name
// means on this machine.
func placeFront(c Config) (Config, error) {
	store := either(c.StoreHost, c.joined.Store)
	host, port, err := net.SplitHostPort(store)
	if err != nil {
		host, port = store, ""
	}
	c.StoreHost, c.storePort = host, port
	if c.Front != "" && port == "" {
		_, c.storePort, _ = net.SplitHostPort(c.Front) // checked below
	}
	if c.Front == "" && c.burst() && port != "" {
		if c.Front, err = freeFront(c.Name, port); err != nil {
			return Config{}, err
		}
	}
	if c.StoreAddr == "" && c.Front != "" {
		if c.StoreAddr, _, err = net.SplitHostPort(c.Front); err != nil {
			return Config{}, fmt.Errorf("--front %q is not address:port: %w", c.Front, err)
		}
	}
	if c.StoreAddr != "" && net.ParseIP(c.StoreAddr) == nil {
		return Config{}, fmt.Errorf("--store-addr %q is no IP address: /etc/hosts needs one", c.StoreAddr)
	}
	return c, nil
}

// burst says that the identity comes from the join data.
func (c Config) burst() bool { return c.ClientCert == "" }

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (c Config) disk(elem ...string) string {
	return filepath.Join(append([]string{c.Dir, "disk"}, elem...)...)
}
