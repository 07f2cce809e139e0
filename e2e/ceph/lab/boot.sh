#!/bin/sh
# The first process of the lab's namespaces: when it ends, everything in them
# ends. All that the daemons write lies in WORK, the logs in LOGS.
# Usage: boot.sh ROOT WORK LOGS MON2 MON1 GATEWAY NAME 3>PROGRESS
set -eu
root=$1
work=$2
logs=$3
shift 3
mount --make-rprivate /
mount -t proc proc /proc
hostname lab
mkdir "$work/upper" "$work/inner" "$work/root" "$work/ceph"
mount -t overlay lab -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/inner" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mkdir -p "$work/root/lab"
mount --bind "$work/ceph" "$work/root/lab"
mount --bind "$logs" "$work/root/var/log/lab"
exec chroot "$work/root" /bin/bash /etc/lab/init.sh "$@"
