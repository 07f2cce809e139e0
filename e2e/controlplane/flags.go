package controlplane

import (
	"fmt"
	"strings"
)

func (c *ControlPlane) etcdArgs() []string {
	client := fmt.Sprintf("https://%s:%d", loopback, c.ports.etcd)
	peer := fmt.Sprintf("http://%s:%d", loopback, c.ports.peer)
	return []string{
		"--name=default",
		"--data-dir=" + c.file("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--client-cert-auth",
		"--trusted-ca-file=" + c.file("pki", "etcd-ca.crt"),
		"--cert-file=" + c.file("pki", "etcd-server.crt"),
		"--key-file=" + c.file("pki", "etcd-server.key"),
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func (c *ControlPlane) apiserverArgs() []string {
	args := []string{
		fmt.Sprintf("--etcd-servers=https://%s:%d", loopback, c.ports.etcd),
		"--etcd-cafile=" + c.file("pki", "etcd-ca.crt"),
		"--etcd-certfile=" + c.file("pki", "etcd-client.crt"),
		"--etcd-keyfile=" + c.file("pki", "etcd-client.key"),
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--endpoint-reconciler-type=none", // loopback is no valid endpoint
		fmt.Sprintf("--secure-port=%d", c.ports.api),
		"--tls-cert-file=" + c.file("pki", "apiserver.crt"),
		"--tls-private-key-file=" + c.file("pki", "apiserver.key"),
		"--client-ca-file=" + c.file("pki", "ca.crt"),
		"--kubelet-client-certificate=" + c.file("pki", "kubelet-client.crt"),
		"--kubelet-client-key=" + c.file("pki", "kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.file("pki", "service-account.key"),
		"--service-account-signing-key-file=" + c.file("pki", "service-account.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth",
		"--profiling=false",
	}
	if len(c.config.Gates) > 0 {
		args = append(args, "--runtime-config=api/beta=true")
	}
	return append(args, c.gateArgs()...)
}

// gateArgs turn on the features that the configuration asks for.
func (c *ControlPlane) gateArgs() []string {
	args := make([]string, 0, len(c.config.Gates))
	for _, gate := range c.config.Gates {
		args = append(args, "--feature-gates="+gate+"=true")
	}
	return args
}

// managerArgs are those of the controller manager and the scheduler. Neither
// serves anything, and with one of each there is no leader to elect.
func (c *ControlPlane) managerArgs(name string) []string {
	kubeconfig := c.file("pki", name+".kubeconfig")
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--secure-port=0",
		"--leader-elect=false",
		"--kube-api-qps=200", // the controllers start one after the other
		"--kube-api-burst=400",
		"--profiling=false",
	}
	args = append(args, c.gateArgs()...)
	if name == "kube-scheduler" && c.config.Extender != "" {
		args = append(args, "--config="+c.file("scheduler.yaml"))
	}
	if name != "kube-controller-manager" {
		return args
	}
	return append(args,
		"--controllers="+strings.Join([]string{"*", "bootstrap-signer-controller", "token-cleaner-controller"}, ","),
		"--use-service-account-credentials",
		"--service-account-private-key-file="+c.file("pki", "service-account.key"),
		"--root-ca-file="+c.file("pki", "ca.crt"),
		"--cluster-signing-cert-file="+c.file("pki", "ca.crt"),
		"--cluster-signing-key-file="+c.file("pki", "ca.key"),
	)
}

// schedulerConfig is the default profile with one extender behind its filters.
func (c *ControlPlane) schedulerConfig() []byte {
	return fmt.Appendf(nil, `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: %s, qps: 1000, burst: 2000}
leaderElection: {leaderElect: false}
percentageOfNodesToScore: 100
extenders:
- {urlPrefix: %s, filterVerb: filter, nodeCacheCapable: true, httpTimeout: 30s}
`, c.file("pki", "kube-scheduler.kubeconfig"), c.config.Extender)
}
