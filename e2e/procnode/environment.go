package procnode

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// environment is what a container's process is started with. It never lies on
// disk: Secrets are in it.
type environment struct {
	env  []string // KEY=VALUE, sorted
	argv []string
	path string // PATH in which argv[0] is looked up
}

// environment resolves command, arguments and variables as a kubelet does:
// envFrom, then env in order, $(VAR) from what stands before; the machine's
// own variables first, so that the pod can override them.
func (n *node) environment(ctx context.Context, pod *corev1.Pod, c *container) (environment, error) {
	vars := n.ownVariables(pod, c)
	if err := n.envFrom(ctx, pod, c.spec, vars); err != nil {
		return environment{}, err
	}
	set := maps.Clone(vars)
	for _, e := range c.spec.Env {
		value, ok, err := n.value(ctx, pod, c.spec, e, expansion.MappingFuncFor(set))
		if err != nil {
			return environment{}, err
		}
		if ok {
			set[e.Name] = value
		}
	}
	out := environment{path: set["PATH"]}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		out.env = append(out.env, name+"="+set[name])
	}
	for _, word := range slices.Concat(c.spec.Command, c.spec.Args) {
		out.argv = append(out.argv, expansion.Expand(word, expansion.MappingFuncFor(set)))
	}
	return out, nil
}

// ownVariables are those that the machine gives to every container.
func (n *node) ownVariables(pod *corev1.Pod, c *container) map[string]string {
	gpus := strings.Join(c.gpus, ",")
	vars := map[string]string{
		"PATH":                    os.Getenv("PATH"),
		"HOME":                    n.workDir(pod, c.spec),
		"TMPDIR":                  n.podDir(pod, "tmp"),
		"HOSTNAME":                pod.Name,
		"KUBERNETES_SERVICE_HOST": n.masters[0],
		"KUBERNETES_SERVICE_PORT": n.masters[1],
		"SPILLWAY_GPUS":           gpus,
		"NVIDIA_VISIBLE_DEVICES":  either(gpus, "void"),
	}
	if proxy := n.proxy(); proxy != "" {
		vars["HTTP_PROXY"], vars["http_proxy"] = proxy, proxy
	}
	return vars
}

// workDir is where the container's process starts: its workingDir when the
// host has it, else a folder of its own on the machine's disk.
func (n *node) workDir(pod *corev1.Pod, c *corev1.Container) string {
	if info, err := os.Stat(c.WorkingDir); err == nil && info.IsDir() && filepath.IsAbs(c.WorkingDir) {
		return c.WorkingDir
	}
	return n.podDir(pod, "work", c.Name)
}

func (n *node) envFrom(ctx context.Context, pod *corev1.Pod, c *corev1.Container, vars map[string]string) error {
	for _, from := range c.EnvFrom {
		var data map[string]string
		var err error
		switch {
		case from.SecretRef != nil:
			data, err = n.secret(ctx, pod.Namespace, from.SecretRef.Name, from.SecretRef.Optional)
		case from.ConfigMapRef != nil:
			data, err = n.configMap(ctx, pod.Namespace, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		}
		if err != nil {
			return err
		}
		for key, value := range data {
			vars[from.Prefix+key] = value
		}
	}
	return nil
}

// value is that of one variable; ok is false when it is optional and absent.
func (n *node) value(ctx context.Context, pod *corev1.Pod, c *corev1.Container, e corev1.EnvVar, mapping func(string) string) (value string, ok bool, err error) {
	from := e.ValueFrom
	switch {
	case from == nil:
		return expansion.Expand(e.Value, mapping), true, nil
	case from.FieldRef != nil:
		value, err = n.field(pod, from.FieldRef.FieldPath)
		return value, err == nil, err
	case from.ResourceFieldRef != nil:
		value, err = resource.ExtractContainerResourceValue(from.ResourceFieldRef, c)
		return value, err == nil, err
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		data, err := n.secret(ctx, pod.Namespace, ref.Name, ref.Optional)
		return pick(data, "Secret", ref.Name, ref.Key, ref.Optional, err)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		data, err := n.configMap(ctx, pod.Namespace, ref.Name, ref.Optional)
		return pick(data, "ConfigMap", ref.Name, ref.Key, ref.Optional, err)
	default:
		return "", false, fmt.Errorf("variable %s has a source that a process node doesn't know", e.Name)
	}
}

func pick(data map[string]string, kind, name, key string, optional *bool, err error) (string, bool, error) {
	if err != nil {
		return "", false, err
	}
	value, ok := data[key]
	if !ok && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("couldn't find key %s in %s %s", key, kind, name)
	}
	return value, ok, nil
}

func (n *node) field(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
		return address, nil
	}
	value, err := fieldpath.ExtractFieldPathAsString(pod, path)
	if err != nil {
		return "", fmt.Errorf("field %s: %w", path, err)
	}
	return value, nil
}

// secret reads one Secret's data; an optional one that is absent is empty.
func (n *node) secret(ctx context.Context, namespace, name string, optional *bool) (map[string]string, error) {
	s, err := n.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, absent(err, "Secret", name, optional)
	}
	data := map[string]string{}
	for key, value := range s.Data {
		data[key] = string(value)
	}
	return data, nil
}

func (n *node) configMap(ctx context.Context, namespace, name string, optional *bool) (map[string]string, error) {
	m, err := n.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, absent(err, "ConfigMap", name, optional)
	}
	return m.Data, nil
}

func absent(err error, kind, name string, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}
