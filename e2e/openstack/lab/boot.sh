#!/bin/sh
# The first process of the lab's namespaces: when it ends, everything in them
# ends. What the services write goes to memory and is gone with them; only
# their logs are kept.
# Usage: boot.sh ROOT WORK LOGS 3>PROGRESS
set -eu
root=$1
work=$2
logs=$3
mount --make-rprivate /
mount -t proc proc /proc
hostname lab
mount -t tmpfs -o mode=755 lab "$work"
mkdir "$work/upper" "$work/inner" "$work/root"
mount -t overlay lab -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/inner" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mount --bind "$logs" "$work/root/var/log/lab"
exec chroot "$work/root" /bin/bash /etc/lab/init.sh
