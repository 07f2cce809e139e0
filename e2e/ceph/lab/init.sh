#!/bin/bash
# Makes a cluster from nothing, starts it and stays to bury what ends: a daemon
# that ends takes the lab with it, by name.
# Usage: init.sh MON2 MON1 GATEWAY NAME 3>PROGRESS
set -eu
export HOME=/root LANG=C.UTF-8
declare -A names
fsid=$(cat /proc/sys/kernel/random/uuid)
sed -e "s/@FSID@/$fsid/" -e "s/@MON2@/$1/" -e "s/@MON1@/$2/" -e "s/@GATEWAY@/$3/" -e "s/@NAME@/$4/" /etc/lab/ceph.conf >/etc/ceph/ceph.conf

start() {
	local name=$1
	shift
	"$@" --setuser root --setgroup root >"/var/log/lab/$name.out" 2>&1 </dev/null 3>&- &
	names[$!]=$name
}

died() {
	echo "died ${names[$1]}" >&3
	exit 1
}

alive() {
	for pid in "${!names[@]}"; do
		kill -0 "$pid" 2>/dev/null || died "$pid"
	done
}

key() { # NAME CAP...
	ceph-authtool /lab/keyring --gen-key -n "$@" >/dev/null
}
ceph-authtool --create-keyring /lab/keyring >/dev/null
key mon. --cap mon 'allow *'
key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
key osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
key client.rgw.a --cap mon 'allow rw' --cap osd 'allow rwx'
monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$1,v1:127.0.0.1:$2]" /lab/monmap >/dev/null
ceph-mon --mkfs -i a --monmap /lab/monmap --keyring /lab/keyring
start mon.a ceph-mon -f -i a
disk=$(cat /proc/sys/kernel/random/uuid)
until ceph --connect-timeout 5 osd new "$disk" >/dev/null 2>&1; do
	alive
	sleep 0.1
done
mkdir /lab/osd.0 /lab/rgw
ceph-osd -i 0 --mkfs --osd-uuid "$disk" --setuser root --setgroup root >/var/log/lab/osd.0.mkfs 2>&1
start osd.0 ceph-osd -f -i 0
start rgw.a radosgw -f -n client.rgw.a
until (: >"/dev/tcp/127.0.0.1/$3") 2>/dev/null; do
	alive
	sleep 0.1
done
echo ready >&3
while wait -n -p pid; do
	[ -z "${names[$pid]:-}" ] || died "$pid"
done
[ -z "${names[${pid:-0}]:-}" ] || died "$pid"
