package bootstrap

// agentService runs the agent from before the join until the machine ends. It
// waits by itself for the certificate that the kubelet is about to get. However
// often it fails it is started again: it is the dead-man.
const agentService = `[Unit]
Description=Spillway agent: lease, cache, usage and wipe of this burst node
Before=kubelet.service
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/local/bin/spillway-agent --join ` + joinPath + ` --client-cert /var/lib/kubelet/pki/kubelet-client-current.pem --client-key /var/lib/kubelet/pki/kubelet-client-current.pem --state /var/lib/spillway --front %s --pods /var/lib/spillway/node.sock
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
`

// metadataRules keep pods, and everything on the node that is not root, from
// the cloud's metadata service, where this very file can be read
// (cases: B-28 kubernetes-sigs/cluster-api#1739, #3030).
const metadataRules = `table inet spillway {
	chain pods {
		type filter hook forward priority -10; policy accept;
		ip daddr 169.254.169.254 drop
		ip6 daddr fd00:ec2::254 drop
	}
	chain node {
		type filter hook output priority -10; policy accept;
		meta skuid != 0 ip daddr 169.254.169.254 drop
		meta skuid != 0 ip6 daddr fd00:ec2::254 drop
	}
}
`

// metadataService loads the rules on every boot, before any pod can start.
const metadataService = `[Unit]
Description=Spillway: keep pods from the cloud's metadata service
Before=kubelet.service containerd.service
DefaultDependencies=no
After=local-fs.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f ` + fencePath + `

[Install]
WantedBy=multi-user.target
RequiredBy=kubelet.service
`

// script brings the machine up: fence, agent, join. A step that fails ends the
// machine: nothing half-made stays and costs money.
const script = `#!/bin/sh
set -eu
trap 'status=$?; [ "$status" -eq 0 ] || { echo "spillway: join failed, powering off" >&2; systemctl poweroff; }' EXIT
swapoff -a
ip address replace ` + frontIP + `/32 dev lo
systemctl daemon-reload
systemctl enable --now spillway-metadata.service
systemctl enable --now spillway-agent.service
kubeadm join --config ` + joinConfig + `
rm -f ` + joinConfig + ` ` + kubeconfig + `
mkdir -p /run/cluster-api
echo success >/run/cluster-api/bootstrap-success.complete
`
